"""Damaged files, byte by byte: an error of ours, or everything read; never a traceback, a crash or a hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import ckpttool
from ckpttool.errors import CorruptCheckpointError
from ckpttool.formats._hdf5_heap import HEAP_MAGIC

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
