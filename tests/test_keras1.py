"""Keras 1: names joined by underscores or none at all, arrays of single gates, its own classes and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool import weight_names
from ckpttool.errors import WeightsMismatchError
from ckpttool.keras1_variables import keras1_variables
from ckpttool.keras_config import parse_config
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions, open_source

from .manifest import FILES, Truth, entry, read, tagged, truth

TODAY = {"W": "kernel", "b": "bias", "U": "recurrent_kernel", "running_mean": "moving_mean",
         "running_std": "moving_variance", "alphas": "alpha"}  # fmt: skip
MODELS = [name for name in tagged("keras-1") if entry(name)["kind"] == "model"]
WEIGHTS = [name for name in tagged("keras-1") if entry(name)["kind"] == "weights"]


def today(each: Truth, class_names: dict[str, str]) -> Truth:
    """The manifest keeps the names of Keras 1."""
    layer, _, name = each.path.rpartition("/")
    name = "embeddings" if class_names.get(layer) == "Embedding" else TODAY.get(name, name)
    return Truth(f"{layer}/{name}", each.shape, each.dtype, each.sha256)


def wanted(name: str, *, classes: bool = True) -> list[Truth]:
    known = {each["path"]: each["class_name"] for each in entry(name)["layers"]} if classes else {}
    return [today(each, known) for each in truth(name)]


def options(name: str) -> SourceOptions:
    wrapper = entry(name)["wrapper"]
    return SourceOptions(assume_wrapper=None if wrapper is None else wrapper["template"])


@pytest.mark.parametrize("name", MODELS)
def test_a_full_model_gives_its_tensors_bit_for_bit_under_today_s_names(name: str) -> None:
    with open_source(FILES / name, options(name)) as source:
        assert read(source.reader, source.template.weights()) == wanted(name)
        found = [("/".join(path), layer.class_name) for path, layer in source.template.walk()]
    assert found == [(each["path"], each["class_name"]) for each in entry(name)["layers"]]


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_alone_give_them_too(name: str) -> None:
    with open_source(FILES / name, options(name)) as source:
        assert read(source.reader, source.template.weights()) == wanted(name, classes=False)


@pytest.mark.parametrize("model", ["dense", "rnn"])
@pytest.mark.parametrize("prefix", ["keras-1.2.2-", "keras-1.2.2-theano-"])
def test_a_configuration_gives_weights_their_classes(model: str, prefix: str) -> None:
    config = FILES / f"keras-1.2.2-{model}.json"
    with open_checkpoint(FILES / f"{prefix}{model}-weights.h5", config=config) as reader:
        assert read(reader, reader.describe().weights()) == wanted(f"{prefix}{model}-weights.h5")


def renamed(source: Path, path: Path) -> Path:
    """A copy whose weights are called as Keras 1 calls those without a name: `param_0`, `param_1` …"""
    with h5py.File(source) as old, h5py.File(path, "w") as new:
        new.attrs.update(old.attrs)
        root = new.create_group("model_weights")
        root.attrs["layer_names"] = old["model_weights"].attrs["layer_names"]
        count = 0
        for layer in root.attrs["layer_names"]:
            stored = old["model_weights"][layer]
            names = [f"param_{count + place}".encode() for place in range(len(stored.attrs["weight_names"]))]
            count += len(names)
            group = root.create_group(layer)
            group.attrs["weight_names"] = np.array(names) if names else np.array([], np.float64)
            for name, old_name in zip(names, stored.attrs["weight_names"], strict=True):
                group[name] = stored[old_name][()]
    return path


@pytest.mark.parametrize("name", ["keras-1.2.2-dense.h5", "keras-1.2.2-rnn.h5", "keras-1.2.2-conv.h5"])
def test_weights_without_names_go_by_position(name: str, tmp_path: Path) -> None:
    with open_checkpoint(renamed(FILES / name, tmp_path / "param.h5")) as reader:
        assert read(reader, reader.describe().weights()) == wanted(name)


def test_unwrap_writes_what_keras_1_loads_layer_by_layer(tmp_path: Path) -> None:
    source = FILES / "keras-1.2.2-rnn.h5"
    ckpttool.unwrap(source, tmp_path / "again.h5")
    with h5py.File(source) as old, h5py.File(tmp_path / "again.h5") as new:
        assert json.loads(new.attrs["model_config"]) == json.loads(old.attrs["model_config"])
        assert new.attrs["keras_version"] in ("1.2.2", b"1.2.2")
        a, b = old["model_weights"], new["model_weights"]
        assert list(a.attrs["layer_names"]) == list(b.attrs["layer_names"])
        for layer in a.attrs["layer_names"]:
            pairs = zip(a[layer].attrs["weight_names"], b[layer].attrs["weight_names"], strict=True)
            assert all(np.array_equal(a[layer][x][()], b[layer][y][()]) for x, y in pairs)


def sequential(*layers: Any) -> dict[str, Any]:
    return {"class_name": "Sequential", "config": list(layers)}


def dense(name: str, inputs: int, units: int) -> dict[str, Any]:
    return {"class_name": "Dense", "config": {"name": name, "input_dim": inputs, "output_dim": units, "bias": True}}


def merge(*branches: Any) -> dict[str, Any]:
    return {"class_name": "Merge", "config": {"name": "joined", "mode": "concat", "layers": list(branches)}}


def test_branches_of_a_merge_in_front_are_layers_of_the_model() -> None:
    branch = sequential(merge(sequential(dense("a", 1, 2)), sequential(dense("b", 1, 2))), dense("c", 4, 3))
    again = sequential(dense("a", 1, 2))  # a layer that stands in two branches is one layer
    model = parse_config(json.dumps(sequential(merge(branch, again), dense("d", 3, 3))))
    assert [layer.name for layer in model.layers] == ["a", "b", "c", "d"]


def stored(path: Path, config: dict[str, Any], groups: dict[str, list[tuple[str, tuple[int, ...]]]]) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(config).encode()
        root = file.create_group("model_weights")
        root.attrs["layer_names"] = np.array([name.encode() for name in groups])
        for name, weights in groups.items():
            group = root.create_group(name)
            group.attrs["weight_names"] = np.array([weight.encode() for weight, _ in weights])
            for weight, shape in weights:
                group[weight] = np.zeros(shape, np.float32)
    return path


def weights_of(name: str, inputs: int, units: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}_W:0", (inputs, units)), (f"{name}_b:0", (units,))]


def test_a_sequential_in_a_sequential_takes_the_name_of_its_group(tmp_path: Path) -> None:
    """Up to Keras 2.1 its configuration is a bare list, without the name."""
    config = sequential(sequential(dense("a", 3, 4)), dense("middle", 4, 2), sequential(dense("b", 2, 5)))
    groups = {"sequential_1": weights_of("a", 3, 4), "middle": weights_of("middle", 4, 2),
              "sequential_4": weights_of("b", 2, 5)}  # fmt: skip
    found = ckpttool.inspect(stored(tmp_path / "x.h5", config, groups))
    assert [spec.name for spec in found.template.weights()] == [
        "sequential_1/a/kernel", "sequential_1/a/bias", "middle/kernel", "middle/bias",
        "sequential_4/b/kernel", "sequential_4/b/bias",
    ]  # fmt: skip


def test_a_layer_of_other_sizes_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "x.h5", sequential(dense("a", 3, 4)), {"a": weights_of("a", 3, 5)})
    with pytest.raises(WeightsMismatchError, match=r"a \(Dense\)"):
        ckpttool.inspect(path)


@pytest.mark.parametrize(
    ("stored_name", "split"),
    [
        ("dense_1_W:0", ("dense_1", "kernel")),
        ("dense_1_b", ("dense_1", "bias")),
        ("image_embedding_W_1:0", ("image_embedding", "kernel")),
        ("embedding_2_W", ("embedding_2", "embeddings")),
        ("lstm_1_W_i:0", ("lstm_1", "W_i")),
        ("forward_lstm_1_U_c", ("forward_lstm_1", "U_c")),
        ("bn_running_std:0", ("bn", "moving_variance")),
        ("highway_1_W_carry", ("highway_1", "W_carry")),
        ("srelu_t_left", ("srelu", "t_left")),
        ("a_b_W", ("a_b", "kernel")),
        ("param_0", ("param_0",)),
        ("Variable:0", ("Variable",)),
        ("dense_1/kernel:0", ("dense_1", "kernel")),
        ("attention/attention_W:0", ("attention", "attention_W")),
    ],
)
def test_names_are_split_where_keras_1_joined_them(stored_name: str, split: tuple[str, ...]) -> None:
    assert weight_names.clean(stored_name.split("/")) == split


@pytest.mark.parametrize(
    ("class_name", "config", "expected"),
    [
        ("Convolution2D", {"nb_filter": 4, "nb_row": 3, "nb_col": 2, "dim_ordering": "tf"}, (3, 2, "input", 4)),
        ("Convolution2D", {"nb_filter": 4, "nb_row": 3, "nb_col": 2, "dim_ordering": "th"}, (4, "input", 3, 2)),
        ("AtrousConvolution2D", {"nb_filter": 4, "nb_row": 3, "nb_col": 2}, (3, 2, "input", 4)),
        ("Deconvolution2D", {"nb_filter": 4, "nb_row": 3, "nb_col": 2, "dim_ordering": "th"}, (4, "input", 3, 2)),
        ("Convolution3D", {"nb_filter": 4, "kernel_dim1": 1, "kernel_dim2": 2, "kernel_dim3": 3, "dim_ordering": "th"},
         (4, "input", 1, 2, 3)),
        ("MaxoutDense", {"output_dim": 3, "nb_feature": 2}, (2, "input", 3)),
        ("TimeDistributedDense", {"output_dim": 3}, ("input", 3)),
        ("SimpleRNN", {"output_dim": 3}, ("input", 3)),
        ("GRU", {"output_dim": 3, "consume_less": "gpu"}, ("input", 9)),
        ("LSTM", {"output_dim": 3, "consume_less": "gpu"}, ("input", 12)),
        ("LSTM", {"output_dim": 3, "consume_less": "mem"}, ("input", 3)),
    ],
)  # fmt: skip
def test_the_first_variable_has_the_shape_of_the_arguments(
    class_name: str, config: dict[str, Any], expected: tuple[int | str, ...]
) -> None:
    variables = keras1_variables(class_name, config)
    assert variables is not None and variables[0].shape == expected
    assert len(variables) == {"LSTM": 12, "SimpleRNN": 3, "GRU": 3}.get(class_name, 2) or len(variables) == 3
