"""Damaged files, byte by byte: an error of ours, or everything read; never a traceback, a crash or a hang."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.errors import CorruptCheckpointError
from ckpttool.formats._hdf5_heap import HEAP_MAGIC, sound_heaps
from ckpttool.opening import open_checkpoint

from ..manifest import FILES

ROOT = Path(__file__).resolve().parent.parent.parent
WRAPPED = FILES / "keras-2.2.4-sequential.h5"

FLIP = """
import random, signal, sys
from pathlib import Path
import ckpttool
from ckpttool.errors import CheckpointError
source, folder, seed, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng, whole = random.Random(seed), source.read_bytes()
signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process where the HDF5 library does not come back
for number in range(count):
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 8])):
        place = rng.randrange(len(data))
        while not data[place] and rng.random() < 0.95:
            place = rng.randrange(len(data))
        data[place] = rng.choice([data[place] ^ (1 << rng.randrange(8)), rng.randrange(256), 0, 255])
    damaged = folder / "damaged.h5"
    damaged.write_bytes(data)
    print(number, flush=True)
    signal.alarm(30)
    try:
        ckpttool.inspect(damaged).to_json()
        ckpttool.unwrap(damaged, folder / "out.h5", overwrite=True)
    except CheckpointError as error:
        assert str(damaged) in str(error), error
    signal.alarm(0)
"""


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("keras-2.2.4-sequential.h5", 1),
        ("tf-2.3-rnn-weights.h5", 2),
        ("keras-2.3.1-two-towers.h5", 3),
        ("tf-2.15-zoo-bidirectional.h5", 4),
        ("keras-3.15-plain-cnn.h5", 5),
    ],
)
def test_flipped_bytes_never_break_the_process(name: str, seed: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLIP, str(FILES / name), str(tmp_path), str(seed), "80"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-1500:])
    assert done.stdout.splitlines()[-1] == "79"


def free_space(data: bytes) -> int:
    """Where the size of a heap's free space stands: the object of number 0."""
    heap = data.index(HEAP_MAGIC)
    place = heap + 16
    while int.from_bytes(data[place : place + 2], "little"):
        size = int.from_bytes(data[place + 8 : place + 16], "little")
        place += 16 + -(-size // 8) * 8
    return place + 8


@pytest.mark.parametrize("size", [0, 1, 15, 2**20, 2**63])
def test_a_heap_that_hdf5_would_walk_without_end_is_refused(size: int, tmp_path: Path) -> None:
    data = bytearray(WRAPPED.read_bytes())
    place = free_space(data)
    data[place : place + 8] = size.to_bytes(8, "little")
    path = tmp_path / "model.h5"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="texts of the file are damaged"):
        ckpttool.inspect(path)


def test_headers_in_several_pieces_are_followed(tmp_path: Path) -> None:
    """Attributes that are added later lie in continuations of the group's header."""
    path = tmp_path / "model.h5"
    path.write_bytes(WRAPPED.read_bytes())
    with h5py.File(path, "r+") as file:
        for number in range(40):
            file.attrs[f"note{number}"] = "x" * 40
        del file.attrs["keras_version"]
        file.attrs["keras_version"] = "2.2.4"
    assert ckpttool.inspect(path).whole.written_by.keras == "2.2.4"
    data = bytearray(path.read_bytes())
    place = data.rindex(HEAP_MAGIC)
    data[place + 8 : place + 16] = (2**40).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        ckpttool.inspect(path)


def test_files_of_the_latest_layout_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    with h5py.File(WRAPPED) as old, h5py.File(path, "w", libver="latest") as file:
        for key in old:
            old.copy(key, file)
        for key, value in old.attrs.items():
            file.attrs[key] = value
    assert ckpttool.inspect(path).wrapper is not None


def newest(path: Path, notes: int) -> Path:
    """A legacy file of HDF5's latest layout with texts of variable length, and more attributes than a header holds."""
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["layer_names"] = [b"dense_1"]
        for number in range(notes):
            file.attrs[f"note{number}"] = "some words"
        group = file.create_group("dense_1")
        group.attrs.create("weight_names", ["dense_1/kernel:0"], dtype=h5py.string_dtype())
        group["dense_1/kernel:0"] = np.arange(6, dtype=np.float32)
        for number in range(notes):
            group.attrs[f"note{number}"] = "some words"
    return path


