"""Files that layers keep beside their weights: listed, carried to another archive, named where they are left out."""

from __future__ import annotations

import contextlib
import json
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

from ckpttool.comparing import verify
from ckpttool.converting import convert, unwrap
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
from ckpttool.source import SourceOptions, open_source

from . import manifest
from .formats.test_keras_archive import archive
from .killed import kill_at_sizes
from .manifest import FILES

ROOT = Path(__file__).resolve().parent.parent
PLAIN = FILES / "keras-3.15-lookup.keras"
PARALLEL = FILES / "keras-3.15-parallel-lookup.keras"
NESTED = FILES / "keras-3.3.3-nested-lookup.keras"
ALL = manifest.names(lambda name, each: each["maker"] == "make/lookups.py")
WORDS = "assets/layers/text_vectorization/vocabulary.txt"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist()}


def assets(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in members(path).items() if name.startswith("assets/")}


def vocabularies(path: Path) -> dict[str, list[str]]:
    """The terms that a description gives to each layer, as Keras reads its file."""
    found: dict[str, list[str]] = {}
    with open_source(path, SourceOptions()) as source:
        for layer, asset in source.template.all_assets().values():
            if asset.place == "vocabulary.txt":
                text = b"".join(source.reader.asset_chunks(asset)).decode()  # type: ignore[attr-defined]
                found["/".join(layer)] = text.split("\n")
    return found


@pytest.fixture
def weights_alone(tmp_path: Path) -> Path:
    """The weights that Keras wrote into the plain archive, as a file of their own, as `save_weights` writes it."""
    path = tmp_path / "alone.weights.h5"
    path.write_bytes(members(PLAIN)["model.weights.h5"])
    return path


