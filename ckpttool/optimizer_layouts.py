"""In which order the optimizers of each Keras list their state: the table.

Legacy HDF5 and Keras 3's layout list an optimizer's state in the optimizer's own order: counters first, then the slots
of the trainable variables, one slot after the other (Keras 1 and 2, tf.keras up to 2.10, but for Ftrl) or one variable
after the other (tf.keras from 2.11, Keras 3), with `vhat` of amsgrad last. Averages and accumulated gradients, which
any optimizer may keep, come before its own slots.
Source: keras/optimizers.py (Keras 1.2.2–2.3.1), tensorflow/python/keras/optimizer_v2/ (TF 1.14–2.10),
keras/optimizers/ (Keras 2.11–2.15), keras/src/optimizers/ (Keras 3.0.5, 3.3.3, 3.8, 3.15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import TensorSpec, WrittenBy

Json = Mapping[str, Any]
Shape = tuple[int, ...]
Rule = Callable[[str, TensorSpec], Shape | None]  # (slot, variable) -> its shape; None where it has no such slot


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of an optimizer's list for n trainable variables."""

    counters: tuple[str, ...]  # scalars in front
    slots: tuple[str, ...]
    by_variable: bool = False  # all slots of one variable together
    last: tuple[str, ...] = ()  # slots behind all others, variable by variable
    tail: tuple[str, ...] = ()  # scalars at the end
    placeholders: tuple[str, ...] = ()  # slots that may have shape (1,) where they are not used
    first: tuple[str, ...] = ()  # slots before all others
    first_by_variable: bool = False
    middle: tuple[str, ...] = ()  # scalars behind those
    rule: Rule | None = None  # shapes of slots that are not their variable's

    def entries(self, variables: int) -> Iterator[tuple[str, int | None]]:
        """Yield (slot, index of its variable) of each entry; the index is None for a counter."""
        yield from ((name, None) for name in self.counters)
        if self.first_by_variable:
            yield from ((slot, index) for index in range(variables) for slot in self.first)
        else:
            yield from ((slot, index) for slot in self.first for index in range(variables))
        yield from ((name, None) for name in self.middle)
        if self.by_variable:
            yield from ((slot, index) for index in range(variables) for slot in self.slots)
        else:
            yield from ((slot, index) for slot in self.slots for index in range(variables))
        yield from ((slot, index) for slot in self.last for index in range(variables))
        yield from ((name, None) for name in self.tail)

    def expected(self, variables: Sequence[TensorSpec]) -> list[tuple[str, int | None, Shape]]:
        """Slot, index of its variable (None for a counter) and shape of each entry."""
        found: list[tuple[str, int | None, Shape]] = []
        for slot, index in self.entries(len(variables)):
            shape: Shape | None = ()
            if index is not None:
                shape = variables[index].shape if self.rule is None else self.rule(slot, variables[index])
            if shape is not None:
                found.append((slot, index, shape))
        return found


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
        "Adafactor": Layout(counters, ("r", "c", "v"), by_variable=True, rule=_factored),
    }
    if class_name not in known:
        return []
    return [replace(known[class_name], first=("average",) if config.get("use_ema") else ())]


def _factored(slot: str, variable: TensorSpec) -> Shape | None:
    """Adafactor keeps sums over rows and columns of what has both; tf.keras lists nothing for the others."""
    if slot not in ("r", "c"):
        return variable.shape
    if len(variable.shape) < 2:
        return None
    return variable.shape[:-1] if slot == "r" else (*variable.shape[:-2], variable.shape[-1])


def _factored_or_scalar(slot: str, variable: TensorSpec) -> Shape | None:
    """Keras 3 lists scalars for them."""
    return () if slot in ("r", "c") and len(variable.shape) < 2 else _factored(slot, variable)


def _by_muon(config: Json) -> Rule | None:
    """Matrices other than embeddings have a momentum alone. None where patterns choose, which are not run here."""
    if config.get("exclude_layers"):
        return None

    def rule(slot: str, variable: TensorSpec) -> Shape | None:
        excluded = config.get("exclude_embeddings", True) and "embedding" in variable.name.lower()
        return None if slot == "velocity" and len(variable.shape) == 2 and not excluded else variable.shape

    return rule


def _keras3(class_name: str, config: Json, version: tuple[int, ...]) -> list[Layout]:
    """Keras 3."""
    momentum = ("momentum",) if config.get("momentum") else ()
    centered = ("average_gradient",) if config.get("centered") else ()
    vhat = ("velocity_hat",) if config.get("amsgrad") else ()
    counters = ("iteration",) if isinstance(config.get("learning_rate"), Mapping) else ("iteration", "learning_rate")
    pair = Layout(counters, ("momentum", "velocity"), by_variable=True)
    muon = _by_muon(config)
    known: dict[str, list[Layout]] = {
        "SGD": [Layout(counters, momentum)],
        "RMSprop": [Layout(counters, ("velocity",), last=(*momentum, *centered))],
        "Adagrad": [Layout(counters, ("accumulator",))],
        "Adadelta": [Layout(counters, ("accumulated_grad", "accumulated_delta_var"), by_variable=True)],
        "Adam": [replace(pair, last=vhat)],
        "AdamW": [replace(pair, last=vhat)],
        "Lamb": [pair],
        "Adamax": [Layout(counters, ("momentum", "norm"), by_variable=True)],
        "Nadam": [replace(pair, tail=("u_product",)), replace(pair, middle=("u_product",))],
        "Ftrl": [Layout(counters, ("accumulator", "linear"), by_variable=True)],
        "Lion": [Layout(counters, ("momentum",))],
        "Adafactor": [Layout(counters, ("r", "c", "velocity"), by_variable=True, rule=_factored_or_scalar)],
        "Muon": [replace(pair, rule=muon)] if muon is not None else [],
    }
    first = ("average",) if config.get("use_ema") else ()
    if config.get("gradient_accumulation_steps"):
        first = (*first, "gradient_accumulator")
    if len(first) > 1 and (3, 8) < version[:2] < (3, 15):
        return []  # somewhere between, both together changed their order, which no shape tells
    together = version[:2] <= (3, 8)
    return [replace(each, first=first, first_by_variable=together) for each in known.get(class_name, ())]


def layouts(class_name: str, config: Json, written_by: WrittenBy) -> list[Layout]:
    """The layouts that an optimizer's list may have, by who wrote it; empty for an optimizer that is not in the table.

    Parameters
    ----------
    class_name, config : of the optimizer itself, wrappers around it taken off
    written_by : Keras up to 1.2 states no version
    """
    version, numbers = written_by.keras or "1", written_by.keras_numbers or (1,)
    if numbers >= (3,):
        return _keras3(class_name, config, numbers)
    if numbers >= (2, 11) and not config.get("is_legacy_optimizer"):
        return [*_third(class_name, config), *_second(class_name, config)]
    if numbers >= (2, 4) or (version.endswith("-tf") and numbers >= (2, 2)):
        return [*_second(class_name, config), *_classic(class_name, config)]
    return _classic(class_name, config)
