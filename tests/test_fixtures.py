"""The fixtures as a whole: the manifest is as its writer writes it, and comes back whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.manifest_file import read_manifest, write_manifest

from .manifest import ENTRIES, FIXTURES


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
