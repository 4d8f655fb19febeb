"""One tensor as comma-separated text, read back by NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import TensorSpec
from ckpttool.errors import UnsupportedError
from ckpttool.exports import csv


class Values:
    """A reader of one array, in blocks that do not end with rows."""

    def __init__(self, values: np.ndarray, block: int = 7) -> None:
        self.values, self.block = values, block

    def iter_blocks(self, spec: TensorSpec) -> Iterator[np.ndarray]:
        flat = self.values.reshape(-1)
        for start in range(0, flat.size, self.block):
            yield flat[start : start + self.block]

    def read(self, spec: TensorSpec) -> np.ndarray:
        return self.values


def written(values: np.ndarray, path: Path, *, transpose: bool = False) -> str:
    spec = TensorSpec(("layer", "kernel"), values.shape, values.dtype.name)
    csv.write(Values(values), spec, path, transpose=transpose)  # type: ignore[arg-type]
    return path.read_text("ascii")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(5, 3), (1, 9), (40, 1)])
@pytest.mark.parametrize("transpose", [False, True])
def test_numpy_reads_the_same_values_back(dtype: str, shape: tuple[int, int], transpose: bool, tmp_path: Path) -> None:
    values = (np.random.default_rng(1).standard_normal(shape) * 50).astype(dtype)
    written(values, tmp_path / "x.csv", transpose=transpose)
    again = np.loadtxt(tmp_path / "x.csv", delimiter=",", dtype=dtype, ndmin=2)
    assert np.array_equal(again, values.T if transpose else values)


def test_a_vector_has_one_value_a_line(tmp_path: Path) -> None:
    assert written(np.array([0.1, -2, 1e-30], np.float32), tmp_path / "x.csv") == "0.1\n-2.0\n1e-30\n"


def test_what_has_no_number_is_named(tmp_path: Path) -> None:
    assert written(np.array([[np.nan, np.inf]], np.float32), tmp_path / "x.csv") == "nan,inf\n"
    assert written(np.array([True, False]), tmp_path / "x.csv") == "1\n0\n"
    assert written(np.array(2.5), tmp_path / "x.csv") == "2.5\n"


def test_bfloat16_is_exact(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((4, 3)).astype(ml_dtypes.bfloat16)
    written(values, tmp_path / "x.csv")
    again = np.loadtxt(tmp_path / "x.csv", delimiter=",", dtype=np.float32)
    assert np.array_equal(again.astype(ml_dtypes.bfloat16), values)


def test_rows_without_columns_are_empty_lines(tmp_path: Path) -> None:
    assert written(np.zeros((2, 0), np.float32), tmp_path / "x.csv") == "\n\n"
    assert written(np.zeros((0, 2), np.float32), tmp_path / "x.csv") == ""


@pytest.mark.parametrize("values", [np.zeros((2, 2, 2), np.float32), np.zeros(2, np.complex64)])
def test_what_is_no_table_is_refused(values: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"\.csv"):
        written(values, tmp_path / "x.csv")


def test_extract_writes_the_kernel_and_names_what_it_left_out(fixture_files: Path, tmp_path: Path) -> None:
    found = ckpttool.extract(fixture_files / "keras-2.2.4-sequential.h5", "image_embedding", tmp_path / "k.csv")
    again = np.loadtxt(tmp_path / "k.csv", delimiter=",", dtype=np.float32)
    assert np.array_equal(again, found.kernel)
    assert found.notes == ("left out: image_embedding/bias (--tensor NAME, or a folder for everything)",)
