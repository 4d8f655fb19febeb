"""Hostile HDF5: files made here, by h5py, to reach outside of themselves or to cost more than they are worth."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import TensorSpec
from ckpttool.errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    UnreadableError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ckpttool.formats._hdf5 import Hdf5File
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

KERNEL = "dense/dense/kernel:0"
SECRET = np.arange(6, dtype="f4").reshape(2, 3) + 4096


def names(*texts: str) -> np.ndarray:
    return np.array([text.encode() for text in texts])


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that must not be read."""
    path = tmp_path / "victim.h5"
    with h5py.File(path, "w") as file:
        file["kernel:0"] = SECRET
        file.create_group("model_weights").attrs["layer_names"] = names("dense")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A weights-only file of one layer, whose kernel is still to be put in."""
    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = names("dense")
        file.create_group("dense").attrs["weight_names"] = names("dense/kernel:0")
    return path


def change(path: Path, how: Callable[[h5py.File], Any]) -> None:
    with h5py.File(path, "r+") as file:
        how(file)


def put(path: Path, value: Any, **options: Any) -> None:
    change(path, lambda file: file.create_dataset(KERNEL, data=value, **options))


def refused(path: Path, error: type[CheckpointError], words: str, tmp_path: Path) -> None:
    """`inspect` and `unwrap` both refuse, with one line and code 3, and nothing is written."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=words) as caught:
        ckpttool.inspect(path)
    assert caught.value.code == 3
    assert "\n" not in str(caught.value)
    with pytest.raises(error):
        ckpttool.unwrap(path, tmp_path / "out.h5")
    assert sorted(tmp_path.iterdir()) == before


def read_only_value(path: Path) -> np.ndarray:
    with open_checkpoint(path) as reader:
        return reader.read(next(reader.describe().weights()))


