"""The fixtures as a whole: small enough, as they were made, each of a scene, the manifest as its writer writes it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.manifest_file import read_manifest, write_manifest

from .manifest import ENTRIES, FILES, FIXTURES

BUDGET = 15_000_000  # bytes of everything in fixtures/
FILE_BUDGET = 100_000  # bytes of one file
LARGE_BUDGET = 1_000_000  # bytes of one file whose size is its point: lists of names beyond 64 KB
SCENES: list[dict[str, Any]] = json.loads((FIXTURES / "scenes.json").read_text("utf-8"))
ENVIRONMENTS: dict[str, Any] = json.loads((FIXTURES / "environments.json").read_text("utf-8"))


def parts(name: str) -> list[str]:
    """The files that an entry stands for, by their paths in fixtures/files."""
    each = ENTRIES[name]
    if "files" in each:
        return [*each["files"]]
    path = FILES / name
    return [str(part.relative_to(FILES)) for part in path.rglob("*") if part.is_file()] if path.is_dir() else [name]


def all_parts() -> dict[str, str]:
    """Each file that belongs to the manifest, with an entry that it belongs to."""
    found = {}
    for name, each in ENTRIES.items():
        beside = [each["reference"], each.get("config")]
        found.update(dict.fromkeys([*parts(name), *filter(None, beside)], name))
    return found


def committed(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_all_fixtures_together_stay_small() -> None:
    assert sum(path.stat().st_size for path in committed(FIXTURES)) <= BUDGET


def test_each_file_stays_small_unless_size_is_its_point() -> None:
    large = {name: (FILES / name).stat().st_size for name in all_parts()}
    large = {name: size for name, size in large.items() if size > FILE_BUDGET}
    assert {name for name in large if "long-names" not in ENTRIES[all_parts()[name]]["tags"]} == set()
    assert max(large.values(), default=0) <= LARGE_BUDGET


def test_every_file_belongs_to_the_manifest_and_is_there() -> None:
    assert {str(path.relative_to(FILES)) for path in committed(FILES)} == set(all_parts())


def test_every_scene_has_files_and_every_file_a_scene() -> None:
    named = [scene["scene"] for scene in SCENES]
    assert len(set(named)) == len(named)
    assert {each["scene"] for each in ENTRIES.values()} == set(named)


@pytest.mark.parametrize("field", ["maker", "environment"])
def test_entries_agree_with_their_scenes(field: str) -> None:
    by_name = {scene["scene"]: scene[field] for scene in SCENES}
    assert {name: each[field] for name, each in ENTRIES.items()} == {
        name: by_name[each["scene"]] for name, each in ENTRIES.items()
    }


def test_makers_environments_twins_and_configurations_are_there() -> None:
    assert {scene["maker"] for scene in SCENES if not (FIXTURES / scene["maker"]).exists()} == set()
    assert {scene["environment"] for scene in SCENES} <= set(ENVIRONMENTS)
    pointed = {each.get(field) for each in ENTRIES.values() for field in ("twin", "config")} - {None}
    assert pointed <= set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_file_is_the_one_that_was_made(name: str) -> None:
    """The checksum of a folder is that of its sorted lines `<sha256>  <path in it>`; of several files, the main one."""
    path = FILES / name
    whole = [name] if path.is_file() else parts(name)
    assert ENTRIES[name]["bytes"] == sum((FILES / part).stat().st_size for part in whole)
    digests = {part: hashlib.sha256((FILES / part).read_bytes()).hexdigest() for part in parts(name)}
    if path.is_dir():
        lines = sorted(f"{digest}  {part.removeprefix(name + '/')}" for part, digest in digests.items())
        assert ENTRIES[name]["sha256"] == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    else:
        assert ENTRIES[name]["sha256"] == digests[name]
    assert ENTRIES[name].get("files", digests) == digests


# -- the manifest's file ---------------------------------------------------------------------------------------------


def test_the_manifest_is_as_its_writer_writes_it(tmp_path: Path) -> None:
    write_manifest(tmp_path / "again.json", ENTRIES)
    assert (tmp_path / "again.json").read_text("utf-8") == (FIXTURES / "MANIFEST.json").read_text("utf-8")


def made_up(*paths: str, digest: str = "ab" * 32) -> dict[str, Any]:
    config = {"class_name": "Dense", "config": {"units": 3, "name": "x" * 60}}
    return {
        "tensors": [{"path": path, "shape": [2, 3], "dtype": "float32", "sha256": digest} for path in paths],
        "layers": [{"path": "a", "class_name": "Dense", "trainable": True, "weights": 2}],
        "stored": [{"key": "k", "shape": [], "dtype": "variant", "sha256": None}],
        "template": {"name": "t", "json": {"layers": [config, config]}},
        "notes": "x",
        "wrapper": None,
    }


@pytest.mark.parametrize(
    "files",
    [
        {"a.h5": made_up("a/kernel")},
        {"a.h5": made_up("a/kernel"), "b.h5": made_up("a/kernel")},
        {"a.h5": made_up("a/kernel", "a/bias"), "b.h5": made_up("b/kernel", digest="cd" * 32)},
        {"a.h5": made_up("layer_" + "abcdefghij" * 300 + "/kernel")},
        {"a.h5": {**made_up("a"), "layers": [{"path": "a", "class_name": "Dense", "more": 1}], "tensors": []}},
    ],
)
def test_entries_come_back_whole(files: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(path, files)
    assert read_manifest(path) == files
    assert path.read_text("utf-8").count("x" * 60) == 1
    assert len(path.read_text("utf-8")) < 1500


def test_the_form_before_rows_were_lists_is_read(tmp_path: Path) -> None:
    shared = {"1": made_up("a/kernel")["tensors"]}
    old = {"schema": 1, "shared": shared, "files": {"a.h5": {**made_up("a/kernel"), "tensors": {"shared": "1"}}}}
    (tmp_path / "old.json").write_text(json.dumps(old), "utf-8")
    assert read_manifest(tmp_path / "old.json") == {"a.h5": made_up("a/kernel")}


@pytest.mark.parametrize(
    "files",
    [
        {"a.h5": made_up("{abc*3}/kernel")},
        {name: made_up("x", name, digest="12345678" + name * 56) for name in "ab"},
    ],
)
def test_what_would_not_come_back_is_not_written(files: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be written shorter|two checksums begin"):
        write_manifest(tmp_path / "manifest.json", files)
    assert not (tmp_path / "manifest.json").exists()
