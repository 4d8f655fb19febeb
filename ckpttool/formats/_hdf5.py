"""Guarded access to HDF5, shared by every format inside it.

h5py's low-level interface is used: listing 20,000 tensors through its high-level objects costs twice as much. Every
link is checked before it is followed and every dataset before it is read, since HDF5 itself follows external links,
external raw storage and virtual datasets into other files without asking (seen with h5py 3.14).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import h5py
from h5py import h5d, h5g, h5o

from ..dtypes import numpy_dtype
from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnreadableError,
)
from ..limits import Limits
from ..reading import Extent
from ._hdf5_datasets import H5PY_ERRORS, DatasetInfo, Hdf5Dataset, shown
from ._hdf5_groups import Hdf5Group, damaged
from ._hdf5_heap import every_heap_is_sound, sound_heaps
from ._window import Window

__all__ = ["DatasetInfo", "Hdf5Dataset", "Hdf5File", "Hdf5Group", "numpy_dtype"]

CACHE_BYTES = 2**21  # of HDF5's structures: what HDF5 starts with; files are walked once, so more does not help


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
                if not path.is_file():  # HDF5 would wait for the other end of a pipe
                    raise UnreadableError("no file", path=path)
                self._file = h5py.File(path, "r", locking="best-effort")
            else:
                self._file = h5py.File(window, "r")
            _bound_cache(self._file.id)
        except UnreadableError:
            raise
        except OSError as error:
            raise _open_error(path, error) from error
        except (RuntimeError, ValueError, KeyError) as error:
            raise CorruptCheckpointError("HDF5 that cannot be opened; the file is damaged", path=path) from error
        self.size_bytes = path.stat().st_size if window is None else window.nbytes
        self._descriptor: int | None = None
        self._sound: dict[int, bool] = {}  # addresses of objects whose heaps were looked at
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

    def heaps_are_sound(self, identifier: h5g.GroupID | h5d.DatasetID) -> bool:
        """Whether HDF5 can read an object's texts of variable length without walking in circles; checked once each."""
        address = int(h5o.get_info(identifier).addr)
        if address not in self._sound:
            plain = self._has_plain_sizes()
            self._sound[address] = plain and sound_heaps(self._read_at, address, self.size_bytes, self._heaps)
        return self._sound[address]

    def every_heap_is_sound(self) -> bool:
        """The same of all texts in the file; reads the whole file once."""
        return self._has_plain_sizes() and every_heap_is_sound(self._read_at, self.size_bytes, self._heaps)

    def _has_plain_sizes(self) -> bool:
        """Whether addresses and lengths have eight bytes, as in all files of h5py; others are not looked into."""
        return bool(self._file.id.get_create_plist().get_sizes() == (8, 8))

    def _read_at(self, offset: int, nbytes: int) -> bytes:
        """Bytes as they are, fewer at the end; offsets count from the superblock, where HDF5's addresses begin."""
        if offset >= self.size_bytes:
            return b""
        base = self._start + self._file.userblock_size
        return os.pread(self.open_descriptor(), min(nbytes, self.size_bytes), base + offset)

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
