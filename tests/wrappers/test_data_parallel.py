"""Wrappers by their shape: files of the old libraries and of own wrappers, and look-alikes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpttool
from ckpttool.cli.main import run
from ckpttool.errors import CheckpointError, ReplicasDifferError, UnprovenWrapperError
from ckpttool.keras_config import parse_config
from ckpttool.source import SourceOptions, open_source
from ckpttool.weight_names import KERAS1_VARIABLES

from ..manifest import ENTRIES, FILES, Truth, names, read
from ..manifest import truth as recorded

MAKERS = ("make/own_wrappers.py", "make/wrapped_names.py", "make/optimizers.py")
UNCERTAIN = ("own-keras-2.3.1-silent.h5", "own-keras-2.2.4-parallel-model.h5")
DIFFERENT = "own-keras-2.2.4-bodies-different.h5"
WHOLE = names(
    lambda name, each: (
        each["maker"] in MAKERS and each["kind"] == "model" and each["wrapper"] is not None
        and name not in (*UNCERTAIN, DIFFERENT)
    )
)  # fmt: skip
WEIGHTS = names(
    lambda name, each: each["maker"] in MAKERS and each["kind"] == "weights" and each["wrapper"] is not None
)
LOOK_ALIKES = names(lambda name, each: "look-alike" in each["tags"])


def truth(name: str) -> list[Truth]:
    """The template's tensors; those of Keras 1 by today's names."""
    if ENTRIES[name]["environment"] != "keras-1.2.2":
        return recorded(name)
    parts = [(each, each.path.rpartition("/")) for each in recorded(name)]
    return [replace(each, path=f"{scope}/{KERAS1_VARIABLES[last]}") for each, (scope, _, last) in parts]


def template_of(path: Path, **options: Any) -> tuple[list[Truth], Any]:
    with open_source(path, SourceOptions(**options)) as source:
        return read(source.reader, source.template.weights()), source.wrapper


@pytest.mark.parametrize("name", WHOLE)
def test_the_template_is_found_and_proven(name: str) -> None:
    tensors, wrapper = template_of(FILES / name)
    facts = ENTRIES[name]["wrapper"]
    assert sorted(tensors) == sorted(truth(name))
    assert wrapper is not None and wrapper.certain
    assert (wrapper.template_name, wrapper.replicas) == (facts["template"], facts["replicas"])
    assert wrapper.depth == facts.get("depth", 1)
    assert wrapper.kind == facts["kind"]


@pytest.mark.parametrize("name", WHOLE)
def test_the_template_is_written_as_a_model_of_its_own(name: str, tmp_path: Path) -> None:
    output = tmp_path / f"base{Path(name).suffix}"
    report = ckpttool.unwrap(FILES / name, output)
    assert report.tensors == len({each.sha256 for each in truth(name)})
    tensors, wrapper = template_of(output)
    assert wrapper is None
    stored = [each.path.removeprefix("top_level_model_weights/").removesuffix(":0") for each in tensors]
    assert sorted(stored) == sorted(each.path for each in truth(name))
    assert sorted(each.sha256 for each in tensors) == sorted(each.sha256 for each in truth(name))


@pytest.mark.parametrize("name", [name for name in WHOLE if ENTRIES[name]["template"] is not None])
def test_the_templates_own_inputs_and_outputs_come_back(name: str) -> None:
    own = ENTRIES[name]["template"]
    with open_source(FILES / name, SourceOptions()) as source:
        assert source.template.config is not None
        model = parse_config(source.template.config)
    if model.functional:
        assert list(model.input_names()) == [each.split("/")[0] for each in own["inputs"]]
        assert len(model.outputs) == len(own["outputs"])
        for layer, output in zip(model.output_names(), own["outputs"], strict=True):
            assert output.startswith(layer)  # Keras numbers equal names: shared_1, shared_2
        assert model.name == own["name"]


@pytest.mark.parametrize("name", UNCERTAIN)
def test_slices_without_numbers_prove_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tensors, wrapper = template_of(FILES / name)
    assert wrapper is not None and not wrapper.certain
    assert sorted(tensors) == sorted(truth(name))
    assert run(["unwrap", str(FILES / name), "-o", "base.h5"]) == 2
    line = capsys.readouterr().err
    assert "no number in the file says which slice is which" in line
    command = shlex.split(line.rpartition("to take it out: ")[2])
    assert command[:2] == ["ckpttool", "unwrap"]
    assert run(command[1:]) == 0
    assert sorted(template_of(tmp_path / "base.h5")[0]) == sorted(truth(name))


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_alone_are_looked_into_and_not_trusted(name: str, tmp_path: Path) -> None:
    tensors, wrapper = template_of(FILES / name)
    assert wrapper is not None and not wrapper.certain
    assert sorted(each.sha256 for each in tensors) == sorted(each.sha256 for each in truth(name))
    with pytest.raises(UnprovenWrapperError, match="--assume-wrapper"):
        ckpttool.unwrap(FILES / name, tmp_path / "base.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in WEIGHTS if (FILES / name.replace("-weights", "")).exists()])
def test_weights_alone_are_proven_by_the_configuration_of_the_whole(name: str) -> None:
    whole = FILES / name.replace("-weights", "")
    tensors, wrapper = template_of(FILES / name, config=str(whole))
    assert wrapper is not None and wrapper.certain is (whole.name not in UNCERTAIN)
    assert sorted(tensors) == sorted(truth(name))


@pytest.mark.parametrize("name", [name for name in WEIGHTS if ENTRIES[name]["template"]["json"] is not None])
def test_weights_alone_are_proven_by_the_configuration_of_the_template(name: str, tmp_path: Path) -> None:
    facts, config = ENTRIES[name]["wrapper"], tmp_path / "template.json"
    config.write_text(json.dumps(ENTRIES[name]["template"]["json"]))
    tensors, wrapper = template_of(FILES / name, config=str(config))
    assert wrapper is not None and wrapper.certain
    assert wrapper.replicas in (facts["replicas"], facts["replicas"] // 2, None)
    assert sorted(tensors) == sorted(truth(name))
    assert ckpttool.unwrap(FILES / name, tmp_path / "base.h5", options=SourceOptions(config=config)).kind == "model"


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_never_unwrapped(name: str, tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    try:
        report = ckpttool.unwrap(FILES / name, output)
    except CheckpointError as error:
        assert isinstance(error, UnprovenWrapperError)
        assert not output.exists()
    else:
        assert report.wrapper is None
        assert sorted(template_of(output, no_wrapper=True)[0]) == sorted(truth(name))
    tensors, wrapper = template_of(FILES / name, no_wrapper=True)
    assert wrapper is None
    if "weights-only" not in ENTRIES[name]["tags"]:
        assert sorted(tensors) == sorted(truth(name))


def test_many_bodies_of_equal_values_become_one(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "own-keras-2.2.4-bodies-equal.h5", tmp_path / "base.h5")
    assert report.sentence().startswith("8 of 24 tensors")
    assert "16 tensors are copies, each compared value by value as it was read" in report.notes
    assert not report.warnings


def test_many_bodies_of_other_values_are_refused_and_the_difference_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "base.h5"
    assert run(["unwrap", str(FILES / DIFFERENT), "-o", str(output)]) == 3
    line = capsys.readouterr().err
    assert "gpu0_image_embedding/kernel and tower_2/gpu2_image_embedding/kernel" in line
    assert "differ by up to 0.25" in line
    assert not list(tmp_path.iterdir())
    with pytest.raises(ReplicasDifferError):
        template_of(FILES / DIFFERENT)


def test_inspect_says_that_equality_is_not_known_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(FILES / DIFFERENT), "--json"]) == 0
    evidence = json.loads(capsys.readouterr().out)["wrapper"]["evidence"]
    assert "that their values are equal is checked while they are read" in evidence


def test_convert_keeps_many_bodies_whatever_they_hold(tmp_path: Path) -> None:
    report = ckpttool.convert(FILES / DIFFERENT, tmp_path / "all.npz")
    assert report.sentence().startswith("12 of 12 tensors")


def test_what_is_around_a_wrapper_stays_with_it() -> None:
    with open_source(FILES / "own-keras-2.2.4-around-head.h5", SourceOptions()) as source:
        assert [layer.name for layer in source.template.layers] == ["features", "encoder", "before_head", "head"]
        assert source.template.layers[1].calls == 1
        model = parse_config(source.template.config or "")
    assert [layer.class_name for layer in model.layers] == ["InputLayer", "Model", "Dense", "Dense"]
    assert model.layer("before_head").nodes[0].inputs == (("encoder", 0, 0),)  # type: ignore[union-attr]


def test_of_weights_alone_what_is_around_a_wrapper_stays_too(tmp_path: Path) -> None:
    import h5py

    name, weights = "own-keras-2.2.4-around-head.h5", tmp_path / "weights.h5"
    with h5py.File(FILES / name) as whole, h5py.File(weights, "w") as file:
        for group in whole["model_weights"]:
            whole["model_weights"].copy(group, file)
        file.attrs.update(whole["model_weights"].attrs)
    with pytest.raises(UnprovenWrapperError, match="2 more groups with weights: before_head, head"):
        ckpttool.unwrap(weights, tmp_path / "base.h5")
    ckpttool.unwrap(weights, tmp_path / "base.h5", options=SourceOptions(assume_wrapper="encoder"))
    assert sorted(template_of(tmp_path / "base.h5", no_wrapper=True)[0]) == sorted(truth(name))
    with open_source(tmp_path / "base.h5", SourceOptions()) as source:
        assert source.wrapper is None


def test_a_loss_of_the_training_is_left_out_and_it_is_said(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "own-keras-2.2.4-around-loss.h5", tmp_path / "base.h5")
    assert [each.code for each in report.warnings] == ["layers-left-out"]
    assert "target, loss" in report.warnings[0].message


def test_a_wrapped_generator_is_unwrapped_where_it_stands() -> None:
    with open_source(FILES / "own-keras-2.3.1-gan.h5", SourceOptions()) as source:
        assert source.wrapper is not None and source.wrapper.template == ("model_1", "generator")
        assert [layer.name for layer in source.template.layers] == ["z", "generator", "discriminator"]


def test_the_template_is_called_elsewhere_too() -> None:
    with open_source(FILES / "own-tf-2.3-around-twice.h5", SourceOptions()) as source:
        model = parse_config(source.template.config or "")
    assert [layer.name for layer in model.layers] == ["features", "encoder"]
    assert model.outputs == (("encoder", 0, 0), ("encoder", 1, 0))


@pytest.mark.tensorflow
def test_unwrapped_models_compute_what_the_old_library_computed(tmp_path: Path) -> None:
    import tf_keras

    loaded = 0
    for name in WHOLE:
        each = ENTRIES[name]
        skip = {"custom", "own-class", "cudnn", "odd-names", "top-level", "trained"} & set(each["tags"])
        if not name.endswith(".h5") or each["reference"] is None or skip or each["environment"].startswith("keras-3"):
            continue
        output = tmp_path / name
        ckpttool.unwrap(FILES / name, output)
        model = tf_keras.models.load_model(output, compile=False)
        reference = np.load(FILES / each["reference"])
        inputs = [reference[key] for key in sorted(reference) if key.startswith("x")]
        found = model.predict(inputs if len(inputs) > 1 else inputs[0], batch_size=len(inputs[0]), verbose=0)
        found = found if isinstance(found, list) else [found]
        wanted = [reference[key] for key in sorted(reference) if key.startswith("y")]
        assert len(found) == len(wanted), name
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=name)
        loaded += 1
    assert loaded >= 20


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_layer_called_like_anothers_path_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FILES / "own-keras-2.2.4-like-a-path.h5")
    assert run(["extract", path, "--layer", "tower/dense"]) == 2
    assert r"/tower/dense (6×5, 5), /tower\/dense (5×4, 4); give one's path" in capsys.readouterr().err
    for words, shape in (("/tower/dense", [6, 5]), (r"tower\/dense", [5, 4]), (r"/tower\/dense", [5, 4])):
        assert run(["extract", path, "--layer", words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tensors"][0]["shape"] == shape


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_two_tensors_of_one_name_are_refused_where_names_are_all(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="two tensors are called 'tower/dense/kernel'"):
        ckpttool.unwrap(FILES / "own-keras-2.2.4-like-a-path.h5", tmp_path / f"base{suffix}")


def test_one_name_at_two_depths_is_told_apart_by_paths(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FILES / "own-keras-2.2.4-same-name.h5")
    assert run(["extract", path, "--layer", "image_embedding"]) == 2
    assert "tower/image_embedding (6×5, 5), /image_embedding (5×4, 4)" in capsys.readouterr().err
    for words, shape in (("tower/image_embedding", [6, 5]), ("/image_embedding", [5, 4])):
        assert run(["extract", path, "--layer", words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tensors"][0]["shape"] == shape


def test_odd_names_are_shown_escaped_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FILES / "own-keras-2.0.9-odd-names.h5")
    assert run(["inspect", path]) == 0
    assert "\n  two\\nlines  Dense" in capsys.readouterr().out
    for name in ("café.layer 1", "正規化", "two\nlines", "image embedding"):
        assert run(["extract", path, "--layer", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["layer"] == name


def test_scopes_in_front_are_no_part_of_a_layers_name() -> None:
    for name in ("own-keras-2.3.1-scopes-weights.h5", "own-tf-1.15-scopes-weights.h5"):
        tensors, _ = template_of(FILES / name)
        assert sorted(tensors) == sorted(truth(name))


def test_classes_of_the_user_are_listed_and_left_as_they_are(tmp_path: Path) -> None:
    name = "own-keras-2.3.1-custom.h5"
    report = ckpttool.unwrap(FILES / name, tmp_path / "base.h5")
    said = {each.code: each.message for each in report.warnings}
    assert "classes that are not Keras's own: Scale, Memory" in said["custom-classes"]
    with open_source(tmp_path / "base.h5", SourceOptions()) as source:
        stored = json.loads(source.template.config or "")["config"]
    assert stored == ENTRIES[name]["template"]["json"]["config"]


def test_flags_of_frozen_layers_stay() -> None:
    with open_source(FILES / "own-keras-2.2.4-cudnn.h5", SourceOptions()) as source:
        flags = {layer.name: layer.trainable for layer in source.template.layers if layer.tensors}
        assert flags == {"image_embedding": True, "lstm": True, "gru": False, "last": True}


def test_variables_of_the_template_itself_come_along(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / "own-tf-2.10-top-level.h5", tmp_path / "base.h5")
    with open_source(tmp_path / "base.h5", SourceOptions()) as source:
        assert {spec.name: spec.shape for spec in source.template.loose} == {
            "top_level_model_weights/gain": (), "top_level_model_weights/memory": (6, 3),
        }  # fmt: skip
