"""The dot product inside of the model: it returns the scores of all rows of its own embedding, and is trained by them.

A query's features become a vector; `EmbeddingDotProduct` scores it against every row of the Embedding that also embeds
the pictures the user has seen. The table is there once: both uses train it, and the saved file holds it once.

    pip install 'ckpttool[tensorflow]' matplotlib
    python examples/score_inside_the_model.py [FOLDER]

Runs on the machine's GPUs, or on two logical CPU devices. Writes ranking.png and scoring.keras to FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np
import tensorflow as tf

import ckpttool
from ckpttool.layers import EmbeddingDotProduct

matplotlib.use("Agg")  # pictures go to files; no screen is needed
from matplotlib import pyplot

TOPICS, PICTURES, SEEN, WIDTH = 6, 300, 3, 8
RNG = np.random.default_rng(0)
TOPIC_OF = RNG.integers(TOPICS, size=PICTURES)  # of each picture


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of SEEN pictures of one topic, shape (count, SEEN), and of a next one, shape (count,)."""
    of_topic = [np.flatnonzero(topic == TOPIC_OF) for topic in range(TOPICS)]
    drawn = np.array([RNG.choice(of_topic[topic], SEEN + 1) for topic in RNG.integers(TOPICS, size=count)])
    return drawn[:, :SEEN], drawn[:, SEEN]


def build() -> keras.Model:
    """Seen pictures in; the user's vector and a score for every picture out."""
    seen = keras.Input((SEEN,), dtype="int32", name="seen")
    embedding = keras.layers.Embedding(PICTURES, WIDTH, name="image_embedding")
    user = keras.layers.Dense(WIDTH, name="user")(keras.layers.GlobalAveragePooling1D()(embedding(seen)))
    scores = EmbeddingDotProduct(embedding, name="scores")(user)
    return keras.Model(seen, [user, scores], name="scoring")


def share_of_topic(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """For each place in the ranking how many pictures are of the topic that was seen, from 0 to 1."""
    best = np.argsort(-scores, axis=1)[:, :50]
    return (TOPIC_OF[best] == TOPIC_OF[seen[:, :1]]).mean(axis=0)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "output")
    folder.mkdir(parents=True, exist_ok=True)
    if len(tf.config.list_physical_devices("GPU")) > 1:
        strategy = tf.distribute.MirroredStrategy()
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = build()
        next_one = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.02), loss=[None, next_one])  # the vector has no loss
    asked, _ = examples(256)
    before = share_of_topic(model.predict(asked, verbose=0)[1], asked)
    seen, following = examples(12800)
    model.fit(seen, [np.zeros((12800, WIDTH)), following], batch_size=256, epochs=6, verbose=0)
    user, scores = model.predict(asked, verbose=0)
    after = share_of_topic(scores, asked)

    kernel = model.get_layer("image_embedding").get_weights()[0]
    np.testing.assert_allclose(scores, ckpttool.dot_product(kernel)(user), rtol=1e-4, atol=1e-5)
    print(f"the ten best are of the topic: {before[:10].mean():.0%} before training, {after[:10].mean():.0%} after")

    model.save(folder / "scoring.keras")
    again = keras.models.load_model(folder / "scoring.keras")
    assert again.get_layer("scores").layer is again.get_layer("image_embedding")
    np.testing.assert_allclose(again.predict(asked, verbose=0)[1], scores, rtol=1e-4, atol=1e-5)
    print(f"saved and loaded with one table of {kernel.shape[0]}×{kernel.shape[1]}: {folder / 'scoring.keras'}")

    figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(range(1, 51), after, label="after training")
    axes.plot(range(1, 51), before, label="before")
    axes.set(xlabel="place in the ranking", ylabel="share of the seen topic", ylim=(0, 1.05))
    axes.legend()
    figure.savefig(folder / "ranking.png")
    print(f"picture: {folder / 'ranking.png'}")


if __name__ == "__main__":
    main()
