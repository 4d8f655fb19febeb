"""Map the flat weight list of a nested model back to its layers, by configuration, names, shapes and order together.

Three readings are tried, strictest first: names that are the layers' own, names that are alike but for TensorFlow's
suffixes, and no names at all. In each, every order that Keras may have used is tried; one answer must remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from . import weight_names
from .checkpoint import Notice, TensorSpec
from .errors import AmbiguousWeightsError, WeightsMismatchError
from .flat_order import Leaf, Order, Slot, leaves_of, orders
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variable, expected_variables

Path = tuple[str, ...]
Found = dict[Path, tuple[TensorSpec, ...]]


class _Stored:
    """A stored tensor beside what its name tells."""

    __slots__ = ("again", "parts", "spec", "variable")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.parts = weight_names.clean(spec.path[1:])
        self.again = weight_names.is_met_again(spec.path[1:])
        self.variable = weight_names.variable(self.parts)

    def scope(self) -> str:
        return "/".join(self.parts[:-1]).lower()


def assign_flat(
    config: LayerConfig,
    tensors: Sequence[TensorSpec],
    *,
    freezing_marks_layers: bool,
    may_disobey: bool = False,
    notices: list[Notice],
    path: object = None,
) -> Found:
    """Find the layer and variable of every tensor in a nested model's list.

    Parameters
    ----------
    config : the nested model, or a TimeDistributed around one
    tensors : in stored order; their paths are (group, stored name parts …)
    freezing_marks_layers : whether the writer marks the layers of a frozen model
    may_disobey : whether its wrappers and recurrent layers may not obey their own flag
    notices : gets what was taken for granted
    path : the file, for messages

    Returns
    -------
    path of each leaf layer (from the group) -> its tensors, renamed, in the layer's own order

    Raises
    ------
    WeightsMismatchError : they fit in no way
    AmbiguousWeightsError : they fit in several ways
    """
    stored = [_Stored(spec) for spec in tensors]
    found_leaves = list(leaves_of(config, ()))
    whole = ModelConfig("Model", None, (config,))
    if any(expected_variables(leaf.config) is None for leaf in found_leaves):
        return _by_names_alone(found_leaves, stored, path)
    shared = _shared(found_leaves)
    every = orders(whole, freezing_marks_layers=freezing_marks_layers, may_disobey=may_disobey)
    wanted = len(next(iter(every)))
    if wanted != len(stored) and shared:
        once: dict[Order, int] = {}
        for order, frozen in every.items():
            once.setdefault(tuple(slot for slot in order if slot.layer not in shared), frozen)
        if len(next(iter(once))) == len(stored):
            return _with_shared(_choose(config, once, stored, notices, path), shared)
    if wanted != len(stored):
        raise WeightsMismatchError(
            f"{config.name}: the configuration asks for {wanted} tensors, the file holds {len(stored)}", path=path
        )
    return _choose(config, every, stored, notices, path)


def _shared(found: Iterable[Leaf]) -> dict[Path, Path]:
    """Layers that stand in two nested models under one name and configuration: path -> path of the first."""
    first: dict[str, Leaf] = {}
    again: dict[Path, Path] = {}
    for leaf in found:
        earlier = first.setdefault(leaf.config.name, leaf)
        if earlier is not leaf and earlier.config.config == leaf.config.config:
            again[leaf.path] = earlier.path
    return again


def _with_shared(found: Found, shared: dict[Path, Path]) -> Found:
    for again, first in shared.items():
        found[again] = tuple(replace(spec, path=(*again, *spec.path[len(first) :])) for spec in found.get(first, ()))
    return found


def _choose(
    config: LayerConfig,
    every: Mapping[Order, int],
    stored: Sequence[_Stored],
    notices: list[Notice],
    path: object,
) -> Found:
    name = config.name
    likeliest = next(iter(every))
    exact = [order for order in every if _fits(order, stored, partial(_names_agree, loosely=False))]
    if exact:
        return _result(_one(config, every, exact, stored, notices, path), stored)
    by_order = [order for order in every if _fits(order, stored, _names_unused)]
    named = _by_exact_names(likeliest, stored)
    if named is not None and by_order:
        raise AmbiguousWeightsError(
            f"{name}: the stored names and the stored order say different things about which layer a tensor is of; "
            "neither is taken, since the shapes fit both",
            path=path,
        )
    if named is not None:
        return _result(named, stored)
    if not by_order:
        raise _mismatch(name, likeliest, stored, path)
    sound = [order for order in by_order if not _names_contradict(order, stored)]
    if not sound:
        raise AmbiguousWeightsError(
            f"{name}: the order fits its layers by shape, but stored names such as '{'/'.join(stored[0].parts)}' "
            "are those of other layers of it",
            path=path,
        )
    alike = [order for order in sound if _fits(order, stored, partial(_names_agree, loosely=True))] or sound
    chosen = _one(config, every, alike, stored, notices, path)
    if _inversions(config, chosen, stored):
        notices.append(
            Notice(
                "order-trusted",
                f"{name}: layers of one name go by the order of the stored list, though the numbers in the stored "
                "names say that they were made in another order; a configuration whose frozen layers are not those of "
                "this file would exchange them",
                name,
            )
        )
    return _result(chosen, stored)


def _scopes_stay_together(order: Sequence[Slot], stored: Sequence[_Stored]) -> bool:
    """Whether the variables of each simple layer come from one scope, as every Keras makes them."""
    scopes: dict[Path, Path] = {}
    return all(
        scopes.setdefault(slot.layer, scope) == scope
        for slot, tensor in zip(order, stored, strict=True)
        if len(slot.variable.path) == 1 and (scope := weight_names.without_cells(tensor.parts)[:-1])
    )


def _names_agree(slot: Slot, tensor: _Stored, *, loosely: bool) -> bool:
    named = weight_names.matches(tensor.parts, slot.layer[-1].split("/"), loosely=loosely) is not None
    return named and weight_names.direction_agrees(tensor.parts, slot.variable.path)


def _names_unused(slot: Slot, tensor: _Stored) -> bool:
    return True


def _fits(order: Sequence[Slot], stored: Sequence[_Stored], agree: Callable[[Slot, _Stored], bool]) -> bool:
    symbols: dict[Path, dict[str, int]] = {}
    for slot, tensor in zip(order, stored, strict=True):
        if not weight_names.agrees(tensor.variable, slot.variable.path[-1]):
            return False
        if not slot.variable.fits(tensor.spec.shape, symbols.setdefault(slot.layer, {})):
            return False
        if not agree(slot, tensor):
            return False
    return True


def _one(
    config: LayerConfig,
    every: Mapping[Order, int],
    fitting: Sequence[Order],
    stored: Sequence[_Stored],
    notices: list[Notice],
    path: object,
) -> Order:
    """The one order that fits; of several, that along which TensorFlow's numbers rise, if no likelier one fits too.

    Only models frozen without a trace make several. For another order to be the right one, as many models must be
    frozen and the layers made in reverse as well: the order is taken, and it is said. Where numbers rise only in an
    order that takes more models for frozen, either may be right: a guess is not made.
    """
    fitting = [order for order in fitting if _scopes_stay_together(order, stored)] or fitting
    if len(fitting) == 1 or _only_copies_differ(fitting, stored):
        return fitting[0]
    counts = [(_inversions(config, order, stored), every[order], order) for order in fitting]
    falls, frozen, best = min(counts, key=_falls)
    if all(other is best or (falls < other_falls and frozen <= more) for other_falls, more, other in counts):
        taken = f"{frozen} of them frozen" if frozen else "none of them frozen"
        notices.append(
            Notice(
                "order-assumed",
                f"{config.name}: its models of equal layers are taken in the order of the numbers in the stored "
                f"names, {taken}; this file does not say which were",
                config.name,
            )
        )
        return best
    raise AmbiguousWeightsError(
        f"{config.name}: its {len(stored)} tensors fit its layers in {len(fitting)} ways, by which of its models were "
        "frozen, and neither names nor shapes decide",
        path=path,
    )


def _falls(candidate: tuple[int, int, Order]) -> int:
    return candidate[0]


def _only_copies_differ(fitting: Sequence[Order], stored: Sequence[_Stored]) -> bool:
    """Whether the orders exchange only tensors of one name: that of a shared layer, which is met again."""
    first = [tensor.parts for tensor in stored if not tensor.again]
    if len(set(first)) != len(first):
        return False
    readings = {
        frozenset((slot.layer, slot.number, tensor.parts) for slot, tensor in zip(order, stored, strict=True))
        for order in fitting
    }
    return len(readings) == 1


def _inversions(config: LayerConfig, order: Sequence[Slot], stored: Sequence[_Stored]) -> int:
    """How often the number of a scope falls along the layers of the model, each layer taken once."""
    firsts: dict[Path, str] = {}
    for slot, tensor in zip(order, stored, strict=True):
        firsts.setdefault(slot.layer, tensor.scope())
    return weight_names.inversions([firsts[leaf.path] for leaf in leaves_of(config, ()) if leaf.path in firsts])


def _by_exact_names(order: Sequence[Slot], stored: Sequence[_Stored]) -> Order | None:
    """The slots that the names alone give, if each tensor names one and no two the same; shapes must fit."""
    by_layer: dict[str, list[Slot]] = {}
    for slot in order:
        by_layer.setdefault(slot.layer[-1], []).append(slot)
    chosen: list[Slot] = []
    symbols: dict[Path, dict[str, int]] = {}
    for tensor in stored:
        candidates = [
            slot
            for layer, slots in by_layer.items()
            if weight_names.matches(tensor.parts, layer.split("/"), loosely=False) is not None
            for slot in slots
            if tensor.variable is not None
            and weight_names.agrees(tensor.variable, slot.variable.path[-1])
            and weight_names.direction_agrees(tensor.parts, slot.variable.path)
        ]
        if len(candidates) != 1:
            return None
        slot = candidates[0]
        if not slot.variable.fits(tensor.spec.shape, symbols.setdefault(slot.layer, {})):
            return None
        chosen.append(slot)
    return tuple(chosen) if len(set(chosen)) == len(chosen) else None


def _names_contradict(order: Sequence[Slot], stored: Sequence[_Stored]) -> bool:
    """Whether the order gives a tensor that names exactly one layer of the model to another one.

    TensorFlow puts a number behind a layer's name. Where names differ otherwise in their number (`dense` or `dense_3`
    for `dense_1`: the configuration of another process), the numbers must rise with those of the layers.
    """
    layers = {slot.layer[-1] for slot in order}
    numbers: dict[str, set[tuple[int, int]]] = {}
    of_another_process: set[str] = set()
    for slot, tensor in zip(order, stored, strict=True):
        name = slot.layer[-1]
        named = {one for one in layers if weight_names.matches(tensor.parts, one.split("/"), loosely=False) is not None}
        alike = weight_names.matches(tensor.parts, name.split("/"), loosely=True)
        if len(named) == 1 and name not in named and alike is None:
            return True
        if alike is not None and len(tensor.parts) > 1:
            stored_scope = tensor.parts[alike]
            base, scope = weight_names.numbered(name), weight_names.numbered(stored_scope)
            if base[0] == scope[0]:
                numbers.setdefault(base[0], set()).add((base[1], scope[1]))
                if name not in (stored_scope, weight_names.strip_suffix(stored_scope)):
                    of_another_process.add(base[0])
    return any(not _rise_together(sorted(numbers[base])) for base in of_another_process)


def _rise_together(pairs: Sequence[tuple[int, int]]) -> bool:
    return all(first[1] < second[1] or first[0] == second[0] for first, second in itertools.pairwise(pairs))


def _result(order: Sequence[Slot], stored: Sequence[_Stored]) -> Found:
    placed: dict[Path, list[tuple[int, TensorSpec]]] = {}
    for slot, tensor in zip(order, stored, strict=True):
        spec = replace(tensor.spec, path=(*slot.layer, *slot.variable.path), trainable=slot.variable.trainable)
        placed.setdefault(slot.layer, []).append((slot.number, spec))
    return {layer: tuple(spec for _, spec in sorted(specs, key=_number)) for layer, specs in placed.items()}


def _number(item: tuple[int, TensorSpec]) -> int:
    return item[0]


def _mismatch(name: str, order: Sequence[Slot], stored: Sequence[_Stored], path: object) -> WeightsMismatchError:
    symbols: dict[Path, dict[str, int]] = {}
    for slot, tensor in zip(order, stored, strict=True):
        if not slot.variable.fits(tensor.spec.shape, symbols.setdefault(slot.layer, {})):
            break
    wanted = "/".join((*slot.layer, *slot.variable.path))
    shape = "any" if slot.variable.shape is None else str(slot.variable.shape).replace("'", "")
    return WeightsMismatchError(
        f"{name}: the stored weights fit the configuration in no order; at '{'/'.join(tensor.parts)}' "
        f"{tensor.spec.shape} it asks for {wanted} {shape}",
        path=path,
    )


def _by_names_alone(found: Sequence[Leaf], stored: Sequence[_Stored], path: object) -> Found:
    """With classes that are not Keras's own in the model, only names can tell, and they must tell all."""
    of_leaf: dict[Path, list[_Stored]] = {leaf.path: [] for leaf in found}
    scopes: dict[Path, Path] = {}
    for tensor in stored:
        leaf, scope = _named_leaf(tensor, found, path)
        of_leaf[leaf.path].append(tensor)
        if scopes.setdefault(leaf.path, scope) != scope:
            raise AmbiguousWeightsError(
                f"stored scopes '{'/'.join(scopes[leaf.path])}' and '{'/'.join(scope)}' both look like layer "
                f"'{leaf.config.name}', and layers of unknown classes in the model leave only names to go by",
                path=path,
            )
    result: Found = {}
    for leaf in found:
        tensors = of_leaf[leaf.path]
        expected = expected_variables(leaf.config)
        if expected is None:
            parts = [weight_names.inside(each.parts, leaf.config.name.split("/")) for each in tensors]
            result[leaf.path] = tuple(
                replace(each.spec, path=(*leaf.path, *rest)) for each, rest in zip(tensors, parts, strict=True)
            )
            continue
        slots = tuple(Slot(leaf.path, each, number) for number, each in enumerate(expected))
        if len(slots) != len(tensors) or not _fits(slots, tensors, _names_unused):
            raise mismatch(leaf, expected, [each.spec for each in tensors], path)
        result[leaf.path] = _result(slots, tensors).get(leaf.path, ())
    return result


