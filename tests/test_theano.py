"""Kernels that Theano trained: named by inspect, turned when asked, checked by what the layer computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ckpttool
from ckpttool.cli.main import run
from ckpttool.errors import UsageError
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from .manifest import FILES, entry

CONV = "keras-1.2.2-theano-conv.h5"  # dim_ordering "th"
CONV_1D = "keras-1.2.2-theano-conv1d.h5"
KERAS2 = "keras-2.0.9-theano-conv.h5"
TURNED = SourceOptions(theano=True)


def kernel(name: str, layer: str, options: SourceOptions = SourceOptions()) -> np.ndarray:
    return ckpttool.extract(FILES / name, layer, options=options).kernel


def codes(path: Path) -> dict[str, str]:
    return {notice.code: notice.message for notice in ckpttool.inspect(path).warnings}


def test_inspect_says_that_kernels_are_theano_s() -> None:
    message = codes(FILES / KERAS2)["theano-kernels"]
    assert message.startswith("conv2d, transposed, conv1d: convolution kernels are those of Theano")


def test_inspect_says_that_kernels_of_keras_1_may_be() -> None:
    assert "Keras 1 does not state its backend, but" in codes(FILES / CONV)["theano-kernels"]
    assert "may be those of Theano" in codes(FILES / "keras-1.2.2-conv.h5")["theano-kernels"]
    assert "may be those of Theano" in codes(FILES / "keras-1.2.2-theano-conv-weights.h5")["theano-kernels"]


@pytest.mark.parametrize("name", ["keras-1.2.2-dense.h5", "keras-2.2.4-zoo-conv1d.h5", "keras-3.15-plain-cnn.h5"])
def test_nothing_is_said_where_nothing_is_to_turn(name: str) -> None:
    assert "theano-kernels" not in codes(FILES / name)


def correlate(image: np.ndarray, weights: np.ndarray, bias: np.ndarray, stride: int = 1) -> np.ndarray:
    """What TensorFlow's `conv2d` computes of (rows, columns, channels), without padding."""
    rows, columns = weights.shape[:2]
    height, width = (image.shape[0] - rows) // stride + 1, (image.shape[1] - columns) // stride + 1
    out = np.empty((height, width, weights.shape[3]))
    for y in range(height):
        for x in range(width):
            patch = image[y * stride : y * stride + rows, x * stride : x * stride + columns]
            out[y, x] = np.tensordot(patch, weights, 3) + bias
    return out


def convolve(image: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What Theano's `conv2d` computes of (channels, rows, columns): the kernel reversed, channels first."""
    out = []
    for filters, offset in zip(weights, bias, strict=True):
        reversed_ = filters[:, ::-1, ::-1]
        height, width = image.shape[1] - filters.shape[1] + 1, image.shape[2] - filters.shape[2] + 1
        values = np.empty((height, width))
        for y in range(height):
            for x in range(width):
                values[y, x] = (image[:, y : y + filters.shape[1], x : x + filters.shape[2]] * reversed_).sum()
        out.append(values + offset)
    return np.stack(out)


def test_a_turned_kernel_correlates_to_what_theano_convolved() -> None:
    stored, turned = kernel(CONV, "conv1"), kernel(CONV, "conv1", TURNED)
    assert stored.shape == (4, 3, 3, 3) and turned.shape == (3, 3, 3, 4)
    bias = ckpttool.extract(FILES / CONV, "conv1")["bias"]
    image = np.random.default_rng(0).standard_normal((3, 7, 6))
    ours = correlate(image.transpose(1, 2, 0), turned, bias)
    assert np.allclose(ours.transpose(2, 0, 1), convolve(image, stored, bias), atol=1e-12)


def test_one_dimensional_kernels_are_reversed_along_time() -> None:
    stored, turned = kernel(CONV_1D, "conv1"), kernel(CONV_1D, "conv1", TURNED)
    assert np.array_equal(turned, stored[::-1])
    assert np.array_equal(kernel(KERAS2, "conv1d", TURNED), kernel(KERAS2, "conv1d")[::-1])


def test_keras_2_kernels_are_reversed_where_they_lie() -> None:
    for layer in ("conv2d", "transposed"):
        assert np.array_equal(kernel(KERAS2, layer, TURNED), kernel(KERAS2, layer)[::-1, ::-1])
    assert np.array_equal(kernel(KERAS2, "image_embedding", TURNED), kernel(KERAS2, "image_embedding"))


@pytest.mark.parametrize("name", [CONV, KERAS2])
def test_a_legacy_file_keeps_the_layout_of_its_configuration(name: str, tmp_path: Path) -> None:
    layer = "conv1" if name == CONV else "conv2d"
    report = ckpttool.unwrap(FILES / name, tmp_path / "x.h5", options=TURNED)
    assert any("convolution kernels of Theano turned" in note for note in report.notes)
    flip = (slice(None), slice(None), slice(None, None, -1), slice(None, None, -1))
    stored = kernel(name, layer)
    with open_checkpoint(tmp_path / "x.h5") as reader:
        checkpoint = reader.describe()
        written = next(spec for spec in checkpoint.weights() if spec.name == f"{layer}/kernel")
        assert np.array_equal(reader.read(written), stored[flip if name == CONV else flip[2:]])
    assert checkpoint.written_by.backend == "tensorflow"  # so that no loader turns them again
    assert json.loads(checkpoint.config or "")["class_name"] == entry(name)["template"]["class_name"]
    assert "theano-kernels" not in codes(tmp_path / "x.h5")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_arrays_are_channels_last(suffix: str, tmp_path: Path) -> None:
    ckpttool.convert(FILES / CONV, tmp_path / f"x{suffix}", options=TURNED)
    with open_checkpoint(tmp_path / f"x{suffix}") as reader:
        spec = next(iter(reader.describe().weights()))
        assert np.array_equal(reader.read(spec), kernel(CONV, "conv1", TURNED))


def test_blocks_of_a_turned_kernel_join_to_the_whole() -> None:
    from ckpttool.source import open_source

    with open_source(FILES / CONV, TURNED) as source:
        spec = next(iter(source.template.weights()))
        whole = source.reader.read(spec)
        assert source.reader.extent(spec) is None and whole.shape == spec.shape
        blocks = list(source.reader.iter_blocks(spec, 16))
        assert all(block.nbytes <= 16 for block in blocks)
        assert np.array_equal(np.concatenate(blocks), whole.reshape(-1))


def test_without_classes_nothing_is_turned_by_guess() -> None:
    with pytest.raises(UsageError, match="give --config"):
        kernel("keras-1.2.2-theano-conv-weights.h5", "conv1", TURNED)


def test_the_option_is_one_of_extract_unwrap_and_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(FILES / CONV)
    assert run(["extract", source, "--layer", "conv1", "--theano", "-o", str(tmp_path / "k.npy")]) == 0
    assert np.load(tmp_path / "k.npy").shape == (3, 3, 3, 4)
    assert run(["unwrap", source, "--theano", "-o", str(tmp_path / "u.h5")]) == 0
    assert run(["convert", source, "--theano", "-o", str(tmp_path / "c.npz")]) == 0
    assert run(["inspect", source, "--theano"]) == 2
    assert "1 convolution kernels of Theano turned" in capsys.readouterr().err
