"""Frozen cells, layers inside wrapper layers, and wrappers that do not obey their flag: what is stored in which order.

The orders and names are those that the named Keras writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec
from ckpttool.errors import AmbiguousWeightsError
from ckpttool.source import SourceOptions
from ckpttool.tf_assignment import assign as assign_tensorflow

from .written import Entry, Shape, assigned, dense, entry, group, kernel_and_bias, model, parsed, stored


def cell(name: str, **config: Any) -> Entry:
    return {"class_name": "GRUCell", "config": {"name": name, "units": 3, "use_bias": False, **config}}


def stack(name: str, *cells: Entry, **config: Any) -> Entry:
    stacked = {"class_name": "StackedRNNCells", "config": {"cells": list(cells)}}
    return entry("RNN", name, cell=stacked, **{"trainable": True, **config})


def kernels(scope: str, number: int = 0) -> tuple[tuple[str, Shape], ...]:
    suffix = f"_{number}" if number else ""
    return (f"{scope}/kernel{suffix}:0", (3, 9)), (f"{scope}/recurrent_kernel{suffix}:0", (3, 9))


def of(cell_name: str) -> list[str]:
    return [f"r/{cell_name}/kernel", f"r/{cell_name}/recurrent_kernel"]


FIRST_FROZEN = (cell("g1", trainable=False), cell("g2", trainable=True))


class TestCells:
    @pytest.mark.parametrize(
        ("keras", "last", "first"),
        [
            ("2.0.9", kernels("r", 1), kernels("r")),
            ("2.2.4", kernels("r", 1), kernels("r")),
            ("2.3.0-tf", kernels("r/stacked_rnn_cells/g2"), kernels("r/stacked_rnn_cells/g1")),
            ("2.15.0", kernels("r/x"), kernels("r/y")),  # names that say nothing
        ],
    )
    def test_frozen_ones_are_stored_last(self, keras: str, last: Any, first: Any) -> None:
        file = stored(group("r", *last, *first), keras=keras)
        assert assigned(file, parsed(stack("r", *FIRST_FROZEN))) == of("g2") + of("g1")

    def test_a_layer_frozen_as_a_whole_stores_them_one_by_one(self) -> None:
        config = parsed(stack("r", *FIRST_FROZEN, trainable=False))
        file = stored(group("r", *kernels("r/s/g1"), *kernels("r/s/g2")), keras="2.3.0-tf")
        assert assigned(file, config) == of("g1") + of("g2")
        file = stored(group("r", *kernels("r", 1), *kernels("r")), keras="2.2.4")
        assert assigned(file, config) == of("g2") + of("g1")
        file = stored(group("r", *kernels("r/s/g2"), *kernels("r/s/g1")), keras="2.3.0-tf")  # frozen when it was made
        assert assigned(file, config) == of("g2") + of("g1")
        with pytest.raises(AmbiguousWeightsError, match="do not agree"):
            assigned(stored(group("r", *kernels("r/x"), *kernels("r/y")), keras="2.3.0-tf"), config)

    @pytest.mark.parametrize(
        "tensors", [(*kernels("r"), *kernels("r", 1)), (*kernels("r/s/g1"), *kernels("r/s/g2"))], ids=["1", "2"]
    )
    def test_names_that_contradict_the_order_are_refused(self, tensors: Any) -> None:
        with pytest.raises(AmbiguousWeightsError, match="some of its parts are frozen"):
            assigned(stored(group("r", *tensors)), parsed(stack("r", *FIRST_FROZEN)))

    def test_inside_a_model_they_move_behind_the_layers(self) -> None:
        config = parsed(model("m", stack("r", *FIRST_FROZEN), dense("d")))
        tensors = (*kernels("r", 1), *kernel_and_bias("d"), *kernels("r"))
        found = assigned(stored(group("m", *tensors)), config)
        assert found == [f"m/{name}" for name in (*of("g2"), "d/kernel", "d/bias", *of("g1"))]

    def test_equal_names_are_numbered(self) -> None:
        file = stored(group("r", *kernels("r"), *kernels("r", 1), *kernels("r", 2)))
        config = parsed(stack("r", cell("g"), cell("g"), cell("g_1")))
        assert assigned(file, config) == of("g") + of("g_1") + of("g_1_1")

    @pytest.mark.parametrize("last", [(), ("s", "g2")])
    def test_numbered_variables_of_an_object_graph_go_by_its_order(self, last: tuple[str, ...]) -> None:
        names = ["kernel", "recurrent_kernel", "kernel_1", "recurrent_kernel_1"]
        paths = [(name,) for name in names] + ([(*last, "kernel"), (*last, "recurrent_kernel")] if last else [])
        tensors = tuple(TensorSpec(("r", *path), (3, 9), "float32", locator="/".join(path)) for path in paths)
        checkpoint = Checkpoint("tf-checkpoint", "tf-bundle", "checkpoint", (Layer("r", tensors=tensors),))
        cells = ["g0", "g1", "g2"] if last else ["g1", "g2"]
        named = assign_tensorflow(checkpoint, parsed(stack("r", *map(cell, cells))))
        found = [(spec.locator, spec.name) for spec in named.weights()]
        assert found == list(zip(map("/".join, paths), (name for each in cells for name in of(each)), strict=True))


def converted(config: Entry, values: dict[str, float], output: Path) -> h5py.File:
    """The file that comes of named arrays, each of one value, and a configuration."""
    arrays = {name: np.full((3, 9), value, np.float32) for name, value in values.items()}
    source, text = output.parent / "arrays.npz", output.parent / "model.json"
    np.savez(source, **arrays)  # type: ignore[arg-type]  # names are no parameters of savez
    text.write_text(json.dumps(model("whole", config)))
    ckpttool.unwrap(source, output, options=SourceOptions(config=text))
    return h5py.File(output)


@pytest.mark.parametrize("trainable", [True, False])
def test_what_is_written_has_the_order_in_which_it_is_loaded(tmp_path: Path, trainable: bool) -> None:
    values = dict(zip(of("g1") + of("g2"), (1.0, 2.0, 3.0, 4.0), strict=True))
    with converted(stack("r", *FIRST_FROZEN, trainable=trainable), values, tmp_path / "w.h5") as file:
        group = file["model_weights/r"]
        assert [group[name][0, 0] for name in group.attrs["weight_names"]] == [3, 4, 1, 2]
    with ckpttool.open_checkpoint(tmp_path / "w.h5") as reader:
        assert {spec.name: reader.read(spec)[0, 0] for spec in reader.describe().weights()} == values


def test_cells_of_one_name_keep_their_own_values_in_the_layout_of_keras_3(tmp_path: Path) -> None:
    values = dict(zip(of("g") + of("g_1"), (1.0, 2.0, 3.0, 4.0), strict=True))
    with converted(stack("r", cell("g"), cell("g")), values, tmp_path / "w.weights.h5") as file:
        cells = file["layers/rnn/cell/cells"]
        assert [cells[f"{name}/vars/0"][0, 0] for name in ("gru_cell", "gru_cell_1")] == [1, 3]


def bidirectional(inner_trainable: bool, **config: Any) -> Entry:
    inner = {"class_name": "LSTM", "config": {"name": "l", "units": 1, "use_bias": False, "trainable": inner_trainable}}
    return entry("Bidirectional", "b", layer=inner, **{"trainable": True, **config})


HALVES = tuple(
    (f"b/{way}_l/{kernel}:0", (4, 4) if kernel == "kernel" else (1, 4))
    for way in ("forward", "backward")
    for kernel in ("kernel", "recurrent_kernel")
)
NAMED = [name.removesuffix(":0") for name, _ in HALVES]


@pytest.mark.parametrize(
    ("keras", "counts"),
    [("2.0.9", False), ("2.2.4", False), ("2.1.6-tf", False), ("2.2.4-tf", True), ("2.10.0", True)],
)
def test_a_frozen_layer_inside_a_bidirectional_counts_since_tf_1_14(keras: str, counts: bool) -> None:
    config = parsed(model("m", dense("a"), bidirectional(False), dense("c")))
    before, after = kernel_and_bias("a"), kernel_and_bias("c")
    middle, last = ((), HALVES) if counts else (HALVES, ())
    file = stored(group("m", *before, *middle, *after, *last), keras=keras)
    first, second = ["m/a/kernel", "m/a/bias"], ["m/c/kernel", "m/c/bias"]
    halves = [f"m/{name}" for name in NAMED]
    assert assigned(file, config) == [*first, *second, *halves] if counts else [*first, *halves, *second]


@pytest.mark.parametrize("inside", [True, False])
def test_of_two_layers_in_a_bidirectional_one_may_be_frozen(inside: bool) -> None:
    other = {"class_name": "LSTM", "config": {"name": "l", "units": 1, "use_bias": False, "trainable": True}}
    both = bidirectional(False, backward_layer=other)
    tensors = (*HALVES[2:], *HALVES[:2])
    config, file = (model("m", both), group("m", *tensors)) if inside else (both, group("b", *tensors))
    found = assigned(stored(file, keras="2.3.0-tf"), parsed(config))
    assert found == [f"m/{name}" if inside else name for name in (*NAMED[2:], *NAMED[:2])]


def test_a_frozen_layer_inside_a_time_distributed_counts() -> None:
    inner = {"class_name": "Dense", "config": {"name": "i", "units": 4, "trainable": False}}
    config = parsed(model("m", entry("TimeDistributed", "t", layer=inner, trainable=True), dense("d")))
    file = stored(group("m", *kernel_and_bias("x"), *kernel_and_bias("x_1")), keras="2.10.0")
    assert assigned(file, config) == ["m/d/kernel", "m/d/bias", "m/t/i/kernel", "m/t/i/bias"]


def recurrent(name: str, **config: Any) -> Entry:
    return entry("LSTM", name, units=1, use_bias=False, **config)


def unnamed(scope: str) -> tuple[tuple[str, Shape], ...]:
    return (f"{scope}/kernel:0", (4, 4)), (f"{scope}/recurrent_kernel:0", (1, 4))


@pytest.mark.parametrize("obeys", [True, False])
def test_wrappers_and_recurrent_layers_may_not_obey_their_flag_up_to_keras_2_1_5(obeys: bool) -> None:
    """The scopes are those of another process and tell nothing: shapes alone say whether the flag was obeyed."""
    config = parsed(model("m", recurrent("l", trainable=False), dense("d")))
    trainable, frozen = kernel_and_bias("dense_7"), unnamed("lstm_7")
    file = group("m", *trainable, *frozen) if obeys else group("m", *frozen, *trainable)
    first, last = ["m/d/kernel", "m/d/bias"], ["m/l/kernel", "m/l/recurrent_kernel"]
    assert assigned(stored(file, keras="2.0.9"), config) == ([*first, *last] if obeys else [*last, *first])


def test_equal_layers_of_which_one_may_not_obey_its_flag_are_refused() -> None:
    config = parsed(model("m", recurrent("l", trainable=False), recurrent("k")))
    with pytest.raises(AmbiguousWeightsError):
        assigned(stored(group("m", *unnamed("x"), *unnamed("y")), keras="2.0.9"), config)


def test_a_frozen_time_distributed_lists_its_model_layer_by_layer_since_tf_1_14() -> None:
    norm = entry("BatchNormalization", "n", trainable=True)
    inside = model("mm", norm, dense("d"))
    config = parsed(model("m", entry("TimeDistributed", "t", layer=inside, trainable=False)))
    variables = ("gamma", "beta", "moving_mean", "moving_variance")
    vectors = tuple((f"x/{name}:0", (4,)) for name in variables)
    file = stored(group("m", *vectors, *kernel_and_bias("y")), keras="2.3.0-tf")
    expected = [f"m/t/mm/n/{name}" for name in variables] + ["m/t/mm/d/kernel", "m/t/mm/d/bias"]
    assert assigned(file, config) == expected
