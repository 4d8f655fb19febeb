"""V1 checkpoints: one table or several, sliced variables, every type they hold, damage."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from ckpttool.errors import CheckpointError, CorruptCheckpointError, ReaderClosedError, UnsupportedError
from ckpttool.formats import _tensor_proto
from ckpttool.formats._bundle import slice_key
from ckpttool.opening import open_checkpoint

from ..manifest import FILES, entry, names
from ..tensorflow_files import message, number, shape, table, varint
from .test_tf_checkpoint import described, digest, opened, paths, read_all

V1 = names(lambda name, each: "v1" in each["tags"] and "stored" in each)


@pytest.mark.parametrize("name", V1)
def test_names_shapes_types_and_values_are_those_of_tensorflow(name: str) -> None:
    found = read_all(opened(name))
    assert described(opened(name)).format == "tf-checkpoint-v1"
    for each in entry(name)["stored"]:
        if "/part_" in each["key"]:
            continue  # joined: `whole` of the manifest has its values
        got = found[each["key"]]
        assert (list(got[0]), got[1]) == (each["shape"], each["dtype"])
        if each["sha256"] is not None:  # TensorFlow's reader itself gives no slices, no bool and no complex values here
            assert got[2] == each["sha256"], each["key"]


def test_what_tensorflow_does_not_give_is_what_the_v2_twin_holds() -> None:
    old, new = read_all(FILES / "tf-1.15-dtypes-v1"), read_all(FILES / "tf-1.15-dtypes")
    assert set(old) <= set(new)
    for key, found in old.items():
        assert found == new[key]
    assert {found[1] for found in old.values()} >= {"bool", "complex64", "complex128", "string", "int64", "uint16"}


class TestWaysIn:
    @pytest.mark.parametrize(
        "name", ["tf-1.15-sharded-v1", "tf-1.15-sharded-v1-00000-of-00002", "tf-1.15-sharded-v1-00001-of-00002"]
    )
    def test_any_shard_and_their_prefix(self, name: str) -> None:
        assert len(paths(described(FILES / name))) == 6

    def test_a_folder_of_one(self, tmp_path: Path) -> None:
        for number_ in range(2):
            shutil.copy(FILES / f"tf-1.15-sharded-v1-0000{number_}-of-00002", tmp_path / f"x-0000{number_}-of-00002")
        assert len(paths(described(tmp_path))) == 6
        (tmp_path / "x-00001-of-00002").unlink()
        checkpoint = described(tmp_path / "x")
        assert len(paths(checkpoint)) == 3
        assert [each.code for each in checkpoint.warnings] == ["missing-shard"]

    def test_a_state_file(self, tmp_path: Path) -> None:
        shutil.copy(FILES / "tf-1.15-v1", tmp_path / "model-3")
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model-3"\n')
        assert "image_embedding/kernel" in paths(described(tmp_path))

    def test_a_closed_reader_refuses(self) -> None:
        with open_checkpoint(FILES / "tf-1.15-v1") as reader:
            spec = next(reader.describe().weights())
            assert reader.extent(spec) is None
        for refused in (reader.describe, lambda: reader.read(spec)):
            with pytest.raises(ReaderClosedError):
                refused()


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    whole = (FILES / "tf-1.15-v1").read_bytes()
    copy = tmp_path / "copy"
    for place in range(len(whole)):
        copy.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(CheckpointError) as caught:
            read_all(copy)
        assert caught.value.code == 3, place


def v1_file(path: Path, meta: list[bytes], data: dict[bytes, bytes]) -> Path:
    head = message(1, *(message(1, each) for each in meta))
    path.write_bytes(table([[(b"", head), *sorted((key, message(2, value)) for key, value in data.items())]]))
    return path


def tensor(name: str, axes: tuple[int, ...], dtype: int, *slices: bytes) -> bytes:
    return (
        message(1, name.encode())
        + message(2, shape(*axes))
        + number(3, dtype)
        + b"".join(message(4, s) for s in slices)
    )


ROWS = [((0, 2), (0, 2)), ((2, 1), (0, 2))]


def bounds(box: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(message(1, number(1, start), number(2, length)) for start, length in box)


def floats(*values: float) -> bytes:
    return message(1, b"x") + message(3, message(5, struct.pack(f"<{len(values)}f", *values)))


class TestHandMade:
    def test_slices_of_rows(self, tmp_path: Path) -> None:
        file = v1_file(
            tmp_path / "v",
            [tensor("x", (3, 2), 1, *map(bounds, ROWS))],
            {slice_key("x", ROWS[0]): floats(1, 2, 3, 4), slice_key("x", ROWS[1]): floats(5, 6)},
        )
        with open_checkpoint(file) as reader:
            spec = next(reader.describe().weights())
            assert reader.read(spec).tolist() == [[1, 2], [3, 4], [5, 6]]
            assert [block.tolist() for block in reader.iter_blocks(spec, 8)] == [[1, 2], [3, 4], [5, 6]]

    @pytest.mark.parametrize(
        "change", ["missing", "short", "long", "gap", "twice", "nothing", "two-shapes", "huge", "negative"]
    )
    def test_contradictions_are_errors(self, tmp_path: Path, change: str) -> None:
        boxes, data = list(ROWS), {slice_key("x", ROWS[0]): floats(1, 2, 3, 4), slice_key("x", ROWS[1]): floats(5, 6)}
        meta = [tensor("x", (3, 2), 1, *map(bounds, boxes))]
        if change == "missing":
            del data[slice_key("x", ROWS[1])]
        elif change in ("short", "long"):
            data[slice_key("x", ROWS[1])] = floats(5) if change == "short" else floats(5, 6, 7)
        elif change == "gap":
            meta = [tensor("x", (4, 2), 1, *map(bounds, boxes))]
        elif change == "twice":
            meta = [tensor("x", (3, 2), 1, *map(bounds, [boxes[0], boxes[0]]))]
        elif change == "nothing":
            data[slice_key("x", ROWS[1])] = message(1, b"x")
        elif change == "two-shapes":
            meta.append(tensor("x", (3, 3), 1, bounds(boxes[0])))
        elif change == "huge":
            meta = [tensor("x", (2**40,), 1, message(1))]
        else:
            meta = [tensor("x", (-3, 2), 1)]
        file = v1_file(tmp_path / "v", meta, data)
        with pytest.raises(CorruptCheckpointError):
            read_all(file)

    def test_a_type_that_is_not_read_is_listed(self, tmp_path: Path) -> None:
        file = v1_file(tmp_path / "v", [tensor("x", (2,), 11, message(1))], {slice_key("x", ((0, -1),)): floats(1)})
        spec = next(described(file).weights())
        assert spec.dtype == "qint8(11)"
        with open_checkpoint(file) as reader, pytest.raises(UnsupportedError):
            reader.read(spec)


class TestTensorProto:
    @pytest.mark.parametrize(
        ("dtype", "data", "values"),
        [
            ("float32", number(5, 0).replace(b"\x28\x00", b"\x2d") + struct.pack("<f", 1.5), [1.5]),
            ("float32", message(4, struct.pack("<2f", 1, 2)), [1, 2]),
            ("float64", message(6, struct.pack("<2d", 1, 2)), [1, 2]),
            ("int8", message(7, *(varint(value & (2**64 - 1)) for value in (-128, 127, -1))), [-128, 127, -1]),
            ("int32", number(7, -5) + number(7, 6), [-5, 6]),
            ("uint8", message(7, varint(255), varint(0)), [255, 0]),
            ("int64", message(10, varint(-(2**63) & (2**64 - 1)), varint(2**63 - 1)), [-(2**63), 2**63 - 1]),
            ("uint64", message(17, varint(2**64 - 1)), [2**64 - 1]),
            ("bool", message(11, b"\1\0\1"), [True, False, True]),
            ("float16", message(13, varint(0x3C00)), [1.0]),
            ("bfloat16", message(13, varint(0x3F80)), [1.0]),
            ("complex64", message(9, struct.pack("<4f", 1, 2, 3, 4)), [1 + 2j, 3 + 4j]),
            ("complex128", message(12, struct.pack("<2d", 1, 2)), [1 + 2j]),
        ],
    )
    def test_each_type_in_its_field(self, dtype: str, data: bytes, values: list[object]) -> None:
        found = _tensor_proto.decode(data, dtype, len(values))
        assert found.tolist() == values

    def test_text(self) -> None:
        assert _tensor_proto.texts(message(8, b"a") + message(8), 2).tolist() == [b"a", b""]
        with pytest.raises(CorruptCheckpointError):
            _tensor_proto.texts(message(8, b"a"), 2)

    @pytest.mark.parametrize("data", [b"\x80", b"\x80" * 10 + b"\1", b"\1\x80"])
    def test_cut_or_endless_numbers_are_errors(self, data: bytes) -> None:
        with pytest.raises(CorruptCheckpointError):
            _tensor_proto.varints(data)

    def test_varints_of_all_lengths(self) -> None:
        values = [0, 1, 127, 128, 300, 2**21, 2**35, 2**63, 2**64 - 1]
        assert _tensor_proto.varints(b"".join(map(varint, values))).tolist() == values
        assert _tensor_proto.varints(b"").size == 0


@pytest.mark.parametrize("name", V1)
def test_blocks_join_to_the_whole(name: str) -> None:
    with open_checkpoint(opened(name)) as reader:
        for spec in reader.describe().weights():
            if spec.dtype != "string":
                whole = reader.read(spec)
                blocks = list(reader.iter_blocks(spec, 24))
                assert digest(np.concatenate(blocks) if blocks else whole) == digest(whole.reshape(-1))
