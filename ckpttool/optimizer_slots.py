"""Which slot of which variable each entry of `optimizer_weights` is: the table of Keras's optimizers, by their writers.

Legacy HDF5 lists an optimizer's state in the optimizer's own order: counters first, then the slots of the trainable
variables, one slot after the other (Keras 1 and 2, tf.keras up to 2.10, but for Ftrl) or one variable after the other
(tf.keras from 2.11, Keras 3), with `vhat` of amsgrad last. Names tell it in part only (`Variable_5:0`), so counts and
shapes decide, and names that say something must agree.
Source: keras/optimizers.py (Keras 1.2.2–2.3.1), tensorflow/python/keras/optimizer_v2/ (TF 1.14–2.10),
keras/optimizers/ (Keras 2.11–2.15), keras/src/optimizers/ (Keras 3.15); tried with files of nine versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import Checkpoint, Role, TensorSpec, WrittenBy

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of an optimizer's list for n trainable variables."""

    counters: tuple[str, ...]  # scalars in front
    slots: tuple[str, ...]
    by_variable: bool = False  # all slots of one variable together
    last: tuple[str, ...] = ()  # slots behind all others, variable by variable
    tail: tuple[str, ...] = ()  # scalars at the end
    placeholders: tuple[str, ...] = ()  # slots that may have shape (1,) where they are not used

    def entries(self, variables: int) -> Iterator[tuple[str, int | None]]:
        """Yield (slot, index of its variable) of each entry; the index is None for a counter."""
        yield from ((name, None) for name in self.counters)
        if self.by_variable:
            yield from ((slot, index) for index in range(variables) for slot in self.slots)
        else:
            yield from ((slot, index) for slot in self.slots for index in range(variables))
        yield from ((slot, index) for slot in self.last for index in range(variables))
        yield from ((name, None) for name in self.tail)


def _classic(class_name: str, config: Json) -> list[Layout]:
    """Keras 1.2.2 to 2.3.1, tf.keras up to TF 1.13: `iterations` is listed by some optimizers, since 2.3 by all."""
    slots: dict[str, tuple[str, ...]] = {
        "SGD": ("moment",),
        "RMSprop": ("accumulator",),
        "Adagrad": ("accumulator",),
        "Adadelta": ("accumulator", "delta_accumulator"),
        "Adam": ("m", "v"),
        "Adamax": ("m", "u"),
        "Nadam": ("m", "v"),
    }
    if class_name not in slots:
        return []
    own = slots[class_name]
    if class_name == "Adam":
        return [Layout(("iterations",), own), Layout(("iterations",), (*own, "vhat"), placeholders=("vhat",))]
    if class_name == "Nadam":
        return [Layout(("iterations",), own), Layout(("iterations", "m_schedule"), own)]
    if class_name in ("SGD", "Adamax"):
        return [Layout(("iterations",), own)]
    return [Layout((), own), Layout(("iterations",), own)]


def _second(class_name: str, config: Json) -> list[Layout]:
    """tf.keras of TF 1.14 to 2.10, and `optimizers.legacy` after that."""
    momentum = ("momentum",) if config.get("momentum") else ()
    centered = ("mg",) if config.get("centered") else ()
    vhat = ("vhat",) if config.get("amsgrad") else ()
    known: dict[str, Layout] = {
        "SGD": Layout(("iter",), momentum),
        "RMSprop": Layout(("iter",), ("rms", *momentum, *centered)),
        "Adagrad": Layout(("iter",), ("accumulator",)),
        "Adadelta": Layout(("iter",), ("accum_grad", "accum_var")),
        "Adam": Layout(("iter",), ("m", "v", *vhat)),
        "Adamax": Layout(("iter",), ("m", "v")),
        "Nadam": Layout(("iter", "momentum_cache"), ("m", "v")),
        "Ftrl": Layout(("iter",), ("accumulator", "linear"), by_variable=True),
    }
    return [known[class_name]] if class_name in known else []


def _third(class_name: str, config: Json) -> list[Layout]:
    """tf.keras of TF 2.11 to 2.15."""
    momentum = ("momentum",) if config.get("momentum") else ()
    centered = ("average_gradient",) if config.get("centered") else ()
    vhat = ("vhat",) if config.get("amsgrad") else ()
    counters = ("iteration",)
    known: dict[str, Layout] = {
        "SGD": Layout(counters, ("m",)),
        "RMSprop": Layout(counters, ("velocity",), last=(*momentum, *centered)),
        "Adagrad": Layout(counters, ("accumulator",)),
        "Adadelta": Layout(counters, ("accumulated_grad", "accumulated_delta_var"), by_variable=True),
        "Adam": Layout(counters, ("m", "v"), by_variable=True, last=vhat),
        "AdamW": Layout(counters, ("m", "v"), by_variable=True, last=vhat),
        "Adamax": Layout(counters, ("m", "u"), by_variable=True),
        "Nadam": Layout(counters, ("m", "v"), by_variable=True),
        "Ftrl": Layout(counters, ("accumulator", "linear"), by_variable=True),
        "Lion": Layout(counters, ("m",)),
    }
    return [known[class_name]] if class_name in known and not config.get("use_ema") else []


