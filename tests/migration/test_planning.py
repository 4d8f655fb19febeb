"""Plans of the files that the old libraries wrote, made without keras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planned import template

import ckpttool
from ckpttool.checkpoint import Layer
from ckpttool.keras_config import TensorRef
from ckpttool.migration.plan import Plan, layer_json
from ckpttool.migration.planning import NotMigratedError, make_plan
from ckpttool.source import SourceOptions, open_source

STOPS = {
    "keras-3.15-own-block.h5": "'Block' is not one of Keras's own layers",
    "keras-2.0.9-zoo-cells.h5": "does not say its units",
    "keras-2.2.4-zoo-lambda-layer.h5": "twice (Lambda): Python bytecode",
    "keras-2.3.1-flips.h5": "lambda_1, lambda_2, lambda_3 (Lambda)",
    "keras-2.3.1-zoo-custom-class.h5": "scale (Scale)",
    "keras-2.3.1-zoo-locally.h5": "local (LocallyConnected1D)",
    "tf-2.10-zoo-lambda-layer.h5": "twice (Lambda)",
    "tf-2.10-zoo-time-major.h5": "time_major=True",
    "tf-2.15-zoo-custom-class.h5": "scale (Scale)",
}


def plan_file(path: Path) -> Plan:
    with open_source(path, SourceOptions()) as source:
        return make_plan(source.template)


@pytest.mark.parametrize("name", sorted(STOPS))
def test_files_that_cannot_be_expressed_stop_and_name_the_layer(name: str, fixture_files: Path) -> None:
    with pytest.raises(NotMigratedError) as caught:
        plan_file(fixture_files / name)
    assert STOPS[name] in str(caught.value)
    assert caught.value.needs
    assert str(caught.value).startswith(str(fixture_files / name))


def test_every_other_full_model_of_keras_2_and_3_has_a_plan_of_all_its_tensors(
    fixture_files: Path, manifest: dict[str, Any]
) -> None:
    planned = 0
    for name, entry in manifest.items():
        if entry["kind"] != "model" or not name.endswith(".h5") or name in STOPS or "keras-1." in name:
            continue
        if name.startswith(("own-", "look-")):  # their templates are those of other files, or have Lambdas
            continue
        plan = plan_file(fixture_files / name)
        json.dumps(plan.to_json())
        stored = ["/".join(weight.source) for _, _, weight in plan.model.all_weights()]
        assert len(stored) == len(set(stored)) == len(entry["tensors"]), name
        assert len(plan.model.inputs) in (0, len(entry["template"]["inputs"]))
        planned += 1
    assert planned > 100


def test_a_wrapper_is_gone_before_the_plan_is_made(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "keras-2.3.1-two-towers.h5")
    classes = {layer.spec.class_name for _, layer in plan.model.walk()}
    assert "Lambda" not in classes
    assert plan.transformed() == []


def test_calls_keep_their_order_and_their_initial_states(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "keras-2.2.4-zoo-states.h5")
    decoder = next(layer for layer in plan.model.layers if layer.name == "decoder")
    assert decoder.calls[0].positional == (TensorRef("target", 0, 0),)
    assert decoder.calls[0].keywords == {"initial_state": [TensorRef("encoder", 0, 1), TensorRef("encoder", 0, 2)]}
    shared = plan_file(fixture_files / "tf-2.15-zoo-shared.h5")
    assert [len(layer.calls) for layer in shared.model.layers if layer.name == "image_embedding"] == [3]


def test_names_with_slashes_are_changed_and_said(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "tf-2.3-slashes.h5")
    assert not any("/" in layer.name for _, layer in plan.model.walk())
    assert any("Keras 3 allows no '/' in a name" in note for note in plan.notes)


def test_keyword_tensors_of_attention_stay_keywords(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "tf-2.10-zoo-attention.h5")
    heads = next(layer for layer in plan.model.layers if layer.name == "heads")
    assert heads.calls[0].positional == (TensorRef("query", 0, 0),)
    assert heads.calls[0].keywords == {"value": TensorRef("value", 0, 0)}


def test_a_sequential_gets_its_input_from_the_model_that_comes_first(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "keras-2.1.6-zoo-model-first.h5")
    assert plan.model.input_spec is not None
    assert plan.model.input_spec.arguments["batch_shape"] == [None, 6, 6, 2]


def test_files_of_keras_1_say_so(fixture_files: Path) -> None:
    with pytest.raises(NotMigratedError, match="Keras 1"):
        plan_file(fixture_files / "keras-1.2.2-dense.h5")


def test_a_constant_first_argument_of_an_operator_is_kept() -> None:
    layers = [
        {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
         "config": {"name": "x", "batch_input_shape": [None, 4], "dtype": "float32"}},
        {"class_name": "TFOpLambda", "name": "tf.math.subtract", "inbound_nodes": [
            ["_CONSTANT_VALUE", -1, 2, {"y": ["x", 0, 0], "name": None}]],
         "config": {"name": "tf.math.subtract", "function": "math.subtract"}},
    ]  # fmt: skip
    config = {"class_name": "Functional", "config": {"name": "m", "layers": layers, "input_layers": [["x", 0, 0]],
                                                    "output_layers": [["tf.math.subtract", 0, 0]]}}  # fmt: skip
    plan = make_plan(template(config, (Layer("x"), Layer("tf.math.subtract")), keras="2.10.0"))
    shown = layer_json(plan.model.layers[1])
    assert shown["class_name"] == "ops.subtract"
    assert shown["calls"][0]["positional"] == [2, {"tensor": ["x", 0, 0]}]


def test_a_dry_run_imports_no_keras(fixture_files: Path, tmp_path: Path) -> None:
    source = fixture_files / "keras-2.2.4-zoo-rnn.h5"
    code = (
        "import sys, ckpttool\n"
        f"done = ckpttool.migrate({str(source)!r}, {str(tmp_path / 'new.keras')!r}, dry_run=True)\n"
        "assert done.dry_run and done.plan is not None and done.transformed()\n"
        "assert not {'keras', 'tensorflow', 'tf_keras'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_weights_file_without_a_configuration_asks_for_one(fixture_files: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpttool.CheckpointError, match="--config"):
        ckpttool.migrate(fixture_files / "tf-2.4-plain-two-towers-weights.h5", tmp_path / "new.keras", dry_run=True)
    given = SourceOptions(config=fixture_files / "tf-2.4-plain-two-towers.json")
    done = ckpttool.migrate(
        fixture_files / "tf-2.4-plain-two-towers-weights.h5", tmp_path / "new.keras", dry_run=True, options=given
    )
    assert done.tensors == 10


@pytest.mark.parametrize(
    ("output", "to", "message"),
    [
        ("new.onnx", None, "says no format"),
        ("new.weights.h5", None, "whole model"),
        ("new.h5", "keras", "end it in '.keras'"),
        ("new.keras", "tf-keras", "end it in '.h5'"),
        ("new.keras", "theano", "--to takes"),
    ],
)
def test_targets_that_no_keras_would_open_are_refused(
    output: str, to: str | None, message: str, fixture_files: Path, tmp_path: Path
) -> None:
    with pytest.raises(ckpttool.CheckpointError, match=message) as caught:
        ckpttool.migrate(fixture_files / "keras-2.2.4-zoo-rnn.h5", tmp_path / output, to=to, dry_run=True)
    assert caught.value.code == 2
