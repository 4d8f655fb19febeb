"""Rewrite a functional configuration so that the template is called once, on the whole batch.

Entries are those of the file, in the generation's own form; only names, references and dropped layers change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..keras_config import Json, LayerConfig, ModelConfig, TensorRef
from ._shape import Shape

Change = Callable[[str, int, int], "list[Any] | None"]  # layer, stored call, tensor -> another reference, or None


def collapsed(model: ModelConfig, shape: Shape) -> tuple[Json, frozenset[str]]:
    """The model without slices and merges, as an entry of the file, and the names of the layers that are gone.

    The template's first call takes what the slices were made of; calls outside of the wrapper stay. Layers of a slice
    that others use too stay.
    """
    body = shape.bodies[0]
    first = _first_index(model, body)
    calls = len(_layer(model, body).nodes)
    gone_calls = set(shape.calls[1:]) if len(shape.bodies) == 1 else set()
    kept = [call for call in range(calls) if call not in gone_calls]

    def change(layer: str, call: int, tensor: int) -> list[Any] | None:
        if layer in shape.merges:
            return [body, first + kept.index(shape.calls[0]), shape.merges[layer]]
        if layer == body and call - first in kept:
            return [body, first + kept.index(call - first), tensor]
        return None

    config = dict(model.raw["config"])
    dropped = {*shape.bodies[1:], *shape.merges}
    entries = [_entry(model, entry, shape, kept, change) for entry in config["layers"] if _name(entry) not in dropped]
    for key in ("input_layers", "output_layers"):
        if key in config:
            config[key] = _replace(config[key], change)
    entries, unused = _without_unused(entries, shape.machinery, config)
    config["layers"] = entries
    return _with_config(model.raw, config), frozenset(dropped | unused)


def _entry(model: ModelConfig, entry: Json, shape: Shape, kept: Sequence[int], change: Change) -> Json:
    nodes = entry.get("inbound_nodes", [])
    if _name(entry) == shape.bodies[0]:
        taken = iter(shape.sources)
        whole = shape.calls[0]
        nodes = [
            _replace(nodes[call], lambda *_: _stored(model, next(taken)))
            if call == whole
            else _replace(nodes[call], change)
            for call in kept
        ]
    else:
        nodes = _replace(nodes, change)
    return {**entry, "inbound_nodes": nodes}


def _without_unused(entries: list[Json], machinery: frozenset[str], config: Json) -> tuple[list[Json], set[str]]:
    """The entries without the wrapper's layers that nothing takes any more."""
    gone: set[str] = set()
    while True:
        used: set[str] = set()
        for entry in entries:
            _note(entry.get("inbound_nodes", []), used)
        _note([config.get("output_layers", [])], used)
        unused = {name for entry in entries if (name := _name(entry)) in machinery and name not in used}
        if not unused:
            return entries, gone
        gone |= unused
        entries = [entry for entry in entries if _name(entry) not in unused]


def _note(stored: Any, used: set[str]) -> None:
    def note(layer: str, call: int, tensor: int) -> None:
        used.add(layer)

    _replace(stored, note)


def replaced(parent: ModelConfig, container: LayerConfig, shape: Shape) -> tuple[Json, str] | None:
    """The parent with a nested parallel model's template in its place, and the name that it has there.

    None where the nested model is more than a wrapper, or has its inputs in another order than its template.
    """
    model = container.model
    if model is None or model.inputs != shape.sources or not all(ref.layer in shape.merges for ref in model.outputs):
        return None
    body = _layer(model, shape.bodies[0])
    taken = {layer.name for layer in parent.layers if layer is not container}
    name = container.name if body.name in taken else body.name
    tensors = [shape.merges[ref.layer] for ref in model.outputs]

    def change(layer: str, call: int, tensor: int) -> list[Any] | None:
        return [name, call, tensors[tensor]] if layer == container.name else None

    raw = parent.raw["config"]
    listed = raw if isinstance(raw, list) else raw["layers"]
    entries = []
    for entry in listed:
        if _name(entry) == container.name:
            entry = _in_place_of(entry, body, name)
        if "inbound_nodes" in entry:
            entry = {**entry, "inbound_nodes": _replace(entry["inbound_nodes"], change)}
        entries.append(entry)
    if isinstance(raw, list):
        return _with_config(parent.raw, entries), name
    config = {**raw, "layers": entries}
    for key in ("input_layers", "output_layers"):
        if key in config:
            config[key] = _replace(config[key], change)
    return _with_config(parent.raw, config), name


