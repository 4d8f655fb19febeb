"""V2 checkpoints: what TensorFlow's reader gave when they were made, every way in, damage, and hostile indexes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.checkpoint import Checkpoint, Role
from ckpttool.checksums import crc32c, masked
from ckpttool.copying import copy_tensor
from ckpttool.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnknownFormatError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckpttool.formats import _bundle, _object_graph
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint
from ckpttool.reading import ReadOptions

from ..manifest import FILES, entry, names, tagged
from ..tensorflow_files import entry as bundle_entry
from ..tensorflow_files import header, message, node, number, shape, table, text_bytes, variable, write_bundle

NOT_READ = ("variant", "resource", "qint", "quint", "int4", "uint4")


def stored(*formats: str) -> list[str]:
    """Files of the manifest that TensorFlow's reader was asked about, of these kinds."""
    return names(lambda name, each: "stored" in each and each["kind"] in formats)


def digest(values: np.ndarray) -> str:
    if values.dtype == object:
        texts = values.reshape(-1).tolist()
        return hashlib.sha256(b"".join(struct.pack("<I", len(text)) + text for text in texts)).hexdigest()
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def opened(name: str) -> Path:
    """What a user would open."""
    return FILES / entry(name)["opens"]


def read_all(path: Path, **options: Any) -> dict[str, tuple[tuple[int, ...], str, str | None]]:
    """Shape, dtype and checksum of every stored tensor, by its key."""
    found = {}
    with open_checkpoint(path, read=ReadOptions(**options)) as reader:
        described = reader.describe()
        for spec in (*described.weights(), *described.loose):
            readable = not spec.dtype.startswith(NOT_READ)
            found[spec.locator] = (spec.shape, spec.dtype, digest(reader.read(spec)) if readable else None)
    return found


def described(path: Path) -> Checkpoint:
    with open_checkpoint(path) as reader:
        return reader.describe()


def paths(checkpoint: Checkpoint) -> list[str]:
    return [spec.name for spec in checkpoint.weights()]


@pytest.mark.parametrize("name", stored("checkpoint", "savedmodel"))
def test_names_shapes_types_and_values_are_those_of_tensorflow(name: str) -> None:
    found = read_all(opened(name))
    parts = [locator.partition(" … ") for locator in found if " … " in locator]
    for each in entry(name)["stored"]:
        key = each["key"]
        if key == "_CHECKPOINTABLE_OBJECT_GRAPH" or key.startswith("_all_variables/"):
            continue  # structure; and the second copy of an exported weight, which is listed once
        if any(key.startswith(first.rpartition("_")[0]) for first, _, _ in parts):
            continue  # a part of a joined variable
        got = found[key]
        assert list(got[0]) == each["shape"], key
        assert got[1] == each["dtype"] or got[1].startswith(f"{each['dtype']}("), key
        if got[2] is not None and each["sha256"] is not None:
            assert got[2] == each["sha256"], key


@pytest.mark.parametrize("name", names(lambda name, each: "whole" in each))
def test_parts_make_up_the_whole(name: str) -> None:
    with open_checkpoint(opened(name)) as reader:
        by_name = {spec.name: spec for spec in reader.describe().weights()}
        for each in entry(name)["whole"]:
            spec = by_name[each["path"]]
            assert list(spec.shape) == each["shape"]
            assert digest(reader.read(spec)) == each["sha256"]
            blocks = list(reader.iter_blocks(spec, 64))
            assert all(block.nbytes <= 64 for block in blocks)
            assert np.concatenate(blocks).tobytes() == reader.read(spec).tobytes()


NAMED = names(
    lambda name, each: (
        "stored" in each and "synthetic" not in each["tags"] and "wrapped" not in each["tags"]
        and any("image_embedding/" in tensor["path"] for tensor in each["tensors"])
    )
)  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_image_embedding_is_found_by_name_where_the_file_holds_it(name: str) -> None:
    """In mirrored models of TF 1.14 to 2.4 the file holds places only, and none is passed off as a name."""
    wanted = {
        t["path"].rpartition("/")[2]: t["sha256"] for t in entry(name)["tensors"] if "image_embedding/" in t["path"]
    }
    nameless = "mirrored" in entry(name)["tags"] and "object-based" in entry(name)["tags"] and name.startswith(
        ("tf-1.15", "tf-2.2", "tf-2.3")
    )  # fmt: skip
    with open_checkpoint(opened(name)) as reader:
        found = [
            {spec.path[-1]: digest(reader.read(spec)) for spec in layer.tensors}
            for path, layer in reader.describe().walk()
            if path[-1] == "image_embedding" and layer.tensors
        ]
    assert found == ([] if nameless else [wanted])


@pytest.mark.parametrize("name", tagged("object-based", suffix=".index"))
def test_optimizer_state_and_counters_are_no_weights(name: str) -> None:
    for spec in described(opened(name)).weights():
        assert not {"m", "v", "momentum", "save_counter", "iter", "total", "count"} & set(spec.path), spec


