"""Every full model that an old library wrote: built, saved, loaded in safe mode, and compared with what it recorded.

One process for all, since importing TensorFlow takes longer than all the rest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckpttool.migration.build import build_model, import_keras, save_model
from ckpttool.migration.generation import generation_of
from ckpttool.migration.planning import make_plan
from ckpttool.migration.weights import set_weights
from ckpttool.predicting import old_model, old_outputs
from ckpttool.sample_inputs import Case, tolerance
from ckpttool.source import SourceOptions, open_source
from ckpttool.transforms import model_config
from tests.manifest import ENTRIES

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras and TensorFlow themselves

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
# Keras 1 has no rules yet; the others are wrappers and look-alikes, most with Lambdas or without recorded outputs.
OTHERS = ("keras-1", "own-", "look-", "slots-keras-1")
STOPS = {
    "keras-2.0.9-zoo-cells.h5", "keras-2.2.4-zoo-lambda-layer.h5", "keras-2.3.1-flips.h5",
    "keras-2.3.1-zoo-custom-class.h5", "keras-2.3.1-zoo-locally.h5", "tf-2.10-zoo-lambda-layer.h5",
    "tf-2.10-zoo-time-major.h5", "tf-2.15-zoo-custom-class.h5", "keras-3.15-own-block.h5",
}  # fmt: skip
LOW_PRECISION = ("float16", "bfloat16", "mixed")  # in the names of the files that compute in them


# Full models of Keras 2, tf.keras and Keras 3 that are migrated.
MODELS = sorted(
    name
    for name, entry in ENTRIES.items()
    if entry["kind"] == "model" and name.endswith(".h5") and name not in STOPS and not name.startswith(OTHERS)
)


def close(name: str, new: np.ndarray, old: np.ndarray) -> bool:
    """Within rtol 1e-4 and atol 1e-5, or what half precision allows."""
    low = [each for each in LOW_PRECISION if each in name]
    rtol, atol = tolerance(["bfloat16" if each == "bfloat16" else "float16" for each in low], 1e-4, 1e-5)
    return np.allclose(new.astype("float64"), old.astype("float64"), rtol=rtol, atol=atol)


def recorded(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with np.load(FIXTURES / "files" / ENTRIES[name]["reference"]) as stored:
        inputs = [stored[f"x{number}"] for number in range(sum(key.startswith("x") for key in stored.files))]
        outputs = [stored[f"y{number}"] for number in range(sum(key.startswith("y") for key in stored.files))]
    return inputs, outputs


@pytest.mark.parametrize("name", MODELS)
def test_the_migrated_model_loads_in_safe_mode_and_predicts_what_was_recorded(name: str, tmp_path: Path) -> None:
    keras = import_keras()
    with open_source(FIXTURES / "files" / name, SourceOptions()) as source:
        plan = make_plan(source.template)
        built = build_model(plan)
        set_weights(built, plan, source.template, source.reader)
        save_model(built, tmp_path / "new.keras")
    model = keras.saving.load_model(tmp_path / "new.keras", compile=False, safe_mode=True)
    expected = [each.replace("/", "_") for each in ENTRIES[name]["template"]["outputs"]]
    names = list(getattr(model, "output_names", None) or [model.layers[-1].name])
    if not name.startswith("keras-3"):  # whose Sequential names no outputs
        assert [each for each in names if each in expected or f"{each}_1" in expected] == names
    if ENTRIES[name]["reference"] is None:
        return  # a layer that runs on a GPU only
    inputs, outputs = recorded(name)
    found = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    found = list(found) if isinstance(found, list | tuple) else [found]
    assert len(found) == len(outputs)
    for number, (new, old) in enumerate(zip(found, outputs, strict=True)):
        assert close(name, np.asarray(keras.ops.convert_to_numpy(new)), old), f"output {number}"


@pytest.mark.parametrize("name", MODELS)
def test_the_old_model_that_verify_runs_predicts_what_was_recorded(name: str) -> None:
    with open_source(FIXTURES / "files" / name, SourceOptions()) as source:
        model = model_config(source.template)
        assert model is not None
        old = old_model(source.template, source.reader, generation=generation_of(source.template, model))
        made, outputs = old_outputs(old, seed=3)
    assert len(made) == len(outputs) >= 3
    if ENTRIES[name]["reference"] is None:
        return
    inputs, expected = recorded(name)
    from ckpttool.predicting import run_cases

    (found,) = run_cases(old, [Case(0, len(inputs[0]), tuple(inputs))])
    for new, stored in zip(found, expected, strict=True):
        assert close(name, new, stored)


@pytest.mark.parametrize("name", ["keras-2.2.4-zoo-cudnn.h5", "tf-1.15-zoo-cudnn.h5", "tf-2.3-zoo-channels-first.h5"])
def test_models_that_only_a_gpu_ran_agree_with_tf_keras(name: str, tmp_path: Path) -> None:
    """tf_keras converts the weights of CuDNN layers by its own code."""
    keras = import_keras()
    with open_source(FIXTURES / "files" / name, SourceOptions()) as source:
        plan = make_plan(source.template)
        built = build_model(plan)
        set_weights(built, plan, source.template, source.reader)
        made, expected = old_outputs(old_model(source.template, source.reader, generation=2), seed=0)
    for case, outputs in zip(made, expected, strict=True):
        found = built.model(case.arrays[0], training=False)
        assert close(name, np.asarray(keras.ops.convert_to_numpy(found)), outputs[0])


def test_frozen_layers_stay_frozen_and_trainable_ones_trainable() -> None:
    with open_source(FIXTURES / "files" / "tf-2.15-zoo-norm.h5", SourceOptions()) as source:
        built = build_model(make_plan(source.template))
    assert built.layers[("frozen",)].trainable is False
    assert built.layers[("usual",)].trainable is True
