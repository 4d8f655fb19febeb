"""`ckpttool extract`: which layer, which tensor, into which file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import ckpttool
from ckpttool.cli.main import run
from ckpttool.errors import AmbiguousLayerError, LayerNotFoundError, UsageError

from ..manifest import FILES, truth

TOWERS = FILES / "keras-2.3.1-two-towers.h5"
WRAPPED = FILES / "keras-2.2.4-sequential.h5"
RNN = FILES / "tf-2.2-rnn.h5"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sha256(name: str, path: str) -> str:
    return next(each.sha256 for each in truth(name) if each.path == path)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize(("arguments", "receipt"), [
    (["-o", "kernel.npy"], "1 of 2 tensors, 40 parameters, 160 B"),
    (["--tensor", "bias", "-o", "bias.csv"], "1 of 2 tensors, 5 parameters, 20 B"),
    (["--dot-product", "scores.py"], "1 of 2 tensors, 40 parameters, 160 B"),
    (["--dot-product", "scores.py", "-o", "all.npz"], "2 of 2 tensors, 45 parameters, 180 B"),
])  # fmt: skip
def test_the_receipt_counts_what_was_written(
    arguments: list[str], receipt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["extract", str(TOWERS), "--layer", "image_embedding", *arguments]
    assert run(command) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"tower/image_embedding: {receipt}"
    assert run([*command, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["receipt"] == f"tower/image_embedding: {receipt}"


def test_the_kernel_as_npy_and_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["extract", str(TOWERS), "--layer", "image_embedding", "-o", "kernel.npy"]) == 0
    out, err = capsys.readouterr()
    assert out == "kernel.npy\n"
    assert "left out: tower/image_embedding/bias (--tensor NAME, or a folder for everything)" in err
    array = np.load("kernel.npy")
    assert array.shape == (8, 5)
    assert array.dtype == np.float32
    assert digest(array) == sha256(TOWERS.name, "tower/image_embedding/kernel")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".h5"])
def test_all_tensors_of_a_layer_transposed(suffix: str) -> None:
    layer = ckpttool.extract(TOWERS, "image_embedding", f"turned{suffix}", transpose=True)
    turned = ckpttool.extract(f"turned{suffix}", "image_embedding")
    assert turned.kernel.shape == (5, 8)
    np.testing.assert_array_equal(turned.kernel, layer.kernel.T)
    np.testing.assert_array_equal(turned["bias"], layer["bias"])


def test_one_tensor_and_its_transpose() -> None:
    assert run(["extract", str(TOWERS), "--layer", "image_embedding", "--tensor", "bias", "-o", "bias.npy"]) == 0
    assert digest(np.load("bias.npy")) == sha256(TOWERS.name, "tower/image_embedding/bias")
    assert run(["extract", str(TOWERS), "--layer", "image_embedding", "--transpose", "-o", "kernel.npy"]) == 0
    assert np.load("kernel.npy").shape == (5, 8)
    assert digest(np.load("kernel.npy").T) == sha256(TOWERS.name, "tower/image_embedding/kernel")


def test_a_folder_holds_everything() -> None:
    assert run(["extract", str(RNN), "--layer", "both_ways", "-o", "all"]) == 0
    listed = json.loads(Path("all/tensors.json").read_text("utf-8"))
    assert listed["layer"] == "both_ways"
    assert len(listed["tensors"]) == 6
    for each in listed["tensors"]:
        assert digest(np.load(Path("all") / each["file"])) == sha256(RNN.name, each["path"])


def test_without_a_layer_the_only_embedding_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["extract", str(TOWERS), "-o", "kernel.npy"]) == 0
    assert digest(np.load("kernel.npy")) == sha256(TOWERS.name, "tower/image_embedding/kernel")


def test_without_an_output_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["extract", str(TOWERS), "--layer", "image_embedding"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "tower/image_embedding  Dense"
    assert out[1].startswith("  kernel  8×5  float32  min -0.339014  max 0.35178")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("image_embedding", "tower/image_embedding"),
        ("tower/image_embedding", "tower/image_embedding"),
        ("*/image_embedding", "tower/image_embedding"),
        ("im?ge_embedding", "tower/image_embedding"),
        ("/tower/image_embedding", "tower/image_embedding"),
        ("kind", "kind"),
    ],
)
def test_names_paths_and_globs(pattern: str, path: str) -> None:
    assert ckpttool.extract(TOWERS, pattern).name == path


def test_the_merge_layer_of_the_same_name_never_hides_the_layer(capsys: pytest.CaptureFixture[str]) -> None:
    """The wrapper's Concatenate is called `image_embedding` as well, for the template ends in that layer."""
    assert run(["extract", str(WRAPPED), "--layer", "image_embedding", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["class_name"]) == ("image_embedding", "Dense")
    assert [each["path"] for each in found["tensors"]] == ["image_embedding/kernel", "image_embedding/bias"]
    for options in ([], ["--no-wrapper"]):
        assert run(["extract", str(WRAPPED), "--layer", "image_embedding", *options, "-o", f"k{len(options)}.npy"]) == 0
    assert Path("k0.npy").read_bytes() == Path("k1.npy").read_bytes()


def test_parts_of_wrapper_layers_are_found() -> None:
    layer = ckpttool.extract(RNN, "both_ways/forward_lstm")
    assert list(layer) == ["kernel", "recurrent_kernel", "bias"]
    assert digest(layer.kernel) == sha256(RNN.name, "both_ways/forward_lstm/kernel")


def test_an_extracted_layer_is_a_mapping() -> None:
    layer = ckpttool.extract(TOWERS, "tower_bn")
    assert list(layer) == ["gamma", "beta", "moving_mean", "moving_variance"]
    assert len(layer) == 4
    assert digest(layer["moving_variance"]) == sha256(TOWERS.name, "tower/tower_bn/moving_variance")
    layer["gamma"][:] = 0  # the caller's own
    with pytest.raises(KeyError):
        layer["kernel"]
    with pytest.raises(UsageError):
        _ = layer.kernel


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layer", "imagee_embedding"), "layers with weights: tower/image_embedding (8×5, 5), "),
        (("--layer", "score"), "no layer with weights fits 'score'"),
        (("--layer", "tower_*"), "2 layers with weights fit 'tower_*': tower/tower_hidden (6×8, 8), tower/tower_bn"),
        (("--layer", "kind", "--tensor", "gamma"), "layer 'kind' has no tensor 'gamma'; it has kernel, bias"),
        (("--layer", "tower_bn", "-o", "x.npy"), "layer 'tower/tower_bn' has no kernel; choose with --tensor: gamma"),
        (("--layer", "kind", "-o", "x.txt"), "its suffix names no array format"),
        (("--layer", "kind", "-o", "nowhere/x.npy"), "there is no folder 'nowhere'"),
    ],
)
def test_wrong_requests_are_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["extract", str(TOWERS), *arguments]) in (2, 3)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not list(tmp_path.iterdir())


