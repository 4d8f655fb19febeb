"""The dot product as an ONNX model, run by ONNX Runtime and compared with NumPy's float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckpttool
from ckpttool.exports import dot_product_onnx
from ckpttool.exports.dot_product_onnx import write_dot_product

pytestmark = pytest.mark.needs("onnx", "onnxruntime")


def _write(path: Path, kernel: np.ndarray, pieces: int = 3, **options: Any) -> Path:
    blocks = np.array_split(kernel.reshape(-1), pieces)
    write_dot_product(
        path, blocks, layer="tower/image_embedding", source="model.h5", shape=kernel.shape, dtype=kernel.dtype.name,
        **options,
    )  # fmt: skip
    return path


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # not that 'normalize' has a default
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(session: Any, vectors: np.ndarray, normalize: bool | None = None) -> np.ndarray:
    given = {"vectors": vectors} | ({} if normalize is None else {"normalize": np.array(normalize)})
    (scores,) = session.run(None, given)
    return scores


@pytest.mark.parametrize("shape", [(1, 1), (8, 5), (5, 8), (300, 17)])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_scores_agree_with_numpy_for_any_number_of_vectors(tmp_path: Path, shape: tuple[int, int], n: int) -> None:
    rng = np.random.default_rng(3)
    kernel, vectors = rng.standard_normal(shape, np.float32), rng.standard_normal((n, shape[1]), np.float32)
    session = _session(_write(tmp_path / "scores.onnx", kernel))
    exact = vectors.astype(np.float64) @ kernel.T.astype(np.float64)
    np.testing.assert_allclose(_run(session, vectors), exact, rtol=1e-5, atol=1e-5)
    expected = ckpttool.dot_product(kernel)(vectors, normalize=True)
    np.testing.assert_allclose(_run(session, vectors, normalize=True), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.float64, np.int64])
def test_the_dtype_of_the_scores_is_that_of_the_numpy_function(tmp_path: Path, dtype: Any) -> None:
    kernel = np.arange(-10, 14).reshape(8, 3).astype(dtype)
    score = ckpttool.dot_product(kernel)
    wide = score(np.zeros((1, 3), np.float32)).dtype
    vectors = np.random.default_rng(0).standard_normal((4, 3)).astype(wide)
    found = _run(_session(_write(tmp_path / "scores.onnx", kernel)), vectors)
    assert found.dtype == wide
    np.testing.assert_allclose(found, score(vectors), rtol=1e-6)


def test_a_zero_vector_a_zero_row_and_a_large_vector_have_cosines(tmp_path: Path) -> None:
    kernel = np.array([[0, 0], [3e30, 4e30], [0, 2]], np.float32)
    vectors = np.array([[0, 0], [6e30, 8e30]], np.float32)
    found = _run(_session(_write(tmp_path / "scores.onnx", kernel)), vectors, normalize=True)
    np.testing.assert_allclose(found, [[0, 0, 0], [0, 1, 0.8]], rtol=1e-6)


def test_the_model_names_its_opset_its_source_and_a_dynamic_batch(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(_write(tmp_path / "scores.onnx", np.ones((3, 2), np.float32)))
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
    about = {each.key: each.value for each in model.metadata_props}
    assert (about["layer"], about["source"], about["opset"]) == ("tower/image_embedding", "model.h5", "17")
    session = _session(tmp_path / "scores.onnx")
    assert [(each.name, each.shape) for each in session.get_inputs()] == [("vectors", ["n", 2])]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [("scores", ["n", 3])]


def test_a_large_kernel_lies_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot_product_onnx, "INLINE_BYTES", 100)
    kernel = np.random.default_rng(0).standard_normal((30, 4), np.float32)
    path = _write(tmp_path / "scores.onnx", kernel)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scores.onnx", "scores.onnx.data"]
    assert (tmp_path / "scores.onnx.data").read_bytes() == kernel.tobytes()
    np.testing.assert_allclose(_run(_session(path), kernel[:2]), kernel[:2] @ kernel.T, rtol=1e-5)
    with pytest.raises(ckpttool.CheckpointError, match="exists"):
        _write(path, kernel)


def test_blocks_that_are_too_few_or_too_many_leave_nothing_behind(tmp_path: Path) -> None:
    for shape in ((4, 4), (2, 4)):
        with pytest.raises(ckpttool.CheckpointError, match="should hold"):
            write_dot_product(
                tmp_path / "scores.onnx", [np.ones((3, 4), np.float32)], layer="a", source="b", shape=shape,
                dtype="float32",
            )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_extract_writes_it_from_inside_a_wrapper(tmp_path: Path, fixture_files: Path) -> None:
    source = fixture_files / "keras-2.3.1-two-towers.h5"
    kernel = ckpttool.extract(source, "image_embedding").kernel
    vectors = np.random.default_rng(0).standard_normal((3, kernel.shape[1]), np.float32)
    ckpttool.extract(source, "image_embedding", dot_product=tmp_path / "scores.onnx")
    np.testing.assert_allclose(_run(_session(tmp_path / "scores.onnx"), vectors), vectors @ kernel.T, rtol=1e-5)
    ckpttool.extract(source, "image_embedding", dot_product=tmp_path / "columns.onnx", transpose=True)
    by_rows = np.random.default_rng(0).standard_normal((3, kernel.shape[0]), np.float32)
    found = _run(_session(tmp_path / "columns.onnx"), by_rows)
    np.testing.assert_allclose(found, ckpttool.dot_product(kernel)(by_rows, axis="columns"), rtol=1e-4, atol=1e-6)
    with pytest.raises(ckpttool.CheckpointError, match=r"ends in \.py, \.onnx, \.keras, or names the folder"):
        ckpttool.extract(source, "image_embedding", dot_product=tmp_path / "scores.pb")