def _keras3(class_name: str, config: Json) -> list[Layout]:
    """Keras 3."""
    momentum = ("momentum",) if config.get("momentum") else ()
    centered = ("average_gradient",) if config.get("centered") else ()
    vhat = ("velocity_hat",) if config.get("amsgrad") else ()
    counters = ("iteration", "learning_rate")
    known: dict[str, Layout] = {
        "SGD": Layout(counters, momentum),
        "RMSprop": Layout(counters, ("velocity",), last=(*momentum, *centered)),
        "Adagrad": Layout(counters, ("accumulator",)),
        "Adadelta": Layout(counters, ("accumulated_grad", "accumulated_delta_var"), by_variable=True),
        "Adam": Layout(counters, ("momentum", "velocity"), by_variable=True, last=vhat),
        "AdamW": Layout(counters, ("momentum", "velocity"), by_variable=True, last=vhat),
        "Adamax": Layout(counters, ("momentum", "norm"), by_variable=True),
        "Nadam": Layout(counters, ("momentum", "velocity"), by_variable=True, tail=("u_product",)),
        "Ftrl": Layout(counters, ("accumulator", "linear"), by_variable=True),
        "Lion": Layout(counters, ("momentum",)),
    }
    accumulates = config.get("use_ema") or config.get("gradient_accumulation_steps")
    return [known[class_name]] if class_name in known and not accumulates else []


def layouts(class_name: str, config: Json, written_by: WrittenBy) -> list[Layout]:
    """The layouts that an optimizer's list may have, by who wrote it; empty for an optimizer that is not in the table.

    Parameters
    ----------
    class_name, config : of the optimizer itself, wrappers around it taken off
    written_by : Keras up to 1.2 states no version
    """
    version = written_by.keras or "1"
    numbers = tuple(int(part) for part in version.removesuffix("-tf").split(".")[:3] if part.isdecimal())
    if numbers >= (3,):
        return _keras3(class_name, config)
    if numbers >= (2, 11) and not config.get("is_legacy_optimizer"):
        return [*_third(class_name, config), *_second(class_name, config)]
    if numbers >= (2, 4) or (version.endswith("-tf") and numbers >= (2, 2)):
        return [*_second(class_name, config), *_classic(class_name, config)]
    return _classic(class_name, config)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer as a training configuration names it."""

    class_name: str
    config: Json
    wrappers: tuple[str, ...] = ()  # classes around it, outermost first


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
        return Optimizer(class_name, config, tuple(wrappers))
    return None


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
    for layout in layouts(optimizer.class_name, optimizer.config, written_by):
        expected = list(layout.entries(len(variables)))
        if len(expected) != len(entries):
            continue
        pairs = list(zip(expected, entries, strict=True))
        if all(_fits(layout, slot, index, spec, variables) for (slot, index), spec in pairs):
            named = tuple(
                replace(spec, slot=slot, slot_of=None if index is None else variables[index].path)
                for (slot, index), spec in pairs
            )
            return layout, named
    return None


def _fits(layout: Layout, slot: str, index: int | None, spec: TensorSpec, variables: Sequence[TensorSpec]) -> bool:
    if index is None:
        return spec.shape == ()
    variable = variables[index]
    if spec.shape != variable.shape and not (slot in layout.placeholders and spec.shape == (1,)):
        return False
    return not _contradicts(spec, slot, variable)


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
    return Carried(
        _reordered(layout, named, of_template, [each for each in order if each is not None]),
        reduced_training_config(template.training_config, optimizer),
    )


def _reordered(
    layout: Layout, named: Sequence[TensorSpec], variables: Sequence[TensorSpec], order: Sequence[int]
) -> tuple[TensorSpec, ...]:
    """The entries in the order of other variables, each with its variable's path."""
    by_place = dict(zip(layout.entries(len(variables)), named, strict=True))
    return tuple(
        by_place[slot, None] if index is None else replace(by_place[slot, order[index]], slot_of=variables[index].path)
        for slot, index in layout.entries(len(variables))
    )


def with_named_slots(checkpoint: Checkpoint) -> Checkpoint:
    """The description with the slot and the variable of each optimizer tensor, where they are known."""
    from .trainable import trainable_variables

    optimizer, entries = optimizer_of(checkpoint.training_config), checkpoint.optimizer_tensors()
    variables = trainable_variables(checkpoint) if optimizer is not None and entries else None
    if optimizer is None or variables is None:
        return checkpoint
    found = named_slots(optimizer, entries, variables, checkpoint.written_by)
    if found is None:
        return checkpoint
    named = iter(found[1])
    loose = tuple(next(named) if spec.role is Role.OPTIMIZER else spec for spec in checkpoint.loose)
    return replace(checkpoint, loose=loose)
