"""Prove a batch slice that is made of op layers: compute its bounds for two batch sizes, as the operations would.

A slice is a part of the batch if, for a batch of L rows, it holds the rows j·L/N up to (j+1)·L/N and all of every
other axis. The few operations that slices are made of are computed on plain numbers; anything else proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..keras_config import ModelConfig, TensorRef
from ._op_nodes import Operation, is_op, operation

MAX_OPERATIONS = 64  # op layers behind one slice: 12 were seen (TF 2.2); a hostile graph may be longer
BATCHES = (6, 35)  # rows of each part in the two trials; unequal, so that a constant bound cannot pass for a part
_DIMENSIONS = (10007, 10009, 10037, 10039, 10061, 10067, 10069)  # stand for the axes behind the batch: unlike any bound


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor: rows `start` up to `stop` of the source, whole on every other axis."""

    start: int
    stop: int
    others: tuple[int, ...]  # lengths of the other axes

    def shape(self) -> list[int]:
        return [self.stop - self.start, *self.others]


class _UnknownError(Exception):
    """An operation or operand that is not understood; it ends one trial and is caught here."""


def chain(model: ModelConfig, ref: TensorRef) -> tuple[TensorRef, frozenset[str]] | None:
    """The one tensor that a chain of op layers starts from, and the layers of the chain; None for another shape."""
    layers: set[str] = set()
    sources: set[TensorRef] = set()
    waiting, seen = [ref], {ref}
    while waiting:
        current = waiting.pop()
        layer = model.layer(current.layer)
        if layer is None:
            return None
        if not is_op(layer):
            sources.add(current)
            continue
        if current.call >= len(layer.nodes):
            return None
        layers.add(layer.name)
        if len(layers) > MAX_OPERATIONS:
            return None
        for each in layer.nodes[current.call].inputs:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    if len(sources) != 1 or not layers:
        return None
    return next(iter(sources)), frozenset(layers)


