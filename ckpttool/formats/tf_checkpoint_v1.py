"""TensorFlow's V1 checkpoint: one table, or several `P-00000-of-0000N`, that hold names and values together.

Written by TF before 0.12 and by `Saver(write_version=1)`. The key "" holds what a table has; every slice of a variable
is one more entry. All values lie in blocks whose checksums are always verified.
Source: tensorflow/core/util/saved_tensor_slice.proto, tensor_slice_writer.cc, core/framework/tensor.proto (TF 1.15).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import ITEM_BYTES, Checkpoint, TensorSpec, WrittenBy
from ..errors import CheckpointError, CorruptCheckpointError, LimitExceededError, ReaderClosedError, UnsupportedError
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match
from . import _tf_names, _tf_places, _wire
from ._bundle import MAX_SLICES, Bounds, check_tiling, dtype_name, read_bounds, read_shape, slice_key, whole_bounds
from ._bundle_values import joined
from ._meta_graph import replicas_beside, version_in_meta
from ._table import Table
from ._tensor_proto import decode, texts
from ._tf_sniffing import assign, matched

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FORMAT", "Reader", "assign", "sniff"]

FORMAT = "tf-checkpoint-v1"
MAX_VALUES_PER_BYTE = 22  # a value takes a byte at least, and snappy makes at most 22 bytes of one


@dataclass(slots=True)
class _Variable:
    """A variable, and which table holds which of its slices."""

    shape: tuple[int, ...]
    dtype: int
    slices: list[tuple[Bounds, int]] = field(default_factory=list)


def sniff(probe: Probe) -> Match | None:
    """Recognise a table whose first value is a list of saved slices, one of several such, or their prefix."""
    return matched(probe, FORMAT, _tf_places.V1)


class Reader(Closing):
    """One V1 checkpoint, found through a probe."""

    def __init__(self, probe: Probe) -> None:
        place = probe.tensorflow()
        if place is None or not place.files:
            raise CorruptCheckpointError("no V1 checkpoint", path=probe.path)
        self._path = probe.path
        self._place = place
        self._limits = probe.limits
        self._tables: list[Table] = []
        self._variables: dict[str, _Variable] = {}
        self._joined: dict[str, tuple[str, ...]] = {}
        self._closed = False
        try:
            for number, file in enumerate(place.files):
                self._tables.append(Table(file, probe.limits))
                self._read_meta(number)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the files."""
        self._closed = True
        for table in self._tables:
            table.close()
        self._tables.clear()

    def _read_meta(self, number: int) -> None:
        table = self._tables[number]
        data = table.lookup(b"")
        if data is None:
            raise CorruptCheckpointError("damaged: the table does not say what it holds", path=table.path)
        try:
            for outer in _wire.fields(data):
                if outer.number == 1:
                    for each in _wire.message(data, outer):
                        if each.number == 1:
                            self._add(data, each, number)
        except CheckpointError as error:
            if error.path is None:
                error.message, error.path = f"damaged: {error.message}", str(table.path)
            raise

    def _add(self, data: bytes, outer: _wire.Field, number: int) -> None:
        """One SavedSliceMeta: name, shape, type and slices of a variable in this table."""
        name, dtype = "", 0
        shape: tuple[int, ...] = ()
        slices: list[Bounds] = []
        for each in _wire.message(data, outer):
            if each.number == 1 and each.kind == _wire.BYTES:
                name = _wire.text(data, each.value, each.end)
            elif each.number == 2 and each.kind == _wire.BYTES:
                shape = read_shape(data[each.value : each.end])
            elif each.number == 3:
                dtype = each.value
            elif each.number == 4 and each.kind == _wire.BYTES:
                slices.append(read_bounds(data, each.value, each.end))
        variable = self._variables.setdefault(name, _Variable(shape, dtype))
        if (variable.shape, variable.dtype) != (shape, dtype):
            raise CorruptCheckpointError(f"'{name}' has two shapes or types")
        variable.slices += [(bounds, number) for bounds in slices]
        if len(self._variables) > self._limits.max_objects or len(variable.slices) > MAX_SLICES:
            raise LimitExceededError(f"too many variables, or slices of '{name}'")

    def describe(self) -> Checkpoint:
        """Variables grouped into layers by their names; no value is read."""
        self._check_open()
        placed = _tf_names.place(
            _tf_names.Stored(name, each.shape, dtype_name(each.dtype), name)
            for name, each in sorted(self._variables.items())
        )
        self._joined = placed.joined
        return Checkpoint(
            format=FORMAT,
            container="sstable",
            kind="checkpoint",
            layers=tuple(placed.layers),
            loose=tuple(placed.loose),
            written_by=WrittenBy(tensorflow=version_in_meta(Path(f"{_without_shard(self._place.prefix)}.meta"))),
            metadata=(("layout", "name-based"), *replicas_beside(_without_shard(self._place.prefix), self._variables)),
            warnings=(*self._place.notices, *placed.notices),
        )

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes; one slice is held in memory."""
        self._check_open()
        if spec.locator not in self._variables and not self._joined:
            self.describe()
        for name in self._joined.get(spec.locator, (spec.locator,)):
            variable = self._variables.get(name)
            if variable is None:
                raise CorruptCheckpointError(f"holds no tensor '{name}'", path=self._path)
            yield from self._blocks(name, variable, max_bytes)

    def _blocks(self, name: str, variable: _Variable, max_bytes: int) -> Iterator[np.ndarray]:
        logical = dtype_name(variable.dtype)
        if logical not in ITEM_BYTES and logical != "string":
            raise UnsupportedError(f"{name}: values of type {logical} cannot be read", path=self._path)
        boxes = sorted((whole_bounds(bounds, variable.shape), bounds, number) for bounds, number in variable.slices)
        if not check_tiling(variable.shape, [box for box, _, _ in boxes]):
            raise CorruptCheckpointError(f"{name}: its slices do not make up the variable", path=self._path)
        stored = sum(table.size_bytes for table in self._tables)
        if math.prod(variable.shape) > MAX_VALUES_PER_BYTE * stored:
            raise CorruptCheckpointError(f"{name}: more values than its {stored:,} bytes can hold", path=self._path)
        rows = all(box[1:] == tuple((0, axis) for axis in variable.shape[1:]) for box, _, _ in boxes)
        step = max(1, max_bytes // ITEM_BYTES.get(logical, max_bytes))
        read: Iterator[np.ndarray] = (self._slice(name, logical, *each) for each in boxes)
        if not rows:
            read = iter([_assembled(variable.shape, [box for box, _, _ in boxes], read)])
        for values in read:
            for start in range(0, values.size, step):
                yield values[start : start + step]

    def _slice(self, name: str, logical: str, box: Bounds, bounds: Bounds, number: int) -> np.ndarray:
        """The values of one slice, flat."""
        table = self._tables[number]
        data = table.lookup(slice_key(name, bounds))
        if data is None:
            raise CorruptCheckpointError(f"{name}: a slice is listed that is not there", path=table.path)
        count = math.prod(length for _, length in box)
        try:
            for outer in _wire.fields(data):
                if outer.number == 2:
                    for each in _wire.message(data, outer):
                        if each.number == 3 and each.kind == _wire.BYTES:
                            content = data[each.value : each.end]
                            return texts(content, count) if logical == "string" else decode(content, logical, count)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{name}: damaged: {error.message}", path=table.path) from error
        raise CorruptCheckpointError(f"{name}: a slice without values", path=table.path)

    def files(self) -> list[Path]:
        """Every table."""
        return list(self._place.files)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`; text as an array of `bytes`."""
        return joined(self.iter_blocks(spec), spec)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """None: values lie between checksums and length marks."""
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosedError("the reader is closed", path=self._path)


def _assembled(shape: tuple[int, ...], boxes: list[Bounds], pieces: Iterator[np.ndarray]) -> np.ndarray:
    """A variable cut along other axes than the first, put together in memory."""
    import numpy as np

    whole: np.ndarray | None = None
    for box, values in zip(boxes, pieces, strict=True):
        whole = np.empty(shape, values.dtype) if whole is None else whole
        place = tuple(slice(start, start + length) for start, length in box)
        whole[place] = values.reshape([length for _, length in box])
    return np.empty(0) if whole is None else whole.reshape(-1)


def _without_shard(path: str) -> str:
    match = _tf_places.v1_shard(path)
    return match[1] if match else path
