"""Files that layers keep beside their weights: listed, carried to another archive, named where they are left out."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ckpttool.comparing import verify
from ckpttool.converting import convert, unwrap
from ckpttool.errors import (
    UnsafeCheckpointError,
    UnsupportedError,
)
from ckpttool.inspecting import inspect
from ckpttool.source import SourceOptions, open_source

from . import manifest
from .formats.test_keras_archive import archive
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
