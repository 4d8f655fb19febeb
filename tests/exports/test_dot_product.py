"""The dot product against NumPy in float64, over shapes, dtypes and memory orders."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckpttool.exports import dot_product as module
from ckpttool.exports.dot_product import DotProduct, DtypeError, dot_product

DTYPES = [
    *("float16", "float32", "float64", ">f4", ">f8", "int8", "uint8", "int16", "int32", "uint32", "int64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]
AXES = ("rows", "columns")
ORDERS = ("C", "F", "strided", "reversed")


@pytest.fixture(params=["default blocks", "tiny blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run with the real block sizes, and with blocks of a few numbers."""
    if request.param == "tiny blocks":
        monkeypatch.setattr(module, "BLOCK_BYTES", 200)
        monkeypatch.setattr(module, "BLOCK_LINES", 5)
        monkeypatch.setattr(module, "CHUNK_VECTORS", 2)
    yield


def whole_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, order: str = "C") -> np.ndarray:
    """Give small whole numbers, whose products and sums are exact in float32 and often equal."""
    low = 0 if np.dtype(dtype).kind == "u" else -3
    values: np.ndarray = rng.integers(low, 4, shape).astype(dtype)
    if order == "F":
        return np.asfortranarray(values)
    if order == "strided":
        return np.repeat(np.repeat(values, 2, axis=0), 3, axis=1)[::2, ::3]
    return values[::-1, ::-1].copy()[::-1, ::-1] if order == "reversed" else values


def expected(kernel: np.ndarray, vectors: np.ndarray, axis: str, *, normalize: bool = False) -> np.ndarray:
    """Give the scores in float64, by plain NumPy."""
    keys = kernel.astype(np.float64) if axis == "rows" else kernel.astype(np.float64).T
    scores: np.ndarray = vectors.astype(np.float64) @ keys.T
    if normalize:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)[:, None] * np.linalg.norm(keys, axis=1)
        scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
    return scores


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Give the indices of the k highest by a full stable sort."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("seed", range(24))
def test_scores_and_top_equal_numpy_in_float64(seed: int, axis: str) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
    kernel = whole_numbers(rng, shape, DTYPES[seed % len(DTYPES)], ORDERS[seed % 4])
    width = shape[1] if axis == "rows" else shape[0]
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    vectors = whole_numbers(rng, (int(rng.integers(0, 7)), width), dtype, ORDERS[int(rng.integers(4))])
    scores = dot_product(kernel)(vectors, axis=axis)
    truth = expected(kernel, vectors, axis)
    np.testing.assert_array_equal(scores, truth)
    for k in {0, 1, min(10, truth.shape[1]), truth.shape[1]}:
        indices, top_scores = dot_product(kernel).top(vectors, k, axis=axis)
        assert indices.dtype == np.int64 and top_scores.dtype == scores.dtype
        assert indices.shape == top_scores.shape == (len(vectors), k)
        np.testing.assert_array_equal(indices, best(truth, k))
        np.testing.assert_array_equal(top_scores, np.take_along_axis(truth, indices, axis=1))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(4))
def test_real_values_agree_to_rounding(seed: int, dtype: str, axis: str) -> None:
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal((300, 40)).astype(dtype)
    vectors = rng.standard_normal((9, 40 if axis == "rows" else 300)).astype(dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-13
    for normalize in (False, True):
        truth = expected(kernel, vectors, axis, normalize=normalize)
        scores = dot_product(kernel)(vectors, axis=axis, normalize=normalize)
        np.testing.assert_allclose(scores, truth, rtol=0, atol=rtol * np.abs(truth).max())
        indices, top_scores = dot_product(kernel).top(vectors, 7, axis=axis, normalize=normalize)
        np.testing.assert_array_equal(indices, best(truth, 7))
        np.testing.assert_allclose(top_scores, np.take_along_axis(truth, indices, axis=1), rtol=10 * rtol)


@pytest.mark.parametrize(
    ("kernel", "vectors", "result"),
    [
        ("float32", "float32", "float32"),
        ("float16", "float16", "float32"),
        (ml_dtypes.bfloat16, "float32", "float32"),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, "float32"),
        (ml_dtypes.float8_e4m3fn, "float16", "float32"),
        ("int8", "uint16", "float32"),
        ("int32", "float32", "float64"),
        ("float32", "float64", "float64"),
        ("float64", "float16", "float64"),
        (">f4", "<f4", "float32"),
    ],
)
def test_dtype_of_the_scores(kernel: Any, vectors: Any, result: str) -> None:
    scores = dot_product(np.ones((3, 2), kernel))(np.ones((4, 2), vectors))
    assert scores.dtype == np.dtype(result) and scores.dtype.isnative
    np.testing.assert_array_equal(scores, np.full((4, 3), 2.0))


