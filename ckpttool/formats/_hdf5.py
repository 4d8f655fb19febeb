"""Guarded access to HDF5, shared by every format inside it.

h5py's low-level interface is used: listing 20,000 tensors through its high-level objects costs twice as much. Every
link is checked before it is followed and every dataset before it is read, since HDF5 itself follows external links,
external raw storage and virtual datasets into other files without asking (seen with h5py 3.14).
"""

from __future__ import annotations

import errno
import math
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5t, h5z

from ..checkpoint import ITEM_BYTES
from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnreadableError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ..limits import Limits
from ..reading import Extent
from ._hdf5_heap import sound_heaps

# gzip, shuffle, fletcher32 and lzf come with every h5py; other filters load plug-ins, which is code.
_PLAIN_FILTERS = {h5z.FILTER_DEFLATE: "gzip", h5z.FILTER_SHUFFLE: "shuffle", h5z.FILTER_FLETCHER32: "fletcher32",
                  h5z.FILTER_LZF: "lzf"}  # fmt: skip
CHUNK_CACHE_BYTES = 2**26  # one row of chunks: 64 MB hold a row of 4,096 × 4,096 float32, and half of what may be used
CHUNK_SLOTS = 100_003  # a prime about 100 times the chunks in the cache, as the HDF5 manual advises
_H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


@contextmanager
def translate(path: Path, what: str) -> Iterator[None]:
    """Turn what h5py raises about a damaged file into one clear error."""
    try:
        yield
    except CheckpointError:
        raise
    except _H5PY_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptCheckpointError(f"{what} cannot be read ({reason}); the file is damaged", path=path) from error


@contextmanager
def writing() -> Iterator[None]:
    """Turn what h5py raises while it writes, also when it closes on a full disk, into the system's error."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            if isinstance(error, OSError):
                raise
            raise OSError(f"HDF5 could not write it ({' '.join(str(error).split())[:200]})") from error
        raise OSError(int(number.group(1)), os.strerror(int(number.group(1)))) from error


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a dataset declares: logical dtype, shape, and where its bytes lie if they lie plainly."""

    shape: tuple[int, ...]
    dtype: str
    offset: int | None  # bytes from the start of the file; None where the values must be decoded
    unreadable: str | None  # why the values cannot be read, though they can be listed


