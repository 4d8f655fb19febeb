"""Which layer of one model is which of another: by name and shapes, with order as tie-break. Pure data, no Keras."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import WeightsMismatchError

if TYPE_CHECKING:
    import numpy as np

MAX_SHOWN = 5  # layers in one message: more do not help
MODEL_NAMES = ("model", "functional", "sequential")  # as Keras names models that got no name
_NUMBERED = re.compile(r"(.*?)(?:_(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a layer, of a file or of a live model."""

    name: str  # layer/…/variable
    label: str  # its name inside the layer
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    variable: Any = None


Pair = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Leaf:
    """A layer that holds tensors."""

    path: tuple[str, ...]
    class_name: str | None
    tensors: list[Tensor] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The path as users write it."""
        return "/".join(self.path)

    def add(
        self, label: str, shape: Sequence[int], dtype: str, read: Callable[[], np.ndarray], variable: Any = None
    ) -> None:
        """Append a tensor."""
        self.tensors.append(Tensor(f"{self.name}/{label}", label, tuple(map(int, shape)), dtype, read, variable))


@dataclass(frozen=True, slots=True)
class Match:
    """Two layers that are the same one."""

    source: Leaf
    target: Leaf

    def pairs(self) -> Iterator[Pair]:
        """Their tensors: by name where both have the same names, else in order."""
        by_label = {tensor.label: tensor for tensor in self.source.tensors}
        if len(by_label) == len(self.source.tensors) and by_label.keys() == {
            each.label for each in self.target.tensors
        }:
            yield from ((by_label[tensor.label], tensor) for tensor in self.target.tensors)
        else:
            yield from zip(self.source.tensors, self.target.tensors, strict=False)

    def fits(self) -> bool:
        """Whether number, shapes and kinds of the tensors are equal."""
        return len(self.source.tensors) == len(self.target.tensors) and all(
            source.shape == target.shape and ("int" in source.dtype) == ("int" in target.dtype)
            for source, target in self.pairs()
        )


@dataclass(frozen=True, slots=True)
class Matching:
    """All matches, by which rule, and what is left over."""

    by: str
    matches: tuple[Match, ...]
    left_in_source: tuple[Leaf, ...] = ()
    left_in_target: tuple[Leaf, ...] = ()


def match_layers(source: Sequence[Leaf], target: Sequence[Leaf], *, partial: bool = False) -> Matching:
    """Match every layer of both sides, or say why not.

    Parameters
    ----------
    source, target : in model order
    partial : take what fits

    Raises
    ------
    WeightsMismatchError : no layer fits; or only some, without `partial`; two shapes differ
    """
    bases = _given_by_keras([*source, *target])
    for by, matches in (
        ("name", _by_key(source, target, lambda leaves: [leaf.path for leaf in leaves])),
        ("name", _by_key(source, target, lambda leaves: [leaf.path[-1:] for leaf in leaves])),
        ("numbered name", _by_key(source, target, lambda leaves: _ranked(leaves, bases))),
        ("numbered name", _by_key(source, target, lambda leaves: _ranked_names(leaves, bases))),
        ("order", _by_order(source, target, bases)),
    ):
        if matches is not None and all(match.fits() for match in matches):
            return Matching(by, tuple(matches))
    some = _some(source, target, bases)
    if partial and some:
        used = {id(leaf) for match in some for leaf in (match.source, match.target)}
        left = [tuple(leaf for leaf in side if id(leaf) not in used) for side in (source, target)]
        return Matching("name", tuple(some), *left)
    raise WeightsMismatchError(_why(source, target, some))


def _by_key(
    source: Sequence[Leaf], target: Sequence[Leaf], keys: Callable[[Sequence[Leaf]], list[tuple[str, ...]]]
) -> list[Match] | None:
    """Match by a key that is unique on both sides, if both have the same ones."""
    by_key = dict(zip(keys(source), source, strict=True))
    wanted = keys(target)
    if len(by_key) != len(source) or len(set(wanted)) != len(target) or by_key.keys() != set(wanted):
        return None
    return [Match(by_key[key], leaf) for key, leaf in zip(wanted, target, strict=True)]


def _given_by_keras(leaves: Sequence[Leaf]) -> set[str]:
    """What Keras names layers without a name, before the number: `dense`, `batch_normalization`."""
    return {_snake(leaf.class_name) for leaf in leaves if leaf.class_name} | set(MODEL_NAMES)


def _snake(class_name: str) -> str:
    """As keras/src/utils/naming.py, to_snake_case (Keras 3.15)."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _base(name: str, bases: set[str]) -> tuple[str, int] | None:
    """(`dense`, 3) of `dense_3`, (`dense`, 0) of `dense`; None for a name that somebody gave."""
    found = _NUMBERED.fullmatch(name)
    if found is None or found[1] not in bases:
        return None
    return found[1], int(found[2] or 0)


