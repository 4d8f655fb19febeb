"""Data-parallel wrappers by their shape: one sub-model called on N slices of the batch, its outputs joined again.

Covers what people wrote beside `multi_gpu_model`: `make_parallel` (arguments `idx`, `parts`; Keras 1's `Merge`),
`to_multi_gpu` (`n_gpus`, `part`), slices whose function holds its numbers in defaults or a closure, slices made by op
layers of tf.keras or Keras 3, N bodies of equal weights in place of one, wrappers with other layers around them, and
wrappers inside another model. What has the shape without numbers that prove it is not certain: a flip for test-time
augmentation has the same shape.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..checkpoint import Checkpoint, Layer
from ..transforms import lift, model_config
from ..wrapping import Evidence

KIND = "data_parallel"
_SLICE_GROUP = re.compile(
    r"lambda(_\d+)?|(.*_)?slices?(_.*)?|split(_\d+)?|get_?item(_\d+)?|tf_op_layer_.*|tf\..*", re.IGNORECASE
)


def detect(checkpoint: Checkpoint) -> Evidence | None:
    """Find the shape in the configuration, at any depth; without one, in the groups of a file of weights."""
    model = model_config(checkpoint)
    if model is None:
        return None if checkpoint.config_of else by_groups(checkpoint)
    from ._by_shape import detect_shape  # here and below: what has no configuration is listed without it

    return detect_shape(checkpoint, model)


def unwrap(checkpoint: Checkpoint, evidence: Evidence) -> Checkpoint:
    """The template alone; or, where layers around the wrapper belong to the model, the whole with one call of it."""
    whole = model_config(checkpoint)
    if whole is None:
        return _without_slices(checkpoint) if evidence.in_place else lift(checkpoint, evidence.template)
    from ._by_shape import unwrap_shape

    return unwrap_shape(checkpoint, evidence, whole)


def by_groups(checkpoint: Checkpoint) -> Evidence | None:
    """Weights alone: one nested group stands between empty groups named like slices and at least one more group."""
    if checkpoint.kind != "weights" or checkpoint.format != "keras-h5":
        return None
    layers = checkpoint.layers
    nested = [place for place, layer in enumerate(layers) if layer.layers]
    slices = [place for place, layer in enumerate(layers) if _is_slice_group(layer)]
    before = [place for place in nested if sum(each < place for each in slices) >= 2]
    if not before or before[0] == len(layers) - 1:
        return None
    place = before[0]
    template, slices = layers[place], [each for each in slices if each < place]
    rest = [layer.name for layer in layers if layer is not template and any(layer.all_tensors())]
    count = sum(1 for _ in template.all_tensors())
    held = f"holds all {count} tensors" if not rest else f"holds {count} tensors"
    reasons = [f"group '{template.name}' {held}", f"{len(slices)} empty groups named like slices"]
    if rest:
        reasons.append(f"{len(rest)} more groups with weights: {', '.join(rest[:3])}{' …' if len(rest) > 3 else ''}")
    inputs = slices[0]
    by_lambda = all(not layers[each].name.startswith(("tf", "split")) for each in slices)
    replicas = len(slices) // inputs if by_lambda and inputs and len(slices) % inputs == 0 else None
    return Evidence(KIND, (template.name,), replicas, False, tuple(reasons), in_place=bool(rest))


def _is_slice_group(layer: Layer) -> bool:
    return _SLICE_GROUP.fullmatch(layer.name) is not None and not any(layer.all_tensors())


def _without_slices(checkpoint: Checkpoint) -> Checkpoint:
    """Weights alone with other layers around the template: all groups but those of the slices."""
    return replace(checkpoint, layers=tuple(layer for layer in checkpoint.layers if not _is_slice_group(layer)))
