"""Models of Keras 3 that no fixture has, made here: quantized, with LoRA, classes whose group is called otherwise.

Keras saves them, ckpttool writes them anew in each container, Keras loads that and predicts the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.checkpoint import TensorSpec
from ckpttool.converting import convert
from ckpttool.inspecting import inspect
from ckpttool.opening import open_checkpoint

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]


def dense_in_a_model(keras: Any, mode: str) -> Any:
    layers = keras.layers
    inside = layers.Input((6,))
    inner = keras.Model(inside, layers.Dense(8, name="d")(layers.BatchNormalization(name="bn")(inside)), name="inner")
    outside = layers.Input((6,))
    model = keras.Model(outside, layers.Dense(4, use_bias=False, name="o")(inner(outside)), name="m")
    return changed(model, inner.get_layer("d"), mode)


def embedding(keras: Any, mode: str) -> Any:
    layers = keras.layers
    words = layers.Input((5,), dtype="int32")
    table = layers.Embedding(9, 8, name="image_embedding")
    model = keras.Model(words, layers.Dense(3, name="o")(table(words)), name="m")
    return changed(model, table, mode)


def attention(keras: Any, mode: str) -> Any:
    """The group is `grouped_query_attention`, after the class and not after its public name."""
    layers = keras.layers
    x = layers.Input((6, 8))
    y = layers.GroupQueryAttention(2, 2, 1, name="attention")(x, x)
    return changed(keras.Model(x, layers.Dense(2, name="o")(y), name="m"), None, mode)


def changed(model: Any, layer: Any, mode: str) -> Any:
    random = np.random.default_rng(1)
    fill(model, random)
    if mode == "lora":
        layer.enable_lora(2)
        fill(model, random)
    elif mode != "float":
        model.quantize(mode)
    return model


def fill(model: Any, random: np.random.Generator) -> None:
    for variable in model.variables:
        if "float" in str(variable.dtype):
            variable.assign(0.1 + random.random(variable.shape) / 2)


def weights(path: Path) -> list[TensorSpec]:
    with open_checkpoint(path) as reader:
        return list(reader.describe().weights())


TOLD = {"float": None, "float8": None, "lora": "lora", "int8": "quantized", "int4": "quantized"}  # of a legacy file
CELLS: list[tuple[Callable[[Any, str], Any], str]] = [
    (dense_in_a_model, "lora"), (dense_in_a_model, "int8"), (dense_in_a_model, "int4"), (dense_in_a_model, "float8"),
    (embedding, "lora"), (embedding, "int8"), (embedding, "int4"), (attention, "float"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "mode"), CELLS)
def test_keras_loads_it_from_every_container(make: Callable[[Any, str], Any], mode: str, tmp_path: Path) -> None:
    import keras

    source = tmp_path / "in.keras"
    make(keras, mode).save(source)
    model = keras.saving.load_model(source)
    shape = tuple(model.inputs[0].shape[1:])
    x = (np.arange(3 * np.prod(shape)).reshape(3, *shape) % 7).astype(model.inputs[0].dtype)
    wanted = np.asarray(model(x))
    convert(source, tmp_path / "out.keras")
    convert(source, tmp_path / "out.weights.h5")
    report = convert(source, tmp_path / "out.h5")
    assert ("lora-merged" in [each.code for each in report.warnings]) == (mode == "lora")
    np.testing.assert_allclose(np.asarray(keras.saving.load_model(tmp_path / "out.keras")(x)), wanted, atol=1e-5)
    np.testing.assert_allclose(np.asarray(keras.saving.load_model(tmp_path / "out.h5")(x)), wanted, atol=1e-5)
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    model.load_weights(tmp_path / "out.weights.h5")
    np.testing.assert_allclose(np.asarray(model(x)), wanted, atol=1e-5)
    model = keras.saving.load_model(source)
    model.save(tmp_path / "own.h5")
    names = {path: [spec.name for spec in weights(tmp_path / path)] for path in ("in.keras", "out.h5", "own.h5")}
    assert sorted(names["in.keras"]) == sorted(names["out.h5"])
    assert sorted(names["in.keras"]) == sorted(name for name in names["own.h5"] if "lora_" not in name)
    told = {each.code for each in inspect(tmp_path / "own.h5").warnings}
    assert "custom-classes" not in told
    assert {"quantized", "lora"} & told == {TOLD[mode]} - {None}
    assert not {"unmatched-layer", "weights-missing"} & {each.code for each in inspect(source).warnings}
