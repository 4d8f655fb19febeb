"""What `unwrap` makes of a SavedModel opens in tf_keras and predicts what the model did that was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckpttool
from ckpttool.source import SourceOptions

from .formats.test_saved_model import KERAS
from .formats.test_tf_checkpoint import opened
from .manifest import FILES, entry, names, template_json

pytestmark = pytest.mark.tensorflow
WEIGHTS = names(
    lambda name, each: (
        "object-based" in each["tags"] and each["template"] is not None and each["template"]["json"] is not None
        and each["reference"] is not None and each["kind"] == "checkpoint" and not name.startswith("keras-3")
    )
)  # fmt: skip


def predicts_the_same(path: Path, name: str) -> None:
    import tf_keras

    model = tf_keras.models.load_model(path, compile=False)
    assert model.count_params() == sum(int(np.prod(each["shape"])) for each in entry(name)["tensors"])
    if entry(name)["reference"] is None:
        return
    with np.load(FILES / entry(name)["reference"]) as reference:
        inputs = [reference[key] for key in sorted(key for key in reference if key.startswith("x"))]
        outputs = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
        assert np.allclose(outputs, reference["y0"], atol=1e-5)


@pytest.mark.parametrize("name", KERAS)
def test_a_saved_model_as_h5(name: str, tmp_path: Path) -> None:
    ckpttool.unwrap(opened(name), tmp_path / "x.h5")
    predicts_the_same(tmp_path / "x.h5", name)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_checkpoint_with_its_models_json_as_h5(name: str, tmp_path: Path) -> None:
    ckpttool.unwrap(opened(name), tmp_path / "x.h5", options=SourceOptions(config=template_json(name, tmp_path)))
    predicts_the_same(tmp_path / "x.h5", name)