def _ranked(leaves: Sequence[Leaf], bases: set[str]) -> list[tuple[str, ...]]:
    """Paths with the numbers of names that Keras gave turned into ranks among their siblings."""
    numbers: dict[tuple[tuple[str, ...], str], set[int]] = {}
    for leaf in leaves:
        for end, name in enumerate(leaf.path):
            if (found := _base(name, bases)) is not None:
                numbers.setdefault((leaf.path[:end], found[0]), set()).add(found[1])
    ranked = []
    for leaf in leaves:
        path = []
        for end, name in enumerate(leaf.path):
            found = _base(name, bases)
            if found is None:
                path.append(name)
            else:
                path.append(f"{found[0]} {sorted(numbers[leaf.path[:end], found[0]]).index(found[1])}")
        ranked.append(tuple(path))
    return ranked


def _ranked_names(leaves: Sequence[Leaf], bases: set[str]) -> list[tuple[str, ...]]:
    """The same of the layers' own names, among all layers: for a model that lies deeper on one side."""
    numbers: dict[str, list[int]] = {}
    for leaf in leaves:
        if (found := _base(leaf.path[-1], bases)) is not None:
            numbers.setdefault(found[0], []).append(found[1])
    ranked = []
    for leaf in leaves:
        found = _base(leaf.path[-1], bases)
        if found is None:
            ranked.append(leaf.path[-1:])
        elif len(set(numbers[found[0]])) < len(numbers[found[0]]):
            ranked.append(leaf.path)  # one name in two places: its number is no rank
        else:
            ranked.append((found[0], str(sorted(numbers[found[0]]).index(found[1]))))
    return ranked


def _by_order(source: Sequence[Leaf], target: Sequence[Leaf], bases: set[str]) -> list[Match] | None:
    """Match in order, if no name that somebody gave would go to another layer while its own is there."""
    if len(source) != len(target):
        return None
    given = [{leaf.path[-1] for leaf in side if _base(leaf.path[-1], bases) is None} for side in (source, target)]
    known = given[0] & given[1]
    matches = [Match(*pair) for pair in zip(source, target, strict=True)]
    moved = any(
        match.source.path[-1] != match.target.path[-1] and known & {match.source.path[-1], match.target.path[-1]}
        for match in matches
    )
    return None if moved else matches


def _some(source: Sequence[Leaf], target: Sequence[Leaf], bases: set[str]) -> list[Match]:
    """Match the layers that have a name which somebody gave, and those of Keras's names where their number is equal."""
    matches = []
    counts = [Counter(_kind(leaf, bases) for leaf in side) for side in (source, target)]
    ranks = dict(zip(_ranked_names(source, bases), source, strict=True))
    paths = {leaf.path: leaf for leaf in source}
    names = Counter(leaf.path[-1] for leaf in source)
    in_target = Counter(leaf.path[-1] for leaf in target)
    by_name = {leaf.path[-1]: leaf for leaf in source}
    for rank, leaf in zip(_ranked_names(target, bases), target, strict=True):
        kind, name = _kind(leaf, bases), leaf.path[-1]
        if kind is not None:
            found = ranks.get(rank) if counts[0][kind] == counts[1][kind] else None
        else:
            unique = names[name] == in_target[name] == 1
            found = paths.get(leaf.path) or (by_name.get(name) if unique else None)
        if found is not None and Match(found, leaf).fits():
            matches.append(Match(found, leaf))
    return matches


def _kind(leaf: Leaf, bases: set[str]) -> str | None:
    found = _base(leaf.path[-1], bases)
    return None if found is None else found[0]


def _why(source: Sequence[Leaf], target: Sequence[Leaf], some: Sequence[Match]) -> str:
    """One line: how many fit, which do not, and what to do."""
    used = {id(leaf) for match in some for leaf in (match.source, match.target)}
    parts = [
        f"only in the {what}: {shown}"
        for what, side in (("source", source), ("target", target))
        if (shown := _shown([leaf for leaf in side if id(leaf) not in used]))
    ]
    count = (
        f"{len(some)} of {len(target)} layers of the target fit" if some else "no layer of the source fits the target"
    )
    advice = "; partial=True takes what fits" if some else ""
    return f"{count}, nothing was changed; {'; '.join(parts) or 'the same layer would be taken twice'}{advice}"


def _shown(leaves: Sequence[Leaf]) -> str:
    texts = [
        f"{leaf.name} ({', '.join('×'.join(map(str, tensor.shape)) or 'scalar' for tensor in leaf.tensors)})"
        for leaf in leaves[:MAX_SHOWN]
    ]
    more = f" and {len(leaves) - MAX_SHOWN} more" if len(leaves) > MAX_SHOWN else ""
    return ", ".join(texts) + more
