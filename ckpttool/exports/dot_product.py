"""Score vectors against the rows or the columns of a kernel, with NumPy alone.

For a kernel (or embedding table) `W` of shape (rows, dim), without bias and activation:

    score = dot_product(W)
    score(vectors)                     # (n, dim) -> (n, rows): vectors @ W.T, one score a row of W
    score(vectors, axis="columns")     # (n, rows) -> (n, dim): vectors @ W, one score a column
    score(vectors, normalize=True)     # cosines; a zero vector scores 0
    score.top(vectors, 10)             # the 10 best rows of each vector: indices and scores, best first

Scores are float64 where vectors or kernel are float64 or integers of 32 or 64 bits, else float32. That holds
integers up to 2**53, float16, bfloat16 and float8 exactly; products and sums are rounded. Nothing is
transposed by guess. The kernel is never copied whole: it may be memory-mapped and larger than memory.

This file imports nothing but NumPy and the standard library: it can be copied away.
"""

from __future__ import annotations

import mmap
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 8 << 20  # of the kernel, and as much again of scores: together they stay in a usual L3 cache
BLOCK_LINES = 16384  # of the kernel; more of a narrow one would let few vectors into a block of scores
CHUNK_VECTORS = 64  # at least so many to a block of scores, for the same reason
MAPPED_BYTES = 128 << 20  # so much of a mapped kernel stays in our memory; the system may cache all of it
# Dtypes of ml_dtypes, by the start of their names; float32 holds all of their values.
SMALL_TYPES = ("bfloat16", "float8_", "float6_", "float4_", "int4", "uint4", "int2", "uint2")


class DtypeError(TypeError, ValueError):
    """An array whose values are no real numbers, or of a type that has no score."""


