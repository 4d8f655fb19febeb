"""Guarded access to HDF5, shared by every format inside it.

h5py's low-level interface is used: listing 20,000 tensors through its high-level objects costs twice as much. Every
link is checked before it is followed and every dataset before it is read, since HDF5 itself follows external links,
external raw storage and virtual datasets into other files without asking (seen with h5py 3.14).
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5t

from ..dtypes import numpy_dtype
from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnreadableError,
    UnsafeCheckpointError,
)
from ..limits import Limits
from ..reading import Extent
from ._hdf5_datasets import H5PY_ERRORS, DatasetInfo, Hdf5Dataset, shown
from ._hdf5_heap import sound_heaps
from ._window import Window

__all__ = ["DatasetInfo", "Hdf5Dataset", "Hdf5File", "Hdf5Group", "numpy_dtype"]

CACHE_BYTES = 2**21  # of HDF5's structures: what HDF5 starts with; files are walked once, so more does not help
_REFUSED_PARTS = frozenset(("", ".", ".."))


def damaged(path: Path, what: str, error: Exception) -> NoReturn:
    """Raise what h5py said about a damaged file as one clear error; our own errors pass as they are."""
    if isinstance(error, CheckpointError):
        raise error
    reason = " ".join(str(error).split())[:200]
    raise CorruptCheckpointError(f"{what} cannot be read ({reason}); the file is damaged", path=path) from error


class Hdf5File:
    """An HDF5 file, opened read-only.

    Parameters
    ----------
    path : the file
    limits : bounds on objects, depth, names and sizes
    window : where the HDF5 file lies, when it is a part of `path`; offsets below count from its start

    Raises
    ------
    UnreadableError : in use by a writer, or refused by the operating system
    CorruptCheckpointError : truncated, or not HDF5 behind its magic
    """

    def __init__(self, path: Path, limits: Limits, window: Window | None = None) -> None:
        self.path = path
        self.limits = limits
        self._window = window
        self._start = 0 if window is None else window.offset  # bytes before the HDF5 file
        self._seen_objects = 0
        try:
            if window is None:
                self._file = h5py.File(path, "r", locking="best-effort")
            else:
                self._file = h5py.File(window, "r")
            _bound_cache(self._file.id)
        except OSError as error:
            raise _open_error(path, error) from error
        except (RuntimeError, ValueError, KeyError) as error:
            raise CorruptCheckpointError("HDF5 that cannot be opened; the file is damaged", path=path) from error
        self.size_bytes = path.stat().st_size if window is None else window.nbytes
        self._descriptor: int | None = None
        self._sound: dict[int, bool] = {}  # addresses of groups whose heaps were looked at
        self._heaps: dict[int, bool] = {}  # addresses of heaps that were walked, and whether HDF5 can

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
        try:
            return Hdf5Group(self, h5g.open(self._file.id, b"/"), "")
        except H5PY_ERRORS as error:
            damaged(self.path, "the root group", error)

    def summary(self) -> str:
        """What the root holds, for an error message: at most five names."""
        try:
            names = [shown(name) for name in list(self._file.id)[:5]]
            attributes = [shown(name) for name in list(self._file.attrs)[:5]]
        except H5PY_ERRORS as error:
            damaged(self.path, "the root group", error)
        groups = ", ".join(names) or "no groups"
        return f"{groups}; attributes {', '.join(attributes)}" if attributes else groups

    def count_object(self) -> None:
        """Count one opened object against the limit."""
        self._seen_objects += 1
        if self._seen_objects > self.limits.max_objects:
            raise LimitExceededError(
                f"more than {self.limits.max_objects:,} objects", path=self.path, limit="max_objects"
            )

    def open_descriptor(self) -> int:
        """A descriptor of the file's bytes, opened once; of the file around it for a window."""
        if self._window is not None:
            return self._window.descriptor
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return self._descriptor

    def heaps_are_sound(self, group_id: h5g.GroupID) -> bool:
        """Whether HDF5 can read a group's texts of variable length without walking in circles; checked once a group."""
        address = int(h5o.get_info(group_id).addr)
        if address not in self._sound:
            base = self._start + self._file.userblock_size
            size = self.size_bytes

            def read_at(offset: int, nbytes: int) -> bytes:
                return os.pread(self.open_descriptor(), min(nbytes, size), base + offset) if offset < size else b""

            self._sound[address] = sound_heaps(read_at, address, size, self._heaps)
        return self._sound[address]

    def open_dataset(self, path: str, access: h5py.h5p.PropDAID) -> h5d.DatasetID:
        """Open a dataset again by a path whose links were checked before."""
        return h5d.open(self._file.id, path.encode("utf-8", "surrogateescape"), access)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the file as they are."""
        if self.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        data = os.pread(self.open_descriptor(), nbytes, self._start + offset)
        if len(data) != nbytes:
            raise CorruptCheckpointError(f"ends at byte {offset + len(data):,}; it is truncated", path=self.path)
        return data

    def outside(self, extent: Extent) -> Extent | None:
        """An extent counted from the start of the path that users see, or None where its bytes lie in no such path."""
        if self._window is None:
            return extent
        if not self._window.in_place:
            return None
        return extent._replace(offset=self._window.offset + extent.offset, part_of=self._window.part_of)


def _bound_cache(file_id: h5py.h5f.FileID) -> None:
    """Keep HDF5's cache of structures small: it would grow to 32 MB of them, 180 MB in memory for 20,000 tensors."""
    settings = file_id.get_mdc_config()
    settings.set_initial_size = True
    settings.initial_size = settings.max_size = CACHE_BYTES
    settings.min_size = min(settings.min_size, CACHE_BYTES)
    file_id.set_mdc_config(settings)


