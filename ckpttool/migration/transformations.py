"""The exact changes of tensors, by name. Each is a pure function of an array; the plan holds only names and numbers.

`scale` and `scale_gates` make Keras 3 compute the `hard_sigmoid` of Keras 2: that was clip(0.2·x + 0.5, 0, 1), Keras 3
has clip(x/6 + 0.5, 0, 1), and 1.2·x/6 = 0.2·x. The CuDNN layers kept each gate's kernel transposed and two biases.
Source: keras/backend/tensorflow_backend.py, hard_sigmoid (Keras 2.2.4); keras/src/ops/nn.py, hard_sigmoid (Keras 3.15);
keras/engine/saving.py, _convert_rnn_weights, preprocess_weights_for_loading (Keras 2.2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .plan import Transformation

if TYPE_CHECKING:
    import numpy as np

    Change = Callable[..., np.ndarray]

HARD_SIGMOID_SCALE = 1.2  # (1/5) / (1/6): the slopes of Keras 2 and Keras 3


def scale_all() -> Transformation:
    """Scale every value, so that the layer's pre-activation grows by 1.2."""
    return Transformation("scale", (("factor", HARD_SIGMOID_SCALE),))


def scale_gates(gates: Sequence[int], of: int) -> Transformation:
    """Scale the columns of some gates, where the last axis holds `of` gates of equal width."""
    return Transformation("scale_gates", (("factor", HARD_SIGMOID_SCALE), ("gates", tuple(gates)), ("of", of)))


def cudnn(part: str, gates: int) -> Transformation:
    """Turn a CuDNN layer's `kernel`, `recurrent_kernel` or `bias` into the plain layer's."""
    return Transformation(f"cudnn_{part}", (("gates", gates),))


def flip_spatial() -> Transformation:
    """Turn a kernel around in every axis but its last two: Theano convolved, TensorFlow correlates."""
    return Transformation("flip_spatial")


def apply(transformations: Sequence[Transformation], array: np.ndarray) -> np.ndarray:
    """The array after all transformations, of the same dtype.

    Parameters
    ----------
    transformations : in order
    array : as stored; not changed

    Raises
    ------
    ValueError : the array's shape does not fit the transformation
    """
    for each in transformations:
        array = _CHANGES[each.name](array, **dict(each.arguments))
    return array


def _multiplied(array: np.ndarray, factor: float) -> np.ndarray:
    """In double precision, rounded once: the nearest value of the array's own dtype."""
    import numpy as np

    product: np.ndarray = (array.astype(np.float64) * factor).astype(array.dtype)
    return product


def _scale(array: np.ndarray, factor: float) -> np.ndarray:
    return _multiplied(array, factor)


def _scale_gates(array: np.ndarray, factor: float, gates: Sequence[int], of: int) -> np.ndarray:
    wide = array.shape[-1]
    if wide % of:
        raise ValueError(f"{wide} columns do not make {of} gates")
    units = wide // of
    changed = array.copy()
    for gate in gates:
        columns = slice(gate * units, (gate + 1) * units)
        changed[..., columns] = _multiplied(array[..., columns], factor)
    return changed


def _cudnn_kernel(array: np.ndarray, gates: int) -> np.ndarray:
    """Each gate's block (inputs, units) is the buffer of a (units, inputs) matrix."""
    import numpy as np

    blocks = np.split(array, gates, axis=1)
    return np.hstack([block.reshape(block.shape[::-1]).T for block in blocks])


def _cudnn_recurrent_kernel(array: np.ndarray, gates: int) -> np.ndarray:
    import numpy as np

    return np.hstack([block.T for block in np.split(array, gates, axis=1)])


def _cudnn_bias(array: np.ndarray, gates: int) -> np.ndarray:
    """LSTM: input and recurrent halves are added. GRU: they are the two rows of `reset_after`."""
    import numpy as np

    halves = array.reshape(2, -1)
    return np.sum(halves, axis=0, dtype=array.dtype) if gates == 4 else halves


def _flip_spatial(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(np.flip(array, axis=tuple(range(array.ndim - 2))))


_CHANGES: dict[str, Change] = {
    "flip_spatial": _flip_spatial,
    "scale": _scale,
    "scale_gates": _scale_gates,
    "cudnn_kernel": _cudnn_kernel,
    "cudnn_recurrent_kernel": _cudnn_recurrent_kernel,
    "cudnn_bias": _cudnn_bias,
}
