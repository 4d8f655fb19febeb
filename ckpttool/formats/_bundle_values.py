"""Values of a bundle's tensors: read in blocks, each tensor's checksum verified when its last byte was read."""

from __future__ import annotations

import itertools
import math
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from .. import checksums
from ..checkpoint import ITEM_BYTES, TensorSpec
from ..dtypes import numpy_dtype
from ..errors import CorruptCheckpointError, LimitExceededError, UnreadableError, UnsupportedError
from ..reading import BLOCK_BYTES, Extent
from . import _wire
from ._bundle import DATA_TYPES, Bundle, Entry, Piece

if TYPE_CHECKING:
    import numpy as np


class BundleValues:
    """Reads what a bundle's entries point to.

    Parameters
    ----------
    bundle : the index
    verify : whether the checksums of the data are compared
    """

    def __init__(self, bundle: Bundle, *, verify: bool = True) -> None:
        self._bundle = bundle
        self._verify = verify

    def blocks(self, name: str, entry: Entry, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """A tensor's elements in C order as 1-D arrays of at most `max_bytes` bytes; text as one array of `bytes`.

        Raises
        ------
        UnsupportedError : a dtype that cannot be read
        UnreadableError : its shard is missing
        CorruptCheckpointError : its shard is too short, or its checksum does not fit
        """
        import numpy as np

        logical = DATA_TYPES.get(entry.dtype, "")
        if logical == "string" and not entry.slices:
            texts = self.strings(name, entry)
            values = np.empty(len(texts), object)
            values[:] = texts
            yield values
            return
        if logical not in ITEM_BYTES:
            raise UnsupportedError(f"{name}: values of type {entry.dtype_name} cannot be read", path=self._bundle.index)
        if math.prod(entry.shape) * ITEM_BYTES[logical] > self._bundle.limits.max_tensor_bytes:
            raise LimitExceededError(
                f"{name}: a tensor of shape {entry.shape}", path=self._bundle.index, limit="max_tensor_bytes"
            )
        dtype = numpy_dtype(logical)
        if entry.slices:
            yield from self._sliced(name, entry, dtype, max_bytes)
            return
        for data in self._raw(name, entry, max(dtype.itemsize, max_bytes // dtype.itemsize * dtype.itemsize)):
            yield self._array(data, dtype)

    def strings(self, name: str, entry: Entry) -> list[bytes]:
        """The elements of a text tensor in C order.

        Lengths come first, as varints; then their checksum; then the bytes. The entry's checksum is over the lengths
        as u32 (u64 where longer), that checksum and the bytes (tensor_bundle.cc, WriteStringTensor).
        """
        count = math.prod(entry.shape)
        if count > entry.size:
            raise self._corrupt(f"{name}: {entry.size:,} bytes cannot hold {count:,} texts")
        data = b"".join(self._stored(name, entry, BLOCK_BYTES))
        lengths, at = [], 0
        for _ in range(count):
            length, at = _wire.varint(data, at, len(data))
            lengths.append(length)
        if at + 4 + sum(lengths) != len(data):
            raise self._corrupt(f"{name}: its texts do not fill its {len(data):,} bytes")
        order: Literal["big", "little"] = "big" if self._bundle.big_endian else "little"
        if self._verify:
            widths = (length.to_bytes(8 if length >> 32 else 4, order) for length in lengths)
            crc = checksums.crc32c(b"".join(widths))
            if checksums.masked(crc) != int.from_bytes(data[at : at + 4], order):
                raise self._wrong_checksum(name, entry)
            if checksums.masked(checksums.crc32c(data[at:], crc)) != entry.crc:
                raise self._wrong_checksum(name, entry)
        at += 4
        texts = []
        for length in lengths:
            texts.append(data[at : at + length])
            at += length
        return texts

    def extent(self, name: str, entry: Entry) -> Extent | None:
        """Where the tensor's bytes lie plainly, with the checksum that they should have; None where they do not."""
        logical = DATA_TYPES.get(entry.dtype, "")
        if entry.slices or self._bundle.big_endian or logical not in ITEM_BYTES:
            return None
        crc = entry.crc if self._verify else None
        self._size(name, entry)
        return Extent(self._bundle.shard_path(entry.shard), entry.offset, entry.size, crc)

    def _array(self, data: bytes, dtype: np.dtype) -> np.ndarray:
        import numpy as np

        if self._bundle.big_endian and dtype.itemsize > 1:
            return np.frombuffer(data, dtype).byteswap()
        return np.frombuffer(data, dtype)

    def _raw(self, name: str, entry: Entry, max_bytes: int) -> Iterator[bytes]:
        """The stored bytes of a number tensor, its checksum compared at the end."""
        crc = 0
        for data in self._stored(name, entry, max_bytes):
            if self._verify:
                crc = checksums.crc32c(data, crc)
            yield data
        if self._verify and checksums.masked(crc) != entry.crc:
            raise self._wrong_checksum(name, entry)

    def _stored(self, name: str, entry: Entry, max_bytes: int) -> Iterator[bytes]:
        self._size(name, entry)
        path = self._bundle.shard_path(entry.shard)
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise UnreadableError(f"{name}: cannot be read: {error.strerror}", path=path) from error
        try:
            at, end = entry.offset, entry.offset + entry.size
            while at < end:
                wanted = min(max_bytes, end - at)
                try:
                    data = os.pread(descriptor, wanted, at)
                except OSError as error:
                    raise UnreadableError(f"{name}: cannot be read: {error.strerror}", path=path) from error
                if len(data) != wanted:
                    raise self._corrupt(f"{name}: '{path.name}' became shorter while it was read")
                yield data
                at += wanted
        finally:
            os.close(descriptor)

    def _size(self, name: str, entry: Entry) -> None:
        """Compare the shard with what the entry asks of it, before anything is reserved."""
        path = self._bundle.shard_path(entry.shard)
        try:
            status = os.stat(path)
        except OSError as error:
            raise UnreadableError(
                f"{name}: its data file '{path.name}' is missing ({error.strerror}); put it beside the index",
                path=self._bundle.index,
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(f"{name}: its data file '{path.name}' is no file", path=self._bundle.index)
        size = status.st_size
        if entry.offset + entry.size > size:
            raise self._corrupt(
                f"{name}: '{path.name}' has {size:,} bytes, the tensor ends at {entry.offset + entry.size:,}; "
                "the file is truncated, try another copy"
            )

    def _sliced(self, name: str, entry: Entry, dtype: np.dtype, max_bytes: int) -> Iterator[np.ndarray]:
        """A partitioned variable: slices of whole rows follow each other; others are put together in memory."""
        import numpy as np

        pieces = self._bundle.pieces(name, entry)
        for piece in pieces:
            self._size(name, piece.entry)
        width = max(1, max_bytes // dtype.itemsize) * dtype.itemsize
        if _whole_rows(entry.shape, pieces):
            for piece in pieces:
                for data in self._raw(name, piece.entry, width):
                    yield self._array(data, dtype)
            return
        whole = np.empty(entry.shape, dtype)
        for piece in pieces:
            parts = [self._array(data, dtype) for data in self._raw(name, piece.entry, width)]
            place = tuple(slice(start, start + length) for start, length in piece.bounds)
            if parts:
                whole[place] = np.concatenate(parts).reshape(piece.entry.shape)
        flat = whole.reshape(-1)
        step = width // dtype.itemsize
        for start in range(0, flat.size, step):
            yield flat[start : start + step]

    def _wrong_checksum(self, name: str, entry: Entry) -> CorruptCheckpointError:
        shard = self._bundle.shard_path(entry.shard).name
        return self._corrupt(
            f"{name}: its checksum does not fit its bytes in '{shard}'; the file is damaged, try another copy "
            "(--no-checksum reads it as it is)"
        )

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(what, path=self._bundle.index)


def _whole_rows(shape: tuple[int, ...], pieces: list[Piece]) -> bool:
    """Whether every slice is whole on all axes but the first, so that their bytes follow each other in C order."""
    return all(piece.bounds[1:] == tuple((0, axis) for axis in shape[1:]) for piece in pieces)


def joined(blocks: Iterator[np.ndarray], spec: TensorSpec) -> np.ndarray:
    """The whole tensor from its blocks, of `spec.shape`, in memory of its own.

    Raises
    ------
    CorruptCheckpointError : the blocks hold fewer or more elements than the shape
    """
    import numpy as np

    first = next(blocks, None)  # before memory is reserved: it finds a shape that the file cannot fill
    whole = np.empty(spec.size, numpy_dtype(spec.dtype if spec.dtype in ITEM_BYTES else "string"))
    done = 0
    for block in () if first is None else itertools.chain((first,), blocks):
        if done + block.size > whole.size:
            raise CorruptCheckpointError(f"{spec.name}: more values than shape {spec.shape} has")
        whole[done : done + block.size] = block
        done += block.size
    if done != whole.size:
        raise CorruptCheckpointError(f"{spec.name}: {done:,} values for shape {spec.shape}")
    return whole.reshape(spec.shape)
