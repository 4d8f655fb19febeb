"""The V2 checkpoint of TensorFlow ("bundle"): a table `P.index` that says where in `P.data-0000I-of-0000N` a tensor is.

The key "" holds the header. A partitioned variable is one entry without bytes that lists its slices; each slice has an
entry of its own under a key that begins with a zero byte.
Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, core/protobuf/tensor_bundle.proto,
core/util/saved_tensor_slice_util.cc, core/lib/strings/ordered_code.cc (TF 2.21).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..checkpoint import ITEM_BYTES
from ..errors import CorruptCheckpointError, LimitExceededError, UnsupportedError
from ..limits import Limits
from . import _wire
from ._table import Table

MAX_RANK = 254  # TensorShape::MaxDimensions
MAX_SHARDS = 100_000  # the largest published checkpoints have a few hundred; each is a file to look for
MAX_SLICES = 100_000  # of one variable
_MAX_SCATTERED_SLICES = 2_000  # of one variable cut along several axes: all pairs of them are compared
_MAX_MIN_CONSUMER = 1  # tensorflow/core/util/tensor_bundle/tensor_bundle.h: kTensorBundleVersion

DATA_TYPES: dict[int, str] = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4",
    30: "uint4", 31: "int2", 32: "uint2",
}  # fmt: skip

Bounds = tuple[tuple[int, int], ...]  # for each axis its start and length; length -1 is the whole axis


class Entry(NamedTuple):
    """Where one tensor lies, as the index says it."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int  # bytes from the start of the shard
    size: int  # bytes
    crc: int  # masked
    slices: tuple[Bounds, ...] = ()

    @property
    def dtype_name(self) -> str:
        """The dtype as descriptions name it; one that cannot be read has its number behind."""
        return _NAMES.get(self.dtype) or dtype_name(self.dtype)


class Piece(NamedTuple):
    """A slice of a partitioned variable and where it lies; bounds hold no -1."""

    bounds: Bounds
    entry: Entry


def dtype_name(number: int) -> str:
    """`float32`; `qint8(11)` for one that can be listed but not read; `dtype(99)` for one that is unknown."""
    name = DATA_TYPES.get(number)
    if name is None:
        return f"dtype({number})"
    return name if name in ITEM_BYTES or name == "string" else f"{name}({number})"


_NAMES = {number: dtype_name(number) for number in DATA_TYPES}