class TestWaysIn:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for file in FILES.glob("keras-3.15-sequential-checkpoint-checkpoint.*"):
            shutil.copy(file, tmp_path / file.name.replace("keras-3.15-sequential-checkpoint-checkpoint", "m.ckpt-7"))
        return tmp_path

    @pytest.mark.parametrize("name", ["m.ckpt-7", "m.ckpt-7.index", "m.ckpt-7.data-00000-of-00001", "."])
    def test_all_names_of_a_checkpoint_lead_to_it(self, folder: Path, name: str) -> None:
        assert "image_embedding/kernel" in paths(described(folder / name))

    @pytest.mark.parametrize("name", ["run [1]", "a*b", "what?", "größe ☃", "-x", "{a,b}", "x\\y"])
    def test_folder_names_are_no_patterns(self, folder: Path, name: str, tmp_path: Path) -> None:
        odd = tmp_path / name
        odd.mkdir()
        for file in folder.glob("m.ckpt-7.*"):
            shutil.copy(file, odd)
        for path in (odd, odd / "m.ckpt-7", odd / "m.ckpt-7.index"):
            assert "image_embedding/kernel" in paths(described(path))
        for file in list(odd.iterdir()):
            file.rename(odd / file.name.replace("m.ckpt-7", name.replace("/", "")))
        assert read_all(odd / name)

    def test_the_meta_file_leads_to_the_checkpoint(self) -> None:
        checkpoint = described(FILES / "tf-1.15-names.meta")
        assert "tower/image_embedding/kernel" in paths(checkpoint)
        assert checkpoint.written_by.tensorflow == "1.15.5"

    def test_an_empty_prefix_is_the_index_alone(self) -> None:
        folder = FILES / "tf-1.15-empty-prefix"
        assert paths(described(folder / ".index")) == paths(described(folder)) == ["hidden/kernel", "hidden/second"]

    def test_a_state_file_of_another_machine_leads_to_its_neighbour(self) -> None:
        folder = FILES / "tf-1.15-estimator-mirrored"
        assert b"/home/somebody" in (folder / "checkpoint").read_bytes()
        for path in (folder, folder / "checkpoint"):
            assert "image_embedding/kernel" in paths(described(path))

    def test_a_state_file_never_leads_outside(self, folder: Path, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        for text in ("../m.ckpt-7", str(folder / "m.ckpt-7"), "x/../../m.ckpt-7"):
            (inner / "checkpoint").write_text(f'model_checkpoint_path: "{text}"\n')
            with pytest.raises(CheckpointNotFoundError, match=r"there is no 'm\.ckpt-7\.index' beside it"):
                described(inner)

    @pytest.mark.parametrize("text", ["", "model_checkpoint_path: \n", 'all_model_checkpoint_paths: "a"\n'])
    def test_a_state_file_that_names_nothing(self, folder: Path, text: str) -> None:
        (folder / "state").write_text(text or "\n")
        with pytest.raises((CorruptCheckpointError, UnknownFormatError)):
            described(folder / "state")

    def test_quoted_names_are_unescaped(self, folder: Path) -> None:
        for file in folder.glob("m.ckpt-7.*"):
            file.rename(folder / file.name.replace("m.ckpt-7", 'gr\xf6\xdfe "1"-3'))
        (folder / "checkpoint").write_bytes(b'model_checkpoint_path: "gr\\303\\266\\303\\237e \\"1\\"-3"\n')
        assert "image_embedding/kernel" in paths(described(folder / "checkpoint"))

    def test_the_newest_step_is_read_and_the_others_are_told(self) -> None:
        folder = FILES / "keras-3.15-objects-steps"
        newest = described(folder)
        notice = next(each for each in newest.warnings if each.code == "several-checkpoints")
        assert "1, 5, 10" in notice.message
        with open_checkpoint(folder) as reader:
            values = {10: digest(reader.read(next(newest.weights())))}
        for step in (1, 5, 10):
            with open_checkpoint(folder, read=ReadOptions(step=step)) as reader:
                values[step] = digest(reader.read(next(reader.describe().weights())))
                assert not any(each.code == "several-checkpoints" for each in reader.describe().warnings)
        assert len(set(values.values())) == 3
        assert values[10] == entry("keras-3.15-objects-steps/checkpoint")["tensors"][0]["sha256"]
        with pytest.raises(UsageError, match="no checkpoint of step 7; it holds 1, 5, 10"):
            open_checkpoint(folder, read=ReadOptions(step=7))

    def test_steps_on_disk_that_the_state_does_not_list_can_be_read(self, tmp_path: Path) -> None:
        """TensorFlow takes a folder `run [1]` for a pattern and never deletes old steps there."""
        folder = tmp_path / "run [1]"
        shutil.copytree(FILES / "keras-3.15-objects-steps", folder)
        (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-10"\nall_model_checkpoint_paths: "ckpt-10"\n')
        with open_checkpoint(folder, read=ReadOptions(step=1)) as reader:
            assert reader.describe().layers

    def test_several_checkpoints_without_order_are_a_question(self, folder: Path) -> None:
        for file in list(folder.glob("m.ckpt-7.*")):
            shutil.copy(file, folder / file.name.replace("m.ckpt-7", "other"))
        with pytest.raises(UsageError, match=r"several checkpoints: m\.ckpt-7, other"):
            described(folder)

    def test_what_is_not_there(self, folder: Path) -> None:
        with pytest.raises(CheckpointNotFoundError):
            described(folder / "m.ckpt")
        (folder / "m.ckpt-7.index").unlink()
        with pytest.raises(CheckpointNotFoundError):
            described(folder / "m.ckpt-7")

    def test_a_closed_reader_refuses(self, folder: Path) -> None:
        with open_checkpoint(folder) as reader:
            spec = next(reader.describe().weights())
        for refused in (reader.describe, lambda: reader.read(spec), lambda: list(reader.iter_blocks(spec)),
                        lambda: reader.extent(spec)):  # fmt: skip
            with pytest.raises(ReaderClosedError):
                refused()


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
        assert "model/layer_with_weights-2/kernel" in paths(checkpoint)

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


class TestObjectGraphs:
    def checkpoint(self, tmp_path: Path, graph: bytes, *keys: str, ends: str = "") -> Checkpoint:
        write_bundle(tmp_path / "g", {key: ((2,), bytes([place] * 8)) for place, key in enumerate(keys, 1)}, graph)
        return described(tmp_path / "g")

    def test_cycles_end(self, tmp_path: Path) -> None:
        graph = (
            node({"root": 0, "net": 1})
            + node({"up": 0, "self": 1, "dense": 2})
            + node({"kernel": 3, "net": 1})
            + variable("k")
        )
        assert paths(self.checkpoint(tmp_path, graph, "k")) == ["dense/kernel"]

    def test_a_long_chain_of_objects_is_placed_by_its_names(self, tmp_path: Path) -> None:
        chain = b"".join(node({"next": place + 1}) for place in range(3000)) + node({"w": 3001}) + variable("deep/w")
        checkpoint = self.checkpoint(tmp_path, chain, "deep/w")
        assert [spec.locator for spec in checkpoint.weights()] == ["deep/w"]

    def test_a_shared_layer_is_listed_once(self, tmp_path: Path) -> None:
        graph = node({"first": 1, "second": 1}) + node({"kernel": 2, "bias": 3}) + variable("k") + variable("b")
        assert paths(self.checkpoint(tmp_path, graph, "k", "b")) == ["first/kernel", "first/bias"]

    def test_what_only_an_optimizer_reaches_is_its_own(self, tmp_path: Path) -> None:
        graph = (
            node({"net": 1, "opt": 3, "save_counter": 6}) + node({"kernel": 2}) + variable("net/kernel")
            + node({"iter": 4, "learning_rate": 5}, slots=[(2, "m", 7)]) + variable("opt/iter") + variable("opt/lr")
            + variable("save_counter") + variable("opt/m")
        )  # fmt: skip
        checkpoint = self.checkpoint(tmp_path, graph, "net/kernel", "opt/iter", "opt/lr", "save_counter", "opt/m")
        assert paths(checkpoint) == ["net/kernel"]
        roles = {spec.locator: (spec.role, spec.slot, spec.slot_of) for spec in checkpoint.loose}
        assert roles["opt/m"] == (Role.OPTIMIZER, "m", ("net", "kernel"))
        assert roles["opt/iter"] == (Role.OPTIMIZER, None, None)
        assert roles["save_counter"] == (Role.BOOKKEEPING, None, None)

    def test_keras_3_weights_under_the_optimizers_key_are_weights(self) -> None:
        checkpoint = described(FILES / "keras-3.15-towers-checkpoint-checkpoint")
        spec = next(spec for spec in checkpoint.weights() if spec.name.endswith("image_embedding/kernel"))
        assert spec.locator.startswith("optimizer/_trainable_variables/")
        assert len(checkpoint.optimizer_tensors()) == 20

    def test_a_damaged_graph_names_the_index(self, tmp_path: Path) -> None:
        with pytest.raises(CorruptCheckpointError, match=r"g\.index.*node that it does not have"):
            self.checkpoint(tmp_path, node({"a": 5}), "k")

    def test_an_attribute_of_no_stored_key_is_left_alone(self, tmp_path: Path) -> None:
        graph = node({"a": 1, "b": 2}) + variable("gone") + variable("k")
        assert paths(self.checkpoint(tmp_path, graph, "k")) == ["b"]


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


@pytest.mark.parametrize("name", names(lambda name, each: "files" in each))
def test_every_file_of_a_fixture_is_the_one_that_was_made(name: str) -> None:
    for file, checksum in entry(name)["files"].items():
        assert hashlib.sha256((FILES / file).read_bytes()).hexdigest() == checksum, file
