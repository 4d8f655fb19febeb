"""`ckpttool verify` on the command line, without TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckpttool
from ckpttool.cli.main import run


@pytest.fixture
def base(fixture_files: Path, tmp_path: Path) -> tuple[str, str]:
    """A wrapped file and its template."""
    source = fixture_files / "keras-2.3.1-two-towers.h5"
    ckpttool.unwrap(source, tmp_path / "base.h5")
    return str(source), str(tmp_path / "base.h5")


def test_equal_is_exit_0_and_different_exit_1(
    base: tuple[str, str], fixture_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *base, "--no-predict"]) == 0
    assert capsys.readouterr().out == "verified: 10 of 10 tensors equal\n"
    other = str(fixture_files / "keras-2.2.4-zoo-rnn.h5")
    assert run(["verify", base[0], other, "--no-predict"]) == 1
    assert capsys.readouterr().out.startswith("NOT EQUAL: 0 of ")


def test_the_json_has_the_answer(base: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *base, "--no-predict", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "schema": 1, "a": base[0], "b": base[1], "verified": True, "equal": True, "tensors": 10, "of_tensors": 10,
        "transformed": 0, "differing": [], "prediction": None, "loaded_by": None, "not_verified": [],
    }  # fmt: skip


def test_a_missing_file_is_exit_2(base: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", base[0], "no-such-file.keras"]) == 2
    assert "no such file" in capsys.readouterr().err