def with_free_space(path: Path, size: int) -> Path:
    """The file with another size in the free space of each of its heaps."""
    data = bytearray(path.read_bytes())
    place = data.find(HEAP_MAGIC)
    while place >= 0:
        there = free_space(data[place:]) + place
        data[there : there + 8] = size.to_bytes(8, "little")
        place = data.find(HEAP_MAGIC, place + 1)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("notes", [0, 20])
@pytest.mark.parametrize("size", [0, 1, 15, 2**63])
def test_heaps_of_the_latest_layout_are_looked_into(notes: int, size: int, tmp_path: Path) -> None:
    """HDF5 1.14 walked them without end; twenty attributes lie outside of the header, where the file is searched."""
    path = newest(tmp_path / "model.h5", notes)
    assert [spec.name for spec in ckpttool.inspect(path).whole.weights()] == ["dense_1/kernel"]
    with pytest.raises(CorruptCheckpointError, match=r"texts of (the file|group 'dense_1') are damaged"):
        ckpttool.inspect(with_free_space(path, size))


def test_values_that_look_like_a_heap_are_none(tmp_path: Path) -> None:
    path = newest(tmp_path / "model.h5", 20)
    with h5py.File(path, "r+") as file:
        file["dense_1/dense_1/kernel:0"][...] = np.frombuffer(HEAP_MAGIC + b"\1\0\0\0" + b"\xff" * 16, "<f4")
    assert HEAP_MAGIC + b"\1\0\0\0\xff" in path.read_bytes()
    assert ckpttool.inspect(path).whole.layers


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_the_dtype_that_a_dataset_notes_lies_in_a_heap_too(libver: str, tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("layers/dense/vars/0", data=np.arange(6, dtype=np.uint8).view("V1"))
        dataset.attrs["dtype"] = "float8_e4m3fn"
    assert [spec.dtype for spec in ckpttool.inspect(path).whole.weights()] == ["float8_e4m3fn"]
    with pytest.raises(CorruptCheckpointError, match="'dtype' is damaged"):
        ckpttool.inspect(with_free_space(path, 0))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_texts_of_a_tensor_lie_in_a_heap_too(libver: str, tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("layers/string_lookup/vars/0", data=["one", "two"], dtype=h5py.string_dtype())
    with open_checkpoint(path) as reader:
        (spec,) = reader.describe().weights()
        assert reader.read(spec).tolist() == ["one", "two"]
    wanted = pytest.raises(CorruptCheckpointError, match="texts of 'layers/string_lookup/vars/0' are damaged")
    with open_checkpoint(with_free_space(path, 0)) as reader, wanted:
        reader.read(spec)


def test_a_header_that_leads_round_in_a_circle_ends() -> None:
    first = b"OHDR\2\0" + bytes([20]) + struct.pack("<BHBQQ", 0x10, 16, 0, 64, 40)
    piece = b"OCHK" + struct.pack("<BHBQQ", 0x10, 16, 0, 64, 40) + bytes(16)
    data = first.ljust(64, b"\0") + piece
    assert sound_heaps(lambda offset, nbytes: data[offset : offset + nbytes], 0, len(data), {})


def test_a_header_larger_than_any_is_not_followed() -> None:
    asked: list[int] = []
    first = b"OHDR\2\0" + bytes([20]) + struct.pack("<BHBQQ", 0x10, 16, 0, 64, 2**40)

    def read_at(offset: int, nbytes: int) -> bytes:
        asked.append(nbytes)
        return first[offset : offset + nbytes]

    assert sound_heaps(read_at, 0, 2**41, {-1: True})
    assert max(asked) < 100


def test_hdf5_of_shorter_addresses_is_not_trusted_with_texts(tmp_path: Path) -> None:
    """Addresses of four bytes, which h5py writes only if asked to; the places in its headers are others."""
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(4, 4)
    path = tmp_path / "model.h5"
    with h5py.File(h5py.h5f.create(bytes(path), fcpl=properties)) as file:
        file.attrs["layer_names"] = [b"dense_1"]
        file.create_group("dense_1").attrs["weight_names"] = ["dense_1/kernel:0"]
    with pytest.raises(CorruptCheckpointError, match=r"texts of (the file|group 'dense_1') are damaged"):
        ckpttool.inspect(path)
