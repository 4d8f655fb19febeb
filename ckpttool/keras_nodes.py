"""The parts of a stored configuration that three generations of Keras write in three ways: references and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

Json = Mapping[str, Any]

NO_ARGUMENTS: Json = {}


class TensorRef(NamedTuple):
    """A tensor of the graph: output `tensor` of call `call` (from 0) of layer `layer`."""

    layer: str
    call: int
    tensor: int


def without_merge(listed: list[Any], depth: int) -> Iterator[Any]:
    """The layers of a Sequential as Keras 1 stores them: those of the branches of a Merge in front stand in its place.

    Source: keras/models.py, `Sequential.flattened_layers` (Keras 1.2.2): each layer once, the Merge itself not.
    """
    first = listed[0] if listed else None
    config = first.get("config") if isinstance(first, Mapping) and first.get("class_name") == "Merge" else None
    if not isinstance(config, Mapping) or not isinstance(config.get("layers"), list) or depth < 1:
        yield from listed
        return
    names: set[str] = set()
    for branch in config["layers"]:
        inside = branch.get("config") if isinstance(branch, Mapping) else None
        layers = inside.get("layers") if isinstance(inside, Mapping) else inside
        for layer in without_merge(layers, depth - 1) if isinstance(layers, list) else [branch]:
            own = layer.get("config") if isinstance(layer, Mapping) else None
            name = own.get("name") if isinstance(own, Mapping) else None
            if not isinstance(name, str) or name not in names:
                names.add(str(name))
                yield layer
    yield from listed[1:]


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def is_reference(item: Any) -> TypeGuard[list[Any]]:
    """True for the stored form of a tensor in Keras 1 and 2: `[layer, call, tensor]`, with call arguments behind."""
    return (
        type(item) is list
        and len(item) in (3, 4)
        and type(item[0]) is str
        and type(item[1]) is int
        and type(item[2]) is int
        and (len(item) == 3 or isinstance(item[3], Mapping))
        and item[0] != "_CONSTANT_VALUE"  # marks a constant first argument (keras/engine/node.py, Keras 2.4)
    )


def references(raw: Any) -> Iterator[TensorRef]:
    """Every tensor reference of a stored node, depth first: lists of Keras 1 and 2, dicts of Keras 3."""
    stack = [raw]
    while stack:
        item = stack.pop()
        if is_reference(item):
            yield TensorRef(item[0], item[1], item[2])
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, Mapping):
            config = item.get("config")
            history = config.get("keras_history") if isinstance(config, Mapping) else None
            if item.get("class_name") == "__keras_tensor__" and is_reference(history):
                yield TensorRef(*history)
            else:
                stack.extend(reversed(list(item.values())))


def leaf_kwargs(raw: Any) -> Iterator[Json]:
    """The keyword arguments of each reference of a stored node of Keras 2."""
    stack = [raw]
    while stack:
        item = stack.pop()
        if is_reference(item):
            if len(item) == 4:
                yield item[3]
        elif isinstance(item, list):
            stack.extend(reversed(item))
