"""Room for tensors in a new HDF5 file; the values go there past HDF5, which would copy each block twice."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import h5py
import numpy as np

from ..checkpoint import ITEM_BYTES, TensorSpec
from ..errors import UnsupportedError

_OPAQUE = ("bfloat", "float8")


@contextmanager
def writing() -> Iterator[None]:
    """Turn what h5py raises while it writes, also when it closes on a full disk, into the system's error."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            if isinstance(error, OSError):
                raise
            raise OSError(f"HDF5 could not write it ({' '.join(str(error).split())[:200]})") from error
        raise OSError(int(number.group(1)), os.strerror(int(number.group(1)))) from error


def allocate(group: h5py.Group, name: str, spec: TensorSpec) -> int | None:
    """Make a contiguous dataset with room for its values and nothing written yet; a `/` in its name makes groups.

    Returns
    -------
    where the values go, in bytes from the start of the HDF5 file; None where there are none

    Raises
    ------
    UnsupportedError : a dtype that has no place there
    """
    if spec.dtype not in ITEM_BYTES:
        raise UnsupportedError(f"{spec.name}: HDF5 of Keras holds no {spec.dtype} tensors")
    properties, links = _properties()
    space = h5py.h5s.create_simple(spec.shape) if spec.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    encoded = name.encode("utf-8", "surrogateescape")
    dataset = h5py.h5d.create(group.id, encoded, _kind(spec.dtype), space, properties, links)
    if spec.dtype.startswith(_OPAQUE):
        h5py.Dataset(dataset).attrs["dtype"] = spec.dtype  # the mark that Keras 3 puts on them in its own layout
    offset: int | None = dataset.get_offset() if spec.nbytes else None
    return offset


@functools.cache
def _kind(dtype: str) -> h5py.h5t.TypeID:
    """HDF5's type of a logical dtype; h5py stores those of ml_dtypes as opaque bytes, for which HDF5 has no type."""
    name = f"V{ITEM_BYTES[dtype]}" if dtype.startswith(_OPAQUE) else dtype
    return h5py.h5t.py_create(np.dtype(name), logical=True)


@functools.cache
def _properties() -> tuple[h5py.h5p.PropDCID, h5py.h5p.PropLCID]:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # equal inputs give equal files
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return properties, links
