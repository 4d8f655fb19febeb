"""`.keras` archives and folders: read in place against what the libraries held; written; hostile zips refused."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ckpttool.converting import convert, unwrap
from ckpttool.errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ckpttool.inspecting import inspect
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions, open_source

from .. import manifest
from ..manifest import FILES, KERAS3_NAMES, Truth
from .contract import ReaderContract, WriterContract

SAMPLE = FILES / "keras-3.15-deep.keras"
ARCHIVES = manifest.names(
    lambda name, each: each["maker"] == "make/keras3.py" and each["kind"] == "model" and not name.endswith(".h5")
)
OWN_CLASSES = ("own-block", "subclassed")  # what only the user's code names
TWINS = [name for name in ARCHIVES if manifest.entry(name)["twin"]] + manifest.names(
    lambda name, each: each["maker"] == "make/keras3.py" and name.endswith(".h5") and each["kind"] == "model"
)


def template(path: Path) -> list[Truth]:
    """The template's tensors, sorted."""
    with open_source(path, SourceOptions()) as source:
        return alike(manifest.read(source.reader, source.template.weights()))


def alike(truths: list[Truth]) -> list[Truth]:
    """Sorted, with one name for a DepthwiseConv2D's kernel, which Keras 3 calls otherwise than Keras 2."""
    return sorted(Truth(_named(each.path), each.shape, each.dtype, each.sha256) for each in truths)


def _named(path: str) -> str:
    layer, _, variable = path.rpartition("/")
    return f"{layer}/{KERAS3_NAMES.get(variable, variable)}"


class TestReader(ReaderContract):
    format_name = "keras-archive"

    @pytest.fixture
    def sample(self) -> Path:
        return SAMPLE


class TestWriter(WriterContract):
    format_name = "keras-archive"

    @pytest.fixture
    def sample(self) -> Path:
        return SAMPLE

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        """Python's zipfile verifies every checksum, and h5py opens the member alone."""
        from .test_keras_weights import TestWriter as Weights

        inner = path.with_suffix(".weights.h5")
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == ["metadata.json", "config.json", "model.weights.h5"]
            assert {(each.compress_type, each.date_time) for each in archive.infolist()} == {(0, (1980, 1, 1, 0, 0, 0))}
            inner.write_bytes(archive.read("model.weights.h5"))
        return Weights().read_as_the_owner_does(inner)


@pytest.mark.parametrize("name", [each for each in ARCHIVES if "ops" not in each and "own-block" not in each])
def test_names_and_values_are_those_that_keras_held(name: str) -> None:
    assert template(FILES / name) == alike(manifest.truth(name))


