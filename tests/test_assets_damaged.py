"""Asset files of hostile and damaged archives and folders; runs that are killed, or meet a full disk, within one."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from ckpttool.converting import convert
from ckpttool.errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    UnreadableError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ckpttool.formats._zip import ZipArchive
from ckpttool.formats._zip_writing import ZipWriter
from ckpttool.inspecting import inspect
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from .formats.test_keras_archive import archive
from .killed import kill_at_sizes
from .test_assets import PLAIN, WORDS, assets, members

ROOT = Path(__file__).resolve().parent.parent


# -- hostile and damaged -----------------------------------------------------------------------------------------------


def refused(path: Path, error: type[CheckpointError], tmp_path: Path, limits: Limits = Limits()) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error):
        convert(path, tmp_path / "out.keras", options=SourceOptions(limits=limits))
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_bytes_of_a_vocabulary_are_noticed(tmp_path: Path) -> None:
    data = bytearray(PLAIN.read_bytes())
    place = data.index(assets(PLAIN)[WORDS])
    data[place] ^= 1
    path = tmp_path / "in.keras"
    path.write_bytes(data)
    refused(path, CorruptCheckpointError, tmp_path)
    assert convert(path, tmp_path / "out.npz").assets_left_out == 6  # the weights are whole


def test_an_inflating_vocabulary_is_bounded(tmp_path: Path) -> None:
    path = archive(tmp_path / "in.keras", {**members(PLAIN), WORDS: bytes(2**23)}, zipfile.ZIP_DEFLATED)
    refused(path, LimitExceededError, tmp_path, Limits(max_inflation=3))
    refused(path, LimitExceededError, tmp_path, Limits(max_inflated_bytes=2**22))


def test_files_nested_without_end_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "in.keras", {**members(PLAIN), "assets/" + "layers/" * 5000 + "x": b""})
    refused(path, LimitExceededError, tmp_path)


def test_many_files_of_one_layer_take_no_long_time(tmp_path: Path) -> None:
    many = {f"assets/layers/text_vectorization/{number}.txt": b"" for number in range(20_000)}
    path = archive(tmp_path / "in.keras", {**members(PLAIN), **many})
    start = time.process_time()
    with open_checkpoint(path) as reader:
        assert len(reader.describe().all_assets()) == 20_006
    assert time.process_time() - start < 10
    refused(path, LimitExceededError, tmp_path, Limits(max_objects=10_000))


def test_names_that_no_text_file_has_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "in.keras", {**members(PLAIN), "assets/a\nb": b""})
    refused(path, UnsupportedError, tmp_path)


# -- killed, and a full disk -------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A layer with a file of 48 MB beside its vocabulary."""
    folder = tmp_path / "source"
    folder.mkdir()
    added = {"assets/layers/text_vectorization/more.bin": bytes(range(256)) * (3 * 2**16)}
    return archive(folder / "in.keras", {**members(PLAIN), **added})


def command(source: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "ckpttool", "convert", os.fspath(source), "-o", os.fspath(output), "--overwrite"]


