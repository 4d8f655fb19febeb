"""The shape of a data-parallel wrapper in a configuration: evidence of it, and the template out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..checkpoint import Checkpoint, Layer, Notice, TensorSpec
from ..keras_config import LayerConfig, ModelConfig
from ..keras_variables import expected_variables
from ..transforms import lift, map_layer, nested_model
from ..wrapping import Evidence
from ._built import with_input_shape
from ._compiled import of_template, of_whole, renamed
from ._rewriting import changed_inside, collapsed, replaced
from ._shape import Shape, around, find_shape, has_other_calls
from .data_parallel import KIND


def detect_shape(checkpoint: Checkpoint, model: ModelConfig) -> Evidence | None:
    """Find the shape in the configuration, at any depth; its numbers decide whether it is certain."""
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


def unwrap_shape(checkpoint: Checkpoint, evidence: Evidence, whole: ModelConfig) -> Checkpoint:
    """The template alone; or, where layers around the wrapper belong to the model, the whole with one call of it."""
    path = evidence.template[:-1]
    model = nested_model(whole, path) if path else whole
    shape = None if model is None else find_shape(model)
    if model is None or shape is None or shape.bodies[0] != evidence.template[-1]:
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
