"""The graph of a live model, of whatever Keras: which layers it calls on what, and the template inside a wrapper.

No Keras is imported: Keras 2, tf.keras, tf_keras and Keras 3 all hang `_keras_history` (layer, call, output) on their
symbolic tensors and keep a layer's calls in `_inbound_nodes`.
Source: keras/engine/base_layer.py (Keras 2.3.1), tf_keras/src/engine/node.py (2.21), keras/src/ops/node.py (3.15).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .checkpoint import Checkpoint
from .wrapping import detect

PROBE_ROWS = 2  # of the batch for each replica, when slices are tried out


@dataclass(slots=True)
class Call:
    """One call of a layer inside the model: the tensors that go in."""

    inputs: list[Any]


@dataclass(slots=True)
class Graph:
    """The layers of a functional model by name, and the calls of each that its outputs depend on, in order."""

    inputs: list[Any]
    outputs: list[Any]
    layers: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, dict[int, Call]] = field(default_factory=dict)  # by the layer's own call number

    def reference(self, tensor: Any) -> tuple[str, int, int]:
        """(layer, call counted from 0 inside of this model, output) of a tensor."""
        layer, call, output = list(tensor._keras_history)[:3]
        return layer.name, sorted(self.calls[layer.name]).index(call), output


def is_model(layer: Any) -> bool:
    """Whether a layer holds other layers as a model does."""
    return isinstance(getattr(layer, "layers", None), list | tuple) and hasattr(layer, "get_layer")


def graph_of(model: Any) -> Graph | None:
    """The graph of a functional model; None for a subclassed one, which has none."""
    outputs = tensors_of(getattr(model, "outputs", None))
    inputs = tensors_of(getattr(model, "inputs", None))
    if not outputs or not inputs or not all(hasattr(tensor, "_keras_history") for tensor in [*outputs, *inputs]):
        return None
    graph = Graph(inputs, outputs)
    first = {id(tensor) for tensor in inputs}
    waiting = list(outputs)
    while waiting:
        tensor = waiting.pop()
        layer, number = list(tensor._keras_history)[:2]
        if layer is None:
            return None
        graph.layers[layer.name] = layer
        calls = graph.calls.setdefault(layer.name, {})
        if number in calls:
            continue
        is_input = id(tensor) in first or type(layer).__name__ == "InputLayer"
        calls[number] = Call(
            [] if is_input else tensors_of(getattr(layer._inbound_nodes[number], "input_tensors", None))
        )
        waiting += calls[number].inputs
    return graph


def tensors_of(structure: Any) -> list[Any]:
    """The tensors of lists and dicts, depth first."""
    if structure is None:
        return []
    if isinstance(structure, dict):
        return [tensor for key in sorted(structure) for tensor in tensors_of(structure[key])]
    if isinstance(structure, list | tuple):
        return [tensor for each in structure for tensor in tensors_of(each)]
    return [structure]


def template_of(model: Any) -> Any:
    """The model inside a wrapper, by one level; None where there is no wrapper, or nothing proves it.

    Parameters
    ----------
    model : live, of any Keras

    Returns
    -------
    the template, which has the same variables: of `multi_gpu_model` and its like; of slices of the batch that, tried
    out, are the batch again; of a model that does nothing but call another one once
    """
    if "Sequential" in {base.__name__ for base in type(model).__mro__}:
        inside = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
        return inside[0] if len(inside) == 1 and is_model(inside[0]) else None
    graph = graph_of(model)
    if graph is None:
        return None
    holders = [layer for layer in graph.layers.values() if getattr(layer, "weights", None)]
    if len(holders) != 1 or not is_model(holders[0]):
        return None
    template = holders[0]
    if _only_calls(graph, template) or _by_configuration(graph) == template.name or _by_trial(graph, template):
        return template
    return None


def _only_calls(graph: Graph, template: Any) -> bool:
    """The model gives its inputs to the template, in order, and gives back all of the template's outputs, in order."""
    calls = list(graph.calls[template.name].values())
    others = [layer for layer in graph.layers.values() if layer is not template]
    if len(calls) != 1 or any(type(layer).__name__ != "InputLayer" for layer in others):
        return False
    given = [graph.reference(tensor) for tensor in calls[0].inputs]
    taken = [graph.reference(tensor) for tensor in graph.outputs]
    count = len(tensors_of(getattr(template, "outputs", None))) or 1
    return given == [graph.reference(tensor) for tensor in graph.inputs] and taken == [
        (template.name, 0, number) for number in range(count)
    ]