class Bundle:
    """An index, read whole and checked; the data files are only looked at.

    Parameters
    ----------
    index : the `.index` file
    prefix : the path that the data files' names begin with
    limits : bounds on entries and names

    Raises
    ------
    UnreadableError : the operating system refuses the file
    CorruptCheckpointError : truncated, damaged, or not an index
    UnsupportedError : of a version that asks for a newer reader
    """

    def __init__(self, index: Path, prefix: str, limits: Limits) -> None:
        self.index = index
        self.prefix = prefix
        self.limits = limits
        self.entries: dict[str, Entry] = {}
        self._slice_entries: dict[bytes, Entry] = {}
        self._shapes: dict[bytes, tuple[tuple[int, ...], int]] = {b"": ((), 1)}
        table = Table(index, limits)
        try:
            self._read(table)
        finally:
            table.close()

    def _read(self, table: Table) -> None:
        entries = table.entries()
        key, value = next(entries, (None, b""))
        if key != b"":
            raise CorruptCheckpointError("damaged: the index has no header", path=self.index)
        self.shards, self.big_endian = self._header(value)
        for key, value in entries:
            try:
                entry = self._entry(value)
            except (CorruptCheckpointError, IndexError) as error:
                name = key.decode("utf-8", "backslashreplace")
                reason = error.message if isinstance(error, CorruptCheckpointError) else "cut off"
                raise CorruptCheckpointError(f"damaged: the entry of '{name}': {reason}", path=self.index) from error
            if key[0]:
                self.entries[key.decode("utf-8", "surrogateescape")] = entry
            else:
                self._slice_entries[key] = entry
        self._shapes.clear()

    def _header(self, value: bytes) -> tuple[int, bool]:
        shards = endianness = consumer = 0
        for field in _wire.fields(value):
            if field.number == 1:
                shards = field.value
            elif field.number == 2:
                endianness = field.value
            elif field.number == 3:
                consumer = max((f.value for f in _wire.message(value, field) if f.number == 2), default=0)
        if not 0 < shards <= MAX_SHARDS or endianness not in (0, 1):
            raise CorruptCheckpointError(f"damaged: a header of {shards:,} shards", path=self.index)
        if consumer > _MAX_MIN_CONSUMER:
            raise UnsupportedError(f"written for readers of version {consumer} and later", path=self.index)
        return shards, endianness == 1

    def _entry(self, value: bytes) -> Entry:
        """One BundleEntryProto. Written out flat, since an index may hold a million of them."""
        dtype = shard = offset = size = crc = 0
        shape, count = self._shapes[b""]
        slices: list[Bounds] = []
        at, end = 0, len(value)
        while at < end:
            tag = value[at]
            at += 1
            if tag == 0x35:
                crc = int.from_bytes(value[at : at + 4], "little")
                at += 4
                continue
            number = value[at]
            at += 1
            if number > 127:
                number, at = _wire.varint(value, at - 1, end)
            if tag == 0x08:
                dtype = number
            elif tag == 0x12:
                shape, count = self._shape(value[at : at + number])
                at += number
            elif tag == 0x18:
                shard = number
            elif tag == 0x20:
                offset = number
            elif tag == 0x28:
                size = number
            elif tag == 0x3A:
                slices.append(read_bounds(value, at, at + number))
                at += number
                if len(slices) > MAX_SLICES:
                    raise LimitExceededError(f"more than {MAX_SLICES:,} slices of one variable", path=self.index)
            elif tag & 7 == 2:  # a field of a later version
                at += number
            elif tag & 7 != 0:
                raise CorruptCheckpointError(f"an unknown field {tag >> 3}")
        if at != end:
            raise CorruptCheckpointError("it is cut off")
        if shard >= self.shards or offset >> 63 or size >> 63:
            raise CorruptCheckpointError(f"{size:,} bytes at {offset:,} of shard {shard} of {self.shards}")
        if slices:
            return Entry(dtype, shape, shard, offset, size, crc, tuple(slices))
        width = ITEM_BYTES.get(DATA_TYPES.get(dtype, ""))
        if width is not None and size != count * width:
            raise CorruptCheckpointError(f"{size:,} bytes for shape {shape} of {DATA_TYPES[dtype]}")
        return Entry(dtype, shape, shard, offset, size, crc)

    def _shape(self, stored: bytes) -> tuple[tuple[int, ...], int]:
        """A TensorShapeProto and its number of elements; most tensors of a model share a few shapes."""
        found = self._shapes.get(stored)
        if found is None:
            shape = read_shape(stored)
            found = self._shapes[stored] = (shape, math.prod(shape))
        return found

    def indexes(self) -> list[Path]:
        """The files that the index consists of."""
        return [self.index]

    def slice_entries(self) -> Iterable[tuple[bytes, Entry]]:
        """The entries of slices by their coded keys."""
        return self._slice_entries.items()

    def shard_path(self, number: int) -> Path:
        """The data file of that number."""
        return Path(f"{self.prefix}.data-{number:05d}-of-{self.shards:05d}")

    def used_shards(self) -> set[int]:
        """The shards that hold bytes of some tensor."""
        used = {entry.shard for entry in self.entries.values() if not entry.slices}
        return used | {entry.shard for entry in self._slice_entries.values()}

    def missing_shards(self) -> list[int]:
        """Shards that hold bytes of some tensor and are not there."""
        return [number for number in sorted(self.used_shards()) if not self.shard_path(number).is_file()]

    def short_shards(self) -> list[int]:
        """Shards that are there, but end before the last tensor in them does."""
        needed: dict[int, int] = {}
        for entry in (*self.entries.values(), *self._slice_entries.values()):
            if not entry.slices:
                needed[entry.shard] = max(needed.get(entry.shard, 0), entry.offset + entry.size)
        short = []
        for number, count in sorted(needed.items()):
            try:
                if os.stat(self.shard_path(number)).st_size < count:
                    short.append(number)
            except OSError:
                continue
        return short

    def pieces(self, name: str, entry: Entry) -> list[Piece]:
        """The slices of a partitioned variable, in the order of their starts; they tile the shape exactly.

        Raises
        ------
        CorruptCheckpointError : one is missing, or they overlap, leave a gap, or contradict the whole
        """
        found = []
        for bounds in entry.slices:
            part = self._slice_entries.get(slice_key(name, bounds))
            if part is None:
                raise CorruptCheckpointError(f"{name}: the index lists a slice that it does not hold", path=self.index)
            whole = whole_bounds(bounds, entry.shape)
            if part.slices or part.dtype != entry.dtype or part.shape != tuple(length for _, length in whole):
                raise CorruptCheckpointError(f"{name}: a slice contradicts its variable", path=self.index)
            found.append(Piece(whole, part))
        found.sort()
        if not check_tiling(entry.shape, [piece.bounds for piece in found]):
            raise CorruptCheckpointError(f"{name}: its slices do not make up the variable", path=self.index)
        return found


