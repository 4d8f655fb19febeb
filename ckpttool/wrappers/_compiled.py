"""How a parallel model was compiled, said of its template: losses and metrics are keyed by the names of outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..keras_config import ModelConfig
from ._shape import Shape

_BY_OUTPUT = ("loss", "metrics", "loss_weights", "sample_weight_mode", "weighted_metrics")


def of_template(training_config: str | None, model: ModelConfig, shape: Shape) -> str | None:
    """The training configuration of the template alone; None where the two have other outputs or another order."""
    body = model.layer(shape.bodies[0])
    if training_config is None or body is None or body.model is None:
        return None
    own = body.model.output_names()
    if [shape.merges.get(ref.layer) for ref in model.outputs] != list(range(len(own))):
        return None
    return renamed(training_config, {ref.layer: name for ref, name in zip(model.outputs, own, strict=True)})


def of_whole(training_config: str | None, shape: Shape) -> str | None:
    """The training configuration of the whole with one call of the template; None where that has several outputs."""
    if training_config is None or len(shape.merges) > 1:
        return None
    return renamed(training_config, dict.fromkeys(shape.merges, shape.bodies[0]))


def renamed(training_config: str, names: Mapping[str, str]) -> str | None:
    """The training configuration with other names for outputs; None where it is not JSON."""
    try:
        document = json.loads(training_config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    for key in _BY_OUTPUT:
        value = document.get(key)
        if isinstance(value, dict) and any(name in names for name in value):
            document[key] = {names.get(name, name): item for name, item in value.items()}
    return json.dumps(document)
