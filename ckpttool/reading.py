"""What every format's reader offers, and the small values that travel with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from .errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from .checkpoint import Asset, Checkpoint, TensorSpec

BLOCK_BYTES = 2**20  # one block of values: fits the second-level cache of common processors, amortises a system call


class Whole(Protocol):
    """A larger run of bytes with one checksum, crc32, over all of it: a member of an archive."""

    def saw(self, offset: int, nbytes: int, crc32: int) -> None:
        """Note the checksum of a part that was read; `offset` counts from the start of the file."""
        ...


class Extent(NamedTuple):
    """Where a tensor's bytes lie contiguous, little-endian, in C order and unfiltered."""

    path: Path
    offset: int  # bytes from the start of the file
    nbytes: int
    crc32c: int | None = None  # the masked checksum that the bytes should have, where the format has one to verify
    part_of: Whole | None = None  # whom to tell the checksum of the bytes read, where only the whole has one to verify


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a path is read, as far as formats take part in it; the defaults fit almost every file."""

    step: int | None = None  # which of a folder's checkpoints, or which version of a SavedModel; None is the newest
    replica: int | None = None  # which copy where replicas' copies are stored; None and 0 are the primary
    ema: bool = False  # the moving averages of the weights in place of the weights
    checksums: bool = True  # verify the checksums of values when they are read


class Match(NamedTuple):
    """A format recognised a path, and by which sign."""

    format: str
    reason: str


class Progress(NamedTuple):
    """How far a long operation is."""

    done_bytes: int
    total_bytes: int
    path: str  # the tensor or file being worked on


OnProgress = Callable[[Progress], None]


class Reader(Protocol):
    """A context manager over one opened checkpoint; whatever is wrong with the file is a `CheckpointError`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None:
        """Release the file; reading afterwards raises `ReaderClosedError`."""
        ...

    def describe(self) -> Checkpoint:
        """Names, shapes and attributes; no value is read."""
        ...

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape` and the NumPy dtype of `spec.dtype`, C-ordered and native-endian."""
        ...

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order as 1-D arrays of at most `max_bytes` bytes (at least one element) each."""
        ...

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the bytes lie as they are, or None where they must be decoded."""
        ...


class Closing:
    """What makes a class with `close` a context manager."""

    def close(self) -> None:
        """Release what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def asset_chunks(reader: Reader, asset: Asset) -> Iterator[bytes]:
    """The bytes of an asset file, piece by piece.

    Raises
    ------
    UnsupportedError : the reader's format holds none
    """
    found = getattr(reader, "asset_chunks", None)
    if not callable(found):
        raise UnsupportedError(f"the asset file '{asset.locator}' cannot be read from here")
    chunks: Iterator[bytes] = found(asset)
    return chunks


class View(Closing):
    """A Reader around a Reader: all is as inside, but for what a subclass changes.

    Parameters
    ----------
    reader : the one inside; closed with this one
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def close(self) -> None:
        """Release the reader inside."""
        self._reader.close()

    def describe(self) -> Checkpoint:
        """The description as it is inside."""
        return self._reader.describe()

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        return self._reader.read(spec)

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, block by block."""
        return self._reader.iter_blocks(spec, max_bytes)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the bytes lie as they are, or None where they must be decoded."""
        return self._reader.extent(spec)

    def asset_chunks(self, asset: Asset) -> Iterator[bytes]:
        """The bytes of an asset file, as they are."""
        return asset_chunks(self._reader, asset)
