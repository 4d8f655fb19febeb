"""Find a data-parallel wrapper in a functional graph by its shape: slices, one model called on each, outputs joined."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..keras_config import LayerConfig, ModelConfig, TensorRef
from ._slices import Shape as TensorShape
from ._slices import Slice, joined, joins, stated_shape, trace

Calls = Sequence[tuple[LayerConfig, int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A wrapper found in a graph."""

    bodies: tuple[str, ...]  # the template's layer name; or N of them, one a replica
    calls: tuple[int, ...]  # which calls of them, in order
    replicas: int
    sources: tuple[TensorRef, ...]  # what is sliced, in the order of the template's inputs
    merges: dict[str, int]  # joining layer -> output of the template
    machinery: frozenset[str]  # slices and merges: the layers that are only the wrapper's
    proven: bool
    is_multi_gpu_model: bool  # slices with exactly the arguments of Keras's own function


def find_shape(model: ModelConfig) -> Shape | None:
    """The wrapper in a functional model: one model called N times, or N equal models called once each."""
    if not model.functional:
        return None
    found = [shape for calls in _candidates(model) if (shape := _shape(model, calls)) is not None]
    return min(found, key=_unproven, default=None)


def _unproven(shape: Shape) -> bool:
    return not shape.proven


def _candidates(model: ModelConfig) -> list[Calls]:
    """Calls whose outputs a layer joins: of one model with weights inside, or of N equal models once each."""
    candidates: dict[tuple[tuple[str, int], ...], Calls] = {}
    for merge in model.layers:
        if len(merge.nodes) != 1 or len(merge.nodes[0].inputs) < 2 or joins(merge) is None:
            continue
        found = [(model.layer(ref.layer), ref.call) for ref in merge.nodes[0].inputs]
        calls = [(layer, call) for layer, call in found if layer is not None and layer.model is not None]
        if len(calls) != len(found):
            continue
        names = {layer.name for layer, _ in calls}
        one_body = len(names) == 1 and len({call for _, call in calls}) == len(calls)
        if one_body or (len(names) == len(calls) and all(len(layer.nodes) == 1 for layer, _ in calls)):
            candidates.setdefault(tuple((layer.name, call) for layer, call in calls), calls)
    return [calls for calls in candidates.values() if _equal(calls)]


def _shape(model: ModelConfig, calls: Calls) -> Shape | None:
    replicas = len(calls)
    body = calls[0][0].model
    wanted = input_shapes(body) if body is not None else ()
    rows: list[list[Slice]] = []
    for number, (layer, call) in enumerate(calls):
        inputs = layer.nodes[call].inputs
        shapes = wanted if len(wanted) == len(inputs) else (None,) * len(inputs)
        traced = [trace(model, ref, number, replicas, shape) for ref, shape in zip(inputs, shapes, strict=True)]
        present = [one for one in traced if one is not None]
        if not present or len(present) != len(traced):
            return None
        rows.append(present)
    sources = tuple(one.source for one in rows[0])
    if len(set(sources)) != len(sources) or any(tuple(one.source for one in row) != sources for row in rows):
        return None
    if not _distinct(calls):
        return None
    names = [(layer.name, call) for layer, call in calls]
    merges = {layer.name: (tensor, joins(layer)) for layer, tensor in joined(model, names)}
    slices = [one for row in rows for one in row]
    how = {each for _, each in merges.values()}
    proven = all(one.proven for one in slices) and "batch" in how
    tensors = [tensor for tensor, _ in merges.values()]
    if len(set(tensors)) != len(tensors) or not ("batch" in how or all(one.proven for one in slices)):
        return None
    return Shape(
        bodies=tuple(dict.fromkeys(layer.name for layer, _ in calls)),
        calls=tuple(call for _, call in calls),
        replicas=replicas,
        sources=sources,
        merges={name: tensor for name, (tensor, _) in merges.items()},
        machinery=frozenset(name for one in slices for name in one.layers) | frozenset(merges),
        proven=proven,
        is_multi_gpu_model=proven and all(one.arguments == ("i", "parts") for one in slices),
    )


def input_shapes(model: ModelConfig) -> tuple[TensorShape | None, ...]:
    """The shapes of a model's inputs, as far as its configuration states them."""
    if model.functional:
        layers = [model.layer(ref.layer) for ref in model.inputs]
        return tuple(None if layer is None else stated_shape(layer) for layer in layers)
    first = model.layers[0] if model.layers else None
    if first is not None and first.model is not None:
        return input_shapes(first.model)
    return (None if first is None else stated_shape(first),)


def _distinct(calls: Calls) -> bool:
    """Every call has a slice of its own: not one tensor given twice."""
    given = [ref for layer, call in calls for ref in layer.nodes[call].inputs]
    return len(set(given)) == len(given)


def _equal(calls: Calls) -> bool:
    """Whether models differ in nothing but names: replicas that somebody built one by one."""
    bodies = {layer.name: layer.model for layer, _ in calls}
    if len(bodies) == 1:
        return True
    first, *others = (_canonical(model) for model in bodies.values())
    return all(other == first for other in others)


def _canonical(model: ModelConfig | None) -> Any:
    """A model with numbers for its layers' names, and without how its weights were first filled."""
    if model is None:
        return None
    places = {layer.name: place for place, layer in enumerate(model.layers)}

    def numbered(refs: Sequence[TensorRef]) -> list[tuple[int, int, int]]:
        return [(places.get(ref.layer, -1), ref.call, ref.tensor) for ref in refs]

    layers = [
        (layer.class_name, _settings(layer), [numbered(node.inputs) for node in layer.nodes], _canonical(layer.model))
        for layer in model.layers
    ]
    return layers, numbered(model.inputs), numbered(model.outputs)


def _settings(layer: LayerConfig) -> str:
    if layer.model is not None:
        return ""
    return json.dumps(_unnamed(layer.config), sort_keys=True)


def _unnamed(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "name" and not key.endswith("_initializer")}
        return {key: _unnamed(item) for key, item in kept.items()}
    return [_unnamed(item) for item in value] if isinstance(value, list) else value


def has_other_calls(model: ModelConfig, shape: Shape) -> bool:
    """Whether the template is called outside of the wrapper too."""
    body = model.layer(shape.bodies[0])
    return body is not None and len(shape.bodies) == 1 and len(body.nodes) > len(shape.calls)


def around(model: ModelConfig, shape: Shape) -> list[LayerConfig]:
    """Layers that are neither the wrapper's nor the template's nor inputs that are sliced, in model order."""
    own = {*shape.bodies, *shape.machinery, *(source.layer for source in shape.sources if _is_input(model, source))}
    return [layer for layer in model.layers if layer.name not in own]


def _is_input(model: ModelConfig, ref: TensorRef) -> bool:
    layer = model.layer(ref.layer)
    return layer is not None and layer.class_name == "InputLayer"