def test_errors_are_those_that_python_users_catch() -> None:
    with pytest.raises(LayerNotFoundError):
        ckpttool.extract(TOWERS, "nothing")
    with pytest.raises(AmbiguousLayerError):
        ckpttool.extract(TOWERS, "tower_*")
    with pytest.raises(LookupError):
        ckpttool.extract(TOWERS, "nothing")


def test_bfloat16_becomes_float32_exactly_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    source = FILES / "keras-3.15-plain-sequential-bfloat16.h5"
    assert run(["extract", str(source), "--layer", "image_embedding", "-o", "kernel.npy"]) == 0
    assert "bfloat16 is written as float32, exactly" in capsys.readouterr().err
    array = np.load("kernel.npy")
    assert array.dtype == np.float32
    kernel = ckpttool.extract(source, "image_embedding").kernel
    assert kernel.dtype.name == "bfloat16"
    assert (kernel.astype(np.float32) == array).all()


def test_unproven_weights_are_looked_into_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    source = FILES / "keras-2.0.9-two-towers-weights.h5"
    assert run(["extract", str(source), "--layer", "image_embedding", "-o", "kernel.npy"]) == 0
    assert "not proven" in capsys.readouterr().err
    assert digest(np.load("kernel.npy")) == sha256(source.name, "tower/image_embedding/kernel")


def test_a_name_that_keras_reads_in_another_layout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["extract", str(TOWERS), "-o", "layer.weights.h5"]) == 2
    assert capsys.readouterr().err.startswith("ckpttool: layer.weights.h5: '.weights.h5' is for whole models; ")
    assert not list(tmp_path.iterdir())


def test_an_existing_function_is_told_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    Path("scores.py").write_text("mine", "utf-8")
    assert run(["extract", str(TOWERS), "--dot-product", "scores.py"]) == 2
    told = "ckpttool: scores.py: exists; choose another name with --dot-product, or --overwrite\n"
    assert capsys.readouterr().err == told
