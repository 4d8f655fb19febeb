"""The optimizer's state in Keras 3's layout, which numbers it: named by its class, as Keras named it in memory."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.checkpoint import TensorSpec, WrittenBy
from ckpttool.converting import convert
from ckpttool.inspecting import inspect
from ckpttool.numbered_slots import with_named_slots
from ckpttool.opening import open_checkpoint
from ckpttool.optimizer_layouts import layouts
from ckpttool.optimizer_slots import Optimizer, carried, named_slots
from ckpttool.source import SourceOptions, open_source

from . import manifest
from .formats.test_keras_archive import archive
from .manifest import FILES, Truth

NUMBERED = manifest.names(lambda name, each: each["maker"] == "make/slots.py")
# What Keras calls a slot in a variable's path; Keras 3 calls Adafactor's sums after the variable alone.
WORDS = {"average": "average", "gradient_accumulator": "gradient_accumulator", "u_product": "variable"}


def named(path: Path) -> list[tuple[TensorSpec, Truth]]:
    with open_checkpoint(path) as reader:
        found = with_named_slots(reader.describe()).optimizer_tensors()
        return list(zip(found, manifest.read(reader, found), strict=True))


@pytest.mark.parametrize("name", NUMBERED)
def test_every_entry_has_the_name_that_keras_gave_it(name: str) -> None:
    """In the order of the optimizer's list in memory, by value; each name there tells variable and slot."""
    held = manifest.entry(name)["optimizer"]
    found = named(FILES / name)
    outer = [(spec, truth) for spec, truth in found if not {"inner_optimizer", "_optimizer"} & set(spec.path)]
    assert [(list(truth.shape), truth.sha256) for _, truth in outer] == [
        (each["shape"], each["sha256"]) for each in held
    ]
    for (spec, _), each in zip(outer, held, strict=True):
        assert spec.slot is not None
        stored = each["path"].replace(":0", "").replace("/", "_").lower()
        if spec.slot_of is not None:
            variable = "_".join(spec.slot_of[-2:])
            assert variable in stored or (spec.slot in ("r", "c") and stored.endswith(spec.slot_of[-1])), each
        if spec.slot not in ("r", "c"):
            assert WORDS.get(spec.slot, spec.slot) in stored.split("_") or stored.endswith(spec.slot), each


@pytest.mark.parametrize("name", [name for name in NUMBERED if "scaled" in name])
def test_an_optimizer_inside_another_is_named_in_its_own_group(name: str) -> None:
    found = named(FILES / name)
    inner = [(spec, truth) for spec, truth in found if {"inner_optimizer", "_optimizer"} & set(spec.path)]
    outer = [(spec, truth) for spec, truth in found if (spec, truth) not in inner][-len(inner) :]
    assert [(spec.slot, spec.slot_of, truth.sha256) for spec, truth in inner] == [
        (spec.slot, spec.slot_of, truth.sha256) for spec, truth in outer
    ]


def test_inspect_shows_the_names() -> None:
    state = inspect(FILES / "numbered-keras-3.15-muon.keras", optimizer=True).to_json()["optimizer"]["state"]
    assert [(each["path"], each["slot"], each["slot_of"], each["stored_as"]) for each in state[1:5]] == [
        ("optimizer/learning_rate", "learning_rate", None, "optimizer/vars/1"),
        ("optimizer/image_embedding/kernel/momentum", "momentum", "image_embedding/kernel", "optimizer/vars/2"),
        ("optimizer/image_embedding/kernel/velocity", "velocity", "image_embedding/kernel", "optimizer/vars/3"),
        ("optimizer/inner/z/kernel/momentum", "momentum", "inner/z/kernel", "optimizer/vars/4"),
    ]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_names_go_into_containers_of_named_tensors(suffix: str, tmp_path: Path) -> None:
    name = "numbered-keras-3.3.3-nadam.keras"
    convert(FILES / name, tmp_path / f"out{suffix}")
    with open_checkpoint(tmp_path / f"out{suffix}") as reader:
        found = {each.path: each.sha256 for each in manifest.read(reader, reader.describe().optimizer_tensors())}
    held = {each["path"].rpartition("/")[2]: each["sha256"] for each in manifest.entry(name)["optimizer"]}
    assert found["optimizer/inner/b/kernel/velocity"] == held["inner_b_kernel_velocity"]
    assert found["optimizer/u_product"] == held["variable"]
    assert len(found) == len(held)


def test_an_archive_keeps_its_numbers(tmp_path: Path) -> None:
    name = "numbered-keras-3.15-scaled.keras"
    convert(FILES / name, tmp_path / "out.keras")
    assert named(tmp_path / "out.keras") == named(FILES / name)


def changed(path: Path, change: Callable[[dict[str, Any]], None], name: str = "keras-3.15-muon") -> Path:
    with zipfile.ZipFile(FILES / f"numbered-{name}.keras") as file:
        members = {each: file.read(each) for each in file.namelist()}
    config = json.loads(members["config.json"])
    change(config)
    return archive(path, {**members, "config.json": json.dumps(config).encode()})