@pytest.mark.parametrize("name", ALL)
def test_tensors_are_those_that_keras_held(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        found = manifest.read(source.reader, source.template.weights())
    wanted = manifest.truth(name)
    assert sorted(found) == sorted(wanted)


def test_weights_alone_are_those_that_keras_held(weights_alone: Path) -> None:
    """The layer inside of another has a name in such a file, which says it."""
    with open_source(weights_alone, SourceOptions()) as source:
        found = manifest.read(source.reader, source.template.weights())
    assert sorted(each.sha256 for each in found) == sorted(each.sha256 for each in manifest.truth(PLAIN.name))


@pytest.mark.parametrize("name", ALL)
def test_each_file_is_listed_with_its_layer(name: str) -> None:
    """By counters of classes that each of the five versions sets otherwise; the terms are those that Keras had."""
    wanted = {path: [term for term in terms if term or path] for path, terms in entry(name).items()}
    assert vocabularies(FILES / name) == wanted
    assert inspect(FILES / name).warnings == ()


def entry(name: str) -> dict[str, list[str]]:
    held: dict[str, list[str]] = manifest.entry(name)["vocabularies"]
    return held


def test_inspect_shows_them() -> None:
    listed = inspect(NESTED).to_json()["assets"]
    assert listed[:2] == [
        {"path": "outer_kinds/vocabulary.txt", "layer": "outer_kinds", "bytes": 15,
         "stored_as": "assets/layers/string_lookup/vocabulary.txt"},
        {"path": "lookup/words/vocabulary.txt", "layer": "lookup/words", "bytes": 39,
         "stored_as": "assets/layers/functional/layers/text_vectorization/vocabulary.txt"},
    ]  # fmt: skip
    assert "assets" not in inspect(FILES / "keras-3.15-deep.keras").to_json()


@pytest.mark.parametrize("path", [PLAIN, PARALLEL, NESTED])
def test_convert_keeps_every_file(path: Path, tmp_path: Path) -> None:
    report = convert(path, tmp_path / "out.keras")
    assert assets(tmp_path / "out.keras") == assets(path)
    assert report.to_json()["assets_kept"] == len(assets(path))
    assert report.sentence().endswith(f"; {len(assets(path))} asset files kept")
    assert report.warnings == ()


def test_the_files_of_a_template_move_up_with_its_groups(tmp_path: Path) -> None:
    report = unwrap(PARALLEL, tmp_path / "base.keras")
    wanted = {name.replace("assets/layers/functional/", "assets/"): data for name, data in assets(PARALLEL).items()}
    assert assets(tmp_path / "base.keras") == wanted
    assert report.sentence().endswith("; 2 replicas removed; 5 asset files kept")
    assert vocabularies(tmp_path / "base.keras") == entry(PARALLEL.name)


def test_files_outside_of_the_template_are_named(tmp_path: Path) -> None:
    report = unwrap(NESTED, tmp_path / "base.keras", options=SourceOptions(assume_wrapper="lookup"))
    assert (report.assets_kept, report.assets_left_out) == (5, 1)
    assert [each.message for each in report.warnings if each.code == "assets-left-out"] == [
        "1 asset file of outer_kinds left out: they are outside of the template"
    ]
    assert sorted(vocabularies(tmp_path / "base.keras")) == ["kinds", "terms", "words"]


@pytest.mark.parametrize("suffix", [".h5", ".weights.h5", ".npz", ".safetensors"])
def test_other_containers_leave_them_out_and_say_so(suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"out{suffix}"
    convert(PLAIN, output, report=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["assets_kept"], report["assets_left_out"]) == (0, 6)
    assert report["receipt"].endswith("; 6 asset files left out")
    [notice] = [each for each in report["warnings"] if each["code"] == "assets-left-out"]
    assert notice["message"].startswith("6 asset files of words, terms, kinds … left out: ")
    assert "'.keras'" in notice["message"]


def test_weights_under_names_of_the_layers_own_stay_so(weights_alone: Path, tmp_path: Path) -> None:
    """`idf_weights` has no number, and stands in two groups, both of which Keras reads."""
    import h5py

    unwrap(PARALLEL, tmp_path / "base.weights.h5")
    with h5py.File(tmp_path / "base.weights.h5") as file:
        layer = file["layers/text_vectorization_1"]
        assert list(layer["vars"]) == list(layer["_lookup_layer/vars"]) == ["idf_weights"]
        assert layer["vars"].attrs["name"] == "terms"
    convert(weights_alone, tmp_path / "again.weights.h5")
    with h5py.File(tmp_path / "again.weights.h5") as file:
        assert list(file["layers/text_vectorization_1/_lookup_layer/vars"]) == ["idf_weights"]


def test_an_archive_without_vocabularies_says_what_its_layers_lack(tmp_path: Path) -> None:
    stripped = {name: data for name, data in members(PLAIN).items() if "string_lookup" not in name}
    path = archive(tmp_path / "in.keras", stripped)
    report = convert(path, tmp_path / "out.keras")
    [notice] = report.warnings
    assert (notice.code, notice.path) == ("assets-missing", "kinds")


def test_a_model_of_tf_keras_names_its_lookup_layers_as_what_cannot_be_migrated(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"words, terms \(TextVectorization\)"):
        unwrap(FILES / "tf-2.15-parallel-lookup.keras", tmp_path / "out.keras")
    assert list(tmp_path.iterdir()) == []
    report = unwrap(FILES / "tf-2.15-parallel-lookup.keras", tmp_path / "out.h5")
    assert report.assets_left_out == 5


# -- packed again, unpacked, classes of the user's own -----------------------------------------------------------------


def test_deflated_files_are_carried(tmp_path: Path) -> None:
    path = archive(tmp_path / "packed.keras", members(PARALLEL), zipfile.ZIP_DEFLATED)
    unwrap(path, tmp_path / "a.keras")
    unwrap(PARALLEL, tmp_path / "b.keras")
    assert members(tmp_path / "a.keras") == members(tmp_path / "b.keras")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The plain archive unpacked, which Keras loads too."""
    path = tmp_path / "unpacked"
    with zipfile.ZipFile(PLAIN) as file:
        file.extractall(path)
    return path


def test_an_unpacked_archive_gives_the_same(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "a.keras")
    convert(PLAIN, tmp_path / "b.keras")
    assert members(tmp_path / "a.keras") == members(tmp_path / "b.keras")
    assert vocabularies(folder) == vocabularies(PLAIN)


def test_a_link_in_a_folder_is_followed_only_within_it(folder: Path, tmp_path: Path) -> None:
    place = folder / WORDS
    place.rename(folder / "assets" / "kept")
    place.symlink_to(folder / "assets" / "kept")
    convert(folder, tmp_path / "a.keras")
    assert assets(tmp_path / "a.keras")[WORDS] == assets(PLAIN)[WORDS]
    place.unlink()
    place.symlink_to("/etc/hostname")
    with pytest.raises(UnsafeCheckpointError, match="link out of the folder"):
        convert(folder, tmp_path / "b.keras")
    assert not (tmp_path / "b.keras").exists()
    assert convert(folder, tmp_path / "c.npz").assets_left_out == 7  # nothing is read of it there


def test_files_of_a_class_of_the_users_own_lie_where_its_groups_do(tmp_path: Path) -> None:
    own = FILES / "keras-3.15-own-block.keras"
    added = {"assets/layers/block/terms.txt": b"a", "assets/layers/block/others/dense_1/deep/down.bin": b"b"}
    path = archive(tmp_path / "in.keras", {**members(own), **added})
    listed = inspect(path).to_json()["assets"]
    assert [(each["layer"], each["path"]) for each in listed] == [
        ("block", "block/terms.txt"), ("block", "block/others/dense_1/deep/down.bin"),
    ]  # fmt: skip
    convert(path, tmp_path / "out.keras")
    assert assets(tmp_path / "out.keras") == added


def test_files_of_a_model_of_the_users_own_stay_where_they_are(tmp_path: Path) -> None:
    added = {
        "assets/table/terms.txt": b"a", "assets/blocks/dense/x.txt": b"b", "assets/top.txt": b"c",
        "assets/no/such/group.txt": b"d", "assets/layers/no_weights/e.txt": b"e",
    }  # fmt: skip
    path = archive(tmp_path / "in.keras", {**members(FILES / "keras-3.15-subclassed.keras"), **added})
    assert len(inspect(path).to_json()["assets"]) == 5
    convert(path, tmp_path / "out.keras")
    assert assets(tmp_path / "out.keras") == added


def test_files_that_belong_to_no_layer_of_the_configuration_stay_where_they_are(tmp_path: Path) -> None:
    added = {"assets/summary_plot.png": b"png", "assets/layers/dense_77/x.txt": b"x", "assets/extra/y.txt": b"y"}
    path = archive(tmp_path / "in.keras", {**members(PLAIN), **added})
    assert convert(path, tmp_path / "out.keras").assets_kept == 9
    assert assets(tmp_path / "out.keras") == assets(path)


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


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify_compares_the_files_of_two_archives(tmp_path: Path) -> None:
    unwrap(PARALLEL, tmp_path / "base.keras")
    found = verify(PARALLEL, tmp_path / "base.keras", predict=False)
    assert (found.verified, found.tensors, found.of_tensors) == (True, 3, 3)
    other = {**members(tmp_path / "base.keras"), WORDS: b"\n[UNK]\nother"}
    del other["assets/layers/string_lookup/vocabulary.txt"]
    found = verify(PARALLEL, archive(tmp_path / "other.keras", other), predict=False)
    assert found.differing == ("words/vocabulary.txt", "kinds/vocabulary.txt")
    assert not found.verified


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