def is_part(
    model: ModelConfig, ref: TensorRef, source: TensorRef, part: int, parts: int, shape: Sequence[int | None] | None
) -> bool | None:
    """Whether op layers make part `part` of `parts` of the source's batch; None where that cannot be computed.

    Parameters
    ----------
    shape : of the source, where it is known; with a fixed batch size, slices may have constant bounds
    """
    fixed = shape[0] if shape else None
    sizes = [each * parts for each in BATCHES] if fixed is None else [fixed]
    others = tuple(_DIMENSIONS) if shape is None else _lengths(shape[1:])
    found = [_part(model, ref, Rows(0, size, others), source) for size in sizes]
    if None in found:
        return None
    return found == [(part * size // parts, (part + 1) * size // parts) for size in sizes]


def _lengths(shape: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(unknown if axis is None else axis for axis, unknown in zip(shape, _DIMENSIONS, strict=False))


def _part(model: ModelConfig, ref: TensorRef, rows: Rows, source: TensorRef) -> tuple[int, int] | None:
    try:
        value = _Trial(model, source, rows).value(ref)
    except (_UnknownError, TypeError, IndexError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return (value.start, value.stop) if isinstance(value, Rows) else None


class _Trial:
    """One batch size; every tensor is computed once."""

    def __init__(self, model: ModelConfig, source: TensorRef, rows: Rows) -> None:
        self._model = model
        self._known: dict[TensorRef, Any] = {source: rows}

    def value(self, item: Any) -> Any:
        if isinstance(item, TensorRef):
            if item not in self._known:
                self._known[item] = self._computed(item)
            return self._known[item]
        if isinstance(item, list):
            return [self.value(each) for each in item]
        if isinstance(item, Mapping):
            return {key: self.value(each) for key, each in item.items()}
        return item

    def _computed(self, ref: TensorRef) -> Any:
        layer = self._model.layer(ref.layer)
        found = operation(layer, ref.call) if layer is not None and is_op(layer) else None
        if found is None:
            raise _UnknownError
        given = Operation(
            found.name,
            {key: self.value(each) for key, each in found.operands.items()},
            tuple(self.value(each) for each in found.listed),
        )
        if found.name == "split":
            return _split(given, ref.tensor)
        rule = _RULES.get(found.name)
        if rule is None or ref.tensor != 0:
            raise _UnknownError
        return rule(given)


def _split(given: Operation, tensor: int) -> Rows:
    rows, parts = given.operands["x"], given.operands.get("parts")
    if not isinstance(rows, Rows) or given.operands.get("axis") != 0:
        raise _UnknownError
    count = rows.stop - rows.start
    if isinstance(parts, list):
        sizes = [_whole(each) for each in parts]
    elif 1 <= _whole(parts) <= count:
        sizes = [count // _whole(parts)] * _whole(parts)
    else:
        raise _UnknownError
    if sum(sizes) != count:
        raise _UnknownError
    start = rows.start + sum(sizes[:tensor])
    return Rows(start, start + sizes[tensor], rows.others)


def _whole(value: Any) -> int:
    """A number that is whole, also where a division made it a float, or the only one of a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
        raise _UnknownError
    return int(value)


def _elementwise(compute: Callable[[Any, Any], Any]) -> Callable[[Operation], Any]:
    def rule(given: Operation) -> Any:
        x, y = given.operands["x"], given.operands["y"]
        if isinstance(x, Rows) or isinstance(y, Rows):
            raise _UnknownError
        if isinstance(x, list) and isinstance(y, list):
            if len(x) != len(y) and 1 not in (len(x), len(y)):
                raise _UnknownError
            width = max(len(x), len(y))
            x, y = (each * width if len(each) == 1 else each for each in (x, y))
            return [compute(a, b) for a, b in zip(x, y, strict=True)]
        if isinstance(x, list):
            return [compute(a, y) for a in x]
        if isinstance(y, list):
            return [compute(x, b) for b in y]
        return compute(x, y)

    return rule


def _each(compute: Callable[[Any], Any]) -> Callable[[Operation], Any]:
    def rule(given: Operation) -> Any:
        x = given.operands["x"]
        return [compute(each) for each in x] if isinstance(x, list) else compute(x)

    return rule


def _shape(given: Operation) -> list[int]:
    rows = given.operands["x"]
    if not isinstance(rows, Rows):
        raise _UnknownError
    return rows.shape()


def _same(given: Operation) -> Any:
    return given.operands["x"]


def _cast(given: Operation) -> Any:
    """Of numbers only: a slice that changes its values' type is more than a slice."""
    x = given.operands["x"]
    if isinstance(x, Rows):
        raise _UnknownError
    return [_whole(each) for each in x] if isinstance(x, list) else _truncated(x)


def _truncated(value: Any) -> Any:
    return value if isinstance(value, float) and value.is_integer() else _whole(value)


def _stack(given: Operation) -> list[Any]:
    if given.operands.get("axis") != 0:
        raise _UnknownError
    return [_whole(each) for each in given.listed]


def _concat(given: Operation) -> list[Any]:
    if given.operands.get("axis") != 0 or not all(isinstance(each, list) for each in given.listed):
        raise _UnknownError
    return [value for each in given.listed for value in each]


def _slice(given: Operation) -> Rows:
    """`tf.slice(x, begin, size)`: -1 means up to the end."""
    rows, begin, size = (given.operands[name] for name in ("x", "begin", "size"))
    if not isinstance(rows, Rows) or len(begin) != len(size) or not begin:
        raise _UnknownError
    whole_axes = all(
        _whole(first) == 0 and (count == -1 or count == rows.shape()[axis])
        for axis, (first, count) in enumerate(zip(begin[1:], size[1:], strict=True), 1)
    )
    if not whole_axes:
        raise _UnknownError
    start = rows.start + _whole(begin[0])
    return Rows(start, rows.stop if size[0] == -1 else start + _whole(size[0]), rows.others)


def _strided_slice(given: Operation) -> Any:
    """TensorFlow's StridedSlice with its masks, for a slice of the first axis or an element of a shape."""
    read = given.operands
    begin, end, strides = (read[name] for name in ("begin", "end", "strides"))
    if read.get("ellipsis_mask") or read.get("new_axis_mask") or not len(begin) == len(end) == len(strides):
        raise _UnknownError
    keys: list[Any] = []
    for axis in range(len(begin)):
        bit = 1 << axis
        if read.get("shrink_axis_mask", 0) & bit:
            keys.append(_whole(begin[axis]))
            continue
        start = None if read.get("begin_mask", 0) & bit else _whole(begin[axis])
        stop = None if read.get("end_mask", 0) & bit else _whole(end[axis])
        keys.append({"start": start, "stop": stop, "step": _whole(strides[axis])})
    return _item(read["x"], keys)


def _getitem(given: Operation) -> Any:
    key = given.operands.get("key")
    return _item(given.operands["x"], key if isinstance(key, list) else [key])


def _item(x: Any, keys: Sequence[Any]) -> Any:
    bounds = [_bounds(key) for key in keys]
    if isinstance(x, list):
        if len(bounds) != 1:
            raise _UnknownError
        return x[bounds[0]]
    if not isinstance(x, Rows) or not bounds or any(bound != slice(None) for bound in bounds[1:]):
        raise _UnknownError
    first = bounds[0]
    if not isinstance(first, slice) or first.step not in (None, 1):
        raise _UnknownError
    start, stop, _ = first.indices(x.stop - x.start)
    return Rows(x.start + start, x.start + max(start, stop), x.others)


def _bounds(key: Any) -> int | slice:
    if isinstance(key, Mapping):
        start, stop, step = (key.get(name) for name in ("start", "stop", "step"))
        bounds = [None if each is None else _whole(each) for each in (start, stop)]
        return slice(bounds[0], bounds[1], None if step in (None, 1) else _whole(step))
    return _whole(key)


_RULES: dict[str, Callable[[Operation], Any]] = {
    "shape": _shape,
    "getitem": _getitem,
    "strided_slice": _strided_slice,
    "slice": _slice,
    "floordiv": _elementwise(lambda x, y: x // y),
    "truediv": _elementwise(lambda x, y: x / y),
    "multiply": _elementwise(lambda x, y: x * y),
    "add": _elementwise(lambda x, y: x + y),
    "subtract": _elementwise(lambda x, y: x - y),
    "floor": _each(math.floor),
    "cast": _cast,
    "identity": _same,
    "stack": _stack,
    "concat": _concat,
}
