"""Values of a TensorProto as V1 checkpoints hold them: in fields by type, not as plain bytes.

Source: tensorflow/core/framework/tensor.proto, tensorflow/core/util/saved_tensor_slice_util.h (TF 1.15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import numpy_dtype
from ..errors import CorruptCheckpointError, UnsupportedError
from . import _wire

if TYPE_CHECKING:
    import numpy as np

# Logical dtype -> field number, and the width of its fixed numbers in bytes; 0 for varints.
_FIELDS: dict[str, tuple[int, int]] = {
    "float32": (5, 4), "float64": (6, 8), "int32": (7, 0), "uint8": (7, 0), "int16": (7, 0), "int8": (7, 0),
    "uint16": (7, 0), "complex64": (9, 4), "int64": (10, 0), "bool": (11, 0), "complex128": (12, 8), "float16": (13, 0),
    "bfloat16": (13, 0), "uint32": (16, 0), "uint64": (17, 0),
}  # fmt: skip
_CONTENT, _STRINGS = 4, 8


def decode(data: bytes, dtype: str, count: int) -> np.ndarray:
    """The numbers of a TensorProto, flat.

    Parameters
    ----------
    data : the message
    dtype : a logical dtype; the message itself does not say it
    count : how many elements the slice has

    Returns
    -------
    shape (count,), the NumPy dtype of `dtype`

    Raises
    ------
    UnsupportedError : a dtype that V1 checkpoints do not hold
    CorruptCheckpointError : fewer or more values than `count`
    """
    import numpy as np

    if dtype not in _FIELDS:
        raise UnsupportedError(f"values of type {dtype} in a V1 checkpoint cannot be read")
    wanted, width = _FIELDS[dtype]
    target = numpy_dtype(dtype)
    pieces: list[np.ndarray] = []
    for field in _wire.fields(data):
        if field.number == _CONTENT and field.kind == _wire.BYTES and field.end > field.value:
            pieces = [_plain(data[field.value : field.end], target)]
        elif field.number == wanted:
            pieces.append(_numbers(data, field, width, dtype))
    values = np.concatenate(pieces) if pieces else np.empty(0, target)
    if values.size != count:
        raise CorruptCheckpointError(f"{values.size:,} values where {count:,} belong")
    return values


def _plain(content: bytes, target: np.dtype) -> np.ndarray:
    import numpy as np

    if len(content) % target.itemsize:
        raise CorruptCheckpointError("values are cut off")
    return np.frombuffer(content, target)


def _numbers(data: bytes, field: _wire.Field, width: int, dtype: str) -> np.ndarray:
    """One occurrence of a typed field, packed or not."""
    import numpy as np

    target = numpy_dtype(dtype)
    if width:
        if field.kind == _wire.BYTES:
            return _plain(data[field.value : field.end], target)
        fixed = field.value.to_bytes(width, "little")
        return np.frombuffer(fixed, f"<f{width}").astype(target)
    if field.kind == _wire.VARINT:
        values = np.array([field.value], np.uint64)
    elif field.kind == _wire.BYTES:
        values = varints(data[field.value : field.end])
    else:
        raise CorruptCheckpointError("a value has the wrong wire type")
    if dtype in ("float16", "bfloat16"):  # bits of a half, as a number
        return values.astype(np.uint16).view(target)
    return values.astype(np.int64).astype(target) if dtype.startswith("int") else values.astype(target)


def varints(data: bytes) -> np.ndarray:
    """Packed varints, all at once.

    Returns
    -------
    shape (n,), uint64; negative numbers as two's complement

    Raises
    ------
    CorruptCheckpointError : the last is cut off, or one is longer than ten bytes
    """
    import numpy as np

    stored = np.frombuffer(data, np.uint8)
    if not stored.size:
        return np.empty(0, np.uint64)
    ends = np.flatnonzero(stored < 128)
    if not ends.size or ends[-1] != stored.size - 1:
        raise CorruptCheckpointError("a number is cut off")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if int(lengths.max()) > 10:
        raise CorruptCheckpointError("a number has more than 64 bits")
    values = np.zeros(ends.size, np.uint64)
    for place in range(int(lengths.max())):
        there = lengths > place
        digits = (stored[starts[there] + place] & 127).astype(np.uint64)
        values[there] |= digits << np.uint64(7 * place)
    return values


def texts(data: bytes, count: int) -> np.ndarray:
    """The texts of a TensorProto, flat: shape (count,), objects of `bytes`."""
    import numpy as np

    found = [
        data[field.value : field.end]
        for field in _wire.fields(data)
        if field.number == _STRINGS and field.kind == _wire.BYTES
    ]
    if len(found) != count:
        raise CorruptCheckpointError(f"{len(found):,} texts where {count:,} belong")
    values = np.empty(count, object)
    values[:] = found
    return values
