"""NumPy's archives: read what `numpy.savez` writes, write what `numpy.load` reads, never unpickle."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnsupportedError
from ckpttool.formats import npz as ours
from ckpttool.opening import open_checkpoint

from ..manifest import FILES, read, truth
from .contract import ReaderContract, WriterContract, everything

TRAINED = "keras-2.3.1-rnn-trained.h5"


class TestReader(ReaderContract):
    format_name = "npz"

    @pytest.fixture
    def sample(self, tmp_path: Path) -> Path:
        random = np.random.default_rng(0)
        arrays = {
            "tower/image_embedding/kernel": random.standard_normal((24, 7)).astype(np.float32),
            "tower/image_embedding/bias": random.standard_normal(7).astype(np.float32),
            "hidden/kernel": random.standard_normal((6, 24)).astype(np.float16),
        }
        path = tmp_path / "sample.npz"
        np.savez(path, **arrays)
        return path

    def test_describe_reads_no_values(self, sample: Path, tmp_path: Path) -> None:
        """As for every format; and since an archive has checksums, destroyed values are not given out."""
        data = bytearray(sample.read_bytes())
        with open_checkpoint(sample) as reader:
            before = reader.describe()
            for spec in before.weights():
                extent = reader.extent(spec)
                assert extent is not None
                data[extent.offset : extent.offset + extent.nbytes] = b"\xa5" * extent.nbytes
        broken = tmp_path / "broken.npz"
        broken.write_bytes(data)
        with open_checkpoint(broken) as reader:
            assert reader.describe() == before
            for spec in before.weights():
                with pytest.raises(CorruptCheckpointError, match="checksum"):
                    reader.read(spec)


class TestWriter(WriterContract):
    format_name = "npz"

    @pytest.fixture(params=["keras-2.3.1-deep-gpu-merge-template.h5", "keras-2.2.4-rnn-template.h5"])
    def sample(self, request: pytest.FixtureRequest) -> Path:
        return FILES / str(request.param)

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name].tobytes() for name in archive.files}

    def test_a_round_trip_keeps_every_bit(self, sample: Path, tmp_path: Path) -> None:
        written = self.write(sample, tmp_path / "written.npz")
        with open_checkpoint(sample) as reader:
            assert everything(tmp_path / "written.npz")[1] == read(reader, written.weights())


SAVED: dict[str, np.ndarray] = {
    "f4": np.arange(12, dtype=np.float32).reshape(3, 4),
    "f2": np.arange(5, dtype=np.float16),
    "f8 big-endian": np.arange(6, dtype=">f8").reshape(2, 3),
    "i4 big-endian": np.arange(6, dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    "fortran big-endian": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
    "scalar": np.float32(2.5).reshape(()),
    "empty": np.zeros((0, 3), np.float32),
    "bool": np.array([True, False, True]),
    "complex": np.arange(3, dtype=np.complex64) * 1j,
    "u1": np.arange(200, dtype=np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", list(SAVED))
def test_every_array_of_numpy_is_read(name: str, save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "x.npz", **{"layer/kernel": SAVED[name]})
    with open_checkpoint(tmp_path / "x.npz") as reader:
        (spec,) = reader.describe().weights()
        values = reader.read(spec)
        assert values.dtype == SAVED[name].dtype.newbyteorder("=") and spec.dtype == values.dtype.name
        assert np.array_equal(values, SAVED[name]) and values.shape == spec.shape
        for size in (1, 8, 100):
            blocks = list(reader.iter_blocks(spec, size))
            assert b"".join(block.tobytes() for block in blocks) == values.tobytes()
            assert all(block.nbytes <= max(size, values.itemsize) for block in blocks)
        extent = reader.extent(spec)
        data = (tmp_path / "x.npz").read_bytes()
        if extent is not None:
            assert data[extent.offset : extent.offset + extent.nbytes] == values.tobytes()
        else:
            assert save is np.savez_compressed or "big-endian" in name or "fortran" in name


def test_bfloat16_is_written_as_float32_exactly_and_said(tmp_path: Path) -> None:
    source = FILES / "keras-3.15-plain-sequential-bfloat16.h5"
    report = ckpttool.unwrap(source, tmp_path / "x.npz")
    assert any("bfloat16 is written as float32, exactly" in note for note in report.notes)
    with open_checkpoint(source) as reader, np.load(tmp_path / "x.npz") as archive:
        for spec in reader.describe().weights():
            values = reader.read(spec)
            assert values.dtype == ml_dtypes.bfloat16
            assert archive[spec.name].dtype == np.float32
            assert np.array_equal(archive[spec.name], values.astype(np.float32))


def test_what_numpy_makes_of_bfloat16_is_read_as_that(tmp_path: Path) -> None:
    values = np.arange(5).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", **{"layer/kernel": values.view("V2")})
    with open_checkpoint(tmp_path / "x.npz") as reader:
        (spec,) = reader.describe().weights()
        assert spec.dtype == "bfloat16" and np.array_equal(reader.read(spec), values)


def test_an_unwrapped_file_holds_the_template_bit_for_bit_in_order(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / TRAINED, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        assert archive.files == [each.path for each in truth(TRAINED)]
    assert everything(tmp_path / "x.npz")[1] == truth(TRAINED)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("unpickled",))


def member(name: str, content: bytes, path: Path, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
        for other, data in more.items():
            archive.writestr(other, data)
    return path


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def test_pickled_objects_are_listed_and_never_loaded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([None, None], object), allow_pickle=True)
    header = buffer.getvalue()[: buffer.getvalue().index(b"\n") + 1]
    path = member("layer/x.npy", header + pickle.dumps(Bomb()), tmp_path / "x.npz")
    with open_checkpoint(path) as reader:
        (spec,) = reader.describe().weights()
        assert spec.dtype == "object" and reader.extent(spec) is None
        with pytest.raises(UnsupportedError, match="pickled objects, which ckpttool never loads"):
            reader.read(spec)


def test_structured_arrays_and_text_are_listed_and_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"a/x": np.zeros(2, "i4,f4"), "b/x": np.array(["text"])})
    with open_checkpoint(tmp_path / "x.npz") as reader:
        for spec in reader.describe().weights():
            with pytest.raises(UnsupportedError):
                reader.read(spec)


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no '.npy' array"),
        (b"PK\x03\x04 what else", "is no '.npy' array"),
        (npy(F4 % "2,", b"x" * 7), "holds 7 bytes of values"),
        (npy(F4 % "2,", b"x" * 9), "holds 9 bytes of values"),
        (npy(F4 % "4000000000, 4000000000", b"x" * 8), "declares shape|holds 8 bytes"),
        (npy(F4 % "2,", b"x" * 8, version=4), "of '.npy' format 4"),
        (npy("{'descr': '<f4', 'shape': (2,)}", b"x" * 8), "a header that is not NumPy's"),
        (npy("__import__('os').abort()", b"x" * 8), "a header that is not NumPy's"),
        (npy("(" * 9_000, b""), "a header that is not NumPy's"),
        (npy(F4 % "2,", version=2)[:8] + struct.pack("<I", 2**31) + b"x" * 100, "a header of"),
        (npy(F4.replace("<f4", "<f3") % "2,", b"x" * 6), "unknown type"),
    ],
)
def test_a_contradicting_member_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = member("layer/kernel.npy", content, tmp_path / "x.npz")
    with pytest.raises(CheckpointError, match=message) as caught:
        everything(path)
    assert caught.value.code == 3


def test_a_format_2_header_is_read(tmp_path: Path) -> None:
    path = member("layer/x.npy", npy(F4 % "2,", np.arange(2, dtype="<f4").tobytes(), version=2), tmp_path / "x.npz")
    with open_checkpoint(path) as reader:
        assert reader.read(next(reader.describe().weights())).tolist() == [0, 1]


def test_values_that_do_not_have_their_checksum_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **{"layer/kernel": np.arange(1000, dtype=np.float32)})
    np.savez(tmp_path / "y.npz", **{"layer/kernel": np.arange(1000, dtype=np.float32)})
    for name in ("x.npz", "y.npz"):
        data = bytearray((tmp_path / name).read_bytes())
        data[-400] ^= 1
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=r"checksum|inflated|declares"):
            everything(tmp_path / name)


def test_a_member_that_inflates_beyond_reason_is_refused(tmp_path: Path) -> None:
    declared = npy(F4 % "100000000,", b"")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("layer/kernel.npy", declared + b"\0" * 1000)
    with pytest.raises(CheckpointError, match="holds 1,000 bytes"):
        everything(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a//x.npy", "a\\x.npy", "C:/x.npy"])
def test_member_names_that_reach_outside_are_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name
        archive.writestr(entry, npy(F4 % "0,"))
    with pytest.raises(CheckpointError, match="refused member name"):
        open_checkpoint(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["..", "a\\b", "C:"])
def test_such_names_are_not_written(name: str, tmp_path: Path) -> None:
    class NoValues:
        def extent(self, spec: TensorSpec) -> None:
            return None

    spec = TensorSpec((name, "kernel"), (2,), "float32", locator="x")
    checkpoint = Checkpoint("test", "test", "weights", (Layer(name, tensors=(spec,)),))
    with pytest.raises(UnsupportedError, match="may not stand in an archive"):
        ours.write(NoValues(), checkpoint, tmp_path / "x.npz")  # type: ignore[arg-type]


def test_a_zip_of_other_things_is_not_taken(tmp_path: Path) -> None:
    member("layer/kernel.npy", npy(F4 % "0,"), tmp_path / "x.npz", readme=b"text")
    with pytest.raises(CheckpointError, match="a zip archive that is neither"):
        open_checkpoint(tmp_path / "x.npz")


def describe(path: Path) -> Checkpoint:
    with open_checkpoint(path) as reader:
        return reader.describe()


def test_names_beyond_ascii_are_those_that_numpy_finds(tmp_path: Path) -> None:
    output = tmp_path / "x.npz"
    ckpttool.unwrap(FILES / "own-keras-2.0.9-odd-names.h5", output)
    with np.load(output, allow_pickle=False) as arrays:
        assert any("café" in name for name in arrays.files)
        assert sorted(arrays.files) == sorted(spec.name for spec in describe(output).weights())


def test_a_layer_called_optimizer_is_no_optimizer(tmp_path: Path) -> None:
    names = ("optimizer/kernel", "optimizer/bias", "optimizer/iteration", "optimizer/dense/kernel/velocity")
    np.savez(tmp_path / "a.npz", **{name: np.ones(2, np.float32) for name in names})  # type: ignore[arg-type]
    with open_checkpoint(tmp_path / "a.npz") as reader:
        checkpoint = reader.describe()
    assert [spec.name for spec in checkpoint.weights()] == ["optimizer/kernel", "optimizer/bias"]
    assert [spec.name for spec in checkpoint.optimizer_tensors()] == list(names[2:])
