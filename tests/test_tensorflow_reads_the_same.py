"""TensorFlow's own reader beside ours, over every fixture and published checkpoint: names, shapes, types, values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.errors import UnsupportedError
from ckpttool.opening import open_checkpoint
from ckpttool.probe import Probe

from .conftest import CORPUS
from .formats.test_tf_checkpoint import stored
from .manifest import FILES, entry

pytestmark = pytest.mark.tensorflow


def published() -> list[Path]:
    """Every index of the corpus, and the first file of each V1 checkpoint."""
    found = [path.relative_to(CORPUS) for path in CORPUS.rglob("*.index")]
    found += [path.relative_to(CORPUS) for path in CORPUS.rglob("*-00000-of-0000?") if ".data-" not in path.name]
    return sorted(found) or [Path("there is no corpus")]


def compare(path: Path) -> None:
    """The reader's map of a checkpoint against ours."""
    import tensorflow as tf

    probe = Probe(path)
    place = probe.tensorflow()
    assert place is not None
    prefix = place.prefix if place.kind != "saved-model" else f"{place.prefix}/variables/variables"
    if place.kind == "tf-checkpoint-v1":
        prefix = prefix if len(place.files) == 1 else prefix[: -len("00000-of-00000")] + "?????-of-?????"
    theirs: Any = tf.compat.v1.train.NewCheckpointReader(prefix)
    shapes, types = theirs.get_variable_to_shape_map(), theirs.get_variable_to_dtype_map()
    with open_checkpoint(path) as reader:
        checkpoint = reader.describe()
        specs = {spec.locator: spec for spec in (*checkpoint.weights(), *checkpoint.loose)}
        joined = [locator.partition(" … ")[0].rpartition("_")[0] for locator in specs if " … " in locator]
        expected = {key for key in shapes if not any(key.startswith(f"{part}_") for part in joined)}
        assert set(specs) - {locator for locator in specs if " … " in locator} == expected
        for key in sorted(expected):
            spec = specs[key]
            assert list(spec.shape) == shapes[key]
            wanted = types[key].name.replace("half", "float16")
            assert spec.dtype == wanted or spec.dtype.startswith(f"{wanted}("), key
            same_values(theirs, reader, spec)


def same_values(theirs: Any, reader: Any, spec: Any) -> None:
    try:
        ours = reader.read(spec)
    except UnsupportedError:
        return
    try:
        value = theirs.get_tensor(spec.locator)
    except Exception:  # V1 slices, bool and complex values, which its reader does not give
        return
    if ours.dtype == object:
        assert ours.tolist() == (value if isinstance(value, bytes) else value.tolist())
    else:
        value = np.asarray(value)
        assert ours.dtype == value.dtype
        assert ours.tobytes() == value.tobytes(), spec.locator


@pytest.mark.parametrize(
    "name", [name for name in stored("checkpoint", "savedmodel") if "unfinished" not in entry(name)["tags"]]
)
def test_of_every_fixture(name: str) -> None:
    compare(FILES / name)


@pytest.mark.corpus
@pytest.mark.parametrize("path", published(), ids=str)
def test_of_every_published_checkpoint(path: Path) -> None:
    compare(CORPUS / path)