def test_large_integers_are_exact() -> None:
    assert dot_product(np.array([[2**40 + 1, 1]]))(np.array([[1, 2]]))[0, 0] == 2**40 + 3


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(5, 3), (0, 3), (5, 0), (0, 0), (1, 1)])
def test_empty_kernels_and_batches(shape: tuple[int, int], axis: str) -> None:
    width, candidates = shape[::-1] if axis == "rows" else shape
    for n in (0, 1, 4):
        for normalize in (False, True):
            vectors = np.ones((n, width), np.float32)
            scores = dot_product(np.ones(shape, np.float32))(vectors, axis, normalize=normalize)
            assert scores.shape == (n, candidates)
            k = min(2, candidates)
            indices, top_scores = dot_product(np.ones(shape, np.float32)).top(vectors, k, axis, normalize=normalize)
            assert indices.tolist() == [list(range(k))] * n and top_scores.shape == (n, k)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("axis", AXES)
def test_zero_vectors_rows_and_columns_score_zero(axis: str) -> None:
    kernel = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    kernel[3], kernel[:, 5] = 0, 0
    vectors = np.random.default_rng(1).standard_normal((4, 12)).astype(np.float32)
    vectors[2] = 0
    scores = dot_product(kernel)(vectors, axis, normalize=True)
    assert not scores[2].any() and not scores[:, 3 if axis == "rows" else 5].any()
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores, expected(kernel, vectors, axis, normalize=True), atol=1e-6)


def test_cosines_stay_in_range_and_survive_extreme_lengths() -> None:
    kernel = np.random.default_rng(0).standard_normal((500, 33)).astype(np.float32)
    scores = dot_product(kernel)(kernel, normalize=True)
    assert scores.max() <= 1 and scores.min() >= -1
    np.testing.assert_allclose(np.diag(scores), 1, rtol=1e-6)
    for scale in (np.float32(1e-30), np.float32(1e30)):
        np.testing.assert_allclose(dot_product(kernel * scale)(kernel * scale, normalize=True), scores, atol=1e-6)


@pytest.mark.usefixtures("blocks")
def test_equal_scores_come_by_lower_index() -> None:
    kernel = np.ones((40, 3), np.float32)
    kernel[[7, 30]] = 2
    indices, scores = dot_product(kernel).top(np.ones((3, 3), np.float32), 5)
    assert indices.tolist() == [[7, 30, 0, 1, 2]] * 3
    assert scores.tolist() == [[6, 6, 3, 3, 3]] * 3


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("direction", [1, -1])
def test_top_of_rising_and_falling_scores(direction: int) -> None:
    kernel = np.arange(500, dtype=np.float32)[::direction, np.newaxis] @ np.ones((1, 2), np.float32)
    vectors = np.array([[1, 0], [-1, 0], [0, 0]], np.float32)
    indices, _ = dot_product(kernel).top(vectors, 6)
    np.testing.assert_array_equal(indices, best(expected(kernel, vectors, "rows"), 6))


