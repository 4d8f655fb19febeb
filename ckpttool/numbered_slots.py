"""Names for the optimizer's state as `inspect` shows it and as tensors are exported: whose slot each entry is.

Keras 3's layout numbers an optimizer's variables (`optimizer/vars/0` …). A LossScaleOptimizer stores the optimizer
inside in a group of its own, and then all of it once more after its own counters.
Source: keras/src/optimizers/loss_scale_optimizer.py, `variables` (Keras 3.15); files of Keras 3.0.5 to 3.15 and of
tf.keras 2.12 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .checkpoint import Checkpoint, Notice, Role, TensorSpec
from .keras3_groups import KERAS3_FORMATS
from .optimizer_slots import Optimizer, named_slots, optimizer_of
from .trainable import trainable_variables

_INSIDE = ("inner_optimizer", "_optimizer")  # groups of what a LossScaleOptimizer wraps
_SCALING = ("iteration", "learning_rate", "step_counter", "dynamic_scale")  # its own counters, in Keras 3


def with_named_slots(checkpoint: Checkpoint) -> Checkpoint:
    """The description with the slot and the variable of each optimizer tensor, where they are known.

    Where a file numbers its entries and they are not those of its optimizer, they stay numbered, and a warning
    (`slots-numbered`) says why.
    """
    entries = checkpoint.optimizer_tensors()
    if not entries:
        return checkpoint
    found = _named(checkpoint, entries)
    if isinstance(found, str):
        numbered = checkpoint.format in KERAS3_FORMATS
        message = f"the optimizer's {len(entries)} entries are numbered, and whose they are is not known: {found}"
        return checkpoint.with_warnings(*([Notice("slots-numbered", message)] if numbered else []))
    named = {spec.locator: spec for spec in found}
    return replace(checkpoint, loose=tuple(named.get(spec.locator, spec) for spec in checkpoint.loose))


def with_slots_as_names(checkpoint: Checkpoint) -> Checkpoint:
    """The same, and numbered entries called after variable and slot: `optimizer/dense/kernel/velocity`."""
    named = with_named_slots(checkpoint)
    if checkpoint.format not in KERAS3_FORMATS:
        return named
    taken: set[tuple[str, ...]] = set()
    loose: list[TensorSpec] = []
    for spec in named.loose:
        path = spec.path
        if spec.role is Role.OPTIMIZER and spec.slot is not None:
            path = (*spec.path[:-1], *(spec.slot_of or ()), spec.slot)
        if path in taken:
            path = spec.path
        taken.add(path)
        loose.append(replace(spec, path=path))
    return replace(named, loose=tuple(loose))


def _named(checkpoint: Checkpoint, entries: Sequence[TensorSpec]) -> list[TensorSpec] | str:
    """The entries with their slots, or why they have none."""
    optimizer = optimizer_of(checkpoint.training_config)
    if optimizer is None:
        return "the file does not say which optimizer it is"
    tried = [each for each in _variables(checkpoint) if each is not None]
    if not tried:
        return "which variables it trained is not known"
    for variables in tried:
        found = list(_of_groups(checkpoint, optimizer, entries, variables))
        if found:
            return found
    return f"they are not those of {optimizer.class_name} for {len(tried[0])} trainable variables, or it is not known"


def _variables(checkpoint: Checkpoint) -> Iterator[tuple[TensorSpec, ...] | None]:
    """What may be trained; layers frozen before they were built too in Keras 3.0, which heeded the flag only later."""
    yield trainable_variables(checkpoint)
    if (checkpoint.written_by.keras or "").startswith("3.0."):
        yield trainable_variables(checkpoint, frozen_too=True)


def _of_groups(
    checkpoint: Checkpoint, optimizer: Optimizer, entries: Sequence[TensorSpec], variables: Sequence[TensorSpec]
) -> Iterator[TensorSpec]:
    groups: dict[tuple[str, ...], list[TensorSpec]] = {}
    for spec in entries:
        inside = checkpoint.format in KERAS3_FORMATS and any(part in _INSIDE for part in spec.path[:-1])
        groups.setdefault(spec.path[:-1] if inside else (), []).append(spec)
    keras3 = checkpoint.written_by.keras_major == 3
    for group, held in groups.items():
        scaling: tuple[TensorSpec, ...] = ()
        if not group and keras3 and "LossScaleOptimizer" in optimizer.wrappers and len(held) > len(_SCALING):
            own = held[: len(_SCALING)]
            if any(spec.shape != () for spec in own):
                continue
            scaling = tuple(replace(spec, slot=name) for spec, name in zip(own, _SCALING, strict=True))
        found = named_slots(optimizer, held[len(scaling) :], variables, checkpoint.written_by)
        if found is not None:
            yield from scaling
            yield from found[1]
