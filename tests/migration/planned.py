"""Layers by hand: configurations as Keras 2 stores them, through the planner."""

from __future__ import annotations

import json
from typing import Any

from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec, WrittenBy
from ckpttool.migration.plan import LayerPlan, Plan
from ckpttool.migration.planning import Replacements, make_plan


def template(config: dict[str, Any], layers: tuple[Layer, ...] = (), **more: Any) -> Checkpoint:
    """A description with a configuration and layers, written by Keras 2.2.4 unless told otherwise."""
    written = WrittenBy(keras=more.pop("keras", "2.2.4"), backend=more.pop("backend", "tensorflow"))
    return Checkpoint("keras-h5", "hdf5", "model", layers, config=json.dumps(config), written_by=written, **more)


def layer_of(name: str, shapes: dict[str, tuple[int, ...]], dtype: str = "float32") -> Layer:
    """A stored layer with tensors `variable` or `inner/variable`."""
    specs = tuple(
        TensorSpec((name, *variable.split("/")), shape, dtype, locator=f"{name}/{variable}")
        for variable, shape in shapes.items()
    )
    return Layer(name, tensors=specs)


def plan_of(
    class_name: str,
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    input_shape: tuple[int | None, ...] = (None, 4),
    inbound: Any = None,
    replacements: Replacements = Replacements(),
    **more: Any,
) -> Plan:
    """The plan of a model of one input and one layer called `layer`."""
    config = {"name": "layer", **config}
    layers = [
        {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
         "config": {"name": "x", "batch_input_shape": list(input_shape), "dtype": "float32", "sparse": False}},
        {"class_name": class_name, "name": "layer", "config": config,
         "inbound_nodes": [[["x", 0, 0, {}]]] if inbound is None else inbound},
    ]  # fmt: skip
    model = {"class_name": "Model", "config": {"name": "m", "layers": layers, "input_layers": [["x", 0, 0]],
                                              "output_layers": [["layer", 0, 0]]}}  # fmt: skip
    stored = (Layer("x"), layer_of("layer", shapes or {}, more.pop("dtype", "float32")))
    return make_plan(template(model, stored, **more), replacements)


def plan_layer(*arguments: Any, **keywords: Any) -> LayerPlan:
    """The LayerPlan of that one layer."""
    return plan_of(*arguments, **keywords).model.layers[1]
