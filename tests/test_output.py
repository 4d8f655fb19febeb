"""Outputs appear whole or not at all, whatever happens to the process; what it leaves behind the next run removes."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckpttool.errors import OutputError, OutputExistsError
from ckpttool.output import output_file, output_folder, sweep

from .formats.test_keras_weights import groups_file
from .killed import kill_at_sizes

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """64 MB in two tensors: long enough to be stopped on the way."""
    folder = tmp_path / "source"
    folder.mkdir()
    big = np.arange(2**23, dtype=np.float32).reshape(2**12, 2**11)
    return groups_file(folder / "big.weights.h5", {"layers/dense": [big, big[0]], "layers/dense_1": [big, big[1]]})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.name.startswith("."))


def start(source: Path, output: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckpttool", "convert", os.fspath(source), "-o", os.fspath(output), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("old", [None, b"the old one"])
@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors"])
def test_a_killed_run_leaves_no_output_or_the_old_one(
    suffix: str, old: bytes | None, source: Path, tmp_path: Path
) -> None:
    """Killed as soon as the temporary output is there, and then at growing sizes of it."""
    output = tmp_path / f"out{suffix}"

    def run() -> subprocess.Popen[bytes]:
        return start(source, output, "--overwrite", "--dtype", "float16")

    assert kill_at_sizes(run, output, (0, 1, 2**20, 2**24, 2**25), old) >= 2
    assert len(left(tmp_path)) <= 1  # each run removed what the one before it left
    done = start(source, output, "--overwrite")
    done.communicate()
    assert done.returncode == 0
    assert left(tmp_path) == []


def test_what_is_locked_is_not_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".a.h5.ckpttool-99999-0123abcd.tmp"
    held = tmp_path / ".b.h5.ckpttool-99998-0123abcd.tmp"
    folder = tmp_path / ".c.ckpttool-99997-0123abcd.tmp"
    other = tmp_path / ".d.h5.tmp"
    for path in (stale, tmp_path / f"{stale.name}.keras", held, tmp_path / f"{held.name}.keras", other):
        path.write_bytes(b"x")
    folder.mkdir()
    (folder / "kernel.npy").write_bytes(b"x")
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with output_file(tmp_path / "new.h5", overwrite=False) as temporary:
            temporary.write_bytes(b"new")
            assert temporary.name.startswith(f".new.h5.ckpttool-{os.getpid()}-")
            sweep(tmp_path)
            assert temporary.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        held.name, f"{held.name}.keras", other.name, "new.h5",
    ]  # fmt: skip


def test_a_folder_on_its_way_is_locked_too(tmp_path: Path) -> None:
    with output_folder(tmp_path / "layer", overwrite=False) as temporary:
        (temporary / "kernel.npy").write_bytes(b"x")
        sweep(tmp_path)
        assert (temporary / "kernel.npy").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


def test_a_link_called_like_a_left_over_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x")
    (tmp_path / ".a.ckpttool-1-00.tmp").symlink_to(target)
    sweep(tmp_path)
    assert target.exists()


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "x.h5"
    with pytest.raises(OutputExistsError), output_file(output, overwrite=False) as temporary:
        temporary.write_bytes(b"mine")
        output.write_bytes(b"theirs")
    assert output.read_bytes() == b"theirs"
    assert left(tmp_path) == []


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors", ".npz"])
def test_a_full_disk_is_an_error_and_leaves_nothing(suffix: str, source: Path, tmp_path: Path) -> None:
    """A bound on the size of files stands for the disk: the write fails in the same way."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    output = tmp_path / f"out{suffix}"
    command = [sys.executable, "-m", "ckpttool", "convert", os.fspath(source), "-o", os.fspath(output)]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=small, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"ckpttool: {output}: cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert not output.exists()
    assert left(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with pytest.raises(OutputError), output_file(Path("/proc/x.h5"), overwrite=False):
            raise AssertionError("written into /proc")
        return
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError), output_file(tmp_path / "x.h5", overwrite=False):
        raise AssertionError("written into a folder without permission")


@pytest.mark.parametrize("room", [0, 5_000, 12_000, 20_000, 40_000])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_disk_that_is_full_within_the_structures_of_hdf5(suffix: str, room: int, tmp_path: Path) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    source, output = ROOT / "fixtures/files/keras-3.15-deep.keras", tmp_path / f"out{suffix}"
    command = [sys.executable, "-m", "ckpttool", "convert", os.fspath(source), "-o", os.fspath(output)]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=small, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, f"ckpttool: {output}: cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == []
