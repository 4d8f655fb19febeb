"""`verify`: what counts as equal, what as different, and what as not proven."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.errors import UsageError
from ckpttool.keras_config import parse_config
from ckpttool.reading import Progress
from ckpttool.reference import NoReferenceError, reference_entry
from ckpttool.sample_inputs import cases, input_kinds, tolerance
from ckpttool.source import SourceOptions, open_source
from ckpttool.verification import Difference, Prediction, Verification

SOURCE = "keras-2.3.1-two-towers.h5"
RNN = "keras-2.2.4-zoo-rnn.h5"


def changed(path: Path, name: str, by: float) -> None:
    """Change one value of one dataset of a file."""
    with h5py.File(path, "r+") as file:
        found: list[str] = []
        file.visit(lambda key: found.append(key) if key.endswith(name) else None)
        dataset = file[found[0]]
        values = dataset[()]
        values.reshape(-1)[0] += by
        dataset[...] = values


def test_an_unwrapped_file_is_its_source_bit_for_bit(fixture_files: Path, tmp_path: Path) -> None:
    ckpttool.unwrap(fixture_files / SOURCE, tmp_path / "base.h5")
    found = ckpttool.verify(fixture_files / SOURCE, tmp_path / "base.h5", predict=False)
    assert found.verified
    assert (found.tensors, found.of_tensors, found.transformed) == (10, 10, 0)
    assert found.sentence() == "verified: 10 of 10 tensors equal"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".weights.h5"])
def test_every_output_of_unwrap_can_be_verified(suffix: str, fixture_files: Path, tmp_path: Path) -> None:
    output = tmp_path / f"base{suffix}"
    ckpttool.unwrap(fixture_files / SOURCE, output)
    assert ckpttool.verify(fixture_files / SOURCE, output, predict=False).verified


def test_progress_counts_the_bytes_that_are_compared(fixture_files: Path, tmp_path: Path) -> None:
    ckpttool.unwrap(fixture_files / SOURCE, tmp_path / "base.h5")
    steps: list[Progress] = []
    ckpttool.verify(fixture_files / SOURCE, tmp_path / "base.h5", predict=False, on_progress=steps.append)
    assert len(steps) == 10
    assert steps[-1] == Progress(664, 664, "kind/bias")


def test_one_changed_value_is_named(fixture_files: Path, tmp_path: Path) -> None:
    ckpttool.unwrap(fixture_files / SOURCE, tmp_path / "base.h5")
    changed(tmp_path / "base.h5", "image_embedding/kernel:0", 1e-6)
    found = ckpttool.verify(fixture_files / SOURCE, tmp_path / "base.h5", predict=False)
    assert found.wrong
    assert not found.verified
    assert found.differing == ("tower/image_embedding/kernel",)
    assert found.sentence().startswith("NOT EQUAL: 9 of 10 tensors equal")


def test_another_model_has_other_tensors(fixture_files: Path) -> None:
    found = ckpttool.verify(fixture_files / SOURCE, fixture_files / RNN, predict=False)
    assert found.wrong
    assert found.tensors == 0


def test_a_model_without_weights_has_nothing_to_verify(fixture_files: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.attrs["layer_names"] = np.array([b"a"])
        file.create_group("a").attrs["weight_names"] = np.zeros(0)
    with pytest.raises(UsageError, match="no weights"):
        ckpttool.verify(tmp_path / "empty.h5", fixture_files / SOURCE, predict=False)


def test_what_is_not_proven_is_not_verified() -> None:
    found = Verification("a", "b", 4, 4, 0, not_verified=("outputs not compared: tf_keras is not installed",))
    assert not found.wrong
    assert not found.verified
    assert found.sentence().startswith("NOT VERIFIED")
    differing = Prediction("x", "y", (0,), (1,), 1e-4, 1e-5, (Difference(0, 0.1, 1.0, False),))
    assert dataclasses.replace(found, prediction=differing).wrong
    assert json.loads(json.dumps(found.to_json()))["verified"] is False


def test_half_precision_has_a_tolerance_of_its_own() -> None:
    assert tolerance(["float32"], 1e-4, 1e-5) == (1e-4, 1e-5)
    assert tolerance(["float32", "float16"], 1e-4, 1e-5)[0] > 1e-3
    assert tolerance(["bfloat16"], 1e-4, 1e-5)[0] > tolerance(["float16"], 1e-4, 1e-5)[0]


def test_inputs_that_are_looked_up_stay_below_the_table(fixture_files: Path) -> None:
    with open_source(fixture_files / "tf-2.15-zoo-shared.h5", SourceOptions()) as source:
        model = parse_config(source.template.config or "")
    shapes = [((None, 4), "float32"), ((None, 3), "int32"), ((None, 4), "float32"), ((None, 2), "int32")]
    kinds = input_kinds(model, shapes)
    assert [kind.bound for kind in kinds] == [None, 9, None, 9]
    made = cases(kinds, seed=5, length=8)
    assert {case.batch for case in made} == {1, 4}
    assert len({case.seed for case in made}) == 3
    assert all(case.arrays[1].min() >= 0 and case.arrays[1].max() < 9 for case in made)
    again = cases(kinds, seed=5, length=8)
    assert all(
        np.array_equal(a, b) for x, y in zip(made, again, strict=True) for a, b in zip(x.arrays, y.arrays, strict=True)
    )


def test_a_stated_batch_size_is_kept() -> None:
    kinds = input_kinds(parse_config('{"class_name": "Sequential", "config": []}'), [((7, None, 3), "float32")])
    assert {case.arrays[0].shape for case in cases(kinds, seed=0, length=8)} == {(7, 8, 3)}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"class_name": "Lambda", "config": {"function": ["4wM=", None, None]}}, "Lambda"),
        ({"class_name": "Mine", "config": {}}, "Mine"),
        ({"class_name": "Dense", "config": {"units": 1, "activation": "os.system"}}, "os.system"),
        ({"class_name": "TFOpLambda", "config": {"function": "io.write_file"}}, "not on the list"),
        ({"class_name": "TensorFlowOpLayer", "config": {"node_def": {"op": "WriteFile"}}}, "not on the list"),
        ({"class_name": "TimeDistributed", "config": {"layer": {"class_name": "Lambda", "config": {}}}}, "Lambda"),
    ],
)
def test_tf_keras_never_sees_what_is_not_on_the_list(entry: dict[str, object], reason: str) -> None:
    with pytest.raises(NoReferenceError, match=reason):
        reference_entry(entry)


def test_the_reference_has_no_module_and_no_initial_values() -> None:
    entry = {"class_name": "GRU", "module": "os", "registered_name": "x>y", "config": {
        "name": "gru", "units": 2, "kernel_initializer": {"class_name": "Mine", "config": {}},
        "kernel_regularizer": {"class_name": "Mine", "config": {}}, "implementation": 1}}  # fmt: skip
    made = reference_entry(entry)
    assert set(made) == {"class_name", "config"}
    assert made["config"] == {"name": "gru", "units": 2, "kernel_initializer": "zeros", "activation": "tanh",
                              "recurrent_activation": "hard_sigmoid", "reset_after": False}  # fmt: skip


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")  # of Keras and TensorFlow themselves
def test_a_migrated_file_is_proven_and_another_slope_is_noticed(fixture_files: Path, tmp_path: Path) -> None:
    done = ckpttool.migrate(fixture_files / RNN, tmp_path / "new.keras")
    proof = done.verification
    assert proof is not None
    assert done.verified
    assert proof.tensors == proof.of_tensors == 29
    assert proof.transformed == 20
    assert proof.loaded_by is not None and proof.loaded_by.startswith("keras 3")
    assert proof.prediction is not None
    assert len(proof.prediction.seeds) == 3
    assert proof.prediction.largest < 1e-5
    # the same weights without the scaling: Keras 3's own hard_sigmoid, as a rename would give
    keras = pytest.importorskip("keras")
    model = keras.saving.load_model(tmp_path / "new.keras")
    layer = model.get_layer("lstm_hard")
    with open_source(fixture_files / RNN, SourceOptions()) as source:
        stored = {spec.name: source.reader.read(spec) for spec in source.template.weights()}
    layer.set_weights([stored[f"lstm_hard/{name}"] for name in ("kernel", "recurrent_kernel", "bias")])
    model.save(tmp_path / "renamed.keras")
    found = ckpttool.verify(fixture_files / RNN, tmp_path / "renamed.keras")
    assert found.wrong
    assert len(found.differing) == 3
    assert found.prediction is not None
    assert not found.prediction.equal


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_a_file_for_tf_keras_is_proven_by_tf_keras(fixture_files: Path, tmp_path: Path) -> None:
    done = ckpttool.migrate(fixture_files / "keras-2.2.4-rnn.h5", tmp_path / "base.h5", to="tf-keras")
    assert done.verified
    assert done.format == "keras-h5"
    assert done.verification is not None
    assert done.verification.prediction is not None
    tf_keras = pytest.importorskip("tf_keras")
    assert tf_keras.models.load_model(tmp_path / "base.h5", compile=False) is not None


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
def test_an_archive_that_keras_does_not_load_is_not_verified(fixture_files: Path, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "broken.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("metadata.json", "{}")
    found = ckpttool.verify(fixture_files / SOURCE, tmp_path / "broken.keras", predict=False)
    assert not found.verified
    assert found.not_verified


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pair", [(SOURCE, "keras-2.2.4-sequential.h5"), ("keras-3.15-deep.keras", SOURCE)])
def test_models_of_different_inputs_are_not_equal(pair: tuple[str, str], fixture_files: Path) -> None:
    found = ckpttool.verify(fixture_files / pair[0], fixture_files / pair[1])
    assert found.sentence().startswith("NOT EQUAL: 0 of ")
    assert found.not_verified[0].startswith(
        "outputs not compared: the second model does not take the first one's inputs: Layer "
    )
    assert found.not_verified[0].endswith("input tensors.")
