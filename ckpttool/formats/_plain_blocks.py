"""Blocks of values that lie plainly in an open file, shared by the containers that keep them so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from ..checkpoint import TensorSpec
from ..dtypes import numpy_dtype
from ..errors import CorruptCheckpointError
from ..reading import Extent


def plain_blocks(descriptor: int, extent: Extent, dtype_name: str, max_bytes: int) -> Iterator[np.ndarray]:
    """The elements of little-endian values as 1-D arrays of at most `max_bytes` bytes (one element at least) each.

    Raises
    ------
    CorruptCheckpointError : the file is shorter than the extent says
    """
    dtype = numpy_dtype(dtype_name)
    stored = dtype if dtype.kind == "V" or dtype.itemsize == 1 else dtype.newbyteorder("<")
    step = max(1, max_bytes // dtype.itemsize) * dtype.itemsize
    for start in range(0, extent.nbytes, step):
        wanted = min(step, extent.nbytes - start)
        data = os.pread(descriptor, wanted, extent.offset + start)
        if len(data) != wanted:
            raise CorruptCheckpointError("the file became shorter while it was read", path=extent.path)
        yield np.frombuffer(data, stored).astype(dtype, copy=False)


def joined(blocks: Sequence[np.ndarray], spec: TensorSpec) -> np.ndarray:
    """Blocks as one array of the tensor's shape."""
    values = np.concatenate(blocks) if blocks else np.empty(0, numpy_dtype(spec.dtype))
    return values.reshape(spec.shape)
