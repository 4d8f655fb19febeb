"""What is written is loaded by the library that owns the format, and predicts what the fixture recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.converting import unwrap
from ckpttool.source import SourceOptions

from . import manifest
from .manifest import FILES, FIXTURES

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

ARCHIVES = [
    "keras-3.15-cnn-packed.keras",
    "keras-3.15-deep.keras",
    "keras-3.15-parallel-two-towers.keras",
    "keras-3.15-parts.keras",
    "keras-3.15-same-shapes-frozen.keras",
    "keras-3.15-sequential-trained.keras",
    "keras-3.15-two-towers-folder",
    "keras-3.0.5-parallel-cnn.keras",
    "keras-3.3.3-parts.keras",
    "keras-3.15-plain-cnn.h5",
    "keras-3.15-plain-rnn.h5",
    "keras-3.15-plain-two-towers.h5",
]
LEGACY_WRAPPED = {  # its template in fixtures/make/templates.py
    "keras-2.2.4-sequential.h5": "sequential",
    "keras-2.3.1-two-towers.h5": "two-towers",
    "tf-2.2-cnn.h5": "cnn",
    "tf-1.15-deep-trained.h5": "deep",
    "tf-2.2-rnn.h5": "rnn",
}


def recorded(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with np.load(FILES / manifest.entry(name)["reference"]) as arrays:
        inputs = [arrays[key] for key in sorted(arrays) if key.startswith("x")]
        return inputs, [arrays[key] for key in sorted(arrays) if key.startswith("y")]


def predicts(model: Any, name: str, tolerance: float = 2e-6) -> None:
    inputs, expected = recorded(name)
    given = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
    outputs = given if isinstance(given, (list, tuple)) else [given]
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(np.asarray(output, np.float32), wanted, atol=tolerance, rtol=1e-5)


@pytest.fixture(scope="module")
def templates() -> Iterator[Any]:
    """The models that the makers saved, as functions of a Keras."""
    sys.path.insert(0, str(FIXTURES / "make"))
    try:
        import templates as found

        yield found.TEMPLATES
    finally:
        sys.path.remove(str(FIXTURES / "make"))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", ARCHIVES)
def test_keras_loads_the_model_and_predicts_the_same(name: str, suffix: str, tmp_path: Path) -> None:
    import keras

    output = tmp_path / f"base{suffix}"
    unwrap(FILES / name, output)
    predicts(keras.saving.load_model(output), name)


@pytest.mark.parametrize("name", ARCHIVES)
def test_keras_loads_the_weights_into_the_same_architecture(name: str, tmp_path: Path) -> None:
    import json

    import keras

    unwrap(FILES / name, tmp_path / "base.weights.h5")
    unwrap(FILES / name, tmp_path / "base.keras")
    model = keras.saving.load_model(tmp_path / "base.keras", compile=False)
    fresh = keras.models.model_from_json(json.dumps({**json.loads(model.to_json()), "compile_config": None}))
    for variable in fresh.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    fresh.load_weights(tmp_path / "base.weights.h5")
    predicts(fresh, name)


@pytest.mark.parametrize(("name", "template"), LEGACY_WRAPPED.items())
def test_weights_of_an_old_wrapper_go_into_a_keras_3_model(
    name: str, template: str, templates: Any, tmp_path: Path
) -> None:
    """The architecture is the maker's own code, run with today's Keras."""
    import keras

    unwrap(FILES / name, tmp_path / "base.weights.h5")
    keras.utils.clear_session()
    model, _ = templates[template](keras, {})
    model.load_weights(tmp_path / "base.weights.h5")
    predicts(model, name)


def test_tf_keras_loads_what_comes_out_of_an_archive_of_its_own(tmp_path: Path) -> None:
    import tf_keras

    for name in ("tf-2.15-parallel-sequential.keras", "tf-2.13-parallel-sequential.keras"):
        output = tmp_path / f"{name}.h5"
        unwrap(FILES / name, output)
        predicts(tf_keras.models.load_model(output), name)


def test_tf_keras_loads_weights_in_the_new_layout(tmp_path: Path, templates: Any) -> None:
    import tf_keras

    name = "tf-2.15-parallel-sequential.keras"
    unwrap(FILES / name, tmp_path / "base.weights.h5")
    model, _ = templates["sequential"](tf_keras, {})
    model.load_weights(tmp_path / "base.weights.h5")
    predicts(model, name)


def test_keras_loads_a_cast_model(tmp_path: Path) -> None:
    import keras

    name = "keras-3.15-deep.keras"
    unwrap(FILES / name, tmp_path / "base.keras", dtype="bfloat16")
    predicts(keras.saving.load_model(tmp_path / "base.keras"), name, tolerance=0.05)


def test_keras_loads_the_template_of_wrapped_weights(tmp_path: Path, templates: Any) -> None:
    import keras

    name = "keras-3.15-parallel-two-towers.weights.h5"
    unwrap(FILES / name, tmp_path / "base.weights.h5", options=SourceOptions(assume_wrapper="two_towers"))
    model, _ = templates["two-towers"](keras, {})
    model.load_weights(tmp_path / "base.weights.h5")
    predicts(model, name)
