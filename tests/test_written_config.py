"""The configuration that `unwrap` writes: the template's own, and one that no library misreads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, WrittenBy
from ckpttool.written_config import written_config

from .manifest import FILES


def template(config: Any, keras: str | None = "2.2.4", backend: str = "tensorflow") -> Checkpoint:
    return Checkpoint(
        "keras-h5", "hdf5", "model", config=json.dumps(config), written_by=WrittenBy(keras, None, backend)
    )


def sequential(*layers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"class_name": "Sequential", "config": {"name": "s", "layers": list(layers), **more}}


def layer(class_name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {"name": class_name.lower(), **config}}


def written(config: Any, **options: Any) -> tuple[Any, list[str]]:
    text, notices = written_config(template(config, **options))
    assert text is not None
    return json.loads(text), [notice.code for notice in notices]


DENSE = layer("Dense", units=3, activation="relu", batch_input_shape=[None, 6], dtype="float32")


def test_what_no_library_misreads_stays_as_it_is() -> None:
    config = {"class_name": "Model", "config": {"name": "m", "layers": [layer("InputLayer"), layer("Dense", units=3)]}}
    checkpoint = template(config)
    assert written_config(checkpoint) == (checkpoint.config, ())


def test_a_sequential_gets_its_input_layer() -> None:
    found, codes = written(sequential(DENSE, layer("Dense", units=2)))
    assert codes == []
    assert found["config"]["layers"] == [
        layer("InputLayer") | {"config": {"batch_input_shape": [None, 6], "dtype": "float32", "sparse": False,
                                          "name": "dense_input"}},
        DENSE,
        layer("Dense", units=2),
    ]  # fmt: skip


def test_a_sequential_inside_a_sequential_gets_its_input_layer() -> None:
    found, _ = written(sequential(sequential(DENSE), layer("Dense", units=2)))
    assert found["config"]["layers"][0]["config"]["layers"][0]["class_name"] == "InputLayer"


@pytest.mark.parametrize(
    "config",
    [
        {"class_name": "Sequential", "config": [DENSE]},  # Keras up to 2.1: Keras 3 refuses the list
        sequential(layer("InputLayer", batch_input_shape=[None, 6]), DENSE),
        sequential(layer("Dense", units=3)),
        sequential(),
    ],
)
def test_other_sequentials_stay_as_they_are(config: Any) -> None:
    checkpoint = template(config)
    assert written_config(checkpoint) == (checkpoint.config, ())


@pytest.mark.parametrize(
    "entry",
    [
        layer("Dense", units=3, activation="hard_sigmoid"),
        layer("Activation", activation="hard_sigmoid"),
        layer("LSTM", units=3, recurrent_activation="hard_sigmoid", activation="tanh"),
    ],
)
def test_layers_with_hard_sigmoid_are_marked_for_keras_3(entry: dict[str, Any]) -> None:
    found, codes = written(sequential(layer("InputLayer"), entry))
    assert found["config"]["layers"][1]["config"] == entry["config"] | {"weights": None}
    assert codes == ["keras3-refuses"]


def test_the_innermost_layer_is_marked_since_bidirectional_takes_weights_in_keras_3_too() -> None:
    inner = layer("LSTM", units=3, recurrent_activation="hard_sigmoid")
    found, codes = written(sequential(layer("InputLayer"), layer("Bidirectional", layer=inner)))
    outer = found["config"]["layers"][1]["config"]
    assert outer["layer"]["config"]["weights"] is None
    assert "weights" not in outer
    assert codes == ["keras3-refuses"]


def test_cells_are_marked() -> None:
    cells = [layer("LSTMCell", units=2, recurrent_activation="hard_sigmoid"), layer("GRUCell", units=2)]
    stacked = {"class_name": "StackedRNNCells", "config": {"name": "stacked", "cells": cells}}
    found, codes = written(sequential(layer("InputLayer"), layer("RNN", cell=stacked)))
    written_cells = found["config"]["layers"][1]["config"]["cell"]["config"]["cells"]
    assert "weights" in written_cells[0]["config"] and "weights" not in written_cells[1]["config"]
    assert written_cells[1]["config"]["reset_after"] is False
    assert codes == ["keras3-refuses", "reset-after-written"]


def test_a_class_of_the_user_is_never_given_arguments() -> None:
    config = sequential(layer("InputLayer"), layer("Mine", units=3, activation="hard_sigmoid"))
    checkpoint = template(config)
    assert written_config(checkpoint) == (checkpoint.config, ())


def test_a_gru_of_before_reset_after_says_what_it_means() -> None:
    gru = layer("GRU", units=3, recurrent_activation="sigmoid")
    found, codes = written(sequential(layer("InputLayer"), gru), keras="2.0.9")
    assert found["config"]["layers"][1]["config"]["reset_after"] is False
    assert codes == ["reset-after-written"]
    stated = sequential(layer("InputLayer"), layer("GRU", units=3, reset_after=True))
    assert written(stated) == (stated, [])


def test_kernels_of_theano_are_not_given_to_keras_3() -> None:
    config = sequential(layer("InputLayer"), layer("Conv2D", filters=3), layer("Dense", units=3))
    found, codes = written(config, backend="theano")
    assert ["weights" in each["config"] for each in found["config"]["layers"]] == [False, True, False]
    assert codes == ["theano-kernels"]
    assert written(config) == (config, [])


@pytest.mark.parametrize("name", ["keras-2.0.9-theano-conv.h5", "keras-2.0.9-theano-conv-weights.h5"])
@pytest.mark.parametrize("weights_only", [False, True])
def test_a_file_of_theano_is_warned_of(name: str, weights_only: bool, tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / name, tmp_path / "base.h5", weights_only=weights_only)
    assert "theano-kernels" in [notice.code for notice in report.warnings]
    report = ckpttool.unwrap(FILES / "keras-2.0.9-zoo-conv2d.h5", tmp_path / "other.h5", weights_only=weights_only)
    assert "theano-kernels" not in [notice.code for notice in report.warnings]


@pytest.mark.parametrize("keras", ["3.15.1", "1.2.2"])
def test_other_generations_stay_as_they_are(keras: str) -> None:
    checkpoint = template(sequential(DENSE, layer("Dense", activation="hard_sigmoid")), keras)
    assert written_config(checkpoint) == (checkpoint.config, ())


def test_the_receipt_says_that_keras_3_will_refuse(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "keras-2.2.4-rnn.h5", tmp_path / "base.h5")
    assert "keras3-refuses" in [notice.code for notice in report.warnings]
    with h5py.File(tmp_path / "base.h5") as file:
        assert '"weights": null' in file.attrs["model_config"]


def both_ways(**inner: Any) -> dict[str, Any]:
    return layer(
        "Bidirectional", layer=layer("GRU", units=2, reset_after=False, recurrent_activation="sigmoid", **inner)
    )


@pytest.mark.parametrize("keras", ["2.3.1", "2.1.6-tf"])
def test_sequences_both_ways_behind_a_mask_are_kept_from_keras_3(keras: str) -> None:
    config, codes = written(sequential(layer("Masking"), both_ways(return_sequences=True)), keras=keras)
    assert codes == ["masked-steps"]
    assert config["config"]["layers"][1]["config"]["layer"]["config"]["weights"] is None


@pytest.mark.parametrize(
    ("keras", "first", "sequences"),
    [("2.4.0", layer("Masking"), True), ("2.3.1", layer("Dropout"), True), ("2.3.1", layer("Masking"), False)],
)
def test_other_layers_both_ways_stay_as_they_are(keras: str, first: dict[str, Any], sequences: bool) -> None:
    config = sequential(first, both_ways(return_sequences=sequences))
    assert written(config, keras=keras) == (config, [])
