"""Train on several devices, get the weights into the single-device model, and search with its embedding.

The model learns which pictures fit a query: a query's features go through a Dense layer, a picture is a row of the
Embedding `image_embedding`, and their dot product says how well they fit. All of it is made up here: pictures and
queries of six topics.

    pip install 'ckpttool[tensorflow]' matplotlib
    python examples/train_and_extract.py [FOLDER]

Runs on the machine's GPUs, or on two logical CPU devices. Writes training.png, embedding.png and the model to FOLDER.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np
import tensorflow as tf

import ckpttool

matplotlib.use("Agg")  # pictures go to files; no screen is needed
from matplotlib import pyplot

TOPICS, PICTURES, FEATURES, WIDTH = 6, 300, 12, 8
RNG = np.random.default_rng(0)
TOPIC_OF = RNG.integers(TOPICS, size=PICTURES)  # of each picture
CENTRES = RNG.standard_normal((TOPICS, FEATURES)).astype("float32")


def queries(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Topics, shape (count,), and features of that topic with noise, shape (count, FEATURES)."""
    topics = RNG.integers(TOPICS, size=count)
    return topics, CENTRES[topics] + 0.3 * RNG.standard_normal((count, FEATURES)).astype("float32")


def build() -> keras.Model:
    """The base model, defined once and for one device."""
    query = keras.Input((FEATURES,), name="query")
    picture = keras.Input((), dtype="int32", name="picture")
    vector = keras.layers.Dense(WIDTH, name="query_vector")(query)
    row = keras.layers.Embedding(PICTURES, WIDTH, name="image_embedding")(picture)
    fits = keras.layers.Dot(1, name="fits")([vector, row])
    return keras.Model([query, picture], [fits, vector], name="base")


def strategy() -> tf.distribute.Strategy:
    """All GPUs where there are two or more, else two logical CPU devices."""
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(base: keras.Model, scope: Any) -> tuple[keras.Model, list[float]]:
    """Train a clone of the base model on all devices; give it and its loss after each epoch."""
    with scope:
        trained = keras.models.clone_model(base)
        logits = keras.losses.BinaryCrossentropy(from_logits=True)
        trained.compile(optimizer=keras.optimizers.Adam(0.02), loss=[logits, None])
    topics, features = queries(6400)
    pictures = RNG.integers(PICTURES, size=6400)
    fits = (TOPIC_OF[pictures] == topics).astype("float32")[:, None]
    history = trained.fit([features, pictures], [fits, np.zeros((6400, WIDTH))], batch_size=128, epochs=8, verbose=0)
    return trained, history.history["loss"]


def share_of_topic(score: Any, vectors: np.ndarray, topics: np.ndarray) -> float:
    """How many of the ten best pictures of each query are of its topic, from 0 to 1."""
    best, _ = score.top(vectors, 10)
    return float((TOPIC_OF[best] == topics[:, None]).mean())


def draw(loss: list[float], kernel: np.ndarray, folder: Path) -> None:
    """Two pictures: the loss, and the embedding in its two main directions, coloured by topic."""
    figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(range(1, len(loss) + 1), loss, marker="o")
    axes.set(xlabel="epoch", ylabel="loss", title="Training on several devices")
    figure.savefig(folder / "training.png")
    centred = kernel - kernel.mean(axis=0)
    plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    figure, axes = pyplot.subplots(figsize=(5, 4.5), layout="constrained")
    axes.scatter(*plane.T, c=TOPIC_OF, cmap="tab10", s=14)
    axes.set(title="image_embedding, a point for each picture,\na colour for each topic", xticks=[], yticks=[])
    figure.savefig(folder / "embedding.png")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "output")
    folder.mkdir(parents=True, exist_ok=True)
    devices = strategy()
    base = build()
    trained, loss = train(base, devices.scope())

    report = ckpttool.transfer_weights(trained, base)
    print(f"trained on {devices.num_replicas_in_sync} devices; into the base model: {report.sentence()}")
    topics, features = queries(200)
    pictures = RNG.integers(PICTURES, size=200)
    on_one, on_all = base([features, pictures]), trained.predict([features, pictures], verbose=0)
    np.testing.assert_allclose(on_one[0], on_all[0], rtol=1e-4, atol=1e-5)

    kernel = base.get_layer("image_embedding").get_weights()[0]
    score = ckpttool.dot_product(kernel)
    print(
        f"of the ten best pictures {share_of_topic(score, np.asarray(on_one[1]), topics):.0%} are of the query's topic"
    )

    # The same from the saved file, in a process that has no TensorFlow.
    saved, extracted = folder / "trained.h5", folder / "image_embedding.npy"
    trained.save(saved)
    command = [sys.executable, "-m", "ckpttool", "extract", saved, "--layer", "image_embedding", "-o", extracted]
    subprocess.run([*command, "--overwrite"], check=True)
    np.testing.assert_array_equal(np.load(extracted), kernel)

    draw(loss, kernel, folder)
    print(f"pictures: {folder / 'training.png'}, {folder / 'embedding.png'}")


if __name__ == "__main__":
    main()
