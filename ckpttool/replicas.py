"""A Reader around a Reader that checks, block by block, that replicas hold the same values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from .assets import asset_chunks
from .checkpoint import Asset, Checkpoint, TensorSpec
from .errors import ReplicasDifferError
from .reading import BLOCK_BYTES, Extent, Reader


class EqualReplicas:
    """A reader that yields one replica's values and raises where another replica holds different ones.

    Parameters
    ----------
    reader : gives all replicas' values
    twins : locator of a tensor -> the tensors of other replicas that must hold the same bytes
    path : the file, for messages
    """

    def __init__(self, reader: Reader, twins: Mapping[str, Sequence[TensorSpec]], path: object = None) -> None:
        self.inner = reader  # without the check
        self._reader = reader
        self._twins = twins
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the reader inside."""
        self._reader.close()

    def files(self) -> list[Path]:
        """Every file that the reader inside reads, where it says so."""
        found = getattr(self._reader, "files", None)
        return found() if callable(found) else []

    def asset_chunks(self, asset: Asset) -> Iterator[bytes]:
        """The bytes of an asset file, as they are."""
        return asset_chunks(self._reader, asset)

    def describe(self) -> Checkpoint:
        """The description as it is."""
        return self._reader.describe()

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, once all replicas are known to hold it.

        Raises
        ------
        ReplicasDifferError : they do not
        """
        for twin in self._twins.get(spec.locator, ()):
            self._compare(spec, twin)
        return self._reader.read(spec)

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's blocks; each is compared before it is yielded.

        Raises
        ------
        ReplicasDifferError : another replica holds different values; it names the largest difference
        """
        twins = self._twins.get(spec.locator, ())
        others = [self._reader.iter_blocks(twin, max_bytes) for twin in twins]
        for block in self._reader.iter_blocks(spec, max_bytes):
            for twin, blocks in zip(twins, others, strict=True):
                other = next(blocks, None)
                if other is None or block.tobytes() != other.tobytes():
                    self._compare(spec, twin)
            yield block

    def extent(self, spec: TensorSpec) -> Extent | None:
        """None where values must be compared."""
        return None if spec.locator in self._twins else self._reader.extent(spec)

    def _compare(self, spec: TensorSpec, twin: TensorSpec) -> None:
        largest = largest_difference(self._reader, spec, self._reader, twin)
        if largest is not None:
            raise ReplicasDifferError(
                f"{spec.name} and {twin.name}, which should be one tensor's copies, differ by up to {largest:.6g}; "
                "the models are not replicas of one, so none is taken out",
                path=self._path,
            )


def largest_difference(first: Reader, spec: TensorSpec, second: Reader, other: TensorSpec) -> float | None:
    """How far two tensors of one shape and dtype are apart; None where every byte is the same.

    Parameters
    ----------
    first, spec : a tensor
    second, other : a tensor, possibly of another file, of the same shape and dtype

    Returns
    -------
    the largest absolute difference, in the tensors' own unit: infinite where one is NaN and the other is not; 0.0 where
    only bytes differ (0 and -0)
    """
    largest, differ = 0.0, False
    for ours, theirs in zip(first.iter_blocks(spec), second.iter_blocks(other), strict=True):
        if ours.tobytes() == theirs.tobytes():
            continue
        differ = True
        a, b = (np.nan_to_num(each.astype(np.float64), nan=np.inf) for each in (ours, theirs))
        apart = np.where(a == b, 0.0, np.abs(a - b))
        largest = max(largest, float(np.nan_to_num(apart, nan=np.inf).max()))
    return largest if differ else None
