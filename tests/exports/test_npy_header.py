"""The header of a `.npy` file is NumPy's own, to the byte."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ckpttool.checkpoint import ITEM_BYTES, TensorSpec
from ckpttool.exports import npy

SHAPES = [(), (3,), (0, 2), (1024, 2048), (1,) * 40, (10**9,) * 12, (10**17,), (7,) * 10]


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_what_numpy_writes(dtype: str, shape: tuple[int, ...]) -> None:
    ours, theirs = io.BytesIO(), io.BytesIO()
    spec = TensorSpec(("x",), shape, dtype)
    npy._write_header(ours, spec)
    stored = np.dtype(np.float32 if npy.becomes_float32(spec) else dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(theirs, header)
    assert ours.getvalue() == theirs.getvalue()
