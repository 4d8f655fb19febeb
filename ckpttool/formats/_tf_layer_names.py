"""Names of layers for objects that a checkpoint stores by position or attribute, from their variables' full names.

A functional model of Keras 2 names a variable `hidden/kernel`; a subclassed one, or a Sequential built late, puts its
own name in front; an RNN puts its cell's between. Full names are empty for models made under a strategy before TF 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..checkpoint import Layer, TensorSpec
from ._tf_names import _FROZEN, Stored, in_keras_order

if TYPE_CHECKING:
    from ._tf_objects import Hint

_MODEL_SCOPES = frozenset({"sequential", "functional", "model"})
_AUTOMATIC = frozenset(
    """dense embedding einsum_dense conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose
    separable_conv1d separable_conv2d depthwise_conv1d depthwise_conv2d batch_normalization layer_normalization
    group_normalization lstm gru simple_rnn rnn bidirectional time_distributed multi_head_attention p_re_lu sequential
    functional model layer linear module""".split()
)
Scope = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A weight on its way to a place."""

    local: str  # the attribute that holds it: `_kernel`
    full_name: str
    shape: tuple[int, ...]
    dtype: str
    key: str


@dataclass(slots=True)
class Part:
    """An object of the model: a layer, a model, a list of layers."""

    local: str  # its name in the object that holds it
    hint: Hint | None = None
    position: int | None = None  # among the layers of a functional model
    functional: bool = False  # its parts are the layers of its configuration, in order
    absorbed: bool = False  # an inner part of a layer: a cell, the forward layer of a Bidirectional
    variables: list[Variable] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def all_variables(self) -> Iterator[Variable]:
        """Its own variables and those of everything inside."""
        yield from self.variables
        for part in self.parts:
            yield from part.all_variables()

    def has_variables(self) -> bool:
        """Whether it holds any weight."""
        return any(True for _ in self.all_variables())

    def is_leaf(self) -> bool:
        """A layer, all of whose parts are its own: it has variables and no layers inside."""
        return not self.functional and all(part.absorbed for part in self.parts if part.has_variables())


def _is_place(local: str) -> bool:
    """Whether a name says where an object is, not what it is: `layer-3`, `2`, `_tracked`."""
    if local.startswith("_") or local.isdecimal():
        return True
    kind, dash, number = local.rpartition("-")
    return bool(dash) and number.isdecimal() and kind in ("layer", "layer_with_weights")


def _unnumbered(name: str) -> str:
    base, _, number = name.rpartition("_")
    return base if base and number.isdecimal() else name


def _is_inner(scope: str) -> bool:
    return scope.startswith(("forward_", "backward_"))


def layers(root: Part) -> list[Layer]:
    """The layers of a model, named; a variable that the model itself holds is a layer of its own.

    Parameters
    ----------
    root : the model, or the object that holds it
    """
    if root.is_leaf() and root.parts:
        return [_leaf(root, (), (), root.local or "layer")]
    scope = _model_scope(root)
    own = [_single(variable, scope) for variable in root.variables]
    return [*own, *_inside(root, scope, ())]


def _single(variable: Variable, scope: Scope) -> Layer:
    name = variable.local.lstrip("_") or variable.local
    spec = TensorSpec((name,), variable.shape, variable.dtype, locator=variable.key, trainable=name not in _FROZEN)
    return Layer(name, tensors=(spec,))


def _scopes(part: Part) -> list[Scope]:
    """Scopes of its variables' full names, cells left out; none where a name is empty."""
    return [_clean(variable.full_name)[:-1] for variable in part.all_variables() if variable.full_name]


def _clean(full_name: str) -> tuple[str, ...]:
    """A full name's parts without those of RNN cells."""
    parts = tuple(full_name.partition(":")[0].split("/"))
    if "_cell" not in full_name:
        return parts
    from .. import weight_names

    return weight_names.without_cells(parts)


def _model_scope(root: Part) -> Scope:
    """The model's own name where it stands in front of all its variables' names, or nothing.

    Variables that the model itself holds may have no scope, or its name alone.
    """
    scopes = [scope for part in root.parts for scope in _scopes(part)]
    if not scopes or any(len(scope) < 2 for scope in scopes) or len({scope[0] for scope in scopes}) != 1:
        return ()
    first = scopes[0][0]
    own = {_clean(variable.full_name)[:-1] for variable in root.variables if variable.full_name}
    if not own <= {(), (first,)}:
        return ()
    if _unnumbered(first) in _MODEL_SCOPES:
        return (first,)
    weighted = [part for part in root.parts if part.has_variables()]
    if len(weighted) == 1 and root.functional and _is_plain_keras3(weighted[0]):
        return (first,)
    if len(weighted) < 2 or any(_is_inner(scope[1]) for scope in scopes):
        return ()
    return (first,)


def _is_plain_keras3(part: Part) -> bool:
    """A layer without layers inside, of Keras 3, where a layer's name is one scope and never two."""
    within = any(inner.has_variables() for inner in part.parts)
    return not within and any(variable.local.startswith("_") for variable in part.variables)


