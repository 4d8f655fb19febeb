"""Data-parallel wrappers by their shape: one sub-model called on N slices of the batch, its outputs joined again.

Covers what people wrote beside `multi_gpu_model`: `make_parallel` (arguments `idx`, `parts`; Keras 1's `Merge`),
`to_multi_gpu` (`n_gpus`, `part`), slices whose function holds its numbers in defaults or a closure, slices made by op
layers of tf.keras or Keras 3, N bodies of equal weights in place of one, wrappers with other layers around them, and
wrappers inside another model. What has the shape without numbers that prove it is not certain: a flip for test-time
augmentation has the same shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..checkpoint import Checkpoint, Layer, Notice, TensorSpec
from ..keras_config import LayerConfig, ModelConfig
from ..keras_variables import expected_variables
from ..transforms import lift, map_layer, model_config, nested_model
from ..wrapping import Evidence
from ._built import with_input_shape
from ._compiled import of_template, of_whole, renamed
from ._rewriting import changed_inside, collapsed, replaced
from ._shape import Shape, around, find_shape, has_other_calls

KIND = "data_parallel"
_SLICE_GROUP = re.compile(
    r"lambda(_\d+)?|(.*_)?slices?(_.*)?|split(_\d+)?|get_?item(_\d+)?|tf_op_layer_.*|tf\..*", re.IGNORECASE
)


def detect(checkpoint: Checkpoint) -> Evidence | None:
    """Find the shape in the configuration, at any depth; its numbers decide whether it is certain."""
    model = model_config(checkpoint)
    if model is None:
        return None if checkpoint.config_of else by_groups(checkpoint)
    for path, inside in _models(model, ()):
        shape = find_shape(inside)
        if shape is not None and _holds_together(checkpoint, path, shape):
            return _evidence(checkpoint, inside, path, shape)
    return None


def _models(model: ModelConfig, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ModelConfig]]:
    """The model and all models in it, outer ones first."""
    yield path, model
    for layer in model.layers:
        if layer.model is not None:
            yield from _models(layer.model, (*path, layer.name))


def _evidence(checkpoint: Checkpoint, model: ModelConfig, path: tuple[str, ...], shape: Shape) -> Evidence:
    rest = [layer.name for layer in around(model, shape)]
    sliced = ", ".join(f"'{source.layer}'" for source in shape.sources[:3]) + (" …" if len(shape.sources) > 3 else "")
    reasons = [
        f"{_bodies_text(shape)} on slices of {sliced}",
        f"outputs joined by {', '.join(shape.merges)}",
    ]
    if not shape.proven:
        reasons.append("no number in the file says which slice is which: a crop or a flip would look the same")
    if rest:
        reasons.append(f"{len(rest)} more layers around it: {', '.join(rest[:3])}{' …' if len(rest) > 3 else ''}")
    twins = tuple(_twins(checkpoint, path, shape))
    if len(shape.bodies) > 1:
        reasons.append("that their values are equal is checked while they are read")
    kind = "multi_gpu_model" if shape.is_multi_gpu_model and len(shape.bodies) == 1 else KIND
    return Evidence(kind, (*path, shape.bodies[0]), shape.replicas, shape.proven, tuple(reasons), twins=twins,
                    in_place=bool(path) or _kept(checkpoint, model, shape))  # fmt: skip


def _bodies_text(shape: Shape) -> str:
    if len(shape.bodies) == 1:
        return f"'{shape.bodies[0]}' is called {shape.replicas} times"
    return f"{len(shape.bodies)} models of one structure ('{shape.bodies[0]}' … '{shape.bodies[-1]}') are called once"


def _holds_together(checkpoint: Checkpoint, path: tuple[str, ...], shape: Shape) -> bool:
    """Whether what is stored agrees: weights in the template, none in slices and merges, N bodies of equal shapes."""
    layers = {layer.name: layer for layer in _layers_at(checkpoint, path)}
    if any(name in layers and any(layers[name].all_tensors()) for name in shape.machinery):
        return False
    shapes = [[spec.shape for spec in layers[name].all_tensors()] for name in shape.bodies if name in layers]
    return len(shapes) == len(shape.bodies) and all(each == shapes[0] for each in shapes[1:])


def _layers_at(checkpoint: Checkpoint, path: tuple[str, ...]) -> tuple[Layer, ...]:
    layers = checkpoint.layers
    for name in path:
        found = next((layer for layer in layers if layer.name == name), None)
        layers = () if found is None else found.layers
    return layers


def _twins(
    checkpoint: Checkpoint, path: tuple[str, ...], shape: Shape
) -> Iterator[tuple[TensorSpec, tuple[TensorSpec, ...]]]:
    """Each tensor of the first body with those of the others that must equal it."""
    layers = {layer.name: layer for layer in _layers_at(checkpoint, path)}
    bodies = [list(layers[name].all_tensors()) for name in shape.bodies]
    if len(bodies) > 1:
        for first, *others in zip(*bodies, strict=True):
            yield first, tuple(others)


def unwrap(checkpoint: Checkpoint, evidence: Evidence) -> Checkpoint:
    """The template alone; or, where layers around the wrapper belong to the model, the whole with one call of it."""
    path = evidence.template[:-1]
    whole = model_config(checkpoint)
    if whole is None and evidence.in_place:
        return _without_slices(checkpoint)
    model = nested_model(whole, path) if whole is not None and path else whole
    shape = None if model is None else find_shape(model)
    if whole is None or model is None or shape is None or shape.bodies[0] != evidence.template[-1]:
        return lift(checkpoint, evidence.template)
    if path:
        return _unwrapped_inside(checkpoint, whole, path, shape)
    if _kept(checkpoint, model, shape):
        entry, gone = collapsed(model, shape)
        layers = _one_call(checkpoint.layers, shape, gone)
        compiled = of_whole(checkpoint.training_config, shape)
        return replace(checkpoint, layers=layers, loose=(), training_config=compiled, config=json.dumps(entry))
    template = lift(checkpoint, evidence.template)
    template = replace(template, training_config=of_template(checkpoint.training_config, model, shape))
    template = with_input_shape(template, model, shape)
    rest = [layer.name for layer in around(model, shape)]
    if not rest:
        return template
    shown = ", ".join(rest[:5])
    return template.with_warnings(
        Notice("layers-left-out", f"layers around the wrapper, which have no weights, are left out: {shown}")
    )


def _kept(checkpoint: Checkpoint, model: ModelConfig, shape: Shape) -> bool:
    """Whether what is around the wrapper is a part of the model: it has weights, or is all of Keras's own making.

    A loss in a Lambda, with the targets as inputs, is no part of it.
    """
    rest = around(model, shape)
    if has_other_calls(model, shape):
        return True
    weighted = {layer.name for layer in checkpoint.layers if any(layer.all_tensors())}
    if any(layer.name in weighted for layer in rest):
        return True
    own = [layer for layer in rest if layer.class_name != "InputLayer"]
    return bool(own) and not any(layer.class_name == "Lambda" or _is_unknown(layer) for layer in own)


def _is_unknown(layer: LayerConfig) -> bool:
    return layer.model is None and expected_variables(layer) is None


def _one_call(layers: tuple[Layer, ...], shape: Shape, gone: frozenset[str]) -> tuple[Layer, ...]:
    fewer = len(shape.calls) - 1 if len(shape.bodies) == 1 else 0
    return tuple(
        replace(layer, calls=layer.calls - fewer) if layer.name == shape.bodies[0] else layer
        for layer in layers
        if layer.name not in gone
    )


def _unwrapped_inside(checkpoint: Checkpoint, whole: ModelConfig, path: tuple[str, ...], shape: Shape) -> Checkpoint:
    """The whole with a nested parallel model's template in its place."""
    parent = nested_model(whole, path[:-1]) if path[:-1] else whole
    container = parent.layer(path[-1]) if parent is not None else None
    if parent is None or container is None or container.model is None:
        return lift(checkpoint, (*path, shape.bodies[0]))
    found, compiled = replaced(parent, container, shape), checkpoint.training_config
    if found is None:
        inner, gone = collapsed(container.model, shape)
        entry = changed_inside(whole, path, inner)
        layers = _at(checkpoint.layers, path, lambda each: replace(each, layers=_one_call(each.layers, shape, gone)))
    else:
        inner, name = found
        entry = changed_inside(whole, path[:-1], inner)
        if len(path) == 1 and compiled is not None:
            compiled = renamed(compiled, {path[-1]: name})
        layers = _at(checkpoint.layers, path, lambda each: _body_in_place(each, shape.bodies[0], name, len(path) - 1))
    return replace(checkpoint, layers=layers, loose=(), training_config=compiled, config=json.dumps(entry))


def _body_in_place(container: Layer, body: str, name: str, depth: int) -> Layer:
    inside = next(layer for layer in container.layers if layer.name == body)

    def renamed(spec: TensorSpec) -> TensorSpec:
        return replace(spec, path=(*spec.path[:depth], name, *spec.path[depth + 2 :]))

    return replace(map_layer(inside, renamed), name=name, calls=container.calls)


def _at(layers: tuple[Layer, ...], path: tuple[str, ...], change: Callable[[Layer], Layer]) -> tuple[Layer, ...]:
    """The layers with the one at a path changed."""

    def one(layer: Layer) -> Layer:
        if layer.name != path[0]:
            return layer
        return change(layer) if len(path) == 1 else replace(layer, layers=_at(layer.layers, path[1:], change))

    return tuple(one(layer) for layer in layers)


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
