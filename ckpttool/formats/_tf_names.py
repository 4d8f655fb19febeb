"""Layers and roles from names alone: TF1 checkpoints, and variables that no object graph leads to.

A variable `tower/hidden/kernel` is `kernel` of the layer `hidden` in `tower`. What is an optimizer's shows by relation,
never by a prefix: a slot stands behind or around the name of a variable of the same shape.
Source: keys of TF 1.4 to 1.15 (Saver, Estimator, Keras), Keras 2.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..checkpoint import Layer, Notice, Role, TensorSpec, whole_number

_SLOTS = frozenset(
    """Adam Momentum Adagrad RMSProp Adadelta Ftrl AdaMax Nadam LARS LAMB AdamW Lookahead SGDW ExponentialMovingAverage
    adam_m adam_v gradient_descent momentum m v vhat rms mg accumulator linear accum_grad accum_var slow
    average""".split()
)
_COUNTERS = frozenset({"global_step", "save_counter", "current_loss_scale", "good_steps", "loss_scale"})
_ITERATION_NAMES = ("iter", "iterations", "iteration")
_HYPER_NAMES = frozenset("beta_1 beta_2 decay learning_rate lr momentum rho epsilon m_schedule momentum_cache".split())
_VARIABLE_ORDER = {
    name: place
    for place, name in enumerate(
        """embeddings depthwise_kernel pointwise_kernel kernel recurrent_kernel bias gamma beta moving_mean
        moving_variance alpha""".split()
    )
}
_FROZEN = frozenset({"moving_mean", "moving_variance"})


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor before it has a place in the model."""

    name: str  # by which it is placed: the key, or the variable's own name
    shape: tuple[int, ...]
    dtype: str
    locator: str


@dataclass(slots=True)
class Placed:
    """What the stored tensors are: the model's layers, loose tensors with their roles, what to say."""

    layers: list[Layer] = field(default_factory=list)
    loose: list[TensorSpec] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)  # locator -> the locators of its parts, in order


def place(stored: Iterable[Stored]) -> Placed:
    """Give each tensor of a name-based checkpoint its role and its layer."""
    tensors = {each.name: each for each in stored}
    placed = Placed()
    roles = _roles(tensors)
    weights = {}
    for name, each in tensors.items():
        if name not in roles:
            weights[name] = each
            continue
        role, slot_of, slot = roles[name]
        placed.loose.append(
            TensorSpec(
                tuple(name.split("/")), each.shape, each.dtype, role,
                None if slot_of is None else model_path(slot_of), slot, each.locator,
            )
        )  # fmt: skip
    copied = sum("/replica_" in (spec.slot or "") for spec in placed.loose)
    if copied:
        message = f"{copied} optimizer slots are copies of other replicas; weights are stored once"
        placed.notices.append(Notice("replica-copies", message))
    placed.layers += layers_by_name(list(_join_parts(weights, placed).values()))
    return placed


Roles = dict[str, tuple[Role, str | None, str | None]]  # name -> role, the variable that it belongs to, which slot


def _roles(tensors: Mapping[str, Stored]) -> Roles:
    """What is not a weight: replica copies, slots, the optimizer's own numbers, counters, metrics."""
    roles: Roles = {}
    copies: dict[str, str] = {}
    for name in tensors:
        original, mark, number = name.rpartition("/replica_")
        if (
            mark
            and whole_number(number) is not None
            and original in tensors
            and tensors[original].shape == tensors[name].shape
        ):
            copies[name] = original
    for name, each in tensors.items():
        if "/" in name and name not in copies and (found := _slot(name, each, tensors)) is not None:
            roles[name] = (Role.OPTIMIZER, *found)
    scopes = _optimizer_scopes(tensors, roles)
    for name, each in tensors.items():
        if name in copies or name in roles:
            continue
        if _of_optimizer(name, each, scopes):
            roles[name] = (Role.OPTIMIZER, None, None)
        elif name.split("/")[-1] in _COUNTERS and not each.shape:
            roles[name] = (Role.BOOKKEEPING, None, None)
        elif "/" in name and (owner := _averaged(name, each, tensors)) is not None:
            roles[name] = (Role.BOOKKEEPING, owner, name.rpartition("/")[2])
    _metrics(tensors, roles)
    for name, original in copies.items():
        number = name.rpartition("_")[2]
        if original in roles:
            role, slot_of, slot = roles[original]
            roles[name] = (role, slot_of, f"{slot or 'value'}/replica_{number}")
        else:
            roles[name] = (Role.BOOKKEEPING, original, f"replica_{number}")
    return roles


