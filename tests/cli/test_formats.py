"""`ckpttool formats`: the registry as a table."""

from __future__ import annotations

import json

import pytest

import ckpttool
from ckpttool.cli.main import run
from ckpttool.registry import FORMATS, OUTPUT_SUFFIXES


def test_every_format_is_listed_with_its_suffixes_and_signs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["formats", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(FORMATS)
    for row in rows:
        assert row["reads"] is True
        assert row["writes"] == [suffix for suffix, name in OUTPUT_SUFFIXES.items() if name == row["name"]]
        assert row["signs"]
    assert rows == [each.to_json() for each in ckpttool.list_formats()]


def test_the_table_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["formats"]) == 0
    shown = capsys.readouterr().out
    assert "keras-weights" in shown
    assert ".weights.h5" in shown
    assert "known by zip or folder with config.json and model.weights.h5" in shown


def test_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["formats", "--json=lines"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FORMATS)