def _in_place_of(entry: Json, body: LayerConfig, name: str) -> Json:
    """The template's own entry with the name and the calls of the entry that it replaces."""
    new = {key: value for key, value in body.entry.items() if key not in ("name", "inbound_nodes")}
    if isinstance(new["config"], Mapping):
        new["config"] = {**new["config"], "name": name}
    if "name" in entry:
        new["name"] = name
    if "inbound_nodes" in entry:
        new["inbound_nodes"] = entry["inbound_nodes"]
    return new


def changed_inside(model: ModelConfig, path: Sequence[str], entry: Json) -> Json:
    """The model's stored form with the nested model at a path, from its layers down, replaced by an entry.

    The entry keeps its place's name and calls; an empty path is the model itself.
    """
    if not path:
        return entry
    raw = model.raw["config"]
    listed = raw if isinstance(raw, list) else raw["layers"]
    inner = _layer(model, path[0]).model
    if inner is None:
        raise LookupError(path[0])
    below = changed_inside(inner, path[1:], entry)
    entries = [{**each, "config": below["config"]} if _name(each) == path[0] else each for each in listed]
    return _with_config(model.raw, entries if isinstance(raw, list) else {**raw, "layers": entries})


def _with_config(raw: Json, config: Any) -> Json:
    """A model's stored form with another `config`; how it was compiled belonged to the old one."""
    return {**{key: value for key, value in raw.items() if key != "compile_config"}, "config": config}


def _layer(model: ModelConfig, name: str) -> LayerConfig:
    layer = model.layer(name)
    if layer is None:
        raise LookupError(name)
    return layer


def _name(entry: Json) -> Any:
    config = entry.get("config")
    return entry.get("name") or (config.get("name") if isinstance(config, Mapping) else None)


def _first_index(model: ModelConfig, name: str) -> int:
    """The stored index of the first call of a nested model: 1 up to tf.keras 2.15, 0 in Keras 3."""
    indices: list[int] = []

    def note(layer: str, call: int, tensor: int) -> None:
        if layer == name:
            indices.append(call)

    config = model.raw["config"]
    for entry in config["layers"]:
        _replace(entry.get("inbound_nodes", []), note)
    for key in ("input_layers", "output_layers"):
        _replace(config.get(key, []), note)
    return 1 if indices and min(indices) > 0 else 0


def _stored(model: ModelConfig, ref: TensorRef) -> list[Any]:
    """A reference as this file writes it: calls of nested models counted as it counts them."""
    first = _first_index(model, ref.layer) if _layer(model, ref.layer).model is not None else 0
    return [ref.layer, ref.call + first, ref.tensor]


def _is_reference(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) in (3, 4)
        and isinstance(item[0], str)
        and all(type(number) is int for number in item[1:3])
    )


def _replace(item: Any, change: Callable[[str, int, int], list[Any] | None]) -> Any:
    """A copy in which every reference that `change` answers is another one, also among a call's arguments."""
    if _is_reference(item):
        changed = change(item[0], item[1], item[2])
        return [*(item[:3] if changed is None else changed), *(_replace(each, change) for each in item[3:])]
    if isinstance(item, list):
        return [_replace(each, change) for each in item]
    if isinstance(item, Mapping):
        return {key: _replace(value, change) for key, value in item.items()}
    return item
