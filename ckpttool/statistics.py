"""Statistics of a tensor, in one pass over blocks that fit the processor's cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import TensorSpec
from .reading import Reader

STATISTICS_BLOCK_BYTES = 2**17  # every reduction after the first finds the block in the second-level cache
EXACT_ITEMS = 2**20  # up to here all sums are made in float64; beyond, float32 sums of one block are exact enough
_SAFE = (1e-15, 1e15)  # largest magnitudes whose squares, and sums of 2**15 of them, float32 holds exactly enough
_CANCELLED = 1e-2  # variance over squared mean; below, the difference of two float32 sums keeps too few digits


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the finite values; `zeros`, `nan` and `inf` count elements. None where there is no finite value."""

    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None  # population standard deviation
    zeros: int
    nan: int
    inf: int

    def to_json(self) -> dict[str, Any]:
        """As the JSON outputs show it."""
        return {"min": self.minimum, "max": self.maximum, "mean": self.mean, "std": self.std, "zeros": self.zeros,
                "nan": self.nan, "inf": self.inf}  # fmt: skip


def statistics(reader: Reader, spec: TensorSpec) -> Statistics | None:
    """Minimum, maximum, mean, standard deviation and counts of one tensor; None for text and complex numbers.

    Parameters
    ----------
    reader, spec : the tensor; any shape; bfloat16 and float16 are computed in float32, sums in float64
    """
    if spec.dtype == "string" or spec.dtype.startswith("complex"):
        return None
    low, high = math.inf, -math.inf
    zeros = nan = inf = 0
    moments = _Moments(exact=spec.size <= EXACT_ITEMS)
    for block in reader.iter_blocks(spec, STATISTICS_BLOCK_BYTES):
        values = block if block.dtype in (np.float32, np.float64) else _wide(block)
        low_here, high_here = float(values.min()), float(values.max())
        if not (math.isfinite(low_here) and math.isfinite(high_here)):
            finite = np.isfinite(values)
            here = int(np.count_nonzero(np.isnan(values)))
            nan += here
            inf += values.size - int(np.count_nonzero(finite)) - here
            values = values[finite]
            if not values.size:
                continue
            low_here, high_here = float(values.min()), float(values.max())
        if low_here <= 0 <= high_here:
            zeros += int(np.count_nonzero(values == 0))
        low, high = min(low, low_here), max(high, high_here)
        moments.add(values, max(-low_here, high_here))
    if not moments.count:
        return Statistics(None, None, None, None, zeros, nan, inf)
    return Statistics(low, high, moments.mean, math.sqrt(moments.squares / moments.count), zeros, nan, inf)


def _wide(block: np.ndarray) -> np.ndarray:
    small = block.dtype.itemsize <= 2 and block.dtype.kind in "fV"
    return block.astype(np.float32 if small else np.float64)


class _Moments:
    """Count, mean and sum of squared distances from it, block by block.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self._ones = np.ones(0, np.float32)

    def add(self, values: np.ndarray, largest: float) -> None:
        """Add a block of finite values; `largest` is the largest magnitude in it."""
        count = values.size
        mean, squares = self._of_block(values, largest)
        total = self.count + count
        distance = mean - self.mean
        self.mean += distance * (count / total)
        self.squares += squares + distance * distance * (self.count * count / total)
        self.count = total

    def _of_block(self, values: np.ndarray, largest: float) -> tuple[float, float]:
        count = values.size
        if values.dtype == np.float32 and not self._exact and (largest == 0 or _SAFE[0] < largest < _SAFE[1]):
            if self._ones.size < count:
                self._ones = np.ones(count, np.float32)
            mean = float(np.dot(values, self._ones[:count])) / count
            squares = float(np.dot(values, values)) - count * mean * mean
            if squares >= _CANCELLED * count * mean * mean:
                return mean, squares
        exact = values.astype(np.float64)
        mean = float(exact.mean())
        exact -= mean
        return mean, float(np.dot(exact, exact))
