"""One tensor as comma-separated text: a line a row, each number in the fewest digits that give it back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..checkpoint import TensorSpec
from ..errors import UnsupportedError
from ..reading import OnProgress, Progress, Reader

VALUES_AT_ONCE = 2**16  # their text is a few MB


def write(
    reader: Reader, spec: TensorSpec, path: Path, *, transpose: bool = False, on_progress: OnProgress | None = None
) -> None:
    """Write one tensor, block by block unless it is transposed.

    Parameters
    ----------
    reader, spec : a matrix (a line a row), a vector (a line a value) or a scalar; real numbers or booleans
    path : a new file; `numpy.loadtxt(path, delimiter=",")` reads it
    transpose : exchange rows and columns; holds the tensor in memory
    on_progress : called when it is written

    Raises
    ------
    UnsupportedError : more than two axes, text, or complex numbers
    """
    if len(spec.shape) > 2:
        raise UnsupportedError(f"{spec.name} has shape {spec.shape}; a '.csv' holds rows and columns, use '.npy'")
    if spec.dtype == "string" or spec.dtype.startswith("complex"):
        raise UnsupportedError(f"{spec.name}: {spec.dtype} values are not written as '.csv'")
    shape = spec.shape[::-1] if transpose else spec.shape
    width = shape[1] if len(shape) == 2 else 1
    with path.open("w", encoding="ascii", newline="\n") as file:
        if width == 0:
            file.write("\n" * shape[0])
        for rows in _rows(_blocks(reader, spec, transpose), width):
            texts = _texts(rows)
            lines = (",".join(texts[start : start + width]) for start in range(0, len(texts), width))
            file.write("\n".join(lines) + "\n")
    if on_progress is not None:
        on_progress(Progress(spec.nbytes, spec.nbytes, spec.name))


def _blocks(reader: Reader, spec: TensorSpec, transpose: bool) -> Iterator[np.ndarray]:
    if not transpose:
        yield from reader.iter_blocks(spec)
        return
    flat = reader.read(spec).T.reshape(-1)
    for start in range(0, flat.size, VALUES_AT_ONCE):
        yield flat[start : start + VALUES_AT_ONCE]


def _rows(blocks: Iterator[np.ndarray], width: int) -> Iterator[np.ndarray]:
    """The same values in pieces of whole rows."""
    if width == 0:
        return
    step = max(1, VALUES_AT_ONCE // width) * width
    pending: np.ndarray | None = None
    for block in blocks:
        joined = block if pending is None else np.concatenate([pending, block])
        end = joined.size - joined.size % width
        for start in range(0, end, step):
            yield joined[start : min(start + step, end)]
        pending = joined[end:] if end < joined.size else None


def _texts(values: np.ndarray) -> list[str]:
    if values.dtype == bool:
        values = values.astype(np.uint8)
    elif values.dtype.kind == "V" or values.dtype.name.startswith(("bfloat", "float8")):
        values = values.astype(np.float32)
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return list(map(str, values.astype("U32").tolist()))
    return list(map(repr, values.tolist()))
