"""A kernel on its way into a written dot product: its score dtype, its blocks, its norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import CorruptCheckpointError
from .dot_product_module import stored_dtype


def score_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of the scores, as in dot_product.py: float64 for float64 and integers of 32 or 64 bits, else float32.

    Raises
    ------
    UnsupportedError : bool, complex, text or objects
    """
    stored = stored_dtype(dtype)
    wide = stored.itemsize == 8 if stored.kind == "f" else stored.itemsize > 2
    return np.dtype("<f8" if wide else "<f4")


def checked_blocks(
    blocks: Iterable[np.ndarray], shape: tuple[int, int], dtype: np.dtype[Any], layer: str
) -> Iterator[np.ndarray]:
    """The blocks as 1-D arrays of a dtype.

    Raises
    ------
    CorruptCheckpointError : they hold more or fewer values than the shape says
    """
    expected, found = shape[0] * shape[1], 0
    for block in blocks:
        found += block.size
        if found > expected:
            break
        yield np.ascontiguousarray(block, dtype=dtype).reshape(-1)
    if found != expected:
        raise CorruptCheckpointError(f"layer '{layer}' should hold {expected} values, its blocks {found}")


def whole_kernel(blocks: Iterable[np.ndarray], shape: tuple[int, int], dtype: np.dtype[Any], layer: str) -> np.ndarray:
    """The kernel in memory, shape (rows, dim).

    Raises
    ------
    CorruptCheckpointError : as `checked_blocks`
    """
    kernel, end = np.empty(shape, dtype.newbyteorder("=")), 0
    flat = kernel.reshape(-1)
    for block in checked_blocks(blocks, shape, dtype, layer):
        flat[end : end + block.size] = block
        end += block.size
    return kernel


class Norms:
    """The L2 norms of the rows of a matrix that comes in pieces; in float64."""

    def __init__(self, rows: int, dim: int) -> None:
        self._squares = np.zeros(rows)
        self._dim = dim
        self._seen = 0

    def add(self, block: np.ndarray) -> None:
        """Take in the next values, in C order."""
        rows = (self._seen + np.arange(block.size)) // self._dim if self._dim else np.empty(0, np.int64)
        if rows.size:
            sums = np.bincount(rows - rows[0], np.square(block, dtype=np.float64))
            self._squares[rows[0] : rows[0] + sums.size] += sums
        self._seen += block.size

    def divisors(self) -> np.ndarray:
        """Shape (rows,): what to divide by; 1 for a row of zeros, which then scores 0."""
        return np.where(self._squares == 0, 1, np.sqrt(self._squares))
