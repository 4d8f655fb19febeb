"""Sorted string tables, the container of TensorFlow's checkpoints of both versions.

Blocks, then a footer of 48 bytes: where the metaindex and the index block lie, zeros, and the magic. Behind each block
stand its type and a masked crc32c over both. Every byte of the file belongs to one of these, so any that changed is
found: TensorFlow's own reader does not check and lists fewer entries (seen with TF 2.21).
Source: tensorflow/core/lib/io/table.cc, format.cc, block.cc (TF 2.21).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .. import checksums
from ..errors import (
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnreadableError,
    UnsafeCheckpointError,
)
from ..limits import Limits
from . import _wire

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # type, then u32 checksum
_RAW, _SNAPPY = 0, 1
_MAX_SNAPPY_GAIN = 22  # a copy of 3 bytes makes at most 64


class Handle(NamedTuple):
    """Where a block lies, its trailer not counted."""

    offset: int
    size: int


class Table:
    """A table, opened read-only; its index block is verified at once, every other block when it is read.

    Parameters
    ----------
    path : the file
    limits : bounds the number of entries and the length of keys

    Raises
    ------
    UnreadableError : the operating system refuses the file
    CorruptCheckpointError : not a table, truncated or damaged
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self._limits = limits
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.size_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror or error}", path=path) from error
        try:
            self._separators, self._handles = self._index()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value, keys strictly rising, each block verified before its entries are given."""
        last = None
        count = 0
        for separator, handle in zip(self._separators, self._handles, strict=True):
            for key, value in self._block_entries(self._block(handle)):
                if last is not None and key <= last:
                    raise self._corrupt("keys do not rise")
                count += 1
                if count > self._limits.max_objects:
                    raise LimitExceededError(
                        f"more than {self._limits.max_objects:,} entries",
                        path=self.path,
                        limit="max_objects",
                    )
                last = key
                yield key, value
            if last is not None and last > separator:
                raise self._corrupt("a block holds keys of the next")

    def lookup(self, key: bytes) -> bytes | None:
        """The value of one key, by reading one block; None where there is none."""
        place = bisect_left(self._separators, key)
        if place == len(self._handles):
            return None
        for found, value in self._block_entries(self._block(self._handles[place])):
            if found == key:
                return value
        return None

    def _index(self) -> tuple[list[bytes], list[Handle]]:
        """The separators and handles of the data blocks, which must fill the file up to the metaindex."""
        if self.size_bytes < FOOTER_BYTES:
            raise self._corrupt(f"{self.size_bytes} bytes are too few for a table")
        footer = self._read(self.size_bytes - FOOTER_BYTES, FOOTER_BYTES)
        if footer[-8:] != MAGIC:
            raise self._corrupt("it does not end with a table's magic, so it is truncated or no table")
        metaindex, at = self._handle(footer, 0, FOOTER_BYTES - 8)
        index, at = self._handle(footer, at, FOOTER_BYTES - 8)
        if any(footer[at : FOOTER_BYTES - 8]):
            raise self._corrupt("the footer has bytes where zeros belong")
        if list(self._block_entries(self._block(metaindex))):
            raise self._corrupt("the metaindex block is not empty")
        separators: list[bytes] = []
        handles: list[Handle] = []
        for key, value in self._block_entries(self._block(index)):
            handle, end = self._handle(value, 0, len(value))
            if end != len(value) or (separators and key <= separators[-1]):
                raise self._corrupt("the index block contradicts itself")
            separators.append(key)
            handles.append(handle)
        self._check_tiling([*handles, metaindex, index])
        return separators, handles

    def _check_tiling(self, handles: list[Handle]) -> None:
        """Blocks follow each other without gap or overlap: each byte is checked once, and no block is read twice."""
        place = 0
        for handle in handles:
            if handle.offset != place:
                raise self._corrupt(f"a block at byte {handle.offset:,} where byte {place:,} was expected")
            place = handle.offset + handle.size + _TRAILER_BYTES
        if place != self.size_bytes - FOOTER_BYTES:
            raise self._corrupt("its blocks do not fill the file")

    def _handle(self, data: bytes, at: int, end: int) -> tuple[Handle, int]:
        start = at
        try:
            offset, at = _wire.varint(data, at, end)
            middle = at
            size, at = _wire.varint(data, at, end)
        except CorruptCheckpointError as error:
            raise self._corrupt("the place of a block cannot be read") from error
        if (data[middle - 1] == 0 and middle - start > 1) or (data[at - 1] == 0 and at - middle > 1):
            raise self._corrupt("a number is longer than it has to be")  # the footer's bytes have no other check
        if offset + size + _TRAILER_BYTES > self.size_bytes - FOOTER_BYTES:
            raise self._corrupt("a block lies outside of the file")
        return Handle(offset, size), at

    def _block(self, handle: Handle) -> bytes:
        """A block's content, its checksum verified."""
        stored = self._read(handle.offset, handle.size + _TRAILER_BYTES)
        expected = int.from_bytes(stored[-4:], "little")
        if checksums.masked(checksums.crc32c(stored[:-4])) != expected:
            raise self._corrupt(f"the checksum of the block at byte {handle.offset:,} does not fit; try another copy")
        kind = stored[-_TRAILER_BYTES]
        if kind == _RAW:
            return stored[:-_TRAILER_BYTES]
        if kind == _SNAPPY:
            return unsnappy(stored[:-_TRAILER_BYTES], self.path)
        raise self._corrupt(f"a block has the unknown type {kind}")

    def _block_entries(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a block; each key is stored as what differs from the one before."""
        restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else -1
        limit = len(block) - 4 - 4 * restarts
        if restarts < 0 or limit < 0:
            raise self._corrupt("a block is shorter than its own list of restarts")
        at, key, longest = 0, b"", self._limits.max_name_bytes
        while at < limit:
            if at + 3 <= limit and (block[at] | block[at + 1] | block[at + 2]) < 128:
                shared, added, length = block[at], block[at + 1], block[at + 2]
                at += 3
            else:
                shared, at = _wire.varint(block, at, limit)
                added, at = _wire.varint(block, at, limit)
                length, at = _wire.varint(block, at, limit)
            middle = at + added
            end = middle + length
            if shared > len(key) or end > limit:
                raise self._corrupt("an entry reaches out of its block")
            if shared + added > longest:
                raise LimitExceededError(f"a key of {shared + added:,} bytes", path=self.path)
            key = key[:shared] + block[at:middle]
            yield key, block[middle:end]
            at = end

    def _read(self, offset: int, count: int) -> bytes:
        if self._descriptor is None:
            raise ReaderClosedError("the reader is closed", path=self.path)
        try:
            data = os.pread(self._descriptor, count, offset)
            while data and len(data) < count:  # one call gives at most 2 GiB
                more = os.pread(self._descriptor, count - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror or error}", path=self.path) from error
        if len(data) != count:
            raise self._corrupt("it became shorter while it was read")
        return data

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"damaged: {what}", path=self.path)


def unsnappy(data: bytes, path: Path | None = None) -> bytes:
    """Decompress a snappy block, raw format.

    Parameters
    ----------
    data : the block
    path : the file, for messages

    Raises
    ------
    CorruptCheckpointError : not valid snappy
    UnsafeCheckpointError : it declares more bytes than snappy can make of its input

    Notes
    -----
    Source: google/snappy, format_description.txt.
    """
    size, at = _wire.varint(data, 0, len(data))
    if size > _MAX_SNAPPY_GAIN * len(data) + 64:
        raise UnsafeCheckpointError(f"a compressed block declares {size:,} bytes of {len(data):,}", path=path)
    out = bytearray()
    try:
        while at < len(data):
            at = _snappy_element(data, at, out)
            if len(out) > size:
                break
    except IndexError:
        raise CorruptCheckpointError("damaged: a compressed block is cut off", path=path) from None
    if len(out) != size:
        raise CorruptCheckpointError("damaged: a compressed block has another length than it declares", path=path)
    return bytes(out)


def _snappy_element(data: bytes, at: int, out: bytearray) -> int:
    """Append one literal or copy to `out`; returns the place behind it."""
    tag = data[at]
    at += 1
    kind, length = tag & 3, (tag >> 2) + 1
    if kind == 0:
        if length > 60:
            width = length - 60
            length = int.from_bytes(data[at : at + width], "little") + 1
            at += width
        if length > len(data) - at:
            raise IndexError
        out += data[at : at + length]
        return at + length
    if kind == 1:
        length, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
        at += 1
    else:
        width = 2 if kind == 2 else 4
        if width > len(data) - at:
            raise IndexError
        offset = int.from_bytes(data[at : at + width], "little")
        at += width
    if not 0 < offset <= len(out):
        raise CorruptCheckpointError("damaged: a compressed block refers to bytes before its start")
    start = len(out) - offset
    piece = bytes(out[start : start + length])
    while len(piece) < length:  # a copy may overlap what it makes
        piece += piece
    out += piece[:length]
    return at