class Hdf5File:
    """An HDF5 file, opened read-only.

    Parameters
    ----------
    path : the file
    limits : bounds on objects, depth, names and sizes

    Raises
    ------
    UnreadableError : in use by a writer, or refused by the operating system
    CorruptCheckpointError : truncated, or not HDF5 behind its magic
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._seen_objects = 0
        try:
            self._file = h5py.File(path, "r", locking="best-effort")
        except OSError as error:
            raise _open_error(path, error) from error
        except (RuntimeError, ValueError, KeyError) as error:
            raise CorruptCheckpointError("HDF5 that cannot be opened; the file is damaged", path=path) from error
        self._descriptor: int | None = None
        self._sound: dict[int, bool] = {}  # addresses of groups whose heaps were looked at

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._file:
            self._file.close()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return not self._file

    @property
    def root(self) -> Hdf5Group:
        """The root group."""
        if self.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        with translate(self.path, "the root group"):
            return Hdf5Group(self, h5g.open(self._file.id, b"/"), "")

    def summary(self) -> str:
        """What the root holds, for an error message: at most five names."""
        with translate(self.path, "the root group"):
            names = [_shown(name) for name in list(self._file.id)[:5]]
            attributes = [_shown(name) for name in list(self._file.attrs)[:5]]
        groups = ", ".join(names) or "no groups"
        return f"{groups}; attributes {', '.join(attributes)}" if attributes else groups

    def count_object(self) -> None:
        """Count one opened object against the limit."""
        self._seen_objects += 1
        if self._seen_objects > self.limits.max_objects:
            raise LimitExceededError(
                f"more than {self.limits.max_objects:,} objects; raise it with --limit max_objects=N", path=self.path
            )

    def open_descriptor(self) -> int:
        """A descriptor of the file's bytes, opened once."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return self._descriptor

    def heaps_are_sound(self, group_id: h5g.GroupID) -> bool:
        """Whether HDF5 can read a group's texts of variable length without walking in circles; checked once a group."""
        address = int(h5o.get_info(group_id).addr)
        if address not in self._sound:
            base = self._file.userblock_size
            size = os.stat(self.path).st_size

            def read_at(offset: int, nbytes: int) -> bytes:
                return os.pread(self.open_descriptor(), min(nbytes, size), base + offset) if offset < size else b""

            self._sound[address] = sound_heaps(read_at, address, size)
        return self._sound[address]

    def open_dataset(self, path: str, access: h5py.h5p.PropDAID) -> h5d.DatasetID:
        """Open a dataset again by a path whose links were checked before."""
        return h5d.open(self._file.id, path.encode("utf-8", "surrogateescape"), access)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the file as they are."""
        if self.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        data = os.pread(self.open_descriptor(), nbytes, offset)
        if len(data) != nbytes:
            raise CorruptCheckpointError(f"ends at byte {offset + len(data):,}; it is truncated", path=self.path)
        return data


class Hdf5Group:
    """A group whose links are checked one by one before they are followed."""

    __slots__ = ("_file", "_id", "path")

    def __init__(self, file: Hdf5File, identifier: h5g.GroupID, path: str) -> None:
        self._file = file
        self._id = identifier
        self.path = path

    def text(self, name: str) -> str | None:
        """A text attribute, or None where there is none."""
        value = self._attribute(name)
        if value is None or isinstance(value, h5py.Empty):
            return None
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(()).item()
        return self._decode(value, name)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list attribute, also where it is cut into `name0`, `name1` …; None where there is none.

        A list without entries is stored as an empty float64 array (every Keras), so size 0 means no entries.
        Source: keras/src/legacy/saving/legacy_h5_format.py, `load_attributes_from_hdf5_group` (Keras 3.15).
        """
        value = self._attribute(name)
        if value is not None:
            return tuple(self._decode(item, name) for item in self._items(value, name))
        parts: list[str] = []
        for number in range(self._file.limits.max_layers):
            value = self._attribute(f"{name}{number}")
            if value is None:
                return tuple(parts) if number else None
            parts.extend(self._decode(item, name) for item in self._items(value, name))
        raise LimitExceededError(f"attribute '{name}' has too many pieces", path=self._file.path)

    def _items(self, value: Any, name: str) -> list[Any]:
        if isinstance(value, h5py.Empty):
            return []
        array = np.asarray(value)
        if array.size == 0:
            return []
        if array.size > self._file.limits.max_objects:
            raise LimitExceededError(f"attribute '{name}' lists {array.size:,} names", path=self._file.path)
        if array.ndim != 1 or array.dtype.kind not in "SOU":
            raise CorruptCheckpointError(f"{self._where()}: '{name}' is not a list of names", path=self._file.path)
        return list(array)

    def _decode(self, value: Any, name: str) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            raise CorruptCheckpointError(f"{self._where()}: attribute '{name}' is not text", path=self._file.path)
        if len(value) > self._file.limits.max_config_bytes:
            raise LimitExceededError(f"attribute '{name}' holds {len(value):,} characters", path=self._file.path)
        return str(value)

    def _attribute(self, name: str) -> Any:
        with translate(self._file.path, f"attribute '{name}' of {self._where()}"):
            key = name.encode()
            if not h5py.h5a.exists(self._id, key):
                return None
            attribute = h5py.h5a.open(self._id, key)
            type_id = attribute.get_type()
            if (
                attribute.get_space().get_simple_extent_npoints() * type_id.get_size()
                > self._file.limits.max_config_bytes
            ):
                raise LimitExceededError(f"attribute '{name}' is too large", path=self._file.path)
            type_class = type_id.get_class()
            if type_class not in (h5t.STRING, h5t.FLOAT, h5t.INTEGER):
                raise CorruptCheckpointError(f"attribute '{name}' is neither text nor a number", path=self._file.path)
            if type_class == h5t.STRING and type_id.is_variable_str() and not self._file.heaps_are_sound(self._id):
                raise CorruptCheckpointError(f"the texts of {self._where()} are damaged", path=self._file.path)
            return h5py.AttributeManager(_Holder(self._id))[name]

    def _where(self) -> str:
        return f"group '{_shown(self.path)}'" if self.path else "the file"

    def names(self) -> list[str]:
        """The names in the group, in HDF5's order, which carries no meaning."""
        with translate(self._file.path, self._where()):
            return [name.decode("utf-8", "surrogateescape") for name in self._id]

    def child(self, name: str) -> Hdf5Group | Hdf5Dataset | None:
        """The object at `name` (parts separated by '/'), or None where a part is missing.

        Raises
        ------
        UnsafeCheckpointError : a part is a soft or external link, '..', empty, or the name starts at the root
        LimitExceededError : too long or too deep
        """
        limits = self._file.limits
        if len(name) > limits.max_name_bytes:
            raise LimitExceededError(f"a name of {len(name):,} characters", path=self._file.path)
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise UnsafeCheckpointError(f"refused name '{_shown(name)}' in {self._where()}", path=self._file.path)
        if len(parts) + self.path.count("/") > limits.max_depth:
            raise LimitExceededError(f"groups nested deeper than {limits.max_depth}", path=self._file.path)
        group_id = self._id
        full = posixpath.join(self.path, name)
        with translate(self._file.path, f"'{_shown(full)}'"):
            for part in parts[:-1]:
                if not self._is_hard_link(group_id, part, full):
                    return None
                opened = h5o.open(group_id, part.encode("utf-8", "surrogateescape"))
                if not isinstance(opened, h5g.GroupID):
                    return None
                group_id = opened
            if not self._is_hard_link(group_id, parts[-1], full):
                return None
            self._file.count_object()
            target = h5o.open(group_id, parts[-1].encode("utf-8", "surrogateescape"))
        if isinstance(target, h5g.GroupID):
            return Hdf5Group(self._file, target, full)
        if isinstance(target, h5d.DatasetID):
            return Hdf5Dataset(self._file, target, full)
        return None

    def group(self, name: str) -> Hdf5Group | None:
        """The group at `name`, or None where there is none or it is no group."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Group) else None

    def dataset(self, name: str) -> Hdf5Dataset | None:
        """The dataset at `name`, or None where there is none or it is no dataset."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Dataset) else None

    def _is_hard_link(self, group_id: h5g.GroupID, part: str, full: str) -> bool:
        key = part.encode("utf-8", "surrogateescape")
        if not group_id.links.exists(key):
            return False
        kind = group_id.links.get_info(key).type
        if kind == h5l.TYPE_HARD:
            return True
        word = "an external link" if kind == h5l.TYPE_EXTERNAL else "a soft link"
        raise UnsafeCheckpointError(f"'{_shown(full)}' is {word}, which is not followed", path=self._file.path)


