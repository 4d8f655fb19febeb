"""The optimizer's state on its way from a parallel model to its template."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import h5py
import pytest

import ckpttool
from ckpttool.checkpoint import Role, TensorSpec, WrittenBy
from ckpttool.cli.main import run
from ckpttool.copying import little_endian_bytes
from ckpttool.numbered_slots import with_named_slots
from ckpttool.opening import open_checkpoint
from ckpttool.optimizer_layouts import Layout, layouts
from ckpttool.optimizer_slots import (
    Optimizer,
    _reordered,
    named_slots,
    optimizer_of,
    reduced_training_config,
)

from ..conftest import LEGACY_ENVS
from ..manifest import ENTRIES, FILES, names
from .test_data_parallel import truth

TRAINED = names(lambda name, each: each["maker"] == "make/optimizers.py")
PROOF = FILES.parent / "make" / "one_more_step.py"


def slots(path: Path) -> list[tuple[tuple[int, ...], str]]:
    """Shape and checksum of each entry of the optimizer's list, in the file's order."""
    with open_checkpoint(path) as reader:
        specs = reader.describe().optimizer_tensors()
        return [(s.shape, hashlib.sha256(little_endian_bytes(reader.read(s))).hexdigest()) for s in specs]


@pytest.mark.parametrize("name", TRAINED)
def test_slots_are_carried_over_bit_for_bit(name: str, tmp_path: Path) -> None:
    output = tmp_path / f"base{Path(name).suffix}"
    report = ckpttool.unwrap(FILES / name, output, keep_optimizer=True)
    assert "optimizer-left-out" not in [each.code for each in report.warnings]
    kept = slots(output)
    assert report.optimizer_kept == len(kept) > 0
    assert f"optimizer state kept, {len(kept)} tensors" in report.sentence()
    recorded = [(tuple(each["shape"]), each["sha256"]) for each in ENTRIES[name]["optimizer"]]
    if "mixed" in ENTRIES[name]["tags"]:  # the list in memory has the loss scale too
        assert set(kept) <= set(recorded)
    else:
        assert kept == recorded


@pytest.mark.parametrize("name", TRAINED)
def test_each_slot_is_that_of_a_trainable_variable_of_its_shape(name: str) -> None:
    with open_checkpoint(FILES / name) as reader:
        described = with_named_slots(reader.describe())
    shapes = {spec.path: spec.shape for spec in described.weights()}
    found = described.optimizer_tensors()
    for spec in found:
        assert spec.slot is not None
        if spec.slot_of is None:
            assert spec.shape == ()
        else:
            assert spec.shape in (shapes[spec.slot_of], (1,))
            assert "fixed" not in spec.slot_of
    of = {spec.slot_of for spec in found if spec.slot_of}
    if of:
        assert {"/".join(path[1:]) for path in of} == {each.path for each in truth(name) if "fixed" not in each.path}


@pytest.mark.old_python
@pytest.mark.slow
@pytest.mark.parametrize("environment", sorted({ENTRIES[name]["environment"] for name in TRAINED}))
def test_one_more_step_is_that_of_the_wrapper(environment: str, tmp_path: Path) -> None:
    python = LEGACY_ENVS / environment / "bin" / "python"
    for library in ("keras", "tf.keras"):
        arguments: list[str] = []
        for name in TRAINED:
            each = ENTRIES[name]
            if each["environment"] != environment or each["library"] != library:
                continue
            if environment == "keras-3.15" and name.endswith(".h5"):
                continue  # Keras 3.15 builds the optimizer of a model from HDF5 with no variables, of its own files too
            ckpttool.unwrap(FILES / name, tmp_path / name, keep_optimizer=True)
            arguments += [str(tmp_path / name), str(FILES / each["reference"])]
        if not arguments:
            continue
        done = subprocess.run(
            [python, PROOF, library, *arguments],
            env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stderr[-2000:]
        found = json.loads(lines[0][len("RESULT ") :])
        assert len(found) == len(arguments) // 2
        assert {name: value for name, value in found.items() if not isinstance(value, float)} == {}


def test_without_the_option_the_state_is_left_out_and_it_is_said(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "slots-tf-2.3-adam.h5", tmp_path / "base.h5")
    assert report.sentence().endswith("; optimizer state left out (--keep-optimizer)")
    with h5py.File(tmp_path / "base.h5") as file:
        assert "optimizer_weights" not in file
        assert "training_config" not in file.attrs


@pytest.mark.parametrize("output", ["base.safetensors", "base.npz"])
def test_into_another_container_it_is_left_out_and_it_is_said(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["unwrap", str(FILES / "slots-tf-2.3-adam.h5"), "--keep-optimizer", "-o", output]) == 0
    assert f"the optimizer state is left out: it cannot go from keras-h5 to {output[5:]}" in capsys.readouterr().err


def test_a_model_compiled_for_other_outputs_loses_its_state_and_it_is_said(tmp_path: Path) -> None:
    source = tmp_path / "source.h5"
    source.write_bytes((FILES / "own-keras-2.2.4-around-loss.h5").read_bytes())
    with h5py.File(source, "r+") as file:
        file.attrs["training_config"] = json.dumps({"optimizer_config": {"class_name": "SGD", "config": {}}})
        group = file.create_group("optimizer_weights")
        group.attrs["weight_names"] = [b"SGD/iterations:0"]
        group["SGD/iterations:0"] = 3
    report = ckpttool.unwrap(source, tmp_path / "base.h5", keep_optimizer=True)
    said = {each.code: each.message for each in report.warnings}
    assert "compiled with other outputs" in said["optimizer-left-out"]


def edited(tmp_path: Path, name: str, **changes: Any) -> Path:
    """A fixture with another optimizer in its training configuration."""
    path = tmp_path / "edited.h5"
    path.write_bytes((FILES / name).read_bytes())
    with h5py.File(path, "r+") as file:
        document = json.loads(file.attrs["training_config"])
        document.update(changes)
        file.attrs["training_config"] = json.dumps(document)
    return path


def test_an_optimizer_that_is_not_known_is_left_out_and_named(tmp_path: Path) -> None:
    path = edited(tmp_path, "slots-keras-2.2.4-adam.h5", optimizer_config={"class_name": "Yogi", "config": {}})
    report = ckpttool.unwrap(path, tmp_path / "base.h5", keep_optimizer=True)
    said = {each.code: each.message for each in report.warnings}
    assert "Yogi" in said["optimizer-left-out"]


@pytest.mark.parametrize("class_name", ["SGD", "RMSprop", "Adadelta", "Nadam"])
def test_a_list_that_is_not_the_optimizers_own_is_left_out(class_name: str, tmp_path: Path) -> None:
    path = edited(tmp_path, "slots-keras-2.2.4-adam.h5", optimizer_config={"class_name": class_name, "config": {}})
    report = ckpttool.unwrap(path, tmp_path / "base.h5", keep_optimizer=True)
    assert "optimizer-left-out" in [each.code for each in report.warnings]
    with h5py.File(tmp_path / "base.h5") as file:
        assert "optimizer_weights" not in file


def test_horovods_wrapper_is_named_and_taken_off(tmp_path: Path) -> None:
    # synthetic, after horovod/_keras/__init__.py (Horovod 0.28): a class of the optimizer's name, or `Distributed…`
    config = {"name": "DistributedAdam", "learning_rate": 0.001, "decay": 0.0, "beta_1": 0.9, "beta_2": 0.999,
              "epsilon": 1e-7, "amsgrad": False}  # fmt: skip
    for class_name in ("Adam", "DistributedAdam"):
        path = edited(tmp_path, "slots-tf-2.3-adam.h5", optimizer_config={"class_name": class_name, "config": config})
        report = ckpttool.unwrap(path, tmp_path / "base.h5", keep_optimizer=True, overwrite=True)
        said = {each.code: each.message for each in report.warnings}
        assert said["optimizer-reduced"] == "Adam was inside DistributedAdam; it is written without"
        with h5py.File(tmp_path / "base.h5") as file:
            written = json.loads(file.attrs["training_config"])["optimizer_config"]
        assert written == {"class_name": "Adam", "config": {**config, "name": "Adam"}}
        assert len(slots(tmp_path / "base.h5")) == 7


@pytest.mark.parametrize("name", [name for name in TRAINED if "mixed" in ENTRIES[name]["tags"]])
def test_a_loss_scale_is_named_and_taken_off(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "base.h5"
    assert run(["unwrap", str(FILES / name), "--keep-optimizer", "-o", str(output)]) == 0
    assert "Adam was inside LossScaleOptimizer" in capsys.readouterr().err
    with h5py.File(output) as file:
        entry = json.loads(file.attrs["training_config"])["optimizer_config"]
    assert entry["class_name"].rpartition(">")[2] == "Adam"
    assert run(["inspect", str(FILES / name), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["optimizer"]
    assert found["class_name"] == "Adam"
    assert found["wrappers"][0].startswith("LossScaleOptimizer")


def test_losses_by_output_go_by_the_templates_names(tmp_path: Path) -> None:
    path = edited(tmp_path, "slots-tf-2.15-legacy-adam.h5", loss={"concatenate": "mse"}, metrics=None)
    ckpttool.unwrap(path, tmp_path / "base.h5", keep_optimizer=True)
    with h5py.File(tmp_path / "base.h5") as file:
        assert json.loads(file.attrs["training_config"])["loss"] == {"image_embedding": "mse"}


def test_inspect_says_whose_slot_each_tensor_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(FILES / "slots-keras-2.2.4-adam.h5"), "--optimizer", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)["optimizer"]["state"]
    assert [each["slot"] for each in state[:2]] == ["iterations", "m"]
    assert state[1]["slot_of"] == "template/z_hidden/kernel"
    assert [each["slot"] for each in state[-3:]] == ["vhat"] * 3


# -- the table -----------------------------------------------------------------------------------------------------


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(("optimizer", *name.split("/")), shape, "float32", Role.OPTIMIZER, locator=name)


VARIABLES = (
    TensorSpec(("a", "kernel"), (2, 3), "float32", locator="a"),
    TensorSpec(("a", "bias"), (3,), "float32", locator="b"),
)


def test_entries_go_into_the_order_of_other_variables() -> None:
    layout = Layout(("iterations",), ("m", "v"))
    entries = [spec("it"), spec("m0", 2, 3), spec("m1", 3), spec("v0", 2, 3), spec("v1", 3)]
    ours = tuple(reversed(VARIABLES))
    found = _reordered(layout, entries, ours, [1, 0])
    assert [each.locator for each in found] == ["it", "m1", "m0", "v1", "v0"]
    assert [each.slot_of for each in found] == [None, ("a", "bias"), ("a", "kernel"), ("a", "bias"), ("a", "kernel")]


@pytest.mark.parametrize(
    ("names_", "fits"),
    [
        (("Adam/iter:0", "Adam/a/kernel/m:0", "Adam/a/bias/m:0", "Adam/a/kernel/v:0", "Adam/a/bias/v:0"), True),
        (("Adam/iter:0", "Adam/a/kernel/v:0", "Adam/a/bias/v:0", "Adam/a/kernel/m:0", "Adam/a/bias/m:0"), False),
        (("Adam/iter:0", "Adam/a/bias/m:0", "Adam/a/kernel/m:0", "Adam/a/kernel/v:0", "Adam/a/bias/v:0"), False),
        (("x", "y", "z", "v", "w"), True),
    ],
)
def test_names_that_say_something_must_agree(names_: tuple[str, ...], fits: bool) -> None:
    shapes: list[tuple[int, ...]] = [(), (2, 3), (3,), (2, 3), (3,)]
    entries = [spec(name, *shape) for name, shape in zip(names_, shapes, strict=True)]
    found = named_slots(Optimizer("Adam", {}), entries, VARIABLES, WrittenBy("2.4.0"))
    assert (found is not None) is fits


def test_shapes_must_be_those_of_the_variables() -> None:
    entries = [spec("i"), spec("m0", 3), spec("m1", 2, 3), spec("v0", 3), spec("v1", 2, 3)]
    assert named_slots(Optimizer("Adam", {}), entries, VARIABLES, WrittenBy("2.2.4")) is None


def test_a_placeholder_stands_for_vhat_only() -> None:
    entries = [
        spec("i"),
        spec("m0", 2, 3),
        spec("m1", 3),
        spec("v0", 2, 3),
        spec("v1", 3),
        spec("h0", 1),
        spec("h1", 1),
    ]
    found = named_slots(Optimizer("Adam", {}), entries, VARIABLES, WrittenBy("2.2.4"))
    assert found is not None and [each.slot for each in found[1]][-2:] == ["vhat", "vhat"]
    entries = [spec("i"), spec("m0", 1), spec("m1", 1)]
    assert named_slots(Optimizer("SGD", {}), entries, VARIABLES, WrittenBy("2.2.4")) is None


def test_the_writer_decides_the_table() -> None:
    assert [each.by_variable for each in layouts("Adam", {}, WrittenBy("2.2.4"))] == [False, False]
    assert layouts("Adam", {}, WrittenBy("2.15.0"))[0].by_variable
    assert layouts("Adam", {}, WrittenBy("3.15.0"))[0].counters == ("iteration", "learning_rate")
    assert layouts("Adam", {"is_legacy_optimizer": True}, WrittenBy("2.15.0"))[0].counters == ("iter",)
    assert layouts("Ftrl", {}, WrittenBy("2.2.4")) == []
    assert layouts("Adam", {"use_ema": True}, WrittenBy("3.15.0"))[0].first == ("average",)


@pytest.mark.parametrize(
    ("document", "class_name", "wrappers"),
    [
        ({"optimizer_config": {"class_name": "Adam", "config": {}}}, "Adam", ()),
        ({"optimizer_config": {"class_name": "Custom>SGD", "config": {}}}, "SGD", ()),
        ({"optimizer": "adam"}, "adam", ()),
        ({"optimizer_config": {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": {
            "class_name": "Adam", "config": {}}}}}, "Adam", ("LossScaleOptimizer",)),
        ({"optimizer_config": {"class_name": "_DistributedOptimizer", "config": {"optimizer": {
            "class_name": "RMSprop", "config": {}}}}}, "RMSprop", ("_DistributedOptimizer",)),
        ({"optimizer_config": {"class_name": "DistributedSGD", "config": {}}}, "SGD", ("DistributedSGD",)),
    ],
)  # fmt: skip
def test_wrappers_of_optimizers(document: Any, class_name: str, wrappers: tuple[str, ...]) -> None:
    found = optimizer_of(json.dumps(document))
    assert found is not None and (found.class_name, found.wrappers) == (class_name, wrappers)
    if "optimizer_config" in document:
        reduced = json.loads(reduced_training_config(json.dumps(document), found))
        assert reduced["optimizer_config"]["class_name"].rpartition(">")[2] == class_name


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"optimizer_config": 3}', '{"optimizer_config": {}}'])
def test_a_training_configuration_without_an_optimizer(text: str | None) -> None:
    assert optimizer_of(text) is None