@pytest.mark.parametrize("old", [None, b"the old one"])
def test_a_run_killed_within_a_file_leaves_no_output_or_the_old_one(
    old: bytes | None, large: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.keras"

    def run() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command(large, output), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    assert kill_at_sizes(run, output, (0, 2**16, 2**22, 2**24, 2**25), old) >= 2
    assert subprocess.run(command(large, output), cwd=ROOT, capture_output=True).returncode == 0
    assert not list(tmp_path.glob(".*"))
    assert assets(output) == assets(large)


@pytest.mark.parametrize("room", [40_000, 60_000, 2**24])
def test_a_disk_that_is_full_within_a_file(room: int, large: Path, tmp_path: Path) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    output = tmp_path / "out.keras"
    output.write_bytes(b"the old one")
    done = subprocess.run(command(large, output), cwd=ROOT, preexec_fn=small, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, f"ckpttool: {output}: cannot be written: File too large\n")
    assert output.read_bytes() == b"the old one"
    assert not list(tmp_path.glob(".*"))


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """The archive as a folder, as `save(zipped=False)` writes it."""
    with zipfile.ZipFile(PLAIN) as file:
        file.extractall(tmp_path / "folder")
    return tmp_path / "folder"


@pytest.mark.parametrize("kind", ["pipe", "socket", "nothing", "itself", "folder", "outside", "device"])
def test_what_is_no_file_in_a_folder_is_listed_and_not_copied(kind: str, unpacked: Path, tmp_path: Path) -> None:
    odd = unpacked / "assets" / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(odd.parent):
            server.bind("odd")
    else:
        targets = {
            "nothing": "nowhere",
            "itself": "odd",
            "folder": "layers",
            "outside": tmp_path,
            "device": "/dev/zero",
        }
        odd.symlink_to(targets[kind])
    assert "odd" in [each["path"] for each in inspect(unpacked).to_json()["assets"]]
    with pytest.raises(UnsafeCheckpointError, match=r"'assets/odd' is (no file|a link out of the folder)"):
        convert(unpacked, tmp_path / "out.keras")
    assert convert(unpacked, tmp_path / "out.npz").assets_left_out == 7
    assert not (tmp_path / "out.keras").exists()


@pytest.mark.parametrize("name", ["config.json", "metadata.json", "model.weights.h5"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_folders_own_files_must_be_files(name: str, kind: str, unpacked: Path) -> None:
    (unpacked / name).unlink()
    if kind == "pipe":
        os.mkfifo(unpacked / name)
    elif kind == "folder":
        (unpacked / name).mkdir()
    else:
        (unpacked / name).symlink_to("/dev/zero")
    with pytest.raises(UnreadableError, match="no file"):
        inspect(unpacked)


@pytest.mark.parametrize("name", [b"back\\slash", b"new\nline", b"not utf-8 \xff", b"\xe2\x80\xae"])
def test_names_that_no_archive_should_hold(name: bytes, unpacked: Path, tmp_path: Path) -> None:
    Path(os.fsdecode(os.path.join(bytes(unpacked), b"assets", name))).write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="has a name that may not stand in an archive"):
        convert(unpacked, tmp_path / "out.keras")
    assert convert(unpacked, tmp_path / "out.npz").assets_left_out == 7


@pytest.mark.parametrize(
    ("name", "shown"), [("assets/a\0b", r"assets/a\\x00b"), ("assets/a\\b", ""), ("assets/../a", ""), ("/assets/a", "")]
)
def test_refused_member_names(name: str, shown: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.keras", {**members(PLAIN), name.replace("\0", "?"): b"x"})
    path.write_bytes(path.read_bytes().replace(b"assets/a?b", b"assets/a\0b"))
    with pytest.raises(UnsafeCheckpointError, match=f"refused member name '{shown}"):
        inspect(path)


def test_a_folder_entry_holds_no_bytes(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.keras", {**members(PLAIN), "assets/a/": b"x"})
    with pytest.raises(UnsafeCheckpointError, match="'assets/a/' is a folder that holds bytes"):
        inspect(path)
    path = archive(tmp_path / "y.keras", {**members(PLAIN), "assets/a/": b""})
    assert inspect(path).whole


def test_names_that_differ_by_case_or_form_alone_stay_apart(tmp_path: Path) -> None:
    odd = {f"assets/{name}": name.encode() for name in ("A", "a", "\u00e9", "e\u0301", " ", "CON", "C:", "-o")}
    path = archive(tmp_path / "x.keras", {**members(PLAIN), **odd})
    convert(path, tmp_path / "out.keras")
    assert assets(tmp_path / "out.keras") == assets(path)


def test_an_archive_of_more_members_than_zip_counts(tmp_path: Path) -> None:
    """65,535 and more are counted by zip64 alone."""
    for count in (65_534, 65_535, 66_000):
        path = tmp_path / f"{count}.zip"
        with path.open("w+b") as file:
            writer = ZipWriter(file.fileno())
            for number in range(count):
                writer.add(str(number), b"")
            writer.close()
        with zipfile.ZipFile(path) as file:
            assert len(file.namelist()) == count
        read = ZipArchive(path, Limits())
        assert len(read.members) == count
        read.close()


def test_a_declared_size_is_not_believed(tmp_path: Path) -> None:
    """Three gigabytes in the directory and in the header, ten bytes in the file."""
    path = archive(tmp_path / "x.keras", {**members(PLAIN), "assets/big": b"0123456789"}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    name = data.index(b"assets/big")
    data[name - 8 : name - 4] = (3_000_000_000).to_bytes(4, "little")
    name = data.rindex(b"assets/big")
    data[name - 22 : name - 18] = (3_000_000_000).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="'assets/big'"):
        convert(path, tmp_path / "out.keras")
    assert [each.name for each in tmp_path.iterdir()] == ["x.keras"]


def test_a_file_of_a_folder_that_changes_while_it_is_read(unpacked: Path) -> None:
    with open_checkpoint(unpacked) as reader:
        _, asset = next(iter(reader.describe().all_assets().values()))
        with (unpacked / asset.locator).open("ab") as file:
            file.write(b"more")
        with pytest.raises(CorruptCheckpointError, match="became another while it was read"):
            list(reader.asset_chunks(asset))
