"""The input of a Sequential that does not list an InputLayer: from its first layer, its model or its weights.

Keras 2 keeps the shape in the first layer's `batch_input_shape`; Keras 3 reads that as a shape without the batch axis.
Source: keras/engine/sequential.py, add (Keras 2.2.4); keras/src/models/sequential.py (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoint import Layer
from ..keras_config import LayerConfig, ModelConfig
from .plan import LayerSpec, ModelPlan
from .rules._rule import plain, policy

_FROM_KERNEL = {"Dense": 1, "Conv1D": 2, "Conv2D": 3, "Conv3D": 4, "LSTM": 2, "GRU": 2, "SimpleRNN": 2, "CuDNNLSTM": 2,
                "CuDNNGRU": 2}  # fmt: skip  # axes of an input without the batch axis


def first_input(model: ModelConfig, plan: ModelPlan, stored: tuple[Layer, ...], dtype: str | None) -> LayerSpec | None:
    """The InputLayer that Keras 3 needs in front, or None where nothing says the shape.

    Parameters
    ----------
    model : a Sequential as stored
    plan : the same, planned; its first layer may be a model
    stored : its layers with their tensors
    dtype : of layers that do not say theirs
    """
    if not model.layers:
        return None
    first = model.layers[0]
    shape = _stated_shape(first, model)
    if shape is not None:
        return _input(shape, _input_dtype(first, dtype), f"{first.name}_input".replace("/", "_"))
    if plan.layers and plan.layers[0].spec.model is not None:
        return _of_model(plan.layers[0].spec.model)
    return _from_weights(first, stored, dtype)


def _input(shape: Any, dtype: str, name: str) -> LayerSpec:
    return LayerSpec("InputLayer", {"batch_shape": plain(shape), "name": name, "dtype": dtype})


def _stated_shape(first: LayerConfig, model: ModelConfig) -> Any:
    inner = first.config.get("layer")
    inside = inner.get("config") if isinstance(inner, Mapping) else None
    outer = model.raw.get("config")
    for config, key in (
        (first.config, "batch_input_shape"),
        (first.config, "batch_shape"),
        (inside, "batch_input_shape"),
        (outer, "build_input_shape"),
    ):
        if isinstance(config, Mapping) and isinstance(plain(config.get(key)), list):
            return config[key]
    return None


def _input_dtype(first: LayerConfig, dtype: str | None) -> str:
    name = policy(first.config.get("dtype"), dtype) or "float32"
    return "float32" if name.startswith("mixed_") else name


def _of_model(model: ModelPlan) -> LayerSpec | None:
    """The input of a model that comes first."""
    if model.sequential:
        return model.input_spec
    if len(model.inputs) != 1:
        return None
    layer = next(layer for layer in model.layers if layer.name == model.inputs[0].layer)
    return LayerSpec("InputLayer", {**layer.spec.arguments, "name": f"{model.name}_input"})


def _from_weights(first: LayerConfig, stored: tuple[Layer, ...], dtype: str | None) -> LayerSpec | None:
    """A model built by its data: the kernel says the channels, the class the axes."""
    axes = _FROM_KERNEL.get(first.class_name)
    layer = next((each for each in stored if each.name == first.name), None)
    if axes is None or layer is None or not layer.tensors or first.config.get("data_format") == "channels_first":
        return None
    kernel = layer.tensors[0].shape
    channels = kernel[-2] if len(kernel) >= 2 else None
    shape = [None] * axes + [channels]
    return _input(shape, _input_dtype(first, dtype), f"{first.name}_input".replace("/", "_"))