def _named_leaf(tensor: _Stored, found: Sequence[Leaf], path: object) -> tuple[Leaf, Path]:
    """The leaf that a stored name names, and the scopes it does so with.

    Of exact names the outermost counts, then the longest (`a/b` before `a`); of names that are alike one must remain.
    """
    fitting: list[tuple[tuple[int, ...], Leaf]] = []
    for loosely in (False, True):
        for leaf in found:
            name = leaf.config.name.split("/")
            start = weight_names.matches(tensor.parts, name, loosely=loosely)
            if start is not None and expected_variables(leaf.config) != ():
                fitting.append(((start,) if loosely else (start, -len(name)), leaf))
        fitting = [item for item in fitting if item[0] == min(each[0] for each in fitting)]
        if len(fitting) == 1:
            (start, *_), leaf = fitting[0]
            return leaf, tensor.parts[start : start + len(leaf.config.name.split("/"))]
        if fitting:
            break
    what = "several layers have" if fitting else "no layer has"
    raise AmbiguousWeightsError(
        f"stored tensor '{'/'.join(tensor.parts)}': {what} that name, and layers of unknown classes in the model "
        "leave only names to go by",
        path=path,
    )


def mismatch(
    leaf: Leaf, expected: Sequence[Variable], tensors: Sequence[TensorSpec], path: object
) -> WeightsMismatchError:
    """The error that shows what a layer's configuration asks for beside what is stored."""
    wanted = ", ".join(f"{'/'.join(each.path)} {_shape(each.shape)}" for each in expected) or "no weights"
    stored = ", ".join(f"{'/'.join(spec.path[1:])} {_shape(spec.shape)}" for spec in tensors[:8]) or "nothing"
    return WeightsMismatchError(
        f"{'/'.join(leaf.path)} ({leaf.config.class_name}): its configuration asks for {wanted}; stored: {stored}",
        path=path,
    )


def _shape(shape: Sequence[int | str] | None) -> str:
    if shape is None:
        return "of any shape"
    return "(" + ", ".join("?" if isinstance(axis, str) else str(axis) for axis in shape) + ")"
