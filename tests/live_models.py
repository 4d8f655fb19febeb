"""Small models for the tests of live ones, in whichever Keras they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 6


def fill(model: Any, seed: int = 0) -> Any:
    """Give every variable values of its own; statistics of variances positive."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(np.abs(rng.standard_normal(tuple(variable.shape))).astype("float32") / 4 + 0.01)
    return model


def base_model(library: Any, name: str = "base", *, named: bool = True) -> Any:
    """A Dense and a BatchNormalization, and a nested tower that has `image_embedding`; two outputs."""
    layers = library.layers
    x = layers.Input((WIDTH,), name="x")
    hidden = layers.BatchNormalization()(layers.Dense(5, activation="tanh", name="hidden" if named else None)(x))
    features = layers.Input((5,), name="features")
    embedding = layers.Dense(3, name="image_embedding")
    tower = library.models.Model(features, embedding(features), name="tower")
    embedded = tower(hidden)
    kind = layers.Dense(2, name="kind" if named else None)(embedded)
    return fill(library.models.Model(x, [embedded, kind], name=name))


def get_slice(data: Any, i: int, parts: int) -> Any:
    """Part `i` of the batch, as keras/utils/multi_gpu_utils.py (Keras 2.2.4) cuts it."""
    import tensorflow as tf

    shape = tf.shape(data)
    step = shape[:1] // parts
    size = shape[:1] - step * i if i == parts - 1 else step
    return tf.slice(data, tf.concat([step, shape[1:] * 0], 0) * i, tf.concat([size, shape[1:]], 0))


def multi_gpu_model(library: Any, model: Any, gpus: int) -> Any:
    """The layers of `multi_gpu_model`, which no Keras of today has: numbered slices, calls, concatenations."""
    layers = library.layers
    x = layers.Input((WIDTH,), name="parallel_x")
    calls = [
        model(layers.Lambda(get_slice, output_shape=(WIDTH,), arguments={"i": i, "parts": gpus})(x))
        for i in range(gpus)
    ]
    merged = [layers.Concatenate(axis=0, name=f"merged_{place}")(list(each)) for place, each in enumerate(zip(*calls))]  # noqa: B905
    return library.models.Model(x, merged)


def sliced_by_hand(library: Any, model: Any, parts: int, *, turned: bool = False) -> Any:
    """The same with closures instead of numbers; `turned` joins the parts in another order than they were cut."""
    import tensorflow as tf

    layers = library.layers
    x = layers.Input((WIDTH,))
    order = reversed(range(parts)) if turned else range(parts)

    def cut(part: int) -> Any:
        return layers.Lambda(lambda data: tf.split(data, parts)[part], output_shape=(WIDTH,))(x)

    calls = [model(cut(part))[0] for part in order]
    return library.models.Model(x, layers.Concatenate(axis=0)(calls))


def scoring_model(library: Any, *, nested: bool = False, apart: bool = False, **options: Any) -> Any:
    """An embedding, in a tower if nested, and its dot product with itself, or with vectors of an input apart."""
    from ckpttool.layers import EmbeddingDotProduct

    layers = library.layers
    x = layers.Input((WIDTH,), name="x")
    embedding = layers.Dense(3, name="image_embedding")
    if nested:
        features = layers.Input((WIDTH,), name="features")
        embedded = library.models.Model(features, embedding(features), name="tower")(x)
    else:
        embedded = embedding(x)
    vectors = layers.Input((3,), name="vectors") if apart else embedded
    scores = EmbeddingDotProduct(embedding, name="scores", **options)(vectors)
    return fill(library.models.Model([x, vectors] if apart else x, [embedded, scores]))


def embedding_of(model: Any) -> Any:
    """The layer `image_embedding`, also in the tower."""
    names = [layer.name for layer in model.layers]
    return (model if "image_embedding" in names else model.get_layer("tower")).get_layer("image_embedding")
