"""What `unwrap` writes opens in the libraries that users have, and predicts there what the template predicted.

One process of TensorFlow loads everything in tf_keras and in Keras 3; the old environments, where they exist, load what
they wrote. The expected outputs are those that the old library recorded from the template.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.source import SourceOptions

from .conftest import SKIPS
from .manifest import FILES, entry, legacy_hdf5, template_json

SCRIPT = Path(__file__).parent / "load_in_keras.py"

# Not files that say by themselves what they compute: code of the user's that is not here, cells that Keras 2.0.9 did
# not describe, layouts that no CPU computes; and kernels of Theano, which tf_keras never turns (the receipt says so).
NEEDS_MORE = {"custom-class", "lambda-layer", "not-runnable-here"}
NOT_LOADABLE = {"keras-2.0.9-zoo-cells.h5", "keras-2.3.1-flips.h5", "keras-2.3.1-flips-weights.h5"}


def loadable(kind: str) -> list[str]:
    """Files of Keras 2 with recorded outputs that need nothing but themselves."""
    return [
        name
        for name in legacy_hdf5(kind)
        if entry(name)["reference"] and not NEEDS_MORE & set(entry(name)["tags"]) and name not in NOT_LOADABLE
        and entry(name)["environment"] != "keras-3.15"
    ]  # fmt: skip


def has_old_gru(name: str) -> bool:
    """A GRU of before `reset_after`: the notice `reset-after-written` says which of the two sides opens it."""
    return entry(name)["environment"] == "keras-2.0.9" and ("rnn" in name or "masked" in name)


OLD = [name for name in loadable("model") if not has_old_gru(name)]
OLD_WEIGHTS = [name for name in loadable("weights") if entry(name)["template"]["json"]]
# Standalone Keras held the state of a Bidirectional at masked steps, tf_keras gives 0 there: `migrate` rebuilds that.
MASKED = "keras-2.2.4-zoo-tagger.h5"
MODELS = [name for name in loadable("model") if "theano" not in entry(name)["tags"] and name != MASKED]
WEIGHTS = [name for name in OLD_WEIGHTS if "theano" not in entry(name)["tags"] and not has_old_gru(name)]


def is_hard(name: str) -> bool:
    return "hard_sigmoid" in json.dumps(stored_config(name) if name in MODELS else entry(name)["template"]["json"])


def stored_config(name: str) -> Any:
    with h5py.File(FILES / name) as file:
        return json.loads(file.attrs["model_config"])


def rebuilt(name: str) -> bool:
    """Whether Keras 3 has every layer of it with the same meaning, so that the architecture can be built anew."""
    gone = ("hard_sigmoid", '"reset_after": false', "TensorFlowOpLayer", "Lambda")
    text = json.dumps(entry(name)["template"]["json"])
    return not any(each in text for each in gone) and "slashes" not in name and "axis-0" not in name


FRESH = [name for name in WEIGHTS if rebuilt(name)]


def floatx(name: str) -> str:
    return next((each for each in ("float16", "float64") if each in name), "float32")


def job(name: str, library: str, how: str, folder: Path) -> dict[str, Any]:
    """Unwrap a fixture, and say how it is to be loaded."""
    output = folder / f"{library}-{how}-{name}"
    weights_only = how != "model"
    options = SourceOptions(config=template_json(name, folder)) if weights_only else SourceOptions()
    ckpttool.unwrap(FILES / name, output, weights_only=weights_only, options=options)
    return {
        "path": str(output), "reference": str(FILES / entry(name)["reference"]), "output": f"{output}.loaded",
        "library": library, "how": how, "floatx": floatx(name),
        "json": entry(name)["template"]["json"] if weights_only else None,
    }  # fmt: skip


def run(jobs: list[dict[str, Any]], folder: Path, python: str = sys.executable) -> None:
    """All jobs in one process."""
    listed = folder / "jobs.json"
    listed.write_text(json.dumps(jobs), "utf-8")
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, str(SCRIPT), str(listed)], env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


class Loaded:
    """What came out of one run."""

    def __init__(self, jobs: list[dict[str, Any]], folder: Path, python: str = sys.executable) -> None:
        self._jobs = {Path(each["path"]).name: each for each in jobs}
        run(jobs, folder, python)

    def refused(self, name: str) -> str | None:
        """Why the library did not load it; None where it did."""
        told = Path(self._jobs[name]["output"] + ".txt")
        return told.read_text("utf-8") if told.exists() else None

    def check(self, name: str) -> None:
        assert self.refused(name) is None, self.refused(name)
        found = np.load(self._jobs[name]["output"] + ".npz")
        reference = np.load(self._jobs[name]["reference"])
        expected = [key for key in reference.files if key.startswith("y")]
        assert sorted(found.files) == sorted(expected)
        half = "float16" in name or "mixed" in name
        for key in expected:
            np.testing.assert_allclose(
                found[key].astype("f8"),
                reference[key].astype("f8"),
                rtol=5e-3 if half else 1e-5,
                atol=1e-3 if half else 1e-6,
            )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("loading")
    jobs = [job(name, "tf_keras", "model", folder) for name in MODELS]
    jobs += [job(name, "keras", "model", folder) for name in MODELS]
    jobs += [job(name, "tf_keras", "weights", folder) for name in WEIGHTS]
    jobs += [job(name, "keras", "fresh", folder) for name in FRESH]
    return Loaded(jobs, folder)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MODELS)
def test_tf_keras_opens_the_template_and_predicts_the_same(name: str, loaded: Loaded) -> None:
    loaded.check(f"tf_keras-model-{name}")


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MODELS)
def test_keras_3_predicts_the_same_or_refuses(name: str, loaded: Loaded) -> None:
    if loaded.refused(f"keras-model-{name}") is None:
        loaded.check(f"keras-model-{name}")


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", [each for each in MODELS if is_hard(each)])
def test_keras_3_refuses_hard_sigmoid(name: str, loaded: Loaded) -> None:
    assert loaded.refused(f"keras-model-{name}") is not None


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "name", ["keras-2.2.4-sequential.h5", "keras-2.3.1-sequential-relocated.h5", "tf-2.3-sequential-trained.h5"]
)
def test_keras_3_opens_a_sequential(name: str, loaded: Loaded) -> None:
    loaded.check(f"keras-model-{name}")


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_load_into_the_model_of_tf_keras(name: str, loaded: Loaded) -> None:
    loaded.check(f"tf_keras-weights-{name}")


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", FRESH)
def test_weights_load_into_the_same_architecture_of_keras_3(name: str, loaded: Loaded) -> None:
    loaded.check(f"keras-fresh-{name}")


@pytest.mark.parametrize("scene", ["sequential", "cnn", "two-towers", "deep", "rnn", "same-shapes"])
def test_each_kind_of_template_is_built_anew_in_keras_3(scene: str) -> None:
    assert any(scene in name for name in FRESH)


@pytest.fixture(scope="module")
def in_old_keras(tmp_path_factory: pytest.TempPathFactory, legacy_envs: Path) -> dict[str, Loaded]:
    """Environment -> what it loaded."""
    found = {}
    for environment in sorted({entry(name)["environment"] for name in (*OLD, *OLD_WEIGHTS)}):
        python = legacy_envs / environment / "bin" / "python"
        if python.exists():
            folder = tmp_path_factory.mktemp(environment)
            names = [name for name in (*OLD, *OLD_WEIGHTS) if entry(name)["environment"] == environment]
            jobs = [job(name, entry(name)["library"], "model" if name in OLD else "weights", folder) for name in names]
            found[environment] = Loaded(jobs, folder, str(python))
    return found


@pytest.mark.old_python
@pytest.mark.parametrize("name", [*OLD, *OLD_WEIGHTS])
def test_the_library_that_wrote_it_opens_the_template(name: str, in_old_keras: dict[str, Loaded]) -> None:
    results = in_old_keras.get(entry(name)["environment"])
    if results is None:
        pytest.skip(SKIPS["old_python"][0])
    results.check(f"{entry(name)['library']}-{'model' if name in OLD else 'weights'}-{name}")
