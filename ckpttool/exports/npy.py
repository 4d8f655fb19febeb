"""One tensor as NumPy's `.npy`, and all tensors of a layer as a folder of them.

Source: numpy/lib/format.py (format 1.0). bfloat16 and float8 have no `.npy` dtype: they become float32, which is exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..checkpoint import ITEM_BYTES, TensorSpec
from ..copying import copy_tensor, little_endian_bytes, open_new
from ..errors import UnsupportedError
from ..reading import BLOCK_BYTES, OnProgress, Progress, Reader

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64  # bytes: where the values begin, so that they can be mapped into memory
_GROWTH_DIGITS = 21  # NumPy leaves room for the first axis to grow in place
_KINDS = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}


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
    if spec.dtype not in ITEM_BYTES:
        what = "text is" if spec.dtype == "string" else f"values of type {spec.dtype} are"
        raise UnsupportedError(f"{spec.name}: {what} not written as .npy")
    with open_new(path) as file:
        if transpose:
            import numpy as np

            values = reader.read(spec)
            np.lib.format.write_array(file, _plain(values, spec).T.copy(), allow_pickle=False)
        else:
            _write_header(file, spec)
            _write_values(reader, spec, file)
    if on_progress is not None:
        on_progress(Progress(spec.nbytes, spec.nbytes, spec.name))


def _plain(values: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return values.astype("float32") if becomes_float32(spec) else values


def _write_header(file: IO[bytes], spec: TensorSpec) -> None:
    """The header as NumPy writes it, without NumPy: importing that takes longer than to copy the values."""
    dtype = "float32" if becomes_float32(spec) else spec.dtype
    width = ITEM_BYTES[dtype]
    descr = f"{'|' if width == 1 else '<'}{_KINDS[dtype.rstrip('0123456789')]}{width}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {spec.shape}, }}"
    if spec.shape:
        text += " " * (_GROWTH_DIGITS - len(str(spec.shape[0])))
    taken = len(MAGIC) + 2 + len(text) + 1
    text += " " * (-taken % _ALIGNMENT) + "\n"
    file.write(MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii"))


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
