"""Every fixture in every container that can hold it: read again under the same names, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpttool.converting import convert
from ckpttool.errors import UnsupportedError
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from . import manifest
from .manifest import FILES, Truth

pytestmark = pytest.mark.slow

SOURCES = manifest.names(lambda name, each: each["kind"] in ("model", "weights") and bool(each["tensors"]))
SUFFIXES = [".h5", ".weights.h5", ".keras", ".safetensors", ".npz"]
# A `.keras` file of an older model is built by migrate, through transformations: tests/migration/test_fixtures.py.
CASES = [
    (name, suffix)
    for name in SOURCES
    for suffix in SUFFIXES
    if suffix != ".keras"
    or manifest.entry(name)["kind"] == "weights"
    or "keras-3" in manifest.entry(name)["environment"]
]
REFUSALS = ("Keras 1 or 2", "--config", "which Keras 3 does not have", "write '.h5'", "ckpttool migrate")


def weights(path: Path) -> list[Truth]:
    with open_checkpoint(path) as reader:
        return manifest.read(reader, reader.describe().weights())


def bits(truths: Sequence[Truth]) -> list[tuple[tuple[int, ...], str]]:
    return sorted({(each.shape, each.sha256) for each in truths if each.dtype != "bfloat16"})


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_content_survives_or_the_refusal_says_what_to_do(name: str, suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"out{suffix}"
    try:
        convert(FILES / name, output, options=SourceOptions(no_wrapper=True))
    except UnsupportedError as error:
        if "two tensors are called" in str(error):  # a layer named like another's path: these know one name a tensor
            assert suffix in (".safetensors", ".npz")
            assert "odd-names" in name or "like-a-path" in name
            return
        assert suffix in (".weights.h5", ".keras"), error
        assert any(hint in str(error) for hint in REFUSALS), error
        assert list(tmp_path.iterdir()) == []
        return
    before, after = weights(FILES / name), weights(output)
    if suffix == ".npz" and any(each.dtype == "bfloat16" for each in before):
        assert [each.path for each in before] == [each.path for each in after]
        return
    assert bits(before) == bits(after)
    with open_checkpoint(output) as reader:
        unnamed = any(notice.code.startswith("names-") for notice in reader.describe().warnings)
    if suffix != ".weights.h5" and not unnamed and ".weights.h5" not in name:
        assert sorted(before) == sorted(after)