_TEXT = h5py.string_dtype()


class Hdf5Group:
    """A group whose links are checked one by one before they are followed."""

    __slots__ = ("_file", "_id", "_last", "path")

    def __init__(self, file: Hdf5File, identifier: h5g.GroupID, path: str) -> None:
        self._file = file
        self._id = identifier
        self._last: tuple[str, h5g.GroupID] | None = None  # the group that the last name lay in: its siblings follow
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
            return self._items(value, name)
        parts: list[str] = []
        for number in range(self._file.limits.max_layers):
            value = self._attribute(f"{name}{number}")
            if value is None:
                return tuple(parts) if number else None
            parts.extend(self._items(value, name))
        raise LimitExceededError(f"attribute '{name}' has too many pieces", path=self._file.path)

    def has_texts(self, name: str) -> bool:
        """Whether there is such a list attribute, whole or cut into pieces; nothing is read."""
        try:
            return bool(h5a.exists(self._id, name.encode()) or h5a.exists(self._id, f"{name}0".encode()))
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"attribute '{name}' of {self._where()}", error)

    def attribute_names(self) -> list[str]:
        """The names of all attributes."""
        try:
            return [str(name) for name in h5py.AttributeManager(_Holder(self._id))]
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"the attributes of {self._where()}", error)

    def _items(self, value: Any, name: str) -> tuple[str, ...]:
        if isinstance(value, h5py.Empty):
            return ()
        array = np.asarray(value)
        if array.size == 0:
            return ()
        if array.size > self._file.limits.max_objects:
            raise LimitExceededError(
                f"attribute '{name}' lists {array.size:,} names", path=self._file.path, limit="max_objects"
            )
        if array.ndim != 1 or array.dtype.kind not in "SOU":
            raise CorruptCheckpointError(f"{self._where()}: '{name}' is not a list of names", path=self._file.path)
        return tuple([self._decode(item, name) for item in array.tolist()])

    def _decode(self, value: Any, name: str) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            raise CorruptCheckpointError(f"{self._where()}: attribute '{name}' is not text", path=self._file.path)
        if len(value) > self._file.limits.max_config_bytes:
            raise LimitExceededError(
                f"attribute '{name}' holds {len(value):,} characters", path=self._file.path, limit="max_config_bytes"
            )
        return str(value)

    def _attribute(self, name: str) -> Any:
        try:
            return self._read_attribute(name)
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"attribute '{name}' of {self._where()}", error)

    def _read_attribute(self, name: str) -> Any:
        key = name.encode()
        if not h5a.exists(self._id, key):
            return None
        attribute = h5a.open(self._id, key)
        type_id = attribute.get_type()
        shape = attribute.shape
        count = 0 if shape is None else 1
        for length in shape or ():
            count *= length
        size = type_id.get_size()
        if count * size > self._file.limits.max_config_bytes:
            raise LimitExceededError(f"attribute '{name}' is too large", path=self._file.path, limit="max_config_bytes")
        type_class = type_id.get_class()
        if type_class == h5t.STRING and not type_id.is_variable_str() and shape is not None:
            if type_id.get_strpad() != h5t.STR_SPACEPAD:
                values = np.empty(shape, f"S{size}")
                attribute.read(values, mtype=type_id)
                return values
        if type_class not in (h5t.STRING, h5t.FLOAT, h5t.INTEGER):
            raise CorruptCheckpointError(f"attribute '{name}' is neither text nor a number", path=self._file.path)
        if type_class == h5t.STRING and type_id.is_variable_str():
            if not self._file.heaps_are_sound(self._id):
                raise CorruptCheckpointError(f"the texts of {self._where()} are damaged", path=self._file.path)
            if shape == ():  # a note at each group of Keras 3: h5py's manager takes twice as long
                text = np.empty((), _TEXT)
                attribute.read(text)
                return text.item()
        return h5py.AttributeManager(_Holder(self._id))[name]

    def _where(self) -> str:
        return f"group '{shown(self.path)}'" if self.path else "the file"

    @property
    def address(self) -> int:
        """Where the group's header lies: groups made later lie further back, which shows the order of making."""
        try:
            return int(h5o.get_info(self._id).addr)
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)

    def names(self) -> list[str]:
        """The names in the group, in HDF5's order, which carries no meaning."""
        try:
            return [name.decode("utf-8", "surrogateescape") for name in self._id]
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)

    def children(
        self, order: Callable[[str], tuple[int, str]] | None = None
    ) -> Iterator[tuple[str, Hdf5Group | Hdf5Dataset | None]]:
        """The names in the group with what they stand for, opened one by one; its links are looked up once for all.

        Parameters
        ----------
        order : what to sort the names by; without it they come in HDF5's order, which carries no meaning

        Raises
        ------
        UnsafeCheckpointError, LimitExceededError : as `child`
        """
        kinds: dict[str, int] = {}

        def note(name: bytes, info: h5l.LinkInfo) -> None:
            kinds[name.decode("utf-8", "surrogateescape")] = info.type

        try:
            self._id.links.iterate(note, info=True)
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)
        for name in kinds if order is None else sorted(kinds, key=order):
            yield name, self._child(name, kinds[name])

    def child(self, name: str) -> Hdf5Group | Hdf5Dataset | None:
        """The object at `name` (parts separated by '/'), or None where a part is missing.

        Raises
        ------
        UnsafeCheckpointError : a part is a soft or external link, '..', empty, or the name starts at the root
        LimitExceededError : too long or too deep
        """
        return self._child(name, None)

    def _child(self, name: str, kind: int | None) -> Hdf5Group | Hdf5Dataset | None:
        limits = self._file.limits
        if len(name) > limits.max_name_bytes:
            raise LimitExceededError(
                f"a name of {len(name):,} characters", path=self._file.path, limit="max_name_bytes"
            )
        parts = name.split("/")
        if not _REFUSED_PARTS.isdisjoint(parts) or "\0" in name:
            raise UnsafeCheckpointError(f"refused name '{shown(name)}' in {self._where()}", path=self._file.path)
        if len(parts) + self.path.count("/") > limits.max_depth:
            raise LimitExceededError(
                f"groups nested deeper than {limits.max_depth}", path=self._file.path, limit="max_depth"
            )
        full = posixpath.join(self.path, name) if self.path else name
        try:
            target = self._open(name, parts, full, kind)
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"'{shown(full)}'", error)
        if isinstance(target, h5d.DatasetID):
            return Hdf5Dataset(self._file, target, full)
        if isinstance(target, h5g.GroupID):
            return Hdf5Group(self._file, target, full)
        return None

    def _open(self, name: str, parts: list[str], full: str, kind: int | None) -> Any:
        group_id = self._id
        if len(parts) > 1:
            inside = name[: -len(parts[-1]) - 1]
            if self._last is not None and self._last[0] == inside:
                group_id = self._last[1]
            else:
                for part in parts[:-1]:
                    opened = self._open_link(group_id, part, full)
                    if not isinstance(opened, h5g.GroupID):
                        return None
                    group_id = opened
                self._last = (inside, group_id)
        self._file.count_object()
        return self._open_link(group_id, parts[-1], full, kind)

    def _open_link(self, group_id: h5g.GroupID, part: str, full: str, kind: int | None = None) -> Any:
        """The object behind one hard link, or None where there is none; `kind` is the link's, where it is known."""
        key = part.encode("utf-8", "surrogateescape")
        if kind is None:
            try:
                kind = group_id.links.get_info(key).type
            except (KeyError, RuntimeError):
                if not group_id.links.exists(key):
                    return None
                raise
        if kind == h5l.TYPE_HARD:
            return h5o.open(group_id, key)
        word = "an external link" if kind == h5l.TYPE_EXTERNAL else "a soft link"
        raise UnsafeCheckpointError(f"'{shown(full)}' is {word}, which is not followed", path=self._file.path)

    def group(self, name: str) -> Hdf5Group | None:
        """The group at `name`, or None where there is none or it is no group."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Group) else None

    def dataset(self, name: str) -> Hdf5Dataset | None:
        """The dataset at `name`, or None where there is none or it is no dataset."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Dataset) else None


class _Holder:
    """What h5py's attribute manager needs of its parent."""

    def __init__(self, identifier: h5g.GroupID) -> None:
        self.id = identifier


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