@pytest.mark.parametrize("name", [each for each in ARCHIVES if not any(own in each for own in (*OWN_CLASSES, "ops"))])
def test_layers_are_those_of_the_model_in_its_order(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        layers = [("/".join(path), layer.class_name) for path, layer in source.template.walk()]
    listed = [(each["path"], each["class_name"]) for each in manifest.entry(name)["layers"]]
    shown = [each for each in layers if each[1] != "InputLayer"]  # a Sequential hides its own
    assert shown == [each for each in listed if each[1] != "InputLayer"]


@pytest.mark.parametrize("name", TWINS)
def test_twins_hold_the_same_tensors_under_the_same_names(name: str) -> None:
    twin = manifest.entry(name)["twin"]
    if twin is None or any(own in name for own in OWN_CLASSES):
        return
    untitled = not twin.endswith(".keras") and manifest.entry(twin)["versions"]["keras"].startswith(
        ("2.", "3.0", "3.3")
    )
    if not untitled:
        assert template(FILES / name) == template(FILES / twin)


def test_a_block_of_an_own_class_shows_its_layers_and_numbers_its_variables() -> None:
    names = [each.path for each in template(FILES / "keras-3.15-own-block.keras")]
    assert names == [
        "block/0", "block/block_first/bias", "block/block_first/kernel", "block/block_second/bias",
        "block/block_second/kernel", "block/block_third/bias", "block/block_third/kernel", "image_embedding/bias",
        "image_embedding/kernel",
    ]  # fmt: skip
    assert "names-unknown" in [notice.code for notice in inspect(FILES / "keras-3.15-own-block.keras").warnings]


def test_a_model_of_an_own_class_says_so() -> None:
    found = inspect(FILES / "keras-3.15-subclassed.keras")
    assert found.whole.kind == "model"
    assert found.embeddings == ("image_embedding",) or found.embeddings == ()
    assert "own-class" in [notice.code for notice in found.warnings]


def test_stored_members_are_read_in_place_and_deflated_ones_are_not_given_out() -> None:
    with open_checkpoint(SAMPLE) as reader:
        for spec in reader.describe().weights():
            extent = reader.extent(spec)
            assert extent is not None
            assert extent.path == SAMPLE
    with open_checkpoint(FILES / "keras-3.15-cnn-packed.keras") as reader:
        assert all(reader.extent(spec) is None for spec in reader.describe().weights())


def test_nothing_is_unpacked_beside_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "packed.keras"
    path.write_bytes((FILES / "keras-3.15-cnn-packed.keras").read_bytes())
    template(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_parallel_model_is_taken_out_with_its_configuration(tmp_path: Path) -> None:
    for name in ("keras-3.15-parallel-two-towers.keras", "keras-3.0.5-parallel-cnn.keras"):
        output = tmp_path / name
        report = unwrap(FILES / name, output)
        assert report.wrapper is not None
        assert report.wrapper.certain
        assert template(output) == alike(manifest.truth(name))
        with zipfile.ZipFile(output) as archive:
            config = json.loads(archive.read("config.json"))
            metadata = json.loads(archive.read("metadata.json"))
        assert config["config"]["name"] == manifest.entry(name)["template"]["name"]
        assert metadata["keras_version"] == manifest.entry(name)["versions"]["keras"]


def test_a_parallel_model_of_tf_keras_is_taken_out_for_its_own_keras(tmp_path: Path) -> None:
    name = "tf-2.15-parallel-sequential.keras"
    unwrap(FILES / name, tmp_path / "base.h5")
    assert template(tmp_path / "base.h5") == alike(manifest.truth(name))


def test_convert_keeps_the_wrapper_and_the_optimizer(tmp_path: Path) -> None:
    source = FILES / "keras-3.15-sequential-trained.keras"
    output = tmp_path / "again.keras"
    convert(source, output)
    with open_checkpoint(source) as old, open_checkpoint(output) as new:
        before, after = old.describe(), new.describe()
        assert manifest.read(new, after.optimizer_tensors()) == manifest.read(old, before.optimizer_tensors())
        assert json.loads(after.training_config or "{}") == json.loads(before.training_config or "{}")
    parallel = tmp_path / "parallel.keras"
    convert(FILES / "keras-3.15-parallel-two-towers.keras", parallel)
    assert inspect(parallel).wrapper == inspect(FILES / "keras-3.15-parallel-two-towers.keras").wrapper


def test_a_keras_2_configuration_is_no_keras_3_archive(tmp_path: Path) -> None:
    output = tmp_path / "x.keras"
    with pytest.raises(CheckpointError, match="Keras 3 cannot hold its wrapper"):
        convert(FILES / "keras-2.2.4-sequential.h5", output)
    assert list(tmp_path.iterdir()) == []


def test_the_optimizer_and_its_class_are_shown() -> None:
    optimizer = inspect(FILES / "keras-3.15-sequential-trained.keras").optimizer()
    assert optimizer == {"class_name": "Adam", "tensors": 10}


# -- hostile archives -----------------------------------------------------------------------------------------------


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return path


def members(**changes: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(SAMPLE) as file:
        found = {name: file.read(name) for name in file.namelist()}
    return {**found, **changes}


def refused(path: Path, error: type[CheckpointError], **options: Limits) -> None:
    with pytest.raises(error), open_checkpoint(path, **options) as reader:  # type: ignore[arg-type]
        for spec in reader.describe().weights():
            reader.read(spec)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../b", "a//b", "c:/evil", "a\\b", "./x"])
def test_member_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    refused(archive(tmp_path / "x.keras", {**members(), name: b"x"}), UnsafeCheckpointError)


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.keras", members())
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as file:
        file.writestr("config.json", b"{}")
    refused(path, UnsafeCheckpointError)


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.keras", members())
    with zipfile.ZipFile(path, "a") as file:
        info = zipfile.ZipInfo("assets/link")
        info.external_attr = 0o120777 << 16
        file.writestr(info, "/etc/passwd")
    refused(path, UnsafeCheckpointError)


def patched(path: Path, change: Callable[[bytearray, int, int], None]) -> Path:
    """Change bytes of the last member's local header and directory entry, given where they are."""
    data = bytearray(archive(path, members()).read_bytes())
    change(data, data.rindex(b"PK\x03\x04"), data.rindex(b"PK\x01\x02"))
    path.write_bytes(data)
    return path


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    def encrypt(data: bytearray, local: int, central: int) -> None:
        data[local + 6] |= 1
        data[central + 8] |= 1

    refused(patched(tmp_path / "x.keras", encrypt), UnsupportedError)


def test_a_local_header_that_contradicts_the_directory_is_refused(tmp_path: Path) -> None:
    def other_size(data: bytearray, local: int, central: int) -> None:
        struct.pack_into("<L", data, local + 22, 5)

    def other_name(data: bytearray, local: int, central: int) -> None:
        data[local + 30] ^= 1

    refused(patched(tmp_path / "a.keras", other_size), CorruptCheckpointError)
    refused(patched(tmp_path / "b.keras", other_name), CorruptCheckpointError)


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    def onto_the_first(data: bytearray, local: int, central: int) -> None:
        first = data.index(b"PK\x01\x02")
        length = struct.unpack_from("<H", data, first + 28)[0]
        name = bytes(data[first + 46 : first + 46 + length])
        struct.pack_into("<L", data, first + 20, 400)
        struct.pack_into("<L", data, first + 24, 400)
        start = data.index(b"PK\x03\x04")
        struct.pack_into("<LL", data, start + 18, 400, 400)
        assert name == b"metadata.json"

    refused(patched(tmp_path / "x.keras", onto_the_first), UnsafeCheckpointError)


def test_an_inflating_member_is_bounded(tmp_path: Path) -> None:
    bomb = members()
    bomb["config.json"] = b" " * 2**24 + bomb["config.json"]
    refused(
        archive(tmp_path / "a.keras", bomb, zipfile.ZIP_DEFLATED), LimitExceededError,
        limits=Limits(max_config_bytes=2**20),
    )  # fmt: skip
    bomb = members()
    bomb["model.weights.h5"] += bytes(2**22)
    refused(
        archive(tmp_path / "b.keras", bomb, zipfile.ZIP_DEFLATED), LimitExceededError,
        limits=Limits(max_inflated_bytes=2**20),
    )  # fmt: skip


def test_damaged_deflated_bytes_are_noticed(tmp_path: Path) -> None:
    data = bytearray((FILES / "keras-3.15-cnn-packed.keras").read_bytes())
    place = data.rindex(b"PK\x03\x04") + 2000
    data[place] ^= 0xFF
    path = tmp_path / "x.keras"
    path.write_bytes(data)
    refused(path, CorruptCheckpointError)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    many = members() | {f"assets/{number}": b"" for number in range(50)}
    refused(archive(tmp_path / "x.keras", many), LimitExceededError, limits=Limits(max_objects=20))


def test_external_storage_inside_an_archive_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "secret.bin"
    target.write_bytes(bytes(16))
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (4,), np.float32, external=[(str(target), 0, 16)])
    refused(archive(tmp_path / "x.keras", members(**{"model.weights.h5": held.getvalue()})), UnsafeCheckpointError)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    changed = members()
    changed["model.weights.npz"] = changed.pop("model.weights.h5")
    refused(archive(tmp_path / "x.keras", changed), UnsupportedError)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100000, b'{"class_name": 3}'])
