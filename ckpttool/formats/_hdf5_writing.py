"""Room for tensors in a new HDF5 file, and their values put there without HDF5, which would copy each block twice."""

from __future__ import annotations

from collections.abc import Sequence

import h5py
import numpy as np

from ..checkpoint import ITEM_BYTES, TensorSpec
from ..copying import copy_tensor
from ..errors import UnsupportedError
from ..reading import OnProgress, Progress, Reader

Place = tuple[TensorSpec, int]  # a tensor and the offset of its values, in bytes from the start of the HDF5 file


def is_opaque(spec: TensorSpec) -> bool:
    """bfloat16 and float8, which HDF5 has no type for: h5py stores ml_dtypes as opaque bytes."""
    return spec.dtype.startswith(("bfloat", "float8"))


def allocate(group: h5py.Group, name: str, spec: TensorSpec) -> h5py.h5d.DatasetID:
    """A contiguous dataset with room for its values and nothing written yet.

    Raises
    ------
    UnsupportedError : a dtype that has no place there
    """
    if spec.dtype not in ITEM_BYTES:
        raise UnsupportedError(f"{spec.name}: HDF5 of Keras holds no {spec.dtype} tensors")
    dtype = np.dtype(f"V{ITEM_BYTES[spec.dtype]}") if is_opaque(spec) else spec.dtype
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(spec.shape) if spec.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    return h5py.h5d.create(group.id, name.encode("utf-8", "surrogateescape"), kind, space, properties)


def fill(
    reader: Reader, places: Sequence[Place], descriptor: int, base: int, on_progress: OnProgress | None
) -> None:
    """Put the values where the closed file has room for them.

    Parameters
    ----------
    reader : gives the values
    places : tensors and their offsets from the start of the HDF5 file
    descriptor : of the file, open for writing
    base : where the HDF5 file starts in it, in bytes
    on_progress : called after each tensor

    Raises
    ------
    OSError : the output cannot be written
    CheckpointError : the source cannot be read
    """
    total = sum(spec.nbytes for spec, _ in places)
    done = 0
    for spec, offset in places:
        done += copy_tensor(reader, spec, descriptor, base + offset)
        if on_progress is not None:
            on_progress(Progress(done, total, spec.name))
