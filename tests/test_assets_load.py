"""Keras loads what was carried: its lookup layers have their terms, and the model computes what was recorded."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.converting import convert, unwrap

from . import manifest
from .manifest import FILES

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

NAMES = ["keras-3.15-lookup.keras", "keras-3.15-parallel-lookup.keras", "keras-3.3.3-nested-lookup.keras"]


def computes_the_same(model: Any, name: str) -> None:
    import tensorflow as tf

    for path, terms in manifest.entry(name)["vocabularies"].items():
        layer: Any = model
        for part in path.split("/"):
            layer = layer.get_layer(part)
        assert [str(term) for term in layer.get_vocabulary()] == terms
    with np.load(FILES / manifest.entry(name)["reference"]) as arrays:
        inputs = [tf.constant(arrays[key]) for key in sorted(arrays) if key.startswith("x")]
        wanted = arrays["y0"]
    np.testing.assert_allclose(np.asarray(model(inputs)), wanted, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_template_of_an_archive_with_vocabularies(name: str, tmp_path: Path) -> None:
    import keras

    unwrap(FILES / name, tmp_path / "base.keras")
    computes_the_same(keras.saving.load_model(tmp_path / "base.keras"), name)


def test_an_archive_from_its_unpacked_folder_and_weights_alone(tmp_path: Path) -> None:
    import keras

    with zipfile.ZipFile(FILES / NAMES[0]) as file:
        file.extractall(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "again.keras")
    model = keras.saving.load_model(tmp_path / "again.keras")
    computes_the_same(model, NAMES[0])
    convert(tmp_path / "folder", tmp_path / "again.weights.h5")
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    model.load_weights(tmp_path / "again.weights.h5")
    computes_the_same(model, NAMES[0])
