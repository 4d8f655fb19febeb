"""Write a dot product as a Keras 3 model of built-in layers: NAME.keras, which stock Keras loads in safe mode.

    keras.models.load_model("NAME.keras").predict(vectors)        # (n, dim) -> (n, rows)

It is one Dense layer without bias, whose kernel is the transposed one (keras/src/layers/core/dense.py, Keras 3.15).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..errors import UnsupportedError
from ..frameworks import load
from ..output import check_output, output_file, staging_folder
from ._kernel import score_dtype, whole_kernel


def write_dot_product(
    path: str | Path,
    blocks: Iterable[np.ndarray],
    *,
    layer: str,
    source: str,
    shape: Sequence[int],
    dtype: str,
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
) -> tuple[Path, ...]:
    """Write NAME.keras; the kernel is in memory meanwhile.

    Parameters
    ----------
    path : NAME.keras
    blocks : the kernel's values in C order, in pieces of any shape
    layer, source : where the kernel comes from; a Keras model has no place for it
    shape : (rows, dim) of the kernel
    dtype : of the kernel, by name; the model computes in float32, or float64 as in dot_product.py
    overwrite : replace a file that exists
    inputs : files that the output must not be

    Returns
    -------
    the file written

    Raises
    ------
    MissingDependencyError : Keras 3, or its backend, is not installed
    UnsupportedError : a kernel of bool, complex, text or objects, or without rows or columns
    OutputExistsError, OutputIsInputError, OutputError : the output
    CorruptCheckpointError : the blocks hold more or fewer values than the shape says
    """
    keras = load("keras", path=path)
    target, (rows, dim), scores = Path(path), shape, score_dtype(dtype)
    check_output(target, overwrite=overwrite, inputs=inputs)
    if not rows or not dim:
        raise UnsupportedError(f"layer '{layer}' has a kernel of shape {(rows, dim)}; Keras has no such Dense layer")
    kernel = whole_kernel(blocks, (rows, dim), scores, layer)
    vectors = keras.Input((dim,), name="vectors", dtype=scores.name)
    dense = keras.layers.Dense(rows, use_bias=False, name="scores", dtype=scores.name)
    model = keras.Model(vectors, dense(vectors), name="dot_product")
    dense.set_weights([kernel.T])
    with staging_folder(target) as folder:
        saved = folder / "dot_product.keras"
        model.save(os.fspath(saved))
        with output_file(target, overwrite=overwrite, inputs=inputs) as temporary:
            saved.rename(temporary)
    return (target,)