def optimizer(config: dict[str, Any]) -> dict[str, Any]:
    held: dict[str, Any] = config["compile_config"]["optimizer"]
    return held


def layer(config: dict[str, Any], place: int) -> dict[str, Any]:
    held: dict[str, Any] = config["config"]["layers"][place]
    return held


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda config: optimizer(config).update(class_name="Yogi"), "they are not those of Yogi for 4"),
        (lambda config: optimizer(config).update(class_name="Lamb"), "they are not those of Lamb for 4"),
        (lambda config: optimizer(config).update(class_name=["Muon"]), "does not say which optimizer"),
        (lambda config: optimizer(config).update(class_name="mine>Muon"), "not those of Muon"),
        (lambda config: optimizer(config).update(module="mine"), "not those of Muon"),
        (lambda config: optimizer(config).update(registered_name="mine>Muon"), "not those of Muon"),
        (lambda config: config.update(compile_config=["Muon"]), "does not say which optimizer"),
        (lambda config: optimizer(config)["config"].update(exclude_layers=["z"]), "not those of Muon"),
        (lambda config: optimizer(config)["config"].update(exclude_embeddings=False), "not those of Muon"),
        (lambda config: config["compile_config"].pop("optimizer"), "does not say which optimizer"),
        (lambda config: layer(config, 1).update(registered_name="own>Dense"), "which variables it trained"),
        (lambda config: layer(config, 2)["config"].update(trainable=True), "for 5 trainable variables"),
    ],
)  # fmt: skip
def test_what_fits_no_table_stays_numbered_and_it_is_said(
    change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    found = inspect(changed(tmp_path / "in.keras", change), optimizer=True)
    assert [spec.path for spec in found.whole.optimizer_tensors()] == [("optimizer", str(n)) for n in range(8)]
    assert all(spec.slot is None for spec in found.whole.optimizer_tensors())
    [notice] = [each for each in found.warnings if each.code == "slots-numbered"]
    assert why in notice.message
    assert "slots-numbered" not in [each.code for each in inspect(tmp_path / "in.keras").warnings]


def test_averages_beside_accumulated_gradients_are_named_where_their_order_is_known() -> None:
    config = {"use_ema": True, "gradient_accumulation_steps": 2}
    assert layouts("SGD", config, WrittenBy("3.8.0"))[0].first_by_variable
    assert not layouts("SGD", config, WrittenBy("3.15.1"))[0].first_by_variable
    assert layouts("SGD", config, WrittenBy("3.12.0")) == []
    assert layouts("SGD", {"use_ema": True}, WrittenBy("3.12.0")) != []


def test_frozen_layers_were_trained_by_keras_3_0_alone() -> None:
    found = named(FILES / "numbered-keras-3.0.5-adam.keras")
    assert ("fixed", "kernel") in {spec.slot_of for spec, _ in found}
    for name in NUMBERED:
        if "3.0.5" not in name:
            assert ("fixed", "kernel") not in {spec.slot_of for spec, _ in named(FILES / name)}


def test_muon_keeps_other_slots_of_a_template_whose_name_was_taken_off() -> None:
    """Keras chooses by the whole path of a variable, in which the template's name may be the embedding's."""

    def spec(*path: str) -> TensorSpec:
        return TensorSpec(path, (2, 2), "float32", locator="/".join(path[-2:]))

    whole = (spec("embedding", "a", "kernel"), spec("embedding", "b", "kernel"))
    entries = [TensorSpec(("optimizer", str(n)), (), "int64", locator=str(n)) for n in range(2)]
    entries += [TensorSpec(("optimizer", str(n)), (2, 2), "float32", locator=str(n)) for n in range(2, 6)]
    assert named_slots(Optimizer("Muon", {}), entries, whole, WrittenBy("3.15.1")) is not None
    assert named_slots(Optimizer("Muon", {}), entries[:4], whole, WrittenBy("3.15.1")) is None
    bare = (spec("a", "kernel"), spec("b", "kernel"))
    assert named_slots(Optimizer("Muon", {}), entries[:4], bare, WrittenBy("3.15.1")) is not None


def test_the_state_of_a_plain_model_is_carried_with_its_slots() -> None:
    for name in ("numbered-keras-3.15-adafactor.keras", "numbered-keras-3.15-muon.keras"):
        with open_source(FILES / name, SourceOptions()) as source:
            assert len(carried(source.whole, source.template).entries) == len(source.whole.optimizer_tensors())


def test_values_are_those_of_the_slot(tmp_path: Path) -> None:
    """The averages of an untrained step are the weights: Adam's, at the first update."""
    convert(FILES / "numbered-tf-2.15-averaged.keras", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        for variable in ("image_embedding/kernel", "inner/z/kernel", "inner/b/bias"):
            np.testing.assert_allclose(arrays[f"optimizer/{variable}/average"], arrays[variable], atol=0.02)
            assert np.abs(arrays[f"optimizer/{variable}/m"] - arrays[variable]).max() > 0.02
