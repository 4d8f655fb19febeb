"""A Sequential that its first call, inside of a wrapper, has built gets the input shape that the wrapper states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from ..checkpoint import Checkpoint, Notice
from ..keras_config import ModelConfig
from ._shape import Shape, input_shapes
from ._slices import shape_of


def with_input_shape(template: Checkpoint, model: ModelConfig, shape: Shape) -> Checkpoint:
    """The template with `batch_input_shape` on its first layer, where it has none and Keras could not load it without.

    Keras up to 2.3.1 and tf.keras up to 1.15 load such a Sequential with no layers, and then refuse its weights; later
    ones store `build_input_shape`.
    """
    body = model.layer(shape.bodies[0])
    stated = shape_of(model, shape.sources[0]) if len(shape.sources) == 1 else None
    if template.config is None or stated is None or body is None or body.model is None or body.model.functional:
        return template
    document = json.loads(template.config)
    config = document.get("config")
    layers = config.get("layers") if isinstance(config, Mapping) else config
    if (
        input_shapes(body.model) != (None,)
        or not layers
        or (isinstance(config, Mapping) and config.get("build_input_shape"))
    ):
        return template
    first = layers[0]
    if first.get("module") is not None or "layers" in first["config"]:
        return template  # Keras 3 builds by other means, and a model states its own inputs
    first["config"]["batch_input_shape"] = [None, *stated[1:]]
    message = f"its first layer gets the input shape {(None, *stated[1:])}, which only the wrapper stated"
    return replace(template, config=json.dumps(document)).with_warnings(Notice("input-shape-added", message))
