"""Casting floating weights: which tensors, how far values move, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ckpttool.casting import CastReader
from ckpttool.converting import convert, unwrap
from ckpttool.errors import UnsupportedError, UsageError
from ckpttool.opening import open_checkpoint

from .manifest import FILES

SOURCE = FILES / "keras-3.15-sequential-trained.keras"


def values(path: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(path) as reader:
        return {spec.name: reader.read(spec) for spec in reader.describe().weights()}


@pytest.mark.parametrize("suffix", [".h5", ".keras", ".weights.h5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_floating_weight_is_cast_as_numpy_casts(dtype: str, suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"cast{suffix}"
    report = unwrap(SOURCE, output, dtype=dtype)
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    before, after = values(SOURCE), values(output)
    if suffix == ".weights.h5":
        assert set(after) == set(before)
    for name, value in before.items():
        assert after[name].dtype == numpy_dtype
        assert after[name].tobytes() == value.astype(numpy_dtype).tobytes()
    moved = max(float(np.abs(value.astype(float) - after[name].astype(float)).max()) for name, value in before.items())
    assert f"the largest rounding is {moved:.3g}" in report.notes[-1]


def test_widening_is_exact_and_said_so(tmp_path: Path) -> None:
    source = FILES / "keras-3.15-sequential-bfloat16.keras"
    report = unwrap(source, tmp_path / "wide.h5", dtype="float32")
    assert report.notes[-1] == "4 tensors cast to float32, exactly"
    for name, value in values(source).items():
        assert (values(tmp_path / "wide.h5")[name] == value.astype(np.float32)).all()


def test_integers_and_optimizer_state_stay(tmp_path: Path) -> None:
    convert(SOURCE, tmp_path / "x.keras", dtype="float16")
    with open_checkpoint(tmp_path / "x.keras") as reader:
        assert {spec.dtype for spec in reader.describe().optimizer_tensors()} == {"int64", "float32"}
    convert(FILES / "keras-3.15-int8.keras", tmp_path / "q.keras", dtype="bfloat16")
    assert {value.dtype for value in values(tmp_path / "q.keras").values()} == {
        np.dtype(np.int8),
        np.dtype(ml_dtypes.bfloat16),
    }


@pytest.mark.parametrize("max_bytes", [1, 2, 4, 6, 100])
def test_blocks_stay_within_their_bound(max_bytes: int) -> None:
    with open_checkpoint(FILES / "keras-3.15-sequential-bfloat16.keras") as reader:
        view = CastReader(reader, reader.describe(), "float32")
        for spec in view.describe().weights():
            blocks = list(view.iter_blocks(spec, max_bytes))
            assert all(block.nbytes <= max(max_bytes, 4) for block in blocks)
            assert np.concatenate(blocks).tobytes() == view.read(spec).tobytes()
            assert view.extent(spec) is None


def test_a_value_beyond_the_type_stops_it(tmp_path: Path) -> None:
    from .formats.test_keras_weights import groups_file

    path = groups_file(
        tmp_path / "x.weights.h5", {"layers/dense": [np.array([[1e6]], np.float32), np.array([np.inf], np.float32)]}
    )
    with pytest.raises(UnsupportedError, match=r"dense/kernel holds 1e\+06, which float16 cannot"):
        convert(path, tmp_path / "y.weights.h5", dtype="float16")
    assert not (tmp_path / "y.weights.h5").exists()
    convert(path, tmp_path / "z.weights.h5", dtype="bfloat16")
    assert np.isinf(values(tmp_path / "z.weights.h5")["dense/bias"]).all()


def test_an_unknown_type_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dtype takes float16, bfloat16, float32"):
        convert(SOURCE, tmp_path / "x.h5", dtype="int8")