@pytest.mark.usefixtures("blocks")
def test_top_puts_infinities_in_order_and_nan_last() -> None:
    column = np.array([np.nan, 1, -np.inf, 3, np.nan, np.inf, 2, np.nan, -1, 0], np.float32)
    product = dot_product(column[:, np.newaxis])
    indices, scores = product.top(np.ones((1, 1), np.float32), 6)
    assert indices.tolist() == [[5, 3, 6, 1, 9, 8]]
    indices, scores = product.top(np.ones((1, 1), np.float32), 10)
    assert sorted(indices[0]) == list(range(10)) and indices[0, :6].tolist() == [5, 3, 6, 1, 9, 8]
    np.testing.assert_array_equal(scores[0], column[indices[0]])
    indices, _ = dot_product(np.full((20, 1), np.nan, np.float32)).top(np.ones((2, 1), np.float32), 3)
    assert indices.tolist() == [[0, 1, 2]] * 2


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("seed", range(6))
def test_masked_rows_are_never_returned(seed: int, axis: str) -> None:
    rng = np.random.default_rng(seed)
    kernel = whole_numbers(rng, (int(rng.integers(1, 50)), int(rng.integers(1, 50))), "float32")
    width, candidates = kernel.shape[::-1] if axis == "rows" else kernel.shape
    vectors = whole_numbers(rng, (4, width), "float32")
    mask = rng.random(candidates) < 0.5
    left = candidates - np.count_nonzero(mask)
    truth = np.where(mask, -np.inf, expected(kernel, vectors, axis))
    indices, scores = dot_product(kernel).top(vectors, int(left), axis, mask=mask)
    np.testing.assert_array_equal(indices, best(truth, int(left)))
    np.testing.assert_array_equal(scores, np.take_along_axis(truth, indices, axis=1))
    with pytest.raises(ValueError, match=rf"k is {left + 1}.*{candidates} {axis}, {candidates - left} of them masked"):
        dot_product(kernel).top(vectors, int(left) + 1, axis, mask=mask)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_out_is_filled_and_returned(dtype: str, axis: str) -> None:
    rng = np.random.default_rng(0)
    kernel, score_dtype = whole_numbers(rng, (20, 30), dtype), "float64" if dtype == "float64" else "float32"
    width, candidates = (30, 20) if axis == "rows" else (20, 30)
    vectors = whole_numbers(rng, (5, width), dtype)
    wide = np.full((5, 2 * candidates), np.nan, score_dtype)
    for out in (
        np.empty((5, candidates), score_dtype),
        np.empty((candidates, 5), score_dtype).T,
        wide[:, ::2],
    ):
        assert dot_product(kernel)(vectors, axis, out=out) is out
        np.testing.assert_array_equal(out, expected(kernel, vectors, axis))
    assert np.isnan(wide[:, 1::2]).all()