def _inside(part: Part, scope: Scope, prefix: tuple[str, ...]) -> list[Layer]:
    """The layers inside an object; names taken twice give way to the places that objects have."""
    named: list[Layer] = []
    taken: set[str] = set()
    for inner in part.parts:
        if inner.position is None and not inner.has_variables():
            continue
        layer = _named(inner, scope, prefix, None)
        if layer.name in taken:
            layer = _named(inner, scope, prefix, _free(inner.local or "layer", taken))
        taken.add(layer.name)
        named.append(layer)
    return named


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _named(part: Part, scope: Scope, prefix: tuple[str, ...], name: str | None) -> Layer:
    if not part.has_variables():
        hint = part.hint
        return Layer(
            name or (hint.name if hint and hint.name else part.local), hint.class_name if hint else None,
            trainable=hint.trainable if hint else None,
        )  # fmt: skip
    if part.is_leaf():
        return _leaf(part, scope, prefix, name)
    inner_scope = () if part.functional else _container_scope(part, scope)
    found = name or _chosen(part, "/".join(inner_scope[len(scope) :]))
    path = (*prefix, found)
    if part.functional:
        inner_scope = _model_scope(part)
    tensors = in_keras_order([_spec(v, path, (v.local.lstrip("_") or v.local,)) for v in part.variables])
    hint = part.hint
    return Layer(
        found, hint.class_name if hint else None, tensors, tuple(_inside(part, inner_scope, path)),
        hint.trainable if hint else None,
    )  # fmt: skip


def _container_scope(part: Part, scope: Scope) -> Scope:
    """What the scopes of an object's layers have in common, each layer's own name left out."""
    scopes = [each[:-1] for each in _scopes(part)]
    if not scopes:
        return scope
    common = _common(scopes)
    return common if common[: len(scope)] == scope else scope


def _common(scopes: Sequence[Scope]) -> Scope:
    first, last = min(scopes), max(scopes)
    width = 0
    while width < min(len(first), len(last)) and first[width] == last[width]:
        width += 1
    return first[:width]


def _chosen(part: Part, derived: str) -> str:
    """The layer's own name; the attribute's where Keras made the layer's up; its place where nothing else is known."""
    known = part.hint.name if part.hint is not None and part.hint.name else derived
    if not known:
        return part.local
    if not _is_place(part.local) and _unnumbered(known.rpartition("/")[2]) in _AUTOMATIC:
        return part.local
    return known


def _leaf(part: Part, scope: Scope, prefix: tuple[str, ...], name: str | None) -> Layer:
    """A layer with all variables inside it, those of cells and inner layers by the names that these have."""
    absorbing = any(inner.has_variables() for inner in part.parts)
    scopes = _scopes(part)
    common = _common(scopes) if scopes else ()
    if common[: len(scope)] != scope:
        scope = ()
    own = common[: len(scope) + 1] if absorbing else common
    found = name or _chosen(part, "/".join(own[len(scope) :]))
    path = (*prefix, found)
    placed = _with_places(part, ())
    specs = [_spec(variable, path, _inner_path(variable, where, own, absorbing)) for variable, where in placed]
    hint = part.hint
    return Layer(
        found, hint.class_name if hint else None, in_keras_order(_distinct(specs)), (), hint.trainable if hint else None
    )


def _with_places(part: Part, where: tuple[str, ...]) -> Iterator[tuple[Variable, tuple[str, ...]]]:
    for variable in part.variables:
        yield variable, where
    for inner in part.parts:
        yield from _with_places(inner, (*where, inner.local))


def _inner_path(variable: Variable, where: tuple[str, ...], own: Scope, absorbing: bool) -> tuple[str, ...]:
    """`kernel`, or `forward_lstm/kernel` inside a wrapper layer; attributes stand in where names are empty."""
    last = variable.local.lstrip("_") or variable.local
    if not absorbing:
        return (last,)
    if variable.full_name:
        scopes = _clean(variable.full_name)[:-1]
        if scopes[: len(own)] == own:
            return (*scopes[len(own) :], last)
    return (*(part for part in where if part not in ("cell", "cells")), last)


def _spec(variable: Variable, layer: tuple[str, ...], inner: tuple[str, ...]) -> TensorSpec:
    return TensorSpec(
        (*layer, *inner), variable.shape, variable.dtype, locator=variable.key, trainable=inner[-1] not in _FROZEN
    )


def _distinct(specs: list[TensorSpec]) -> list[TensorSpec]:
    """The same, later ones of an equal path numbered."""
    seen: dict[tuple[str, ...], int] = {}
    result = []
    for spec in specs:
        count = seen.get(spec.path, 0)
        seen[spec.path] = count + 1
        result.append(replace(spec, path=(*spec.path[:-1], f"{spec.path[-1]}_{count}")) if count else spec)
    return result


def without_model_scope(stored: Sequence[Stored]) -> list[Stored]:
    """The same without the model's own name in front, where it stands before all: `sequential/hidden/kernel`."""
    parts = [each.name.split("/") for each in stored]
    if not parts or any(len(each) < 3 for each in parts) or len({each[0] for each in parts}) != 1:
        return list(stored)
    second = {each[1] for each in parts}
    named_as_model = _unnumbered(parts[0][0]) in _MODEL_SCOPES
    if not named_as_model and (len(second) < 2 or any(_is_inner(name) for name in second)):
        return list(stored)
    return [replace(each, name="/".join(names[1:])) for each, names in zip(stored, parts, strict=True)]