def test_a_configuration_that_is_none_is_an_error_of_its_own(text: bytes, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.keras", members(**{"config.json": text}))
    with pytest.raises(CheckpointError), open_checkpoint(path) as reader:
        assert reader.describe().config is None  # an object without layers is an own class
        raise CheckpointError("described without a configuration")


# -- packed by other tools ---------------------------------------------------------------------------------------------


class Pipe(io.RawIOBase):
    """Where zip tools write without going back: sizes come behind the bytes, in data descriptors."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("piped", [False, True])
def test_archives_of_other_tools_give_the_same(method: int, wide: bool, piped: bool, tmp_path: Path) -> None:
    """Data descriptors, zip64 headers, folders as members, a comment, every second member deflated, another order."""
    path = tmp_path / "in.keras"
    target: Any = Pipe(path) if piped else path
    with zipfile.ZipFile(target, "w") as file:
        file.comment = b"packed elsewhere"
        file.writestr(zipfile.ZipInfo("assets/"), b"")
        for number, (name, data) in enumerate(reversed(members().items())):
            info = zipfile.ZipInfo(name)
            info.compress_type = method if number % 2 else zipfile.ZIP_STORED
            with file.open(info, "w", force_zip64=wide) as member:
                member.write(data)
    if piped:
        target.close()
    convert(path, tmp_path / "a.keras")
    convert(SAMPLE, tmp_path / "b.keras")
    assert (tmp_path / "a.keras").read_bytes() == (tmp_path / "b.keras").read_bytes()
