"""Run by the tests in a process of its own: the dot-product layer in training. Arguments: replicas, libraries.

With replicas the models are made and trained under one MirroredStrategy on so many logical CPU devices (two strategies
in one process collide in their collectives); with 0 plainly, on whatever backend Keras has.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

import ckpttool
from tests.live_models import WIDTH, base_model, embedding_of, scoring_model

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, WIDTH), np.float32)


def strategy_of(replicas: int) -> Any:
    """The one strategy of this process, on logical CPU devices."""
    import tensorflow as tf

    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def predict(model: Any) -> list[np.ndarray]:
    """All outputs, by as many replicas as the model has."""
    outputs: list[np.ndarray] = model.predict(X, batch_size=12, verbose=0)
    return outputs


def call(model: Any) -> list[np.ndarray]:
    """All outputs, of the variables' values as the strategy gives them outside of its replicas."""
    return [np.asarray(output) for output in model(X)]


def equal(found: Any, expected: Any) -> None:
    """Equal to float32 rounding."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def check_scores(library: Any, scope: Any, folder: Path, trained_by: str) -> None:
    """After training, scores are those of the live kernel; so are those of the saved and loaded model."""
    with scope():
        model = scoring_model(library)
        model.compile(optimizer="sgd", loss=["mse", None] if trained_by == "embedding" else [None, "mse"])
    before = np.array(embedding_of(model).get_weights()[0])
    # Keras 3 wants targets for an output without a loss too: None fails under a strategy (3.15).
    targets = [RNG.standard_normal((24, width), np.float32) for width in (3, WIDTH)]
    model.fit(X, targets, batch_size=12, epochs=2, verbose=0)
    kernel = embedding_of(model).get_weights()[0]
    assert np.abs(kernel - before).max() > 1e-4
    embedded, scores = predict(model)
    equal([scores], [embedded @ kernel.T])
    equal([scores], [ckpttool.dot_product(kernel)(embedded)])
    assert len(model.weights) == 2
    model.save(folder / "scores.keras")
    again = library.models.load_model(folder / "scores.keras")
    assert again.get_layer("scores").layer is embedding_of(again)
    equal(predict(again), [embedded, scores])


def check_transfer(library: Any, scope: Any, folder: Path) -> None:
    """The base model that was defined once gets the weights of its clone, statistics too, and computes the same."""
    base = base_model(library)
    with scope():
        model = library.models.clone_model(base)
        model.compile(optimizer="sgd", loss=["mse", None])
    targets = [RNG.standard_normal((24, width), np.float32) for width in (3, 2)]
    model.fit(X, targets, batch_size=12, epochs=2, verbose=0)
    assert ckpttool.unwrap_model(model) is model
    report = ckpttool.transfer_weights(model, base)
    assert report.sentence().startswith("10 of 10 tensors, 81 parameters, matched by name"), report
    equal(call(base), call(model))
    apart = library.__version__.startswith("3") and scope is not contextlib.nullcontext
    assert [text.partition(":")[0] for text in report.warnings] == [
        f"{base.layers[2].name}/{name}" for name in ("moving_mean", "moving_variance") if apart
    ], report.warnings
    for one, other in zip(base.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        ckpttool.unwrap_model(base).get_layer("image_embedding").get_weights()[0],
        model.get_layer("image_embedding").get_weights()[0],
    )
    model.save(folder / "model.keras")
    equal(call(library.models.load_model(folder / "model.keras")), call(base))


def main() -> None:
    replicas = int(sys.argv[1])
    scope = strategy_of(replicas).scope if replicas else contextlib.nullcontext
    for name in sys.argv[2:]:
        library = importlib.import_module(name)
        with tempfile.TemporaryDirectory() as folder:
            check_scores(library, scope, Path(folder), "embedding")
            check_scores(library, scope, Path(folder), "scores")
            check_transfer(library, scope, Path(folder))
        print(f"{name}: scores and weights agree")


if __name__ == "__main__":
    main()