def read_shape(stored: bytes) -> tuple[int, ...]:
    """The dimensions of a TensorShapeProto.

    Raises
    ------
    CorruptCheckpointError : of unknown rank, of a negative or a huge size
    """
    shape: list[int] = []
    for field in _wire.fields(stored):
        if field.number == 2:
            sizes = [each.value for each in _wire.message(stored, field) if each.number == 1]
            shape.append(_wire.signed(sizes[-1]) if sizes else 0)
        elif field.number == 3 and field.value:
            raise CorruptCheckpointError("a shape of unknown rank")
    if len(shape) > MAX_RANK or any(axis < 0 for axis in shape):
        raise CorruptCheckpointError(f"a shape of rank {len(shape)} that no tensor has")
    return tuple(shape)


def read_bounds(data: bytes, start: int, end: int) -> Bounds:
    """A TensorSliceProto: an axis without a length is whole.

    Raises
    ------
    CorruptCheckpointError : cut off, of a negative start or length, or of too many axes
    """
    if end > len(data):
        raise CorruptCheckpointError("a slice is cut off")
    bounds: list[tuple[int, int]] = []
    for field in _wire.fields(data, start, end):
        if field.number == 1:
            values = {each.number: _wire.signed(each.value) for each in _wire.message(data, field)}
            first, length = values.get(1, 0), values.get(2, -1)
            if first < 0 or length < -1 or (length == -1 and first):
                raise CorruptCheckpointError("a slice with a negative start or length")
            bounds.append((first, length))
    if len(bounds) > MAX_RANK:
        raise CorruptCheckpointError(f"a slice of rank {len(bounds)}")
    return tuple(bounds)


def whole_bounds(bounds: Bounds, shape: tuple[int, ...]) -> Bounds:
    """The same with every length told.

    Raises
    ------
    CorruptCheckpointError : of another rank than the shape
    """
    if len(bounds) != len(shape):
        raise CorruptCheckpointError(f"a slice of rank {len(bounds)} of a variable of rank {len(shape)}")
    return tuple(
        (0, axis) if length < 0 else (start, length) for (start, length), axis in zip(bounds, shape, strict=True)
    )


def check_tiling(shape: tuple[int, ...], found: list[Bounds]) -> bool:
    """Whether boxes fill a shape exactly, without overlap; `found` is sorted.

    Raises
    ------
    LimitExceededError : so many boxes, cut along several axes, that comparing each two takes too long
    """
    for box in found:
        if any(start + length > axis for (start, length), axis in zip(box, shape, strict=True)):
            return False
    if sum(math.prod(length for _, length in box) for box in found) != math.prod(shape):
        return False
    if len(found) < 2 or 0 in shape:
        return bool(found)
    cut = [axis for axis in range(len(shape)) if any(box[axis] != (0, shape[axis]) for box in found)]
    if len(cut) == 1:
        place = 0
        for start, length in (box[cut[0]] for box in found):
            if start != place:
                return False
            place += length
        return True
    if len(found) > _MAX_SCATTERED_SLICES:
        raise LimitExceededError(f"a variable in {len(found):,} slices along several axes")
    return not any(_overlap(left, right) for place, left in enumerate(found) for right in found[place + 1 :])


def _overlap(left: Bounds, right: Bounds) -> bool:
    return all(a < c + d and c < a + b for (a, b), (c, d) in zip(left, right, strict=True))


def slice_key(name: str, bounds: Bounds) -> bytes:
    """The key of a slice's entry: OrderedCode of 0, the name, the rank, and each axis's start and length."""
    text = name.encode("utf-8", "surrogateescape")
    if b"\0" in text or b"\xff" in text:
        text = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(byte, bytes([byte])) for byte in text)
    parts = [b"\0", text, b"\0\x01", _ordered_number(len(bounds))]
    for start, length in bounds:
        parts += (_ordered_signed(start), _ordered_signed(length))
    return b"".join(parts)


def _ordered_number(value: int) -> bytes:
    width = (value.bit_length() + 7) // 8
    return bytes([width]) + value.to_bytes(width, "big")


def _ordered_signed(value: int) -> bytes:
    """Big-endian two's complement of the least width, its first bits saying how wide: bytes sort as the numbers do.

    n bytes hold 7·n − 1 bits; the first n bits of a non-negative number are ones, then a zero; of a negative inverted.
    """
    magnitude = value if value >= 0 else ~value
    width = max(1, (magnitude.bit_length() + 7) // 7)
    while magnitude >= 1 << (7 * width - 1):
        width += 1
    bits = 8 * width
    prefix = ((1 << width) - 1) << (bits - width)
    return ((value & ((1 << bits) - 1)) ^ prefix).to_bytes(bits // 8, "big")