class TestReachingOutside:
    def test_an_external_link_in_place_of_a_weight(self, model: Path, victim: Path, tmp_path: Path) -> None:
        def link(file: h5py.File) -> None:
            file["dense"].create_group("dense")["kernel:0"] = h5py.ExternalLink(victim.name, "/kernel:0")

        change(model, link)
        with h5py.File(model) as file:
            assert np.array_equal(file[KERNEL][()], SECRET)  # HDF5 itself would follow it
        refused(model, UnsafeCheckpointError, "external link", tmp_path)

    def test_an_external_link_in_the_middle_of_a_path(self, model: Path, victim: Path, tmp_path: Path) -> None:
        change(model, lambda file: file["dense"].__setitem__("dense", h5py.ExternalLink(victim.name, "/")))
        refused(model, UnsafeCheckpointError, "external link", tmp_path)

    def test_an_external_link_in_place_of_a_layer(self, model: Path, victim: Path, tmp_path: Path) -> None:
        def link(file: h5py.File) -> None:
            del file["dense"]
            file["dense"] = h5py.ExternalLink(victim.name, "/")

        change(model, link)
        refused(model, UnsafeCheckpointError, "external link", tmp_path)

    def test_an_external_link_in_place_of_model_weights(self, tmp_path: Path, victim: Path) -> None:
        path = tmp_path / "whole.h5"
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = "{}"
            file["model_weights"] = h5py.ExternalLink(victim.name, "/model_weights")
        refused(path, UnsafeCheckpointError, "external link", tmp_path)

    def test_an_external_link_that_leads_nowhere(self, model: Path, tmp_path: Path) -> None:
        change(model, lambda file: file["dense"].__setitem__("dense", h5py.ExternalLink("/proc/self/mem", "/")))
        refused(model, UnsafeCheckpointError, "external link", tmp_path)

    def test_a_soft_link(self, model: Path, tmp_path: Path) -> None:
        def link(file: h5py.File) -> None:
            file["elsewhere"] = SECRET
            file["dense"].create_group("dense")["kernel:0"] = h5py.SoftLink("/elsewhere")

        change(model, link)
        refused(model, UnsafeCheckpointError, "soft link", tmp_path)

    def test_external_storage(self, model: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret.bin"
        secret.write_bytes(SECRET.tobytes())
        change(
            model,
            lambda file: file.create_dataset(KERNEL, (2, 3), "f4", external=[(str(secret), 0, SECRET.nbytes)]),
        )
        with h5py.File(model) as file:
            assert np.array_equal(file[KERNEL][()], SECRET)  # HDF5 itself would read it
        refused(model, UnsafeCheckpointError, "external storage", tmp_path)

    def test_a_virtual_dataset(self, model: Path, victim: Path, tmp_path: Path) -> None:
        layout = h5py.VirtualLayout((2, 3), "f4")
        layout[:] = h5py.VirtualSource(victim, "kernel:0", (2, 3))
        change(model, lambda file: file.create_virtual_dataset(KERNEL, layout))
        with h5py.File(model) as file:
            assert np.array_equal(file[KERNEL][()], SECRET)  # HDF5 itself would read it
        refused(model, UnsafeCheckpointError, "virtual dataset", tmp_path)


class TestNames:
    @pytest.mark.parametrize("name", ["../dense/kernel:0", "..", "/dense/kernel:0", "a//b", ".", "dense/"])
    def test_names_that_leave_their_group(self, model: Path, tmp_path: Path, name: str) -> None:
        put(model, SECRET)
        change(model, lambda file: file["dense"].attrs.__setitem__("weight_names", names(name)))
        refused(model, UnsafeCheckpointError, "refused name", tmp_path)

    @pytest.mark.parametrize("name", ["..", "/", "", "../x"])
    def test_layer_names_that_leave_the_file(self, model: Path, tmp_path: Path, name: str) -> None:
        # a name of fixed length cannot be empty beside others; one of variable length can
        listed = np.array(["dense", name], dtype=h5py.string_dtype())
        put(model, SECRET)
        change(model, lambda file: file.attrs.__setitem__("layer_names", listed))
        refused(model, UnsafeCheckpointError, "refused name", tmp_path)

    def test_a_name_of_a_megabyte(self, model: Path, tmp_path: Path) -> None:
        listed = np.array(["x" * 2**20], dtype=h5py.string_dtype())
        change(model, lambda file: file["dense"].attrs.__setitem__("weight_names", listed))
        refused(model, LimitExceededError, "a name of 1,048,576 characters", tmp_path)

    def test_a_name_with_a_nul_ends_there(self, model: Path) -> None:
        put(model, SECRET)
        raw = model.read_bytes()
        model.write_bytes(raw.replace(b"dense/kernel:0", b"dense\0kernel:0"))
        with pytest.raises(CheckpointError) as caught:
            ckpttool.inspect(model)
        assert caught.value.code == 3

    def test_names_are_shown_escaped(self, model: Path) -> None:
        listed = np.array(["evil\n\x1b[31m\u202e"], dtype=h5py.string_dtype())
        change(model, lambda file: file.attrs.__setitem__("layer_names", listed))
        with pytest.raises(CorruptCheckpointError) as caught:
            ckpttool.inspect(model)
        from ckpttool.cli.render import one_line

        assert one_line(str(caught.value)).isprintable()

    def test_names_that_are_no_utf_8_survive(self, model: Path, tmp_path: Path) -> None:
        def rename(file: h5py.File) -> None:
            file["dense"].create_group(b"caf\xe9")["kernel:0"] = SECRET
            file["dense"].attrs["weight_names"] = np.array([b"caf\xe9/kernel:0"])

            file.move(b"dense", b"caf\xe9")
            file.attrs["layer_names"] = np.array([b"caf\xe9"])

        change(model, rename)
        assert np.array_equal(read_only_value(model), SECRET)
        ckpttool.unwrap(model, tmp_path / "out.h5")
        assert np.array_equal(read_only_value(tmp_path / "out.h5"), SECRET)


class TestCyclesAndDepth:
    def test_a_hard_link_to_an_ancestor(self, model: Path, tmp_path: Path) -> None:
        def loop(file: h5py.File) -> None:
            file["dense"]["loop"] = file["/"]
            file[KERNEL] = SECRET
            path = "loop/dense/" * 100
            file["dense"].attrs["weight_names"] = names(f"{path}dense/kernel:0")

        change(model, loop)
        refused(model, LimitExceededError, "nested deeper than 64", tmp_path)

    def test_a_layer_that_is_the_root(self, model: Path) -> None:
        def loop(file: h5py.File) -> None:
            del file["dense"]
            file["dense"] = file["/"]
            file.attrs["weight_names"] = names("kernel:0")
            file["kernel:0"] = SECRET

        change(model, loop)
        assert np.array_equal(read_only_value(model), SECRET)

    def test_more_objects_than_allowed(self, model: Path, tmp_path: Path) -> None:
        put(model, SECRET)
        options = SourceOptions(limits=Limits().override(["max_objects=2"]))
        with pytest.raises(LimitExceededError, match="max_objects"):
            ckpttool.unwrap(model, tmp_path / "out.h5", options=options)

    def test_more_layers_than_allowed(self, tmp_path: Path) -> None:
        path = tmp_path / "many.h5"
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = names(*(f"l{n}" for n in range(30)))
            for n in range(30):
                file.create_group(f"l{n}").attrs["weight_names"] = np.array([])
        assert len(ckpttool.inspect(path).whole.layers) == 30
        with pytest.raises(LimitExceededError, match="30 layers"):
            ckpttool.inspect(path, options=SourceOptions(limits=Limits().override(["max_layers=29"])))

    def test_a_deep_path_is_allowed_where_the_limit_says_so(self, model: Path) -> None:
        deep = "/".join(["g"] * 80)
        put(model, SECRET)

        def move(file: h5py.File) -> None:
            file["dense"][f"{deep}/kernel:0"] = SECRET
            file["dense"].attrs["weight_names"] = names(f"{deep}/kernel:0")

        change(model, move)
        with pytest.raises(LimitExceededError):
            ckpttool.inspect(model)
        options = SourceOptions(limits=Limits().override(["max_depth=100"]))
        assert ckpttool.inspect(model, options=options).totals()["tensors"] == 1


class TestBombs:
    @pytest.mark.parametrize("shape", [(2**40,), (2**30, 2**30), (2**20, 2**20, 2**20)])
    def test_a_shape_without_bytes(self, model: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
        change(model, lambda file: file.create_dataset(KERNEL, shape, "f8", chunks=(1,) * len(shape)))
        refused(model, CheckpointError, r"declares [\d,]+ bytes", tmp_path)

    def test_a_contiguous_shape_that_was_never_written(self, model: Path, tmp_path: Path) -> None:
        change(model, lambda file: file.create_dataset(KERNEL, (1000, 1000), "f4"))
        refused(model, CorruptCheckpointError, r"declares 4,000,000 bytes, the file stores 0", tmp_path)

    def test_a_compressed_shape_that_was_never_written(self, model: Path, tmp_path: Path) -> None:
        change(model, lambda file: file.create_dataset(KERNEL, (2**30,), "f4", chunks=(1024,), compression="gzip"))
        refused(model, CorruptCheckpointError, r"declares [\d,]+ bytes, the file stores 0", tmp_path)

    def test_a_compression_bomb(self, model: Path, tmp_path: Path) -> None:
        put(model, np.zeros(2**22, "f4"), chunks=(2**22,), compression="gzip", compression_opts=9)
        assert ckpttool.inspect(model).totals()["bytes"] == 2**24  # 1028 to 1 is what deflate gives for zeros: allowed
        options = SourceOptions(limits=Limits().override(["max_inflation=100"]))
        with pytest.raises(CorruptCheckpointError, match="declares"):
            ckpttool.inspect(model, options=options)

    def test_a_chunk_that_would_not_fit_into_memory(self, model: Path, tmp_path: Path) -> None:
        def huge(file: h5py.File) -> None:
            dataset = file.create_dataset(KERNEL, (2**29,), "f4", chunks=(2**29,), compression="gzip")
            dataset.id.write_direct_chunk((0,), b"\0" * 2**22)

        change(model, huge)
        refused(model, LimitExceededError, r"chunks of 2,147,483,648 bytes", tmp_path)

    def test_one_large_chunk_is_decoded_once(self, model: Path) -> None:
        """HDF5's chunk cache holds 1 MB: a larger chunk would be decoded anew for every block of the tensor."""
        value = np.random.default_rng(0).integers(0, 99, 2**22).astype("f4").reshape(2048, 2048)
        put(model, value, chunks=(2048, 2048), compression="gzip", compression_opts=1)
        started = time.monotonic()
        with open_checkpoint(model) as reader:
            spec = next(reader.describe().weights())
            joined = np.concatenate(list(reader.iter_blocks(spec, 2**16)))
        assert np.array_equal(joined, value.ravel())
        assert time.monotonic() - started < 5  # 256 blocks, each 0.15 s where it decodes the chunk

    def test_a_tensor_over_the_limit(self, model: Path) -> None:
        put(model, SECRET)
        with pytest.raises(LimitExceededError, match="declares 24 bytes"):
            ckpttool.inspect(model, options=SourceOptions(limits=Limits().override(["max_tensor_bytes=23"])))

    def test_a_configuration_over_the_limit(self, model: Path) -> None:
        put(model, SECRET)
        change(model, lambda file: file.attrs.__setitem__("keras_version", "2" * 5000))
        options = SourceOptions(limits=Limits().override(["max_config_bytes=4000"]))
        with pytest.raises(LimitExceededError, match="5,000 characters"):
            ckpttool.inspect(model, options=options)

    def test_an_attribute_over_the_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "model.h5"
        with h5py.File(path, "w", libver="latest") as file:
            file.attrs["layer_names"] = np.array([b"x" * 100] * 5000)
        options = SourceOptions(limits=Limits().override(["max_config_bytes=4000"]))
        with pytest.raises(LimitExceededError, match="too large"):
            ckpttool.inspect(path, options=options)

    def test_pieces_of_an_attribute_without_an_end(self, tmp_path: Path) -> None:
        path = tmp_path / "model.h5"
        with h5py.File(path, "w") as file:
            for number in range(40):
                file.attrs[f"layer_names{number}"] = names("a")
        with pytest.raises(LimitExceededError, match="too many pieces"):
            ckpttool.inspect(path, options=SourceOptions(limits=Limits().override(["max_layers=20"])))


ODD = {
    "opaque": np.array([b"ab\0c"] * 3, dtype="V4"),
    "compound": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "compound-like-complex": np.array([(1.0, 2.0)], dtype=[("x", "f4"), ("y", "f4")]),
    "enum": np.array([1, 0], dtype=h5py.enum_dtype({"A": 0, "B": 1}, "i4")),
    "vlen": h5py.vlen_dtype("i4"),
    "reference": h5py.ref_dtype,
    "region": h5py.regionref_dtype,
    "text": np.array(["a", "b"], dtype=h5py.string_dtype()),
    "array": np.zeros(2, dtype=[("a", "f4", (3,))]),
    "long double": np.zeros(2, np.longdouble),
}


def file_value(file: h5py.File, kind: str) -> Any:
    file["target"] = SECRET
    if kind == "vlen":
        return np.arange(3, dtype="i4")
    return file["target"].ref if kind == "reference" else file["target"].regionref[0:1]


class TestTypes:
    @pytest.mark.parametrize("kind", ODD)
    def test_a_type_that_no_tensor_has(self, model: Path, tmp_path: Path, kind: str) -> None:
        if isinstance(ODD[kind], np.ndarray):
            put(model, ODD[kind])
        else:  # what points elsewhere is left empty: chunked, with room
            change(
                model, lambda file: file.create_dataset(KERNEL, (2,), ODD[kind]).__setitem__(0, file_value(file, kind))
            )
        spec = next(ckpttool.inspect(model).whole.weights())  # it can be listed …
        assert len(spec.shape) == 1
        with pytest.raises(UnsupportedError) as caught:  # … and not be taken for numbers
            ckpttool.unwrap(model, tmp_path / "out.h5")
        assert caught.value.code == 3
        assert sorted(each.name for each in tmp_path.iterdir()) == ["model.h5"]

    def test_two_opaque_bytes_are_bfloat16(self, model: Path) -> None:
        put(model, np.array([0x3F80, 0xC000], "<u2").view("V2"))
        assert read_only_value(model).astype("f4").tolist() == [1.0, -2.0]

    def test_a_null_dataspace(self, model: Path) -> None:
        change(model, lambda file: file.create_dataset(KERNEL, data=h5py.Empty("f4")))
        with pytest.raises(UnsupportedError, match="no values"):
            read_only_value(model)

    def test_a_filter_that_would_load_a_plug_in(self, model: Path, tmp_path: Path) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((2, 3))
        plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))

        def create(file: h5py.File) -> None:
            group = file["dense"].create_group("dense")
            space = h5py.h5s.create_simple((2, 3))
            dataset = h5py.h5d.create(group.id, b"kernel:0", h5py.h5t.IEEE_F32LE, space, plist)
            dataset.write_direct_chunk((0, 0), b"x" * 24)

        change(model, create)
        assert ckpttool.inspect(model).totals()["tensors"] == 1
        with pytest.raises(UnsupportedError, match="zstd"):
            ckpttool.unwrap(model, tmp_path / "out.h5")

    def test_compressed_bytes_that_are_none(self, model: Path, tmp_path: Path) -> None:
        def create(file: h5py.File) -> None:
            dataset = file.create_dataset(KERNEL, (2, 3), "f4", chunks=(2, 3), compression="gzip")
            dataset.id.write_direct_chunk((0, 0), b"no deflate stream")

        change(model, create)
        with pytest.raises(CorruptCheckpointError, match="cannot be read"):
            ckpttool.unwrap(model, tmp_path / "out.h5")
        assert not (tmp_path / "out.h5").exists()

    def test_a_wrong_checksum(self, model: Path, tmp_path: Path) -> None:
        put(model, SECRET, chunks=(2, 3), fletcher32=True)
        raw = model.read_bytes()
        model.write_bytes(raw.replace(SECRET.tobytes(), (SECRET + 1).tobytes()))
        with pytest.raises(CorruptCheckpointError, match="cannot be read"):
            ckpttool.unwrap(model, tmp_path / "out.h5")

    def test_a_committed_type_in_place_of_a_weight(self, model: Path) -> None:
        change(model, lambda file: file["dense"].create_group("dense").__setitem__("kernel:0", np.dtype("f4")))
        with pytest.raises(CorruptCheckpointError, match="does not hold it"):
            ckpttool.inspect(model)

    def test_a_group_in_place_of_a_weight(self, model: Path) -> None:
        change(model, lambda file: file.create_group(KERNEL))
        with pytest.raises(CorruptCheckpointError, match="does not hold it"):
            ckpttool.inspect(model)

    @pytest.mark.parametrize("value", [ODD["compound"], ODD["opaque"], ODD["enum"], np.longdouble([1])])
    def test_names_of_a_type_that_is_no_text(self, model: Path, value: np.ndarray) -> None:
        change(model, lambda file: file["dense"].attrs.create("weight_names", value))
        with pytest.raises(CorruptCheckpointError):
            ckpttool.inspect(model)


