"""One dataset of an HDF5 file: what it declares, checked, and its values block by block."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import h5py
import numpy as np
from h5py import h5a, h5d, h5s, h5t, h5z

from ..checkpoint import ITEM_BYTES
from ..dtypes import numpy_dtype
from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ..limits import Limits
from ..reading import Extent

H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)
_LITTLE = sys.byteorder == "little"  # elsewhere every value goes through HDF5, which turns it
CHUNK_CACHE_BYTES = 2**26  # one row of chunks: 64 MB hold a row of 4,096 × 4,096 float32, and half of what may be used
CHUNK_SLOTS = 100_003  # a prime about 100 times the chunks in the cache, as the HDF5 manual advises

# gzip, shuffle, fletcher32 and lzf come with every h5py; other filters load plug-ins, which is code.
_PLAIN_FILTERS = frozenset((h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32, h5z.FILTER_LZF))


class DatasetInfo(NamedTuple):
    """What a dataset declares: logical dtype, shape, and where its bytes lie if they lie plainly."""

    shape: tuple[int, ...]
    dtype: str
    offset: int | None  # bytes from the start of the file; None where the values must be decoded
    unreadable: str | None  # why the values cannot be read, though they can be listed


class _File(Protocol):
    path: Path
    limits: Limits
    size_bytes: int

    def pread(self, offset: int, nbytes: int) -> bytes: ...

    def open_dataset(self, path: str, access: h5py.h5p.PropDAID) -> h5d.DatasetID: ...

    def outside(self, extent: Extent) -> Extent | None: ...

    def heaps_are_sound(self, identifier: h5d.DatasetID) -> bool: ...

    def every_heap_is_sound(self) -> bool: ...


class Hdf5Dataset:
    """A dataset, checked by `info` before anything of it is read."""

    __slots__ = ("_file", "_id", "path")

    def __init__(self, file: _File, identifier: h5d.DatasetID, path: str) -> None:
        self._file = file
        self._id = identifier
        self.path = path

    def info(self) -> DatasetInfo:
        """Shape, dtype and place of the values.

        Raises
        ------
        UnsafeCheckpointError : the values lie in other files
        CorruptCheckpointError : fewer bytes are stored than the shape declares
        LimitExceededError : the shape is beyond the limits
        """
        try:
            type_id = self._id.get_type()
            if _LITTLE and type_id.equal(h5t.IEEE_F32LE):
                offset = self._id.get_offset()
                if offset is not None:
                    # An address means contiguous: neither filtered, virtual nor external (H5Dget_offset, HDF5 1.14).
                    shape = self._id.shape
                    self._check_limit(4 * math.prod(shape))
                    return DatasetInfo(shape, "float32", offset, None)
            return self._any_info(type_id)
        except CheckpointError:
            raise
        except H5PY_ERRORS as error:
            raise self._damaged(error) from error

    def _any_info(self, type_id: h5t.TypeID) -> DatasetInfo:
        properties = self._id.get_create_plist()
        layout = properties.get_layout()
        if layout == h5d.VIRTUAL:
            raise self._unsafe("is a virtual dataset, whose values lie in other files")
        if properties.get_external_count():
            raise self._unsafe("keeps its values in another file (external storage)")
        shape = tuple(int(length) for length in self._id.shape or ())
        dtype, native = _dtype_name(type_id, self._id, self._file)
        if self._id.get_space().get_simple_extent_type() == h5s.NULL:
            return DatasetInfo((0,), dtype, None, "holds no values (a null dataspace)")
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        foreign = [_filter_name(code) for code in filters if code not in _PLAIN_FILTERS]
        declared = type_id.get_size() * math.prod(shape)
        self._check_limit(declared)
        if layout == h5d.CHUNKED:
            self._check_chunk(math.prod(properties.get_chunk()) * type_id.get_size())
        self._check_stored(declared, bool(filters), layout, dtype)
        unreadable = None
        if foreign:
            unreadable = f"is compressed with {foreign[0]}, which ckpttool does not decode"
        elif dtype not in ITEM_BYTES and dtype != "string":
            unreadable = f"has the type {dtype}, which no Keras tensor has"
        plain = native and _LITTLE and layout == h5d.CONTIGUOUS and declared
        offset = self._id.get_offset() if plain else None
        return DatasetInfo(shape, dtype, offset, unreadable)

    def _check_limit(self, declared: int) -> None:
        if declared > self._file.limits.max_tensor_bytes:
            message = f"'{shown(self.path)}' declares {declared:,} bytes"
            raise LimitExceededError(message, path=self._file.path, limit="max_tensor_bytes")

    def _check_chunk(self, chunk_bytes: int) -> None:
        if chunk_bytes > self._file.limits.max_chunk_bytes:
            raise LimitExceededError(
                f"'{shown(self.path)}' lies in chunks of {chunk_bytes:,} bytes, each of which must fit into memory",
                path=self._file.path,
                limit="max_chunk_bytes",
            )

    def _check_stored(self, declared: int, filtered: bool, layout: int, dtype: str) -> None:
        if layout == h5d.COMPACT or not declared:
            return
        stored = self._id.get_storage_size()
        if declared > stored * (self._file.limits.max_inflation if filtered else 1):
            if dtype == "string" and not filtered and layout == h5d.CHUNKED:
                return
            raise CorruptCheckpointError(
                f"'{shown(self.path)}' declares {declared:,} bytes, the file stores {stored:,}; it is incomplete",
                path=self._file.path,
            )

    def _unsafe(self, what: str) -> UnsafeCheckpointError:
        return UnsafeCheckpointError(f"'{shown(self.path)}' {what}; refused", path=self._file.path)

    def _damaged(self, error: Exception) -> CorruptCheckpointError:
        reason = " ".join(str(error).split())[:200]
        return CorruptCheckpointError(
            f"'{shown(self.path)}' cannot be read ({reason}); the file is damaged", path=self._file.path
        )

    def extent(self) -> Extent | None:
        """Where the values lie as they are in the file that users see, or None."""
        return extent_of(self._file, self.path, self.info())

    def blocks(self, max_bytes: int) -> Iterator[np.ndarray]:
        """The elements in C order as 1-D arrays of at most `max_bytes` bytes each (one element at least)."""
        info = self.info()
        if info.unreadable:
            raise UnsupportedError(f"'{shown(self.path)}' {info.unreadable}", path=self._file.path)
        if _place(self._file, self.path, info) is not None:
            yield from plain_blocks(self._file, self.path, info, max_bytes)
            return
        if 0 in info.shape:
            return
        dtype = numpy_dtype(info.dtype)
        try:
            if info.dtype == "string" and self._id.get_type().is_variable_str():
                if not self._file.every_heap_is_sound():
                    raise CorruptCheckpointError(f"the texts of '{shown(self.path)}' are damaged", path=self._file.path)
            dataset = h5py.Dataset(self._with_chunk_cache(info.shape, dtype.itemsize))
            for selection in _selections(info.shape, max(1, max_bytes // max(1, dtype.itemsize))):
                yield _decoded(dataset, selection, info.dtype, dtype)
        except CheckpointError:
            raise
        except H5PY_ERRORS as error:
            raise self._damaged(error) from error

    def _with_chunk_cache(self, shape: tuple[int, ...], itemsize: int) -> h5d.DatasetID:
        """The dataset with a cache that holds one row of chunks, so that each is decoded once, not for every block.

        HDF5 takes the cache of the first open handle, so the one at hand is given up before (H5Pset_chunk_cache).
        """
        properties = self._id.get_create_plist()
        if properties.get_layout() != h5d.CHUNKED:
            return self._id
        chunk = properties.get_chunk()
        across = math.prod(-(-length // step) for length, step in zip(shape[1:], chunk[1:], strict=True))
        row_bytes = across * math.prod(chunk) * itemsize
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(CHUNK_SLOTS, max(math.prod(chunk) * itemsize, min(row_bytes, CHUNK_CACHE_BYTES)), 1.0)
        del self._id
        self._id = self._file.open_dataset(self.path, access)
        return self._id


def extent_of(file: _File, path: str, info: DatasetInfo) -> Extent | None:
    """Where the values of a described dataset lie as they are in the file that users see, or None.

    Raises
    ------
    CorruptCheckpointError : they end behind the end of the file
    """
    place = _place(file, path, info)
    return None if place is None else file.outside(place)


def _place(file: _File, path: str, info: DatasetInfo) -> Extent | None:
    """Offset and size within the HDF5 file."""
    if info.offset is None or info.unreadable:
        return None
    nbytes = ITEM_BYTES[info.dtype] * math.prod(info.shape)
    if info.offset + nbytes > file.size_bytes:
        raise CorruptCheckpointError(f"'{shown(path)}' ends behind the end of the file", path=file.path)
    return Extent(file.path, info.offset, nbytes)


def plain_blocks(file: _File, path: str, info: DatasetInfo, max_bytes: int) -> Iterator[np.ndarray]:
    """Blocks of a dataset whose bytes lie plainly; writable copies of the file's bytes are left to the caller."""
    extent = _place(file, path, info)
    if extent is None:
        return
    dtype = numpy_dtype(info.dtype)
    step = max(1, max_bytes // dtype.itemsize) * dtype.itemsize
    for start in range(0, extent.nbytes, step):
        data = file.pread(extent.offset + start, min(step, extent.nbytes - start))
        yield np.frombuffer(data, dtype)


def _dtype_name(type_id: h5t.TypeID, dataset: h5d.DatasetID, file: _File) -> tuple[str, bool]:
    """Logical dtype, and whether the stored bytes are its little-endian form."""
    if type_id.equal(h5t.IEEE_F32LE):
        return "float32", True
    kind = type_id.get_class()
    if kind == h5t.STRING:
        return "string", False
    if kind == h5t.OPAQUE:
        name = _stated_dtype(dataset, file)
        if name is None and type_id.get_size() == 2:
            name = "bfloat16"  # Keras 3 stores ml_dtypes.bfloat16 as two opaque bytes
        if name is not None and ITEM_BYTES[name] == type_id.get_size():
            return name, True
    if kind in (h5t.FLOAT, h5t.INTEGER, h5t.ENUM) or (kind == h5t.COMPOUND and type_id.get_size() in (8, 16)):
        dtype = np.dtype(type_id.dtype)
        if dtype.name in ITEM_BYTES and (kind != h5t.ENUM or dtype.name == "bool"):
            return dtype.name, dtype.newbyteorder("<") == dtype and kind != h5t.ENUM
    words = {h5t.OPAQUE: "opaque", h5t.COMPOUND: "compound", h5t.REFERENCE: "reference", h5t.ENUM: "enum",
             h5t.VLEN: "vlen", h5t.ARRAY: "array", h5t.BITFIELD: "bitfield"}  # fmt: skip
    return words.get(kind, "number") + str(8 * type_id.get_size()), False


def _decoded(dataset: h5py.Dataset, selection: tuple[int | slice, ...], name: str, dtype: np.dtype[Any]) -> np.ndarray:
    if name == "string":
        return np.asarray(dataset.asstr(errors="surrogateescape")[selection], object).reshape(-1)
    values = np.ascontiguousarray(dataset[selection])
    if values.dtype.kind == "V" and name.startswith(("bfloat16", "float8")):
        return values.reshape(-1).view(dtype)
    return np.ascontiguousarray(values, dtype).reshape(-1)


def _stated_dtype(dataset: h5d.DatasetID, file: _File) -> str | None:
    """The dataset's own attribute `dtype`, as Keras 3 and our writer mark opaque bytes; None where it says nothing."""
    if not h5a.exists(dataset, b"dtype"):
        return None
    attribute = h5a.open(dataset, b"dtype")
    if attribute.get_type().get_class() != h5t.STRING or attribute.shape != ():
        return None
    if attribute.get_type().is_variable_str() and not file.heaps_are_sound(dataset):
        raise CorruptCheckpointError("the text of the attribute 'dtype' is damaged", path=file.path)
    value = h5py.Dataset(dataset).attrs["dtype"]
    name = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    return name if name.startswith(("bfloat16", "float8")) and name in ITEM_BYTES else None


def _filter_name(code: int) -> str:
    known = {4: "szip", 5: "nbit", 6: "scaleoffset", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd",
             307: "bzip2", 32026: "blosc2"}  # fmt: skip
    return f"{known.get(code, 'an unknown filter')} (filter {code})"


def _selections(shape: tuple[int, ...], max_items: int) -> Iterator[tuple[int | slice, ...]]:
    """Index tuples that cover the shape in C order, each at most `max_items` elements."""
    if not shape:
        yield ()
        return
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= max_items:
        inner *= shape[axis]
        axis -= 1
    step = max(1, max_items // inner)
    for prefix in np.ndindex(shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*prefix, slice(start, min(start + step, shape[axis])))


def shown(name: str | bytes) -> str:
    """A name as it may be printed: control characters and undecodable bytes escaped."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
