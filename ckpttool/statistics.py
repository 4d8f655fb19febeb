"""Statistics of a tensor, in one pass over blocks that fit the processor's cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import TensorSpec
from .reading import Reader

STATISTICS_BLOCK_BYTES = 2**18  # bytes: every reduction after the first finds the block in the second-level cache


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
    total, squares = 0.0, 0.0
    count = zeros = nan = inf = 0
    shift: float | None = None
    for block in reader.iter_blocks(spec, STATISTICS_BLOCK_BYTES):
        values = block if block.dtype in (np.float32, np.float64) else _wide(block)
        zeros += values.size - int(np.count_nonzero(values))
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
        low, high = min(low, low_here), max(high, high_here)
        shift = low_here if shift is None else shift
        part, part_squares = _moments(values, shift)
        total += part
        squares += part_squares
        count += values.size
    if not count:
        return Statistics(None, None, None, None, zeros, nan, inf)
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)
    return Statistics(low, high, (shift or 0.0) + mean, math.sqrt(variance), zeros, nan, inf)


def _wide(block: np.ndarray) -> np.ndarray:
    small = block.dtype.itemsize <= 2 and block.dtype.kind in "fV"
    return block.astype(np.float32 if small else np.float64)


def _moments(values: np.ndarray, shift: float) -> tuple[float, float]:
    """Sum and sum of squares of the values less a shift near them, so that a large mean does not drown the spread."""
    moved = values.astype(np.float64) - shift
    return float(moved.sum()), float(moved @ moved)
