"""Which slot of which variable each entry of an optimizer's state is, and what becomes of it with a template.

The order comes from the table of `optimizer_layouts`, by the optimizer's class and the writer. Names tell it in part
only (`Variable_5:0`, or a number), so counts and shapes decide, and names that say something must agree. Where nothing
fits, the entries stay as they are stored. Tried with files of nine versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import Checkpoint, TensorSpec, WrittenBy
from .optimizer_layouts import Json, Layout, Shape, layouts


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer as a training configuration names it."""

    class_name: str
    config: Json
    wrappers: tuple[str, ...] = ()  # classes around it, outermost first
    own: bool = False  # a class of the user's, which may have the name of one of Keras's and other slots


def optimizer_of(training_config: str | None) -> Optimizer | None:
    """The optimizer itself, wrappers of Horovod and of mixed precision taken off; None where none is named.

    Source: horovod/_keras/__init__.py (0.28), whose classes are called `Distributed…` or keep the optimizer's name;
    LossScaleOptimizer of tf.keras 2.1–2.15 and Keras 3.
    """
    document = _parsed(training_config)
    entry = document.get("optimizer_config") or document.get("optimizer")
    wrappers: list[str] = []
    if isinstance(entry, str):
        return Optimizer(entry, {})
    for _ in range(8):  # wrappers of wrappers: two are seen, a hostile file may hold more
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
            return None
        class_name = entry["class_name"].rpartition(">")[2]
        config = entry.get("config")
        config = config if isinstance(config, Mapping) else {}
        inner = config.get("inner_optimizer") or config.get("optimizer")
        if isinstance(inner, Mapping) and isinstance(inner.get("class_name"), str):
            wrappers.append(class_name)
            entry = inner
            continue
        bare = class_name.lstrip("_").removeprefix("Distributed")
        if bare != class_name and bare[:1].isupper():
            wrappers.append(class_name)
            class_name = bare
        elif str(config.get("name", "")) == f"Distributed{class_name}":
            wrappers.append(f"Distributed{class_name}")
        return Optimizer(class_name, config, tuple(wrappers), _is_own(entry))
    return None


def _is_own(entry: Mapping[str, Any]) -> bool:
    """Whether the class comes from a module that is not Keras's or Horovod's, or from a package with a name of its own.

    `Custom>` tells nothing: tf.keras 2.13 to 2.15 writes `Custom>Adam` of its own Adam into HDF5.
    """
    module = entry.get("module")
    root = module.partition(".")[0] if isinstance(module, str) else "keras"
    names = (entry["class_name"], entry.get("registered_name"))
    packages = {name.rpartition(">")[0] for name in names if isinstance(name, str)}
    return root not in _ROOTS or not packages <= {"", "Custom"}


def reduced_training_config(training_config: str, optimizer: Optimizer) -> str:
    """The training configuration with the optimizer itself in the place of its wrappers."""
    document = dict(_parsed(training_config))
    key = "optimizer_config" if document.get("optimizer_config") else "optimizer"
    entry = document[key]
    while isinstance(inner := entry["config"].get("inner_optimizer") or entry["config"].get("optimizer"), Mapping):
        entry = inner
    config = dict(entry["config"])
    if optimizer.wrappers and str(config.get("name", "")).startswith("Distributed"):
        config["name"] = config["name"].removeprefix("Distributed")
    prefix = entry["class_name"].rpartition(">")
    document[key] = {**entry, "class_name": f"{prefix[0]}{prefix[1]}{optimizer.class_name}", "config": config}
    return json.dumps(document)


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        document = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def named_slots(
    optimizer: Optimizer, entries: Sequence[TensorSpec], variables: Sequence[TensorSpec], written_by: WrittenBy
) -> tuple[Layout, tuple[TensorSpec, ...]] | None:
    """Say of each entry which slot of which variable it is.

    Parameters
    ----------
    optimizer : the optimizer itself
    entries : its state in the file's order, paths as stored
    variables : the trainable variables in the optimizer's order
    written_by : the file's writer

    Returns
    -------
    the layout, and the same entries with `slot` and `slot_of`; None where the table, the counts or the shapes do not
    fit, or names contradict
    """
    for layout in () if optimizer.own else layouts(optimizer.class_name, optimizer.config, written_by):
        found = _named_by(layout, entries, variables)
        if found is not None:
            return layout, found
    return None


def _named_by(
    layout: Layout, entries: Sequence[TensorSpec], variables: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...] | None:
    expected = layout.expected(variables)
    if len(expected) != len(entries):
        return None
    found = []
    for (slot, index, shape), spec in zip(expected, entries, strict=True):
        if not _fits(layout, slot, None if index is None else variables[index], shape, spec):
            return None
        found.append(replace(spec, slot=slot, slot_of=None if index is None else variables[index].path))
    return tuple(found)


