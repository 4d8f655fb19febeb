"""`ckpttool migrate` and `unwrap -o x.keras` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ROOT / "fixtures" / "files"
OWN = """
    import keras

    @keras.saving.register_keras_serializable("own")
    class Scale(keras.layers.Layer):
        def __init__(self, times=1.0, **kwargs):
            super().__init__(**kwargs)
            self.times = times

        def build(self, shape):
            self.factor = self.add_weight(name="factor", shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return x * self.factor * self.times

        def get_config(self):
            return {**super().get_config(), "times": self.times}

    def twice(config):
        assert config["name"] == "twice"
        return keras.layers.Rescaling(2.0, offset=1.0)
"""


def ckpttool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ckpttool.cli.main import main; main()"
    # JAX, where another test of this process has imported it, sets TensorFlow's log level as a user would.
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.tensorflow
def test_a_wrapped_model_becomes_a_proven_keras_3_file(tmp_path: Path) -> None:
    source = FILES / "keras-2.2.4-rnn.h5"
    done = ckpttool("migrate", str(source), "-o", "new.keras", "--report", "report.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "new.keras\n"
    assert "replicas removed" in done.stderr
    assert "verified: " in done.stderr
    assert "I0000" not in done.stderr  # TensorFlow's own chatter
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verified"] is True
    assert report["verification"]["prediction"]["equal"] is True
    assert len(report["map"]) == report["tensors"] == report["verification"]["tensors"]
    assert report["source_sha256"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.keras", "report.json"]
    again = ckpttool("migrate", str(source), "-o", "new.keras", folder=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.tensorflow
def test_the_file_for_tf_keras_is_proven_too(tmp_path: Path) -> None:
    source = FILES / "keras-2.2.4-sequential.h5"
    done = ckpttool("migrate", str(source), "-q", "-o", "new.h5", "--report", "report.json", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "new.h5\n", "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["format"] == "keras-h5"
    assert report["verification"]["prediction"]["equal"] is True
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.h5", "report.json"]


@pytest.mark.tensorflow
def test_the_users_own_code_is_run_and_what_it_means_is_said(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(dedent(OWN))
    done = ckpttool("migrate", str(FILES / "keras-2.2.4-zoo-lambda-layer.h5"), "-o", "a.keras",
                    "--replace", "twice=own:twice", folder=tmp_path)  # fmt: skip
    assert done.returncode == 1
    assert "NOT VERIFIED: 4 of 4 tensors equal; loaded in safe mode" in done.stderr
    assert "your own code" in done.stderr
    assert (tmp_path / "a.keras").exists()
    done = ckpttool("migrate", str(FILES / "tf-2.15-zoo-custom-class.h5"), "-o", "b.keras",
                    "--custom-objects", "own.py", "--no-verify", "--json", folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["custom"] == ["scale"]
    assert shown["verified"] is False
    done = ckpttool("verify", str(FILES / "tf-2.15-zoo-custom-class.h5"), "b.keras", "--custom-objects", "own.py",
                    "--no-predict", "--json", folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == 5


@pytest.mark.tensorflow
def test_unwrap_writes_a_keras_3_file_by_the_same_rules(tmp_path: Path) -> None:
    done = ckpttool("unwrap", str(FILES / "keras-2.3.1-two-towers.h5"), "-o", "new.keras", "--report", "map.json",
                    folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "to prove it: ckpttool verify" in done.stderr
    assert len(json.loads((tmp_path / "map.json").read_text())["map"]) == 10
    done = ckpttool("verify", str(FILES / "keras-2.3.1-two-towers.h5"), "new.keras", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("verified: 10 of 10 tensors equal; outputs agree")


def test_a_model_that_cannot_be_expressed_is_one_line_with_what_is_needed(tmp_path: Path) -> None:
    done = ckpttool("migrate", str(FILES / "keras-2.3.1-flips.h5"), "-o", "new.keras", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "--replace lambda_1=MODULE:CALLABLE --replace lambda_2=MODULE:CALLABLE" in line
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    words = ("migrate", str(FILES / "keras-2.2.4-zoo-activations.h5"), "-o", "new.keras", "--dry-run")
    done = ckpttool(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "activation_hard_sigmoid_times_1_2  Rescaling" in done.stdout
    assert "kernel  dense_hard_sigmoid/kernel  scale(factor=1.2)" in done.stdout
    shown = json.loads(ckpttool(*words, "--json", folder=tmp_path).stdout)
    assert shown["dry_run"] is True
    assert {"tensor": "dense_hard_sigmoid/kernel", "transformation": "scale(factor=1.2)"} in shown["transformations"]
    assert shown["plan"]["model"]["class_name"] == "Functional"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replace", "lambda_1"), "LAYER=module:callable"),
        (("--replace", "lambda_1=own"), "LAYER=module:callable"),
        (("--to", "onnx"), "onnx"),
    ],
)
def test_wrong_use_is_exit_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = ckpttool("migrate", str(FILES / "keras-2.3.1-flips.h5"), "-o", "x.keras", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.tensorflow
def test_code_that_makes_no_layer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def make(config):\n    return 7\n")
    words = ("migrate", str(FILES / "keras-2.2.4-zoo-lambda-layer.h5"), "-o", "x.keras")
    done = ckpttool(*words, "--replace", "twice=bad:make", folder=tmp_path)
    assert done.returncode == 2
    assert "no Keras 3 layer" in done.stderr
    done = ckpttool(*words, "--replace", "twice=bad:nothing", folder=tmp_path)
    assert done.returncode == 2
    assert "cannot import" in done.stderr
