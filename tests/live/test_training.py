"""Training under MirroredStrategy and on JAX, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


def _train(*arguments: str, python: str | Path = sys.executable, **environment: str) -> None:
    done = subprocess.run(
        [python, TESTS / "live_training.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTHONWARNINGS": "", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(arguments) + 1 :] == [
        f"{name}: scores and weights agree" for name in arguments[1:]
    ]


@pytest.mark.tensorflow
def test_scores_follow_training_on_two_replicas() -> None:
    _train("2", "keras", "tf_keras")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_scores_follow_training_on_three_replicas() -> None:
    _train("3", "keras", "tf_keras")


@pytest.mark.slow
@pytest.mark.needs("keras", "jax")
def test_scores_follow_training_on_jax() -> None:
    _train("0", "keras", KERAS_BACKEND="jax")


@pytest.mark.old_python
def test_scores_follow_training_in_the_last_keras_2_on_two_replicas(legacy_envs: Path) -> None:
    _train("2", "keras", python=legacy_envs / "tf-2.15" / "bin" / "python")
