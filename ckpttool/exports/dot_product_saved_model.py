"""Write a dot product as a SavedModel in TensorFlow Serving's layout: FOLDER/1, with named signatures.

    signature        inputs                          outputs
    serving_default  vectors (n, dim)                scores (n, rows): vectors @ kernel.T
    columns          vectors (n, rows)               scores (n, dim): vectors @ kernel
    cosines          vectors (n, dim)                scores (n, rows), of unit vectors; a zero vector scores 0
    top              vectors (n, dim), k (), int32   indices (n, k), int32, and scores (n, k), best first

Source: tensorflow/python/saved_model/save.py (TensorFlow 2.21); TF Serving takes the highest number in FOLDER.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..frameworks import load
from ..output import check_output, output_folder
from ._kernel import Norms, score_dtype, whole_kernel

VERSION = "1"
NORM_ROWS = 4096  # at once; their squares in float64 are a few megabytes


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
    """Write FOLDER with the version folder 1; the kernel is in memory meanwhile.

    Parameters
    ----------
    path : FOLDER
    blocks : the kernel's values in C order, in pieces of any shape
    layer, source : where the kernel comes from: strings of the saved object, `layer` and `source`
    shape : (rows, dim) of the kernel
    dtype : of the kernel, by name; the scores are float32, or float64 as in dot_product.py
    overwrite : replace a folder that exists
    inputs : files that the output must not be

    Returns
    -------
    the folder written

    Raises
    ------
    MissingDependencyError : TensorFlow is not installed
    UnsupportedError : a kernel of bool, complex, text or objects
    OutputExistsError, OutputIsInputError, OutputError : the output
    CorruptCheckpointError : the blocks hold more or fewer values than the shape says
    """
    tf = load("tensorflow", path=path)
    target, size, scores = Path(path), (int(shape[0]), int(shape[1])), score_dtype(dtype)
    check_output(target, overwrite=overwrite, inputs=inputs)
    kernel, norms = whole_kernel(blocks, size, scores, layer), Norms(*size)
    for start in range(0, size[0], NORM_ROWS):
        norms.add(kernel[start : start + NORM_ROWS].reshape(-1))
    module = tf.Module(name="dot_product")
    module.kernel = tf.Variable(kernel, trainable=False, name="kernel")
    module.norms = tf.Variable(norms.divisors().astype(scores), trainable=False, name="norms")
    module.layer, module.source = tf.constant(layer), tf.constant(source)
    with output_folder(target, overwrite=overwrite, inputs=inputs) as folder:
        tf.saved_model.save(module, os.fspath(folder / VERSION), signatures=_signatures(tf, module, size, scores))
    return (target,)


def _signatures(tf: Any, module: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> dict[str, Any]:
    rows, dim = shape
    vectors = tf.TensorSpec([None, dim], dtype.name, "vectors")
    minus_one, one = np.array([-1, 1], dtype)

    def rows_of(vectors: Any) -> dict[str, Any]:
        return {"scores": tf.matmul(vectors, module.kernel, transpose_b=True)}

    def columns(vectors: Any) -> dict[str, Any]:
        return {"scores": tf.matmul(vectors, module.kernel)}

    def cosines(vectors: Any) -> dict[str, Any]:
        exact = tf.cast(vectors, tf.float64)  # the square of a large float32 is none
        lengths = tf.norm(exact, axis=1, keepdims=True)
        unit = tf.cast(exact / tf.where(lengths == 0, tf.ones_like(lengths), lengths), vectors.dtype)
        return {"scores": tf.clip_by_value(rows_of(unit)["scores"] / module.norms, minus_one, one)}

    def top(vectors: Any, k: Any) -> dict[str, Any]:
        scores, indices = tf.math.top_k(rows_of(vectors)["scores"], k)
        return {"indices": indices, "scores": scores}

    made = {"serving_default": rows_of, "cosines": cosines}
    signatures = {name: tf.function(function, input_signature=[vectors]) for name, function in made.items()}
    by_rows = tf.TensorSpec([None, rows], dtype.name, "vectors")
    signatures["columns"] = tf.function(columns, input_signature=[by_rows])
    signatures["top"] = tf.function(top, input_signature=[vectors, tf.TensorSpec([], tf.int32, "k")])
    return signatures
