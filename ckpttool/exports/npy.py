"""One tensor as NumPy's `.npy`, and all tensors of a layer as a folder of them.

Source: numpy/lib/format.py (format 1.0). bfloat16 and float8 have no `.npy` dtype: they become float32, which is exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..checkpoint import TensorSpec
from ..copying import copy_tensor, little_endian_bytes
from ..errors import UnsupportedError
from ..reading import BLOCK_BYTES, OnProgress, Progress, Reader


def becomes_float32(spec: TensorSpec) -> bool:
    """Whether the values change their type on the way, exactly."""
    return spec.dtype.startswith(("bfloat", "float8"))


def write(
    reader: Reader, spec: TensorSpec, path: Path, *, transpose: bool = False, on_progress: OnProgress | None = None
) -> None:
    """Write one tensor; block by block unless it is transposed.

    Parameters
    ----------
    reader, spec : the tensor; any shape, any dtype but text
    path : a new file
    transpose : reverse the axes, as `array.T`; holds the tensor in memory
    on_progress : called when it is written

    Raises
    ------
    UnsupportedError : text
    """
    if spec.dtype == "string":
        raise UnsupportedError(f"{spec.name}: text is not written as .npy")
    with path.open("wb") as file:
        if transpose:
            values = reader.read(spec)
            np.lib.format.write_array(file, _plain(values, spec).T.copy(), allow_pickle=False)
        else:
            _write_header(file, spec)
            _write_values(reader, spec, file)
    if on_progress is not None:
        on_progress(Progress(spec.nbytes, spec.nbytes, spec.name))


def _plain(values: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return values.astype(np.float32) if becomes_float32(spec) else values


def _write_header(file: IO[bytes], spec: TensorSpec) -> None:
    dtype = np.dtype(np.float32 if becomes_float32(spec) else spec.dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": spec.shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_values(reader: Reader, spec: TensorSpec, file: IO[bytes]) -> None:
    if becomes_float32(spec):
        for block in reader.iter_blocks(spec, BLOCK_BYTES):
            file.write(little_endian_bytes(_plain(block, spec)))
        return
    file.flush()
    copy_tensor(reader, spec, file.fileno(), file.tell())


def file_names(specs: Sequence[TensorSpec], layer: tuple[str, ...]) -> list[str]:
    """A safe file name for each tensor of a layer: `kernel.npy`, `forward_lstm.kernel.npy`; names never make a path."""
    names: list[str] = []
    for spec in specs:
        text = ".".join(spec.path[len(layer) :]) or spec.path[-1]
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in text).lstrip(".") or "tensor"
        name, number = safe[:120], 1
        while f"{name}.npy" in names:
            name, number = f"{safe[:120]}-{number}", number + 1
        names.append(f"{name}.npy")
    return names


def write_folder(
    reader: Reader,
    specs: Sequence[TensorSpec],
    layer: tuple[str, ...],
    folder: Path,
    *,
    transpose: bool = False,
    about: dict[str, Any],
    on_progress: OnProgress | None = None,
) -> None:
    """Write every tensor of a layer as `.npy` in an empty folder, and `tensors.json` that says which is which.

    Parameters
    ----------
    reader, specs : the tensors
    layer : the layer's path, which their names do without
    folder : where to
    transpose : reverse the axes of each
    about : added to `tensors.json`
    on_progress : called after each tensor
    """
    entries = []
    for spec, name in zip(specs, file_names(specs, layer), strict=True):
        write(reader, spec, folder / name, transpose=transpose, on_progress=on_progress)
        shape = spec.shape[::-1] if transpose else spec.shape
        dtype = "float32" if becomes_float32(spec) else spec.dtype
        entries.append(
            {"file": name, "path": spec.name, "shape": list(shape), "dtype": dtype, "stored_dtype": spec.dtype}
        )
    text = json.dumps({"schema": 1, **about, "tensors": entries}, indent=1)
    (folder / "tensors.json").write_text(text + os.linesep, "utf-8")
