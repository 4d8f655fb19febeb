"""Damaged and hostile V2 checkpoints: each fault is found, named, and costs neither time nor memory."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from ckpttool.checksums import crc32c, masked
from ckpttool.copying import copy_tensor
from ckpttool.errors import (
    CheckpointError,
    CorruptCheckpointError,
    LayerNotFoundError,
    LimitExceededError,
    UnreadableError,
    UnsupportedError,
)
from ckpttool.formats import _bundle, _object_graph
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint
from ckpttool.reading import ReadOptions
from ckpttool.selecting import find_layer

from ..manifest import FILES
from ..tensorflow_files import entry as bundle_entry
from ..tensorflow_files import header, message, number, shape, table, text_bytes, write_bundle
from .test_tf_checkpoint import described, paths


class TestDamage:
    @pytest.fixture
    def prefix(self, tmp_path: Path) -> Path:
        for file in FILES.glob("tf-2.10-towers-checkpoint.*"):
            shutil.copy(file, tmp_path / file.name.replace("tf-2.10-towers-checkpoint", "m"))
        return tmp_path / "m"

    def test_a_changed_byte_of_the_data_fails_its_tensor_alone(self, prefix: Path) -> None:
        data = Path(f"{prefix}.data-00000-of-00001")
        whole = data.read_bytes()
        bundle = _bundle.Bundle(Path(f"{prefix}.index"), str(prefix), Limits())
        chance = random.Random(3)
        with open_checkpoint(prefix) as reader:
            before = reader.describe()
        specs = [*before.weights(), *before.loose]
        for spec in chance.sample(specs, 12):
            place = bundle.entries[spec.locator]
            at = place.offset + chance.randrange(place.size)
            data.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with open_checkpoint(prefix) as reader:
                for other in specs:
                    if other is spec:
                        with pytest.raises(CorruptCheckpointError, match="checksum does not fit") as caught:
                            reader.read(other)
                        assert spec.locator in str(caught.value)
                        with (prefix.parent / "out").open("wb") as out, pytest.raises(CorruptCheckpointError):
                            copy_tensor(reader, other, out.fileno(), 0)
                    else:
                        reader.read(other)
            with open_checkpoint(prefix, read=ReadOptions(checksums=False)) as reader:
                assert reader.read(spec).shape == spec.shape
        data.write_bytes(whole)

    def test_a_changed_byte_of_the_object_graph_is_found(self, prefix: Path) -> None:
        data = Path(f"{prefix}.data-00000-of-00001")
        whole = data.read_bytes()
        at = whole.index(b"VARIABLE_VALUE")
        data.write_bytes(whole[:at] + b"v" + whole[at + 1 :])
        with pytest.raises(CorruptCheckpointError, match="_CHECKPOINTABLE_OBJECT_GRAPH"):
            described(prefix)

    def test_a_missing_shard_is_told_and_the_rest_is_read(self, tmp_path: Path) -> None:
        for file in FILES.glob("tf-1.15-sequential-tf-checkpoint.*"):
            shutil.copy(file, tmp_path / file.name)
        prefix = tmp_path / "tf-1.15-sequential-tf-checkpoint"
        shards = sorted(tmp_path.glob("*.data-*"))
        assert len(shards) == 2
        graph = _bundle.Bundle(Path(f"{prefix}.index"), str(prefix), Limits()).entries[_object_graph.KEY].shard
        other = shards[1 - graph]
        other.rename(tmp_path / "kept")
        checkpoint = described(prefix)
        assert "image_embedding/kernel" in paths(checkpoint)
        notice = next(each for each in checkpoint.warnings if each.code == "missing-shard")
        assert other.name in notice.message
        with open_checkpoint(prefix) as reader, pytest.raises(UnreadableError, match="missing"):
            for spec in checkpoint.weights():
                reader.read(spec)
        (tmp_path / "kept").rename(other)
        shards[graph].unlink()  # its names are gone with the object graph, and that is said
        checkpoint = described(prefix)
        assert {each.code for each in checkpoint.warnings} >= {"missing-shard", "no-object-graph"}
        assert "model/layer_with_weights-1/kernel" in paths(checkpoint)
        with pytest.raises(LayerNotFoundError, match="the data file with the object graph is missing"):
            find_layer(checkpoint, "image_embedding")

    def test_a_truncated_shard_is_told(self, prefix: Path) -> None:
        data = Path(f"{prefix}.data-00000-of-00001")
        graph = described(prefix)
        data.write_bytes(data.read_bytes()[:-200])
        with pytest.raises(CorruptCheckpointError, match="truncated"):  # the graph is the last of it
            described(prefix)
        assert graph.layers
        write_bundle(prefix, {"a": ((2,), bytes(8)), "b": ((2,), bytes(8))})
        data.write_bytes(bytes(12))
        checkpoint = described(prefix)
        assert [each.code for each in checkpoint.warnings] == ["short-shard"]
        with open_checkpoint(prefix) as reader:
            first, second = checkpoint.weights()
            assert reader.read(first).tolist() == [0, 0]
            with pytest.raises(CorruptCheckpointError, match=r"b: .* truncated"):
                reader.read(second)

    def test_a_cut_or_wrong_index_is_an_error_with_its_name(self, prefix: Path) -> None:
        index = Path(f"{prefix}.index")
        whole = index.read_bytes()
        for length in (0, 1, 47, 48, 100, len(whole) - 1):
            index.write_bytes(whole[:length])
            with pytest.raises(CheckpointError) as caught:
                described(prefix)
            assert caught.value.code == 3
            assert str(prefix) in str(caught.value)


def write(path: Path, *entries: tuple[bytes, bytes], head: bytes | None = None, data: bytes = bytes(64)) -> Path:
    prefix = path / "h"
    Path(f"{prefix}.index").write_bytes(table([[(b"", header() if head is None else head), *entries]]))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


class TestHostile:
    @pytest.mark.parametrize(
        "value",
        [
            bundle_entry((2,), 9, 0),  # bytes that do not fit the shape
            bundle_entry((2**40, 2**40), 8, 0),
            bundle_entry((2,), 8, 0, shard=1),
            bundle_entry((2,), 8, 0, shard=-1),
            bundle_entry((2,), 8, 0, offset=-8),
            bundle_entry((2,), -8, 0),
            bundle_entry((-2,), 8, 0),
            bundle_entry((2,), 8, 0)[:-1],
            bundle_entry((2,), 8, 0)[:-4] + b"\x0b",
            number(1, 1) + b"\x12\xff\x01",
            number(1, 1) + b"\x12",
            number(1, 1) + message(2, number(3, 1)),
        ],
    )
    def test_entries_that_cannot_be_are_errors(self, tmp_path: Path, value: bytes) -> None:
        with pytest.raises(CorruptCheckpointError, match="entry of 'x'"):
            described(write(tmp_path, (b"x", value)))

    @pytest.mark.parametrize("head", [number(1, 0), b"", number(1, 10**6), number(1, -1), number(1, 1) + number(2, 3)])
    def test_headers_that_cannot_be_are_errors(self, tmp_path: Path, head: bytes) -> None:
        with pytest.raises(CheckpointError) as caught:
            described(write(tmp_path, head=head))
        assert caught.value.code == 3

    def test_a_newer_version_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedError, match="version 9"):
            described(write(tmp_path, head=number(1, 1) + message(3, number(1, 9), number(2, 9))))

    def test_an_offset_behind_the_file_is_listed_and_not_read(self, tmp_path: Path) -> None:
        prefix = write(tmp_path, (b"x", bundle_entry((2,), 8, 0, offset=2**62)))
        checkpoint = described(prefix)
        assert [each.code for each in checkpoint.warnings] == ["short-shard"]
        with open_checkpoint(prefix) as reader, pytest.raises(CorruptCheckpointError, match="truncated"):
            reader.read(next(checkpoint.weights()))

    def test_a_terabyte_that_is_not_there_reserves_nothing(self, tmp_path: Path) -> None:
        prefix = write(tmp_path, (b"x", bundle_entry((2**38,), 2**40, 0)))
        with open_checkpoint(prefix) as reader, pytest.raises(CorruptCheckpointError):
            list(reader.iter_blocks(next(reader.describe().weights())))
        prefix = write(tmp_path, (b"x", bundle_entry((2**43,), 2**45, 0)))
        with open_checkpoint(prefix) as reader, pytest.raises(LimitExceededError):
            list(reader.iter_blocks(next(reader.describe().weights())))

    @pytest.mark.parametrize("dtype", [11, 20, 21, 29, 99])
    def test_types_that_are_not_read_are_listed_with_their_number(self, tmp_path: Path, dtype: int) -> None:
        prefix = write(tmp_path, (b"x", bundle_entry((2,), 8, 0, dtype=dtype)))
        spec = next(described(prefix).weights())
        assert spec.dtype.endswith(f"({dtype})")
        with open_checkpoint(prefix) as reader, pytest.raises(UnsupportedError, match=f"\\({dtype}\\)"):
            reader.read(spec)

    @pytest.mark.parametrize("change", ["lengths", "count", "checksum", "text"])
    def test_damaged_texts_are_errors(self, tmp_path: Path, change: str) -> None:
        data, crc = text_bytes([b"one", b"", b"three"])
        count = 3
        if change == "lengths":
            data = b"\x04" + data[1:]
        elif change == "count":
            count = 2**40
        elif change == "checksum":
            data = data[:3] + bytes([data[3] ^ 1]) + data[4:]
        else:
            data = data[:-1] + b"X"
        prefix = write(tmp_path, (b"x", bundle_entry((count,), len(data), crc, dtype=7)), data=data)
        with open_checkpoint(prefix) as reader, pytest.raises(CorruptCheckpointError):
            reader.read(next(reader.describe().weights()))

    def test_names_that_are_no_utf8_are_kept_apart(self, tmp_path: Path) -> None:
        value = bundle_entry((), 4, masked(crc32c(bytes(4))))
        prefix = write(tmp_path, (b"\xff\n\x1b[31m", value), (b"\xff/a", value))
        with open_checkpoint(prefix) as reader:
            for spec in reader.describe().weights():
                assert reader.read(spec) == 0

    def test_a_shard_that_is_a_folder_or_a_pipe_is_an_error(self, tmp_path: Path) -> None:
        prefix = write(tmp_path, (b"x", bundle_entry((2,), 8, 0)))
        data = Path(f"{prefix}.data-00000-of-00001")
        data.unlink()
        data.mkdir()
        with open_checkpoint(prefix) as reader, pytest.raises(CheckpointError) as caught:
            reader.read(next(reader.describe().weights()))
        assert caught.value.code == 3


class TestSlices:
    def bundle(self, tmp_path: Path, slices: list[tuple[tuple[int, int], ...]], listed: int | None = None) -> Path:
        """A variable `x` of shape (4, 3) in slices of it."""
        values = np.arange(12, dtype=np.float32).reshape(4, 3)
        data, pieces = b"", []
        for bounds in slices:
            part = values[tuple(slice(start, start + length) for start, length in bounds)].tobytes()
            axes = tuple(length for _, length in bounds)
            crc = masked(crc32c(part))
            pieces.append((_bundle.slice_key("x", bounds), bundle_entry(axes, len(part), crc, offset=len(data))))
            data += part
        whole = b"".join(
            message(7, *(message(1, number(1, start), number(2, length)) for start, length in bounds))
            for bounds in slices[:listed]
        )
        entries = [*sorted(pieces), (b"x", bundle_entry((4, 3), 0, 0, more=b"").replace(number(5, 0), b"") + whole)]
        return write(tmp_path, *entries, data=data or b"\0")

    @pytest.mark.parametrize(
        "slices",
        [
            [((0, 4), (0, 3))],
            [((0, 2), (0, 3)), ((2, 2), (0, 3))],
            [((2, 2), (0, 3)), ((0, 2), (0, 3))],
            [((0, 4), (0, 1)), ((0, 4), (1, 2))],
            [((0, 2), (0, 1)), ((0, 2), (1, 2)), ((2, 2), (0, 3))],
        ],
    )
    def test_slices_in_any_order_and_along_any_axis(
        self, tmp_path: Path, slices: list[tuple[tuple[int, int], ...]]
    ) -> None:
        with open_checkpoint(self.bundle(tmp_path, slices)) as reader:
            spec = next(reader.describe().weights())
            assert spec.shape == (4, 3)
            assert reader.extent(spec) is None
            assert reader.read(spec).tolist() == np.arange(12).reshape(4, 3).tolist()
            assert next(reader.iter_blocks(spec, 16))[0] == 0

    @pytest.mark.parametrize(
        "slices",
        [
            [((0, 2), (0, 3))],
            [((0, 2), (0, 3)), ((1, 3), (0, 3))],
            [((0, 2), (0, 3)), ((0, 2), (0, 3))],
            [((0, 4), (0, 2)), ((0, 4), (1, 2))],
            [((0, 2), (0, 3)), ((3, 1), (0, 3)), ((3, 1), (0, 3))],
        ],
    )
    def test_gaps_and_overlaps_are_errors(self, tmp_path: Path, slices: list[tuple[tuple[int, int], ...]]) -> None:
        with pytest.raises(CorruptCheckpointError), open_checkpoint(self.bundle(tmp_path, slices)) as reader:
            reader.read(next(reader.describe().weights()))

    def test_keys_are_those_of_tensorflow(self) -> None:
        key = _bundle.slice_key("s/emb", ((0, 4), (0, 4)))
        assert key == bytes.fromhex("00732f656d62000101028084 8084".replace(" ", ""))
        numbers = {0: "80", 4: "84", -1: "7f", 63: "bf", 64: "c040", 150: "c096", 33334: "e08236", 66667: "e1046b",
                   2**20: "f0100000", 2**27: "f808000000"}  # fmt: skip
        for value, expected in numbers.items():
            assert _bundle._ordered_signed(value).hex() == expected, value
        ordered = sorted(range(-70000, 70000, 777))
        assert sorted(ordered, key=_bundle._ordered_signed) == ordered
        assert _bundle.slice_key("\0\udcff", ()) == b"\0\0\xff\xff\0\0\x01\0"


def test_shapes_of_a_thousand_axes_are_errors(tmp_path: Path) -> None:
    value = number(1, 1) + message(2, shape(*[1] * 1000)) + number(5, 4)
    with pytest.raises(CorruptCheckpointError):
        described(write(tmp_path, (b"x", value)))


@pytest.mark.parametrize("seed", range(6))
def test_fuzzed_indexes_give_a_description_or_a_clear_error(tmp_path: Path, seed: int) -> None:
    """The blocks' checksums are made right again, so that what lies behind them is reached."""
    chance = random.Random(seed)
    good = [bundle_entry((2, 3), 24, 0), bundle_entry((0,), 0, 0), bundle_entry((1,), 4, 0, dtype=7, offset=30)]
    for _ in range(150):
        entries = []
        for place, value in enumerate(good):
            copy = bytearray(value)
            for _ in range(chance.randint(0, 3)):
                copy[chance.randrange(len(copy))] = chance.randrange(256)
            entries.append((b"k%d" % place, bytes(copy)))
        prefix = write(tmp_path, *entries)
        try:
            with open_checkpoint(prefix) as reader:
                for spec in reader.describe().weights():
                    try:
                        reader.read(spec)
                    except CheckpointError as error:
                        assert error.code == 3
        except CheckpointError as error:
            assert error.code == 3
    assert os.listdir(tmp_path)


def test_big_endian_bundles_are_turned(tmp_path: Path) -> None:
    values = np.arange(6, dtype=">f4")
    lengths = struct.pack(">2I", 3, 0)
    inner = struct.pack(">I", masked(crc32c(lengths)))
    texts = b"\x03\x00" + inner + b"abc"
    prefix = write(
        tmp_path,
        (b"t", bundle_entry((2,), len(texts), masked(crc32c(inner + b"abc", crc32c(lengths))), dtype=7, offset=24)),
        (b"x", bundle_entry((2, 3), 24, masked(crc32c(values.tobytes())))),
        head=number(1, 1) + number(2, 1),
        data=values.tobytes() + texts,
    )
    with open_checkpoint(prefix) as reader:
        text, numbers = reader.describe().weights()
        assert reader.read(text).tolist() == [b"abc", b""]
        assert reader.extent(numbers) is None
        assert reader.read(numbers).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert reader.read(numbers).dtype == np.dtype("float32")