def test_out_is_refused_where_it_does_not_fit() -> None:
    kernel, vectors = np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)
    product = dot_product(kernel)
    with pytest.raises(ValueError, match=r"out has shape \(3, 4\); the scores have shape \(3, 3\)"):
        product(vectors, out=np.empty((3, 4), np.float32))
    with pytest.raises(DtypeError, match="out has to be an array of float32, and is float64"):
        product(vectors, out=np.empty((3, 3)))
    read_only = np.empty((3, 3), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        product(vectors, out=read_only)
    for taken in (vectors, kernel, kernel.T):
        with pytest.raises(ValueError, match="shares memory"):
            product(vectors, out=taken)
    np.testing.assert_array_equal(vectors, 1)
    both = np.ones((3, 6), np.float32)
    np.testing.assert_array_equal(product(both[:, ::2], out=both[:, 1::2]), 3)


WRONG_SHAPES = [
    *(((4, 7), "rows"), ((4, 24), "columns"), ((4, 5), "rows"), ((24,), "rows"), ((7,), "columns")),
    *(((), "rows"), ((1, 2, 24), "rows"), ((0,), "rows"), ((0, 7), "rows")),
]
NO_NUMBERS = [
    *(np.ones((2, 2), bool), np.ones((2, 2), complex), np.array([["a", "b"]]), np.array([[None, 1]])),
    *(np.ones((2, 2), "M8[s]"), np.ones((2, 2), "V2"), np.ones((2, 2), [("a", "f4")]), np.ma.ones((2, 2))),
]


@pytest.mark.parametrize(("shape", "axis"), WRONG_SHAPES)
def test_wrong_shapes_name_the_given_and_both_possible_ones(shape: tuple[int, ...], axis: str) -> None:
    product = dot_product(np.ones((7, 24), np.float32))
    for call in (product, lambda vectors, axis: product.top(vectors, 2, axis)):
        with pytest.raises(ValueError) as raised:
            call(np.ones(shape, np.float32), axis)
        message = str(raised.value)
        assert f"shape {shape} " in message and "(n, 24)" in message and "(n, 7)" in message
        if len(shape) == 1:
            assert ("(1, 24)" if axis == "rows" else "(1, 7)") in message


@pytest.mark.parametrize("values", NO_NUMBERS)
def test_what_is_no_real_number_is_refused(values: np.ndarray) -> None:
    for error in (DtypeError, TypeError, ValueError):
        with pytest.raises(error, match="kernel"):
            dot_product(values)
        with pytest.raises(error, match="vectors"):
            dot_product(np.ones((2, 2), np.float32))(values)


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_a_kernel_has_two_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="kernel has shape"):
        dot_product(np.ones(shape, np.float32))


def test_wrong_arguments_are_refused() -> None:
    product = dot_product(np.ones((3, 2), np.float32))
    vectors = np.ones((1, 2), np.float32)
    with pytest.raises(ValueError, match="axis is 'row'"):
        product(vectors, axis="row")
    with pytest.raises(ValueError, match="k is 4; the kernel has 3 rows"):
        product.top(vectors, 4)
    with pytest.raises(ValueError, match="k is -1"):
        product.top(vectors, -1)
    with pytest.raises(TypeError):
        product.top(vectors, 1.5)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="mask has dtype int64"):
        product.top(vectors, 1, mask=np.array([0, 1, 0]))
    with pytest.raises(ValueError, match=r"mask has shape \(2,\)"):
        product.top(vectors, 1, mask=np.array([True, False]))


def test_lists_are_taken_and_the_kernel_is_not_copied() -> None:
    kernel = np.ones((3, 2), np.float32)
    product = dot_product(kernel)
    assert isinstance(product, DotProduct) and "(3, 2)" in repr(product)
    kernel[0] = 5
    np.testing.assert_array_equal(product([[1.0, 2.0]]), [[15, 3, 3]])


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("mode", ["r", "c"])
def test_mapped_kernels_give_the_same_and_keep_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, axis: str
) -> None:
    for name, size in {"BLOCK_BYTES": 4096, "MAPPED_BYTES": 20000, "BLOCK_LINES": 50}.items():
        monkeypatch.setattr(module, name, size)
    kernel = whole_numbers(np.random.default_rng(0), (2000, 8), "float32")
    np.save(tmp_path / "kernel.npy", kernel)
    mapped = np.load(tmp_path / "kernel.npy", mmap_mode=mode, allow_pickle=False)
    if mode == "c":
        mapped[5] = kernel[5] = 77
    vectors = whole_numbers(np.random.default_rng(1), (3, 8 if axis == "rows" else 2000), "float32")
    for _ in range(2):
        np.testing.assert_array_equal(dot_product(mapped)(vectors, axis), expected(kernel, vectors, axis))
        indices, _scores = dot_product(mapped).top(vectors, 5, axis)
        np.testing.assert_array_equal(indices, best(expected(kernel, vectors, axis), 5))
    np.testing.assert_array_equal(mapped, kernel)
    assert (module._large_map(np.asarray(mapped).T) is not None) == (mode == "r" and sys.platform != "win32")


def test_the_file_imports_numpy_and_the_standard_library_alone() -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    sources = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names |= {node.module for node in sources if node.module is not None}
    assert not any(node.level for node in sources)
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy"}
