"""Masks in the plan: what is added for them, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.checkpoint import WrittenBy
from ckpttool.keras_config import TensorRef
from ckpttool.migration.generation import holds_masked_steps
from ckpttool.migration.masks import with_old_masks
from ckpttool.migration.plan import Call, JoinedMask, LayerPlan, LayerSpec, ModelPlan, Plan
from ckpttool.migration.planning import make_plan
from ckpttool.source import SourceOptions, open_source


def plan_file(path: Path) -> Plan:
    with open_source(path, SourceOptions()) as source:
        return make_plan(source.template)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.0.9", True), ("2.2.4", True), ("2.3.1", True), ("2.1.6-tf", True), ("2.2.4-tf", False), ("2.3.0-tf", False),
     ("2.4.0", False), ("2.15.0", False), (None, False)],
)  # fmt: skip
def test_who_held_the_state_at_masked_steps(version: str | None, expected: bool) -> None:
    assert holds_masked_steps(WrittenBy(keras=version)) is expected


def test_a_bidirectional_of_keras_2_becomes_two_layers_and_a_merge(fixture_files: Path) -> None:
    layers = {layer.name: layer for layer in plan_file(fixture_files / "keras-2.2.4-zoo-tagger.h5").model.layers}
    assert layers["first_forward"].spec.class_name == "LSTM"
    assert layers["first_backward"].spec.arguments["go_backwards"] is True
    assert len(layers["first_forward"].weights) == len(layers["first_backward"].weights) == 3
    assert layers["first"].spec.class_name == "Concatenate"
    assert layers["second"].spec.class_name == "Add"
    assert isinstance(layers["first_mask"].calls[0].keywords["mask"], JoinedMask)
    core = layers["core"].spec.model
    assert core is not None
    assert not core.sequential


def test_a_bidirectional_of_tensorflow_2_stays_one(fixture_files: Path) -> None:
    layers = {layer.name: layer for layer in plan_file(fixture_files / "tf-2.10-zoo-tagger.h5").model.layers}
    assert layers["first"].spec.class_name == "Bidirectional"
    assert layers["core"].spec.model is not None
    assert layers["core"].spec.model.sequential
    assert "both_mask" in layers


def test_outputs_stay_those_of_the_merge_itself(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "tf-2.10-zoo-tagger.h5")
    assert TensorRef("shortcut", 0, 0) in plan.model.outputs
    last = next(layer for layer in plan.model.layers if layer.name == "last")
    assert last.calls[0].positional == (TensorRef("shortcut_mask", 0, 0),)


def test_a_model_without_masks_is_left_alone(fixture_files: Path) -> None:
    plan = plan_file(fixture_files / "keras-2.2.4-zoo-bidirectional.h5").model
    assert with_old_masks(plan, hold=True) == plan
    assert not any(layer.name.endswith("_mask") for layer in plan.layers)


def test_a_concatenation_of_steps_is_left_alone() -> None:
    def layer(name: str, spec: LayerSpec, *inputs: str) -> LayerPlan:
        refs = [TensorRef(each, 0, 0) for each in inputs]
        return LayerPlan(
            name, spec, name, spec.class_name, (Call((refs if len(refs) > 1 else refs[0],)),) if refs else ()
        )

    def model(axis: int) -> ModelPlan:
        layers = (
            layer("x", LayerSpec("InputLayer")),
            layer("table", LayerSpec("Embedding", {"mask_zero": True}), "x"),
            layer("both", LayerSpec("Concatenate", {"axis": axis}), "table", "table"),
        )
        return ModelPlan("m", False, layers, (TensorRef("x", 0, 0),), (TensorRef("both", 0, 0),))

    assert with_old_masks(model(1), hold=False) == model(1)
    assert len(with_old_masks(model(-1), hold=False).layers) == 4