class DotProduct:
    """The dot products of vectors with one kernel; call it, or ask for the best with `top`.

    Parameters
    ----------
    kernel : shape (rows, dim), floats (float16, bfloat16, float8 too) or integers; kept as it is, not copied,
        so later changes of its values show in the scores

    Raises
    ------
    ValueError : not 2-D
    DtypeError : bool, complex, text, objects, or a masked array; a TypeError and a ValueError
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel: np.ndarray = _numbers(kernel, "kernel")
        if self.kernel.ndim != 2:
            raise ValueError(f"kernel has shape {self.kernel.shape}; a dot product needs (rows, dim)")

    def __repr__(self) -> str:
        return f"DotProduct(kernel of shape {self.kernel.shape}, {self.kernel.dtype.name})"

    def __call__(
        self, vectors: Any, axis: str = "rows", *, normalize: bool = False, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Score every vector against every row (or column) of the kernel.

        Parameters
        ----------
        vectors : shape (n, dim), with axis="columns" (n, rows), floats or integers; n may be 0
        axis : "rows" for vectors @ kernel.T, "columns" for vectors @ kernel
        normalize : divide by the L2 norms; scores are then cosines in [-1, 1], without unit, and 0 where a
            vector, a row or a column is all zeros
        out : where to write the scores: of the result's shape and dtype, apart from vectors and kernel

        Returns
        -------
        shape (n, rows), with axis="columns" (n, dim), float32 or float64 as said above; `out` where given

        Raises
        ------
        ValueError : another shape, with both possible ones in the message; an unknown axis; an unfit `out`
        DtypeError : bool, complex, text, objects, or a masked array; `out` of another dtype

        Notes
        -----
        Source: keras/src/layers/core/dense.py (Keras 3.15): with a kernel of shape (input, units), a Dense
        layer without bias and activation is axis="columns". A zero vector scores 0 as in merging/dot.py.
        """
        vectors, keys, dtype = self._operands(vectors, axis)
        shape = (vectors.shape[0], keys.shape[0])
        inputs = (vectors, self.kernel)
        scores = np.empty(shape, dtype) if out is None else _checked_out(out, shape, dtype, inputs)
        _multiply(_unit(vectors) if normalize else vectors, keys, scores, normalize)
        return scores

    def top(
        self, vectors: Any, k: int, axis: str = "rows", *, normalize: bool = False, mask: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the k rows (or columns) of the kernel that score highest for each vector.

        The scores are never held at once: each block is compared with the k best so far.

        Parameters
        ----------
        vectors, axis, normalize : as in a call
        k : how many, from 0 to the number of rows (columns) that are not masked
        mask : shape (rows,), with axis="columns" (dim,), bool; True leaves a row (column) out, as in numpy.ma

        Returns
        -------
        indices : shape (n, k), int64, best first; of equal scores the lower index comes first
        scores : shape (n, k), float32 or float64 as in a call; -inf and nan come last

        Raises
        ------
        ValueError : as in a call; k below 0 or above the number of rows (columns) left; an unfit mask
        DtypeError : as in a call; a mask that is not bool
        TypeError : k is no integer
        """
        vectors, keys, dtype = self._operands(vectors, axis)
        kept = None if mask is None else np.flatnonzero(~_checked_mask(mask, keys.shape[0], axis))
        best = _Best(vectors.shape[0], _checked_count(k, keys.shape[0], kept, axis), dtype)
        if normalize:
            vectors = _unit(vectors)
        if best.k and keys.shape[0] >= keys.shape[1]:
            for start, block in _blocks(keys, 0, dtype, kept):
                norms = _norms(block) if normalize else None
                for first, chunk in _chunks(vectors, block.shape[0]):
                    scores = np.matmul(chunk, block.T, out=best.buffer(chunk.shape[0], block.shape[0]))
                    best.add(first, start, scores if norms is None else _cosines(scores, norms))
        elif best.k:
            for first, chunk in _chunks(vectors, keys.shape[0]):
                scores = best.buffer(chunk.shape[0], keys.shape[0])
                _multiply(chunk, keys, scores, normalize)
                best.add(first, 0, scores if kept is None else scores[:, kept])
        return best.indices if kept is None else kept[best.indices], best.scores

    def _operands(self, vectors: Any, axis: str) -> tuple[np.ndarray, np.ndarray, np.dtype[Any]]:
        """Check the vectors; give them as BLAS takes them, keys (candidates, width), and the score dtype."""
        if axis not in ("rows", "columns"):
            raise ValueError(f'axis is {axis!r}; it has to be "rows" or "columns"')
        vectors = _numbers(vectors, "vectors")
        rows, dim = self.kernel.shape
        width = dim if axis == "rows" else rows
        if vectors.ndim != 2 or vectors.shape[1] != width:
            message = (
                f'vectors has shape {vectors.shape} with axis="{axis}"; a kernel of shape {(rows, dim)} '
                f'takes (n, {dim}) with axis="rows" or (n, {rows}) with axis="columns"'
            )
            if vectors.ndim == 1:
                message += f"; one vector is (1, {width}), for instance vectors[numpy.newaxis, :]"
            raise ValueError(message)
        dtypes = (_score_dtype(array.dtype) for array in (vectors, self.kernel))
        dtype = np.result_type(*(dtype for dtype in dtypes if dtype is not None))
        return _ready(vectors, dtype), self.kernel if axis == "rows" else self.kernel.T, dtype


class _Best:
    """The k best candidates of each of n vectors, among those that were added so far."""

    def __init__(self, n: int, k: int, dtype: np.dtype[Any]) -> None:
        self.k = k
        self.indices = np.zeros((n, k), np.int64)
        self.scores = np.empty((n, k), dtype)
        self._buffer = np.empty(0, dtype)

    def buffer(self, n: int, candidates: int) -> np.ndarray:
        """Give an array of shape (n, candidates) to write scores to; the next call gives the same memory."""
        if self._buffer.size < n * candidates:
            self._buffer = np.empty(n * candidates, self._buffer.dtype)
        return self._buffer[: n * candidates].reshape(n, candidates)

    def add(self, first: int, start: int, scores: np.ndarray) -> None:
        """Take in scores of shape (n, candidates): vectors from `first`, candidates from `start`, rising."""
        filled, chunk = min(self.k, start), slice(first, first + len(scores))
        best_scores, best_indices = self.scores[chunk], self.indices[chunk]
        if filled < self.k:
            hits = ~(scores < self._floor(scores))  # so that nan is a hit: every place must be filled
        else:
            last = np.where(np.isnan(best_scores[:, -1:]), -np.inf, best_scores[:, -1:])
            hits = scores > last  # one that is equal has a higher index, and loses
            if np.count_nonzero(hits) > 8 * self.k * len(scores):
                hits &= ~(scores < self._floor(scores))
        flat = np.flatnonzero(hits)
        if not flat.size:
            return
        row, column = np.divmod(flat, scores.shape[1])
        counts = np.bincount(row, minlength=len(scores))
        rows = np.flatnonzero(counts)
        slot = (np.cumsum(counts > 0) - 1)[row]
        place = filled + np.arange(flat.size) - (np.cumsum(counts) - counts)[row]
        pool = np.full((rows.size, filled + counts.max()), np.nan, scores.dtype)  # the padding stays behind
        pool[:, :filled] = best_scores[rows, :filled]
        pool[slot, place] = scores[row, column]
        pool_indices = np.zeros(pool.shape, np.int64)
        pool_indices[:, :filled] = best_indices[rows, :filled]
        pool_indices[slot, place] = start + column
        order = np.argsort(-pool, axis=1, kind="stable")[:, : min(self.k, start + scores.shape[1])]
        best_scores[rows, : order.shape[1]] = np.take_along_axis(pool, order, axis=1)
        best_indices[rows, : order.shape[1]] = np.take_along_axis(pool_indices, order, axis=1)

    def _floor(self, scores: np.ndarray) -> np.ndarray:
        """Give the k-th highest of each row, shape (n, 1); -inf of k or fewer, nan if too few are numbers."""
        if scores.shape[1] <= self.k:
            return np.full((len(scores), 1), -np.inf, scores.dtype)
        return -np.partition(-scores, self.k - 1, axis=1)[:, self.k - 1 : self.k]


def _multiply(vectors: np.ndarray, keys: np.ndarray, scores: np.ndarray, normalize: bool) -> None:
    """Write vectors (n, width) @ keys.T to scores (n, candidates), by blocks along the longer axis."""
    candidates, width = keys.shape
    if not normalize and _is_ready(keys, scores.dtype) and _large_map(keys) is None:
        np.matmul(vectors, keys.T, out=scores)
    elif candidates >= width:
        for start, block in _blocks(keys, 0, scores.dtype):
            norms = _norms(block) if normalize else None
            for first, chunk in _chunks(vectors, block.shape[0]):
                part = scores[first : first + len(chunk), start : start + block.shape[0]]
                np.matmul(chunk, block.T, out=part)
                if norms is not None:
                    _cosines(part, norms)
    else:
        scores[...] = 0
        squares = np.zeros(candidates)
        for start, block in _blocks(keys, 1, scores.dtype):
            for first, chunk in _chunks(vectors[:, start : start + block.shape[1]], candidates):
                scores[first : first + len(chunk)] += chunk @ block.T
            if normalize:
                squares += _norms(block) ** 2
        if normalize:
            _cosines(scores, np.sqrt(squares))


def _blocks(
    keys: np.ndarray, axis: int, dtype: np.dtype[Any], kept: np.ndarray | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (start, block) along an axis of keys, or of its `kept` lines; a block is good until the next."""
    lines = keys.shape[axis] if kept is None else kept.size
    step = min(BLOCK_LINES, max(1, BLOCK_BYTES // max(1, keys.shape[1 - axis] * dtype.itemsize)))
    mapped, unreleased = _large_map(keys), 0
    buffer = np.empty(0, dtype)
    for start in range(0, lines, step):
        chosen = slice(start, start + step) if kept is None else kept[start : start + step]
        block = keys[chosen] if axis == 0 else keys[:, chosen]
        unreleased += block.nbytes
        if not _is_ready(block, dtype):
            if buffer.size < block.size:
                buffer = np.empty(block.size, dtype)
            flat, turned = buffer[: block.size], abs(block.strides[0]) < abs(block.strides[1])
            copy = flat.reshape(block.shape[::-1]).T if turned else flat.reshape(block.shape)
            np.copyto(copy, block, casting="unsafe")
            block = copy
        yield start, block
        if mapped is not None and (unreleased >= MAPPED_BYTES or start + step >= lines):
            mapped.madvise(mmap.MADV_DONTNEED)
            unreleased = 0


def _chunks(vectors: np.ndarray, candidates: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first, vectors from there), so many that their scores with the candidates are one block."""
    step = max(CHUNK_VECTORS, BLOCK_BYTES // max(1, candidates * vectors.dtype.itemsize))
    for first in range(0, vectors.shape[0], step):
        yield first, vectors[first : first + step]


def _norms(lines: np.ndarray) -> np.ndarray:
    """Give the L2 norms, shape (m, width) -> (m,), in float64: the square of any float32 is in its range."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", lines, lines, dtype=np.float64))
    return norms


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Divide each vector by its norm; a zero vector stays zero."""
    norms = _norms(vectors)[:, np.newaxis]
    unit: np.ndarray = vectors / np.where(norms == 0, 1, norms).astype(vectors.dtype)
    return unit


def _cosines(scores: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Turn scores of unit vectors into cosines, in place: divide by the candidates' norms, cut rounding."""
    scores /= np.where(norms == 0, 1, norms).astype(scores.dtype)
    return np.clip(scores, -1, 1, out=scores)


def _score_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Give the dtype in which values of this one are multiplied, None where they are no real numbers."""
    if dtype.name.startswith(SMALL_TYPES) or (dtype.kind in "iu" and dtype.itemsize <= 2):
        return np.dtype(np.float32)
    if dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize == 8):
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize <= 4 else None


def _numbers(values: Any, name: str) -> np.ndarray:
    """Give the values as an array, not copied where they are one, or raise what `DotProduct` promises."""
    if hasattr(values, "mask") and hasattr(values, "filled"):
        raise DtypeError(f"{name} is a masked array; give a plain one; top() takes a mask of rows")
    array = np.asarray(values)
    if _score_dtype(array.dtype) is None:
        message = f"{name} has dtype {array.dtype}; a dot product needs integers or floats of up to 64 bits"
        if array.dtype.kind == "V" and array.dtype.names is None:
            message += "; are these bfloat16 or float8 values, read without ml_dtypes?"
        raise DtypeError(message)
    return array


def _is_ready(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Tell whether BLAS takes the array as it is: of this dtype, native, whole lines along one axis."""
    if array.dtype != dtype or not array.flags.aligned:
        return False
    inner, outer = sorted(array.strides)
    line = array.shape[array.strides.index(inner)] * array.itemsize
    return array.flags.forc or (inner == array.itemsize and outer >= line and outer % array.itemsize == 0)


def _ready(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    return array if _is_ready(array, dtype) else array.astype(dtype, order="C")


def _large_map(array: np.ndarray) -> mmap.mmap | None:
    """Give the mapping behind a large array that is mapped read-only: its pages can be let go at any time."""
    owner: Any = array if array.nbytes >= MAPPED_BYTES else None
    read_only = False  # letting go of pages that are mapped copy-on-write would undo what was written to them
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            read_only = owner.mode == "r"
        owner = owner.base
    return owner if read_only and hasattr(owner, "madvise") else None


def _checked_out(
    out: np.ndarray, shape: tuple[int, int], dtype: np.dtype[Any], inputs: tuple[np.ndarray, ...]
) -> np.ndarray:
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        found = getattr(out, "dtype", type(out).__name__)
        raise DtypeError(f"out has to be an array of {dtype.name}, and is {found}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; the scores have shape {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if any(np.shares_memory(out, array) for array in inputs):
        raise ValueError("out shares memory with the vectors or the kernel")
    return out


def _checked_mask(mask: Any, candidates: int, axis: str) -> np.ndarray:
    array = np.asarray(mask)
    if array.dtype != np.bool_:
        raise DtypeError(f"mask has dtype {array.dtype}; it has to be bool, True for the {axis} to leave out")
    if array.shape != (candidates,):
        raise ValueError(f"mask has shape {array.shape}; the {axis} of the kernel are ({candidates},)")
    return array


def _checked_count(k: int, candidates: int, kept: np.ndarray | None, axis: str) -> int:
    k, left = operator.index(k), candidates if kept is None else kept.size
    if not 0 <= k <= left:
        masked = "" if kept is None else f", {candidates - left} of them masked"
        raise ValueError(f"k is {k}; the kernel has {candidates} {axis}{masked}: k can be 0 to {left}")
    return k


# What follows is left out of a written module (dot_product_module.py), whose `dot_product` has a kernel.
def dot_product(kernel: Any) -> DotProduct:
    """Make the function that scores vectors against this kernel.

    Parameters
    ----------
    kernel : shape (rows, dim), floats (float16, bfloat16, float8 too) or integers; not copied

    Returns
    -------
    a callable with a method `top`; see `DotProduct`

    Raises
    ------
    ValueError : not 2-D
    DtypeError : bool, complex, text, objects, or a masked array; a TypeError and a ValueError

    Notes
    -----
    Source: keras/src/layers/core/dense.py and embedding.py (Keras 3.15): a Dense kernel is (input, units), an
    embedding table (input_dim, output_dim).
    """
    return DotProduct(kernel)