def _slot(name: str, each: Stored, tensors: Mapping[str, Stored]) -> tuple[str, str] | None:
    """The variable and the slot, where the name is `<variable>/<slot>` or `<scope>/<variable>/<slot>`."""
    parts = name.split("/")
    for width in (1, 2):
        slot = "/".join(parts[-width:])
        if len(parts) <= width or not _is_slot(parts[-width:]):
            continue
        for start in range(len(parts) - width):
            inner = "/".join(parts[start : len(parts) - width])
            other = tensors.get(inner)
            if other is not None and other.shape == each.shape and other.dtype == each.dtype:
                return inner, slot
    return None


def _averaged(name: str, each: Stored, tensors: Mapping[str, Stored]) -> str | None:
    """The moving average whose start value a variable corrects: `<mean>/biased` like it, `<mean>/local_step` a scalar.

    Source: tensorflow/python/training/moving_averages.py, _zero_debias (TF 1.4 to 1.15).
    """
    kind = _numbered_as(name, "biased", "local_step")
    parts = name.split("/")[:-1]
    for start in range(len(parts) if kind else 0):
        owner = tensors.get("/".join(parts[start:]))
        if owner is not None and owner.dtype == each.dtype and each.shape == (owner.shape if kind == "biased" else ()):
            return owner.name
    return None


def _is_slot(parts: Sequence[str]) -> bool:
    """A slot's name, which TensorFlow may have numbered; canned Estimators put `t_0` before it."""
    if len(parts) == 2 and not (parts[0].startswith("t_") and parts[0][2:].isdecimal()):
        return False
    base, _, number = parts[-1].rpartition("_")
    return parts[-1] in _SLOTS or (base in _SLOTS and number.isdecimal())


def _numbered_as(name: str, *bases: str) -> str | None:
    """Which of the bases a name's last part is, `_<n>` behind it or not."""
    last = name.rpartition("/")[2]
    base, _, number = last.rpartition("_")
    return last if last in bases else base if base in bases and number.isdecimal() else None


def _optimizer_scopes(tensors: Mapping[str, Stored], roles: Roles) -> set[str]:
    """Scopes that an optimizer counts its iterations in, and scopes around the variables in slot names."""
    scopes = set()
    for name, each in tensors.items():
        scope, _, last = name.rpartition("/")
        if scope and last in _ITERATION_NAMES and not each.shape and each.dtype in ("int64", "int32", "float32"):
            scopes.add(scope)
    for name, (_, variable, slot) in roles.items():
        around = name.removesuffix(f"/{slot}").removesuffix(str(variable)).rstrip("/")
        if around:
            scopes.add(around)
    return scopes


def _of_optimizer(name: str, each: Stored, scopes: set[str]) -> bool:
    if not each.shape and _numbered_as(name, "beta1_power", "beta2_power"):
        return True
    scope, _, last = name.rpartition("/")
    if scope in scopes and (not each.shape or last in _HYPER_NAMES):
        return True
    # Keras 2 on TF1 keeps its numbers in `Adam/` and its slots, numbered, in `training/Adam/`
    parts = name.split("/")
    if len(parts) < 3 or not parts[0].startswith("training"):
        return False
    return parts[1] in scopes or f"{parts[0]}/{parts[1]}" in scopes


