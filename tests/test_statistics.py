"""Statistics of a tensor, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from ckpttool.checkpoint import TensorSpec
from ckpttool.statistics import Statistics, statistics


class Values:
    """A reader of one array."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def iter_blocks(self, spec: TensorSpec, max_bytes: int) -> Iterator[np.ndarray]:
        flat = self.values.reshape(-1)
        step = max(1, max_bytes // flat.itemsize)
        for start in range(0, flat.size, step):
            yield flat[start : start + step]


def of(values: np.ndarray) -> Statistics | None:
    return statistics(Values(values), TensorSpec(("x",), values.shape, values.dtype.name))  # type: ignore[arg-type]


def close(found: Statistics | None, values: np.ndarray) -> bool:
    wide = values.astype(np.float64)
    assert found is not None and found.mean is not None and found.std is not None
    return (
        (found.minimum, found.maximum) == (wide.min(), wide.max())
        and abs(found.mean - wide.mean()) <= 1e-6 * np.abs(wide).mean()
        and np.isclose(found.std, wide.std(), rtol=3e-6, atol=0)
        and found.zeros == np.count_nonzero(wide == 0)
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("size", [1, 2, 1000, 100_003])
def test_they_are_those_of_numpy(dtype: str, size: int) -> None:
    values = (np.random.default_rng(size).standard_normal(size) * 3).astype(dtype)
    assert close(of(values), values)


def test_bfloat16_is_computed_in_float32() -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(ml_dtypes.bfloat16)
    assert close(of(values), values)


@pytest.mark.parametrize("scale", [1e-37, 1e-20, 1e-3, 1e3, 1e18, 1e37])
def test_the_scale_does_not_matter(scale: float) -> None:
    values = (np.random.default_rng(2).standard_normal(100_000) * scale).astype(np.float32)
    assert close(of(values), values)


@pytest.mark.parametrize("offset", [10.0, 1000.0, 1e6])
def test_a_large_mean_does_not_drown_the_spread(offset: float) -> None:
    values = (np.random.default_rng(3).standard_normal(200_000) + offset).astype(np.float32)
    assert close(of(values), values)


def test_blocks_of_different_level_are_joined_exactly() -> None:
    values = np.repeat(np.arange(8, dtype=np.float32) * 100, 50_000)
    assert close(of(values), values)


def test_a_constant_has_no_deviation() -> None:
    found = of(np.full(70_000, 0.1, np.float32))
    assert found is not None and found.std == 0.0
    zeros = of(np.zeros(70_000, np.float32))
    assert zeros == Statistics(0.0, 0.0, 0.0, 0.0, 70_000, 0, 0)


def test_nan_and_inf_are_counted_and_left_out() -> None:
    values = np.arange(70_000, dtype=np.float32)
    values[[5, 6]] = np.nan
    values[[7, 8, 9]] = np.inf, -np.inf, np.inf
    found = of(values)
    assert found is not None and (found.nan, found.inf, found.zeros) == (2, 3, 1)
    assert close(found, values[np.isfinite(values)])


def test_nothing_finite_has_no_numbers() -> None:
    assert of(np.full(4, np.nan, np.float32)) == Statistics(None, None, None, None, 0, 4, 0)
    assert of(np.zeros((0, 3), np.float32)) == Statistics(None, None, None, None, 0, 0, 0)


def test_text_and_complex_numbers_have_none() -> None:
    assert of(np.zeros(3, np.complex64)) is None
    assert statistics(Values(np.zeros(1)), TensorSpec(("x",), (1,), "string")) is None  # type: ignore[arg-type]
