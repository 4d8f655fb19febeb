"""The table of expected variables: every fixture's layers, and what it must not accept."""

from __future__ import annotations

import json
from typing import Any

import h5py
import pytest

from ckpttool.keras_config import LayerConfig, parse_config
from ckpttool.keras_variables import Variable, expected_variables

from .manifest import FILES, entry, legacy_hdf5
from .written import entry as layer_entry
from .written import model


def layer(class_name: str, **config: Any) -> LayerConfig:
    return parse_config(json.dumps(model("m", layer_entry(class_name, "x", **config)))).layers[0]


def shapes(class_name: str, **config: Any) -> dict[str, Any] | None:
    found = expected_variables(layer(class_name, **config))
    return None if found is None else {"/".join(each.path): each.shape for each in found}


@pytest.mark.parametrize(
    "name", [name for name in legacy_hdf5("model") if name != "keras-2.0.9-zoo-cells.h5" and not entry(name)["wrapper"]]
)
def test_every_layer_of_the_old_libraries_has_the_expected_number_of_variables(name: str) -> None:
    with h5py.File(FILES / name) as file:
        config = parse_config(file.attrs["model_config"])
    count = {each["path"]: each["weights"] for each in entry(name)["layers"]}
    known = 0
    for path, each in config.walk():
        found = expected_variables(each)
        if each.model is None and each.inner is None and found is not None and "/".join(path) in count:
            assert len(found) == count["/".join(path)], path
            known += 1
    assert known


@pytest.mark.parametrize(
    ("class_name", "config", "wanted"),
    [
        ("Dense", {"units": 3}, {"kernel": ("input", 3), "bias": (3,)}),
        ("Dense", {"units": 3.0, "use_bias": False}, {"kernel": ("input", 3)}),
        ("Conv2D", {"filters": 5, "kernel_size": 3}, {"kernel": (3, 3, "input", 5), "bias": (5,)}),
        ("Conv1D", {"filters": 5, "kernel_size": {"class_name": "__tuple__", "items": [4]}},
         {"kernel": (4, "input", 5), "bias": (5,)}),
        ("BatchNormalization", {"scale": False},
         dict.fromkeys(("beta", "moving_mean", "moving_variance"), ("channels",))),
        ("GRU", {"units": 2, "reset_after": True},
         {"kernel": ("input", 6), "recurrent_kernel": (2, 6), "bias": (2, 6)}),
        ("GRU", {"units": 2}, {"kernel": ("input", 6), "recurrent_kernel": (2, 6), "bias": (6,)}),
        ("CuDNNLSTM", {"units": 2}, {"kernel": ("input", 8), "recurrent_kernel": (2, 8), "bias": (16,)}),
        ("Embedding", {"input_dim": 7, "output_dim": 4}, {"embeddings": (7, 4)}),
        ("Attention", {"use_scale": True}, {"scale": ()}),
        ("Flatten", {}, {}),
    ],
)  # fmt: skip
def test_shapes_as_far_as_the_configuration_fixes_them(class_name: str, config: Any, wanted: Any) -> None:
    assert shapes(class_name, **config) == wanted


@pytest.mark.parametrize(
    ("class_name", "config"),
    [
        ("Mine", {}),
        ("Attention", {}),  # a user's class of before TF 1.14
        ("Attention", {"step_dim": 10}),
        ("MultiHeadAttention", {"head_num": 4}),  # of keras-multi-head
        ("Dense", {}),
        ("Dense", {"units": "three"}),
        ("Dense", {"units": -1}),
        ("Dense", {"units": True}),
        ("Dense", {"units": 2.5}),
        ("Conv2D", {"filters": 3, "kernel_size": [3]}),
        ("BatchNormalization", {"renorm": True}),
        ("Bidirectional", {"layer": {"class_name": "Mine", "config": {"name": "m"}}}),
        ("TimeDistributed", {"layer": 3}),
        ("RNN", {"cell": "x"}),
    ],
)
def test_what_is_not_keras_s_own_is_unknown(class_name: str, config: Any) -> None:
    assert shapes(class_name, **config) is None


def test_wrapper_layers_name_their_parts() -> None:
    lstm = {"class_name": "LSTM", "config": {"name": "lstm", "units": 2, "use_bias": False}}
    assert list(shapes("Bidirectional", layer=lstm) or ()) == [
        f"{half}_lstm/{name}" for half in ("forward", "backward") for name in ("kernel", "recurrent_kernel")
    ]  # fmt: skip
    forward = {"class_name": "LSTM", "config": {"name": "forward_lstm", "units": 2, "use_bias": False}}
    assert "forward_lstm/kernel" in (shapes("Bidirectional", layer=forward) or ())
    other = {"class_name": "GRU", "config": {"name": "back", "units": 3, "use_bias": False}}
    assert "backward_back/kernel" in (shapes("Bidirectional", layer=lstm, backward_layer=other) or ())
    dense = {"class_name": "Dense", "config": {"name": "dense_1", "units": 3}}
    assert list(shapes("TimeDistributed", layer=dense) or ()) == ["dense_1/kernel", "dense_1/bias"]
    cells = [{"class_name": "LSTMCell", "config": {"name": n, "units": u}} for n, u in (("a", 2), ("b", 3))]
    stacked = shapes("RNN", cell={"class_name": "StackedRNNCells", "config": {"cells": cells}}) or {}
    assert list(stacked) == [f"{n}/{v}" for n in "ab" for v in ("kernel", "recurrent_kernel", "bias")]
    assert stacked["a/kernel"] != stacked["b/kernel"]  # the input axes of two cells do not bind each other


def test_axes_of_one_symbol_are_equal_within_a_layer() -> None:
    symbols: dict[str, int] = {}
    vector = Variable(("gamma",), ("channels",))
    assert vector.fits((4,), symbols)
    assert symbols == {"channels": 4}
    assert vector.fits((4,), symbols)
    assert not vector.fits((5,), symbols)
    square = Variable(("kernel",), ("a", "a"))
    assert not square.fits((2, 3), {})
    assert square.fits((2, 2), {})
    assert Variable(("any",), None).fits((1, 2, 3), {})
    assert not Variable(("scalar",), ()).fits((1,), {})


def test_a_shape_that_does_not_fit_binds_nothing() -> None:
    symbols: dict[str, int] = {}
    assert not Variable(("kernel",), ("input", 3)).fits((7, 4), symbols)
    assert symbols == {}