def _metrics(tensors: Mapping[str, Stored], roles: Roles) -> None:
    """Running totals and counts, scalars that come in pairs, beside weights."""
    found = [
        name
        for name, each in tensors.items()
        if name not in roles and not each.shape and each.dtype == "float32" and _numbered_as(name, "total", "count")
    ]
    kinds = {_numbered_as(name, "total", "count") for name in found}
    if kinds == {"total", "count"} and len(found) + len(roles) < len(tensors):
        roles.update(dict.fromkeys(found, (Role.BOOKKEEPING, None, None)))


def _join_parts(tensors: dict[str, Stored], placed: Placed) -> dict[str, Stored]:
    """Partitions stored under names of their own, `x/part_0` …, as the one variable that they are."""
    groups: dict[str, dict[int, Stored]] = {}
    for name, each in tensors.items():
        whole, mark, number = name.rpartition("/part_")
        if mark and number.isdecimal() and len(number) < 10 and whole not in tensors:
            groups.setdefault(whole, {})[int(number)] = each
    result = dict(tensors)
    for name, parts in groups.items():
        ordered = [parts[number] for number in sorted(parts)]
        if sorted(parts) != list(range(len(parts))):
            message = f"{name}: parts {', '.join(map(str, sorted(parts)))} are there, others are missing; left apart"
            placed.notices.append(Notice("parts-missing", message, name))
            continue
        if len(ordered[0].shape) == 0 or len({(p.dtype, p.shape[1:]) for p in ordered}) != 1:
            message = f"{name}: its parts differ in more than rows; left apart"
            placed.notices.append(Notice("parts-apart", message, name))
            continue
        for each in ordered:
            del result[each.name]
        shape = (sum(part.shape[0] for part in ordered), *ordered[0].shape[1:])
        if len(ordered) == 1:
            result[name] = replace(ordered[0], name=name)
            continue
        locator = f"{ordered[0].locator} … {ordered[-1].locator}"
        placed.joined[locator] = tuple(part.locator for part in ordered)
        result[name] = Stored(name, shape, ordered[0].dtype, locator)
    return dict(sorted(result.items()))


def model_path(name: str) -> tuple[str, ...]:
    """A variable's path in the model: its scopes without those of RNN cells."""
    parts = tuple(name.split("/"))
    if len(parts) < 3 or "_cell" not in name:
        return parts
    from .. import weight_names

    return weight_names.without_cells(parts)


class _Scope:
    """A scope of names: variables in it, and scopes inside."""

    __slots__ = ("inner", "tensors")

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.inner: dict[str, _Scope] = {}

    def layers(self) -> tuple[Layer, ...]:
        return tuple(
            Layer(name, tensors=in_keras_order(scope.tensors), layers=scope.layers())
            for name, scope in self.inner.items()
        )


def layers_by_name(weights: Sequence[Stored]) -> tuple[Layer, ...]:
    """Nested layers by the scopes of names, in the order of first mention; a name without scope is its own layer."""
    root = _Scope()
    taken: set[tuple[str, ...]] = set()
    for each in weights:
        path = model_path(each.name)
        if path in taken:  # two cells of one layer: keep their scopes apart
            path = tuple(each.name.split("/"))
        taken.add(path)
        scope = root
        for part in path[:-1] or path:
            scope = scope.inner.setdefault(part, _Scope())
        trainable = path[-1] not in _FROZEN
        scope.tensors.append(TensorSpec(path, each.shape, each.dtype, locator=each.locator, trainable=trainable))
    return root.layers()


def in_keras_order(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """A layer's variables as Keras lists them, where all are Keras's own; else as they came. Parts stay together."""
    if len(tensors) < 2 or any(spec.path[-1] not in _VARIABLE_ORDER for spec in tensors):
        return tuple(tensors)
    groups: dict[tuple[str, ...], int] = {}
    for spec in tensors:
        groups.setdefault(spec.path[:-1], len(groups))
    forward_first = sorted(groups, key=lambda scope: (scope[-1].startswith("backward"), groups[scope]))
    places = {scope: number for number, scope in enumerate(forward_first)}
    return tuple(sorted(tensors, key=lambda spec: (places[spec.path[:-1]], _VARIABLE_ORDER[spec.path[-1]])))