class Hdf5Dataset:
    """A dataset, checked by `info` before anything of it is read."""

    __slots__ = ("_file", "_id", "path")

    def __init__(self, file: Hdf5File, identifier: h5d.DatasetID, path: str) -> None:
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
        with translate(self._file.path, f"'{_shown(self.path)}'"):
            return self._info()

    def _info(self) -> DatasetInfo:
        properties = self._id.get_create_plist()
        layout = properties.get_layout()
        if layout == h5d.VIRTUAL:
            raise self._unsafe("is a virtual dataset, whose values lie in other files")
        if properties.get_external_count():
            raise self._unsafe("keeps its values in another file (external storage)")
        shape = tuple(int(length) for length in self._id.shape or ())
        type_id = self._id.get_type()
        dtype, native = _dtype_name(type_id)
        if self._id.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return DatasetInfo((0,), dtype, None, "holds no values (a null dataspace)")
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        foreign = [_filter_name(code) for code in filters if code not in _PLAIN_FILTERS]
        if dtype == "string":
            return DatasetInfo(shape, dtype, None, f"filter {foreign[0]}" if foreign else None)
        declared = type_id.get_size()
        for length in shape:
            declared *= length
        self._check_size(declared, bool(filters), layout)
        unreadable = None
        if foreign:
            unreadable = f"is compressed with {foreign[0]}, which ckpttool does not decode"
        elif dtype not in ITEM_BYTES:
            unreadable = f"has the type {dtype}, which no Keras tensor has"
        offset = self._id.get_offset() if native and layout == h5d.CONTIGUOUS and declared else None
        return DatasetInfo(shape, dtype, offset, unreadable)

    def _check_size(self, declared: int, filtered: bool, layout: int) -> None:
        limits = self._file.limits
        if declared > limits.max_tensor_bytes:
            raise LimitExceededError(f"'{_shown(self.path)}' declares {declared:,} bytes", path=self._file.path)
        if layout == h5d.CHUNKED:
            chunk_bytes = math.prod(self._id.get_create_plist().get_chunk()) * self._id.get_type().get_size()
            if chunk_bytes > limits.max_chunk_bytes:
                raise LimitExceededError(
                    f"'{_shown(self.path)}' is stored in chunks of {chunk_bytes:,} bytes, each of which must fit into "
                    "memory; allow it with --limit max_chunk_bytes=N",
                    path=self._file.path,
                )
        if layout == h5d.COMPACT or not declared:
            return
        stored = self._id.get_storage_size()
        if declared > stored * (limits.max_inflation if filtered else 1):
            raise CorruptCheckpointError(
                f"'{_shown(self.path)}' declares {declared:,} bytes, the file stores {stored:,}; it is incomplete",
                path=self._file.path,
            )

    def _unsafe(self, what: str) -> UnsafeCheckpointError:
        return UnsafeCheckpointError(f"'{_shown(self.path)}' {what}; refused", path=self._file.path)

    def extent(self) -> Extent | None:
        """Where the values lie as they are, or None."""
        info = self.info()
        if info.offset is None or info.unreadable:
            return None
        nbytes = ITEM_BYTES[info.dtype]
        for length in info.shape:
            nbytes *= length
        if info.offset + nbytes > os.stat(self._file.path).st_size:
            raise CorruptCheckpointError(f"'{_shown(self.path)}' ends behind the end of the file", path=self._file.path)
        return Extent(self._file.path, info.offset, nbytes)

    def blocks(self, max_bytes: int) -> Iterator[np.ndarray]:
        """The elements in C order as 1-D arrays of at most `max_bytes` bytes each (one element at least)."""
        info = self.info()
        if info.unreadable:
            raise UnsupportedError(f"'{_shown(self.path)}' {info.unreadable}", path=self._file.path)
        dtype = numpy_dtype(info.dtype)
        extent = self.extent()
        if extent is not None:
            step = max(1, max_bytes // dtype.itemsize) * dtype.itemsize
            for start in range(0, extent.nbytes, step):
                data = self._file.pread(extent.offset + start, min(step, extent.nbytes - start))
                yield np.frombuffer(data, dtype)
            return
        if 0 in info.shape:
            return
        dataset = h5py.Dataset(self._with_chunk_cache(info.shape, dtype.itemsize))
        itemsize = max(1, dtype.itemsize)
        for selection in _selections(info.shape, max(1, max_bytes // itemsize)):
            with translate(self._file.path, f"'{_shown(self.path)}'"):
                values = dataset[selection] if info.dtype != "string" else dataset.asstr()[selection]
            if info.dtype == "bfloat16":
                values = np.asarray(values).view(np.uint16)
                yield np.ascontiguousarray(values).reshape(-1).view(dtype)
            else:
                yield np.ascontiguousarray(values, dtype).reshape(-1)

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
        with translate(self._file.path, f"'{_shown(self.path)}'"):
            self._id = self._file.open_dataset(self.path, access)
        return self._id


class _Holder:
    """What h5py's attribute manager needs of its parent."""

    def __init__(self, identifier: h5g.GroupID) -> None:
        self.id = identifier


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a logical dtype name; bfloat16 and float8 come from ml_dtypes."""
    if name == "string":
        return np.dtype(object)
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def _dtype_name(type_id: h5t.TypeID) -> tuple[str, bool]:
    """Logical dtype, and whether the stored bytes are its little-endian form."""
    if type_id.equal(h5t.IEEE_F32LE):
        return "float32", True
    kind = type_id.get_class()
    if kind == h5t.STRING:
        return "string", False
    if kind == h5t.OPAQUE and type_id.get_size() == 2:
        return "bfloat16", True  # Keras 3 stores ml_dtypes.bfloat16 as two opaque bytes
    if kind in (h5t.FLOAT, h5t.INTEGER, h5t.ENUM) or (kind == h5t.COMPOUND and type_id.get_size() in (8, 16)):
        dtype = np.dtype(type_id.dtype)
        if dtype.name in ITEM_BYTES and (kind != h5t.ENUM or dtype.name == "bool"):
            return dtype.name, dtype.byteorder != ">" and kind != h5t.ENUM
    words = {h5t.OPAQUE: "opaque", h5t.COMPOUND: "compound", h5t.REFERENCE: "reference", h5t.ENUM: "enum",
             h5t.VLEN: "vlen", h5t.ARRAY: "array", h5t.BITFIELD: "bitfield"}  # fmt: skip
    return words.get(kind, "number") + str(8 * type_id.get_size()), False


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


def _open_error(path: Path, error: OSError) -> CheckpointError:
    text = str(error)
    if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK) or "unable to lock" in text:
        return UnreadableError("in use: another program has it open for writing; try again later", path=path)
    if "already open for write" in text or "h5clear" in text:
        return UnreadableError("marked as open for writing: in use, or left so by a crash (see h5clear)", path=path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnreadableError("cannot be read: permission denied", path=path)
    if "truncated" in text:
        return CorruptCheckpointError("truncated: the file is shorter than its header says; copy it again", path=path)
    return CorruptCheckpointError("begins like HDF5, but cannot be opened; the file is damaged", path=path)


def _shown(name: str | bytes) -> str:
    """A name as it may be printed: control characters and undecodable bytes escaped."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
