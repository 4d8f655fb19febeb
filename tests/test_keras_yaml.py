"""Model configurations in YAML: plain values only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ckpttool.errors import CheckpointError, ConfigError, LimitExceededError, MissingDependencyError
from ckpttool.keras_yaml import looks_like_yaml, to_json
from ckpttool.limits import Limits
from ckpttool.opening import read_config

from .manifest import FILES

pytestmark = pytest.mark.needs("yaml")
FIXTURE = FILES / "own-keras-2.2.4-to-multi-gpu-wrapper.yaml"


def test_tuples_are_lists() -> None:
    text = FIXTURE.read_text("utf-8")
    assert "!!python/tuple" in text
    document = json.loads(to_json(text))
    assert document["class_name"] == "Model"
    inputs = document["config"]["layers"][0]
    assert inputs["config"]["batch_input_shape"] == [None, 6]
    assert read_config(FIXTURE).layer("encoder") is not None


@pytest.mark.parametrize(
    "text",
    [
        "class_name: !!python/object/apply:os.system ['touch made']",
        "class_name: !!python/name:os.system",
        "class_name: !!python/module:os",
        "class_name: !!python/object/new:os.system ['touch made']",
        "class_name: !custom x",
        "a: &a [*a]",
        "a: [1, 2",
        "config: !!binary aGk=",
        "config: 2001-01-01",
        "config: !!set {a, b}",
        "? [a, b]\n: c",
    ],
)
def test_anything_but_plain_values_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        to_json(text)
    assert os.listdir() == []


def test_repetition_by_aliases_is_bounded() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(LimitExceededError):
        to_json("\n".join(lines))


def test_nesting_is_bounded() -> None:
    with pytest.raises(LimitExceededError):
        to_json("[" * 5000)


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("class_name: Model\n")
    with pytest.raises(CheckpointError, match="too large"):
        read_config(path, Limits(max_config_bytes=4))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"backend: tensorflow\n", True),
        (b"class_name: Model", True),
        (b"---\nconfig:", True),
        (b"%YAML 1.1\n---\nbackend: x", True),
        (b"# model\nclass_name: Model", True),
        (b"# Notes\n\nText", False),
        (b"\x89HDF\r\n", False),
        (b"PK\x03\x04", False),
        (b"hello", False),
        (b"class_name: \0", False),
    ],
)
def test_the_first_bytes_tell(head: bytes, expected: bool) -> None:
    assert looks_like_yaml(head) is expected


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match=r"ckpttool\[yaml\]"):
        to_json("a: 1")
