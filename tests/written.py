"""Configurations and descriptions written by hand, for tests of the assignment."""

from __future__ import annotations

import json
from typing import Any

from ckpttool.assignment import assign
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec, WrittenBy
from ckpttool.keras_config import ModelConfig, parse_config

Entry = dict[str, Any]
Shape = tuple[int, ...]


def entry(class_name: str, name: str, **config: Any) -> Entry:
    return {"class_name": class_name, "name": name, "config": {"name": name, **config}, "inbound_nodes": []}


def dense(name: str, units: int = 4, **config: Any) -> Entry:
    return entry("Dense", name, units=units, trainable=config.pop("trainable", True), **config)


def bn(name: str, **config: Any) -> Entry:
    return entry("BatchNormalization", name, trainable=config.pop("trainable", True), **config)


def embedding(name: str, rows: int, dim: int) -> Entry:
    return entry("Embedding", name, input_dim=rows, output_dim=dim, trainable=True)


def model(name: str, *layers: Entry, class_name: str = "Model", **config: Any) -> Entry:
    """A functional model; its graph does not matter here."""
    return entry(class_name, name, layers=list(layers), input_layers=[], output_layers=[], **config)


def parsed(*layers: Entry) -> ModelConfig:
    """The whole model, of these layers."""
    return parse_config(json.dumps(model("whole", *layers)))


def group(name: str, *tensors: tuple[str, Shape]) -> Layer:
    """A stored group with its flat list of weights."""
    return Layer(
        name,
        tensors=tuple(
            TensorSpec((name, *weight.split("/")), shape, "float32", locator=f"{name}:{place}", position=place)
            for place, (weight, shape) in enumerate(tensors)
        ),
    )


def stored(*groups: Layer, keras: str | None = "2.2.4") -> Checkpoint:
    return Checkpoint("keras-h5", "hdf5", "weights", groups, written_by=WrittenBy(keras, None, "tensorflow"))


def kernel_and_bias(scope: str, rows: int = 4, units: int = 4) -> tuple[tuple[str, Shape], tuple[str, Shape]]:
    return (f"{scope}/kernel:0", (rows, units)), (f"{scope}/bias:0", (units,))


def vectors(scope: str, *names: str, length: int = 4) -> tuple[tuple[str, Shape], ...]:
    return tuple((f"{scope}/{name}:0", (length,)) for name in names)


MOVING = ("moving_mean", "moving_variance")


def assigned(checkpoint: Checkpoint, config: ModelConfig | None) -> list[str]:
    """The names of the first group's tensors, in stored order."""
    named = assign(checkpoint, config)
    names = {spec.locator: spec.name for spec in named.weights()}
    return [names[spec.locator] for layer in checkpoint.layers for spec in layer.tensors]


def names(layer: str, *variables: str) -> list[str]:
    return [f"{layer}/{variable}" for variable in variables or ("kernel", "bias")]