def _fits(layout: Layout, slot: str, variable: TensorSpec | None, shape: Shape, spec: TensorSpec) -> bool:
    if spec.shape != shape and not (slot in layout.placeholders and spec.shape == (1,)):
        return False
    return variable is None or not _contradicts(spec, slot, variable)


def _contradicts(spec: TensorSpec, slot: str, variable: TensorSpec) -> bool:
    """Whether the entry's name is another's: `Adam/d/kernel/m:0`, `Adam/m/d/kernel:0`, `adam/d_kernel_velocity`."""
    parts = [part.partition(":")[0] for part in spec.path[1:]]
    name = variable.path[-1]
    if len(parts) >= 4 and parts[-2] in _VARIABLES:  # Adam/<variable>/m
        return parts[-1] != slot or not _same(parts[-2], name)
    if len(parts) >= 3 and parts[-1] in _VARIABLES and parts[-3] in _SLOTS:  # Adam/m/<variable>
        return parts[-3] != slot or not _same(parts[-1], name)
    if len(parts) == 2 and ":" not in spec.path[-1] and any(f"_{each}_" in parts[-1] for each in _VARIABLES):
        return not parts[-1].endswith(f"_{name}_{slot}") and name in _VARIABLES
    return False


_ROOTS = frozenset(("keras", "tf_keras", "tensorflow", "horovod"))
_VARIABLES = frozenset("kernel bias gamma beta embeddings recurrent_kernel depthwise_kernel pointwise_kernel".split())


_SLOTS = frozenset("m v u vhat velocity momentum accumulator accumulated_grad accumulated_delta_var linear".split())


def _same(stored: str, name: str) -> bool:
    return stored == name or name not in _VARIABLES


@dataclass(frozen=True, slots=True)
class Carried:
    """What becomes of an optimizer's state when a template is taken out."""

    entries: tuple[TensorSpec, ...] = ()  # in the template's own order
    training_config: str | None = None
    reason: str | None = None  # why it is left out, where it is


def carried(whole: Checkpoint, template: Checkpoint) -> Carried:
    """The optimizer state of a parallel model as that of its template.

    Parameters
    ----------
    whole : the stored description
    template : taken out of it; with the training configuration of the whole where that applies to it

    Returns
    -------
    entries in the template's order with its training configuration, or the reason why there are none
    """
    from .trainable import trainable_variables

    entries = whole.optimizer_tensors()
    if not entries:
        return Carried(reason="the source holds no optimizer state")
    if template.training_config is None or template.config is None:
        return Carried(reason="the model was compiled with other outputs than the template has")
    optimizer = optimizer_of(whole.training_config)
    if optimizer is None:
        return Carried(reason="the training configuration names no optimizer")
    of_whole, of_template = trainable_variables(whole), trainable_variables(template)
    if of_whole is None or of_template is None:
        return Carried(reason="which variables it trained is not known: the model has classes that are not Keras's own")
    found = named_slots(optimizer, entries, of_whole, whole.written_by)
    if found is None:
        return Carried(
            reason=f"the {len(entries)} entries of {optimizer.class_name} are not those of "
            f"{len(of_whole)} trainable variables, or the optimizer is not one that is known"
        )
    layout, named = found
    places = {spec.locator: index for index, spec in enumerate(of_whole)}
    order = [places.get(spec.locator) for spec in of_template]
    if None in order or sorted(map(int, (each for each in order if each is not None))) != list(range(len(of_whole))):
        return Carried(reason="the optimizer trained other variables than those of the template")
    if whole.format != "keras-h5" and order != sorted(map(int, (each for each in order if each is not None))):
        return Carried(reason="the template has its variables in another order, and this format goes by numbers")
    of_both = (layout.expected(of_whole), layout.expected(of_template))
    if {(slot, index) for slot, index, _ in of_both[0]} != {
        (slot, None if index is None else order[index]) for slot, index, _ in of_both[1]
    }:
        return Carried(reason=f"{optimizer.class_name} keeps other slots for the template, by its variables' names")
    return Carried(
        _reordered(layout, named, of_template, [each for each in order if each is not None]),
        reduced_training_config(template.training_config, optimizer),
    )


def _reordered(
    layout: Layout, named: Sequence[TensorSpec], variables: Sequence[TensorSpec], order: Sequence[int]
) -> tuple[TensorSpec, ...]:
    """The entries in the order of other variables, each with its variable's path."""
    stored = {index: variables[place] for place, index in enumerate(order)}
    places = [(slot, index) for slot, index, _ in layout.expected([stored[index] for index in range(len(order))])]
    by_place = dict(zip(places, named, strict=True))
    return tuple(
        by_place[slot, None] if index is None else replace(by_place[slot, order[index]], slot_of=variables[index].path)
        for slot, index, _ in layout.expected(variables)
    )