HOLD = """
import h5py, sys, time
file = h5py.File(sys.argv[1], "r+" if sys.argv[2] == "write" else "r")
print("open", flush=True)
sys.stdin.read()
"""


class TestInUse:
    def held(self, path: Path, how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    def test_a_file_that_another_program_writes(self, model: Path, tmp_path: Path) -> None:
        put(model, SECRET)
        with self.held(model, "write") as process:
            try:
                refused(model, UnreadableError, "in use", tmp_path)
            finally:
                assert process.stdin is not None
                process.stdin.close()
        assert np.array_equal(read_only_value(model), SECRET)

    def test_a_file_that_another_program_reads(self, model: Path) -> None:
        put(model, SECRET)
        with self.held(model, "read") as process:
            assert np.array_equal(read_only_value(model), SECRET)
            assert process.stdin is not None
            process.stdin.close()


def test_a_closed_file_gives_no_descriptor_away(model: Path) -> None:
    put(model, SECRET)
    file = Hdf5File(model, Limits())
    file.pread(0, 8)
    file.close()
    file.close()
    assert file.closed


def test_many_readers_leave_no_file_open(model: Path) -> None:
    put(model, SECRET)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with open_checkpoint(model) as reader:
            reader.read(next(reader.describe().weights()))
        with pytest.raises(CheckpointError):
            ckpttool.extract(model, "missing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_locator_that_the_file_does_not_hold(model: Path) -> None:
    put(model, SECRET)
    with open_checkpoint(model) as reader, pytest.raises(CheckpointError):
        reader.read(TensorSpec(("x",), (2,), "float32", locator="dense/other"))