def _by_configuration(graph: Graph) -> str | None:
    """Ask the wrapper modules, by a configuration that says of each layer only what they look at."""
    entries = []
    for name, layer in reversed(graph.layers.items()):
        config: dict[str, Any] = {"name": name}
        if is_model(layer):
            config |= {"layers": [], "input_layers": [], "output_layers": []}
        else:
            config |= {key: getattr(layer, key) for key in ("arguments", "axis") if hasattr(layer, key)}
        calls = graph.calls[name]
        nodes = [
            [[*graph.reference(tensor), {}] for tensor in calls[number].inputs]
            for number in sorted(calls)
            if calls[number].inputs
        ]
        class_name = "Model" if is_model(layer) else type(layer).__name__
        entries.append({"name": name, "class_name": class_name, "config": config, "inbound_nodes": nodes})
    document = {
        "class_name": "Model",
        "config": {
            "name": "live",
            "layers": entries,
            "input_layers": [list(graph.reference(tensor)) for tensor in graph.inputs],
            "output_layers": [list(graph.reference(tensor)) for tensor in graph.outputs],
        },
    }
    found = detect(Checkpoint("live", "memory", "model", config=json.dumps(document, default=repr)))
    return found.template[0] if found is not None and found.certain and len(found.template) == 1 else None


def _by_trial(graph: Graph, template: Any) -> bool:
    """Every output joins one output of all calls on the batch axis, and the calls' inputs, joined, are the inputs."""
    calls = [graph.calls[template.name][number] for number in sorted(graph.calls[template.name])]
    if len(calls) < 2 or len({len(call.inputs) for call in calls}) != 1:
        return False
    for output in graph.outputs:
        joiner, number = list(output._keras_history)[:2]
        joined = [graph.reference(tensor) for tensor in graph.calls[joiner.name][number].inputs]
        expected = [(template.name, call) for call in range(len(calls))]
        if [each[:2] for each in joined] != expected or len({each[2] for each in joined}) != 1:
            return False
        if not _joins_batch(joiner, number):
            return False
    return _slices_make_the_batch(graph, template, calls)


def _joins_batch(joiner: Any, number: int) -> bool:
    kind = type(joiner).__name__
    if kind == "Concatenate":
        return getattr(joiner, "axis", None) == 0
    node = joiner._inbound_nodes[number]
    return str(joiner.name).startswith("tf.concat") and getattr(node, "call_kwargs", {}).get("axis") == 0


def _slices_make_the_batch(graph: Graph, template: Any, calls: list[Call]) -> bool:
    functional = _functional_class(template)
    if functional is None:
        return False
    slices = [tensor for call in calls for tensor in call.inputs]
    rows = PROBE_ROWS * len(calls)
    probes = [_probe(tensor, rows, number) for number, tensor in enumerate(graph.inputs)]
    found = functional(graph.inputs, slices)(probes if len(probes) > 1 else probes[0])
    values = [np.asarray(value) for value in (found if isinstance(found, list | tuple) else [found])]
    width = len(calls[0].inputs)
    parts = [np.concatenate(values[place::width]) for place in range(width)]
    return len(parts) == len(probes) and all(map(np.array_equal, parts, probes))


def _functional_class(model: Any) -> Any:
    """The library's own Model class, which makes a functional model of tensors."""
    return next((base for base in type(model).__mro__ if base.__name__ == "Model"), None)


def _probe(tensor: Any, rows: int, number: int) -> np.ndarray:
    """Values that are all different in the first axis, as a batch for a symbolic input."""
    shape = [rows, *(1 if size is None else int(size) for size in tuple(tensor.shape)[1:])]
    dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
    values = np.arange(int(np.prod(shape))).reshape(shape) + number
    return (values % 2 if dtype == "bool" else values).astype(dtype)


def walk(model: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, layer) of every layer at any depth, outer ones first; what a layer wraps is inside of it."""
    for layer in model.layers:
        path = (*prefix, layer.name)
        yield path, layer
        if is_model(layer):
            yield from walk(layer, path)
            continue
        inner: Any = getattr(layer, "layer", None)
        if is_model(inner):
            yield (*path, inner.name), inner
            yield from walk(inner, (*path, inner.name))
