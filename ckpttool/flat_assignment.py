"""Map the flat weight list of a nested model back to its layers, by configuration, names, shapes and order together.

Three readings are tried, strictest first: names that are the layers' own, names that are alike but for TensorFlow's
suffixes, and no names at all. In each, every order that Keras may have used is tried; one answer must remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from . import weight_names
from .checkpoint import TensorSpec
from .errors import AmbiguousWeightsError, WeightsMismatchError
from .flat_order import Leaf, Slot, leaves_of, orders
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variable, expected_variables

Path = tuple[str, ...]
Found = dict[Path, tuple[TensorSpec, ...]]


class _Stored:
    """A stored tensor beside what its name tells."""

    __slots__ = ("parts", "spec", "variable")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.parts = weight_names.clean(spec.path[1:])
        self.variable = weight_names.variable(self.parts)

    def scope(self) -> str:
        return "/".join(self.parts[:-1]).lower()


def assign_flat(
    config: LayerConfig, tensors: Sequence[TensorSpec], *, freezing_marks_layers: bool, path: object = None
) -> Found:
    """Find the layer and variable of every tensor in a nested model's list.

    Parameters
    ----------
    config : the nested model, or a TimeDistributed around one
    tensors : in stored order; their paths are (group, stored name parts …)
    freezing_marks_layers : whether the writer marks the layers of a frozen model
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
    every = list(orders(whole, freezing_marks_layers=freezing_marks_layers))
    wanted = len(every[0])
    if wanted != len(stored) and shared:
        once = [tuple(slot for slot in order if slot.layer not in shared) for order in every]
        if len(once[0]) == len(stored):
            return _with_shared(_choose(config.name, list(dict.fromkeys(once)), stored, path), shared)
    if wanted != len(stored):
        raise WeightsMismatchError(
            f"{config.name}: the configuration asks for {wanted} tensors, the file holds {len(stored)}", path=path
        )
    return _choose(config.name, every, stored, path)


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


def _choose(name: str, every: Sequence[tuple[Slot, ...]], stored: Sequence[_Stored], path: object) -> Found:
    exact = [order for order in every if _fits(order, stored, partial(_names_agree, loosely=False))]
    if exact:
        return _result(_one(name, exact, stored, path), stored)
    by_order = [order for order in every if _fits(order, stored, _names_unused)]
    named = _by_exact_names(every[0], stored)
    if named is not None and by_order:
        raise AmbiguousWeightsError(
            f"{name}: the stored names and the stored order say different things about which layer a tensor is of; "
            "neither is taken, since the shapes fit both",
            path=path,
        )
    if named is not None:
        return _result(named, stored)
    if not by_order:
        raise _mismatch(name, every[0], stored, path)
    alike = [order for order in by_order if _fits(order, stored, partial(_names_agree, loosely=True))]
    if not alike and _names_contradict(by_order[0], stored):
        raise AmbiguousWeightsError(
            f"{name}: the order fits its layers by shape, but stored names such as '{'/'.join(stored[0].parts)}' "
            "are those of other layers of it",
            path=path,
        )
    return _result(_one(name, alike or by_order, stored, path), stored)


def _names_agree(slot: Slot, tensor: _Stored, *, loosely: bool) -> bool:
    return weight_names.matches(tensor.parts, slot.layer[-1].split("/"), loosely=loosely) is not None


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


def _one(name: str, fitting: Sequence[tuple[Slot, ...]], stored: Sequence[_Stored], path: object) -> tuple[Slot, ...]:
    """The one order that fits; of several, the one along which TensorFlow's numbers rise the most steadily."""
    if len(fitting) == 1:
        return fitting[0]
    numbered = [(_inversions(order, stored), order) for order in fitting]
    least = min(count for count, _ in numbered)
    best = [order for count, order in numbered if count == least]
    if len(best) > 1:
        raise AmbiguousWeightsError(
            f"{name}: its {len(stored)} tensors fit its layers in {len(best)} ways; neither names nor shapes decide",
            path=path,
        )
    return best[0]


def _inversions(order: Sequence[Slot], stored: Sequence[_Stored]) -> int:
    """Scopes in the order of the model's layers, each once, counted where their numbers fall."""
    firsts: dict[Path, str] = {}
    for slot, tensor in zip(order, stored, strict=True):
        firsts.setdefault(slot.layer, tensor.scope())
    by_model = sorted(firsts, key=partial(_model_place, order))
    return weight_names.inversions([firsts[layer] for layer in by_model])


def _model_place(order: Sequence[Slot], layer: Path) -> int:
    return min(place for place, slot in enumerate(order) if slot.layer == layer)


def _by_exact_names(order: Sequence[Slot], stored: Sequence[_Stored]) -> tuple[Slot, ...] | None:
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
            and _inner_agrees(slot, tensor)
        ]
        if len(candidates) != 1:
            return None
        slot = candidates[0]
        if not slot.variable.fits(tensor.spec.shape, symbols.setdefault(slot.layer, {})):
            return None
        chosen.append(slot)
    return tuple(chosen) if len(set(chosen)) == len(chosen) else None


def _inner_agrees(slot: Slot, tensor: _Stored) -> bool:
    """Inside a wrapper layer the inner scope must be the variable's: `bi/forward_lstm` or `bi/backward_lstm`."""
    inner = slot.variable.path[:-1]
    scopes = tensor.parts[:-1]
    return not inner or inner[0] in scopes or not any(scope.startswith(("forward_", "backward_")) for scope in scopes)


def _names_contradict(order: Sequence[Slot], stored: Sequence[_Stored]) -> bool:
    """Whether the order gives a tensor that names exactly one layer of the model to another one."""
    layers = {slot.layer[-1] for slot in order}
    for slot, tensor in zip(order, stored, strict=True):
        named = {one for one in layers if weight_names.matches(tensor.parts, one.split("/"), loosely=False) is not None}
        if len(named) == 1 and slot.layer[-1] not in named:
            alike = weight_names.matches(tensor.parts, slot.layer[-1].split("/"), loosely=True)
            if alike is None:
                return True
    return False


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
    for tensor in stored:
        of_leaf[_named_leaf(tensor, found, path).path].append(tensor)
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


def _named_leaf(tensor: _Stored, found: Sequence[Leaf], path: object) -> Leaf:
    for loosely in (False, True):
        fitting = [
            (start, -len(leaf.config.name), leaf)
            for leaf in found
            if expected_variables(leaf.config) != ()
            and (start := weight_names.matches(tensor.parts, leaf.config.name.split("/"), loosely=loosely)) is not None
        ]
        fitting = [item for item in fitting if item[:2] == min(each[:2] for each in fitting)]
        if len(fitting) == 1:
            return fitting[0][2]
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
