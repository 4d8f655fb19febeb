"""Normalisation layers, and the two preprocessing layers that published models carry inside.

Source: keras/layers/normalization.py (Keras 2.2.4), tensorflow/python/keras/layers/normalization*.py (TF 1.15, 2.10),
keras/src/layers/normalization, preprocessing (Keras 3.15).
"""

from __future__ import annotations

from typing import Any

from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, simple, table

LEAST_EPSILON = 1.001e-5  # of fused_batch_norm, for CuDNN's sake (tensorflow/python/ops/nn_impl.py, TF 1.14–2.10)
_NEW = "keras/src/layers/normalization (Keras 3.15)"


def _one_axis(value: Any) -> Any:
    """tf.keras stores the axis as a list of one once the layer is built."""
    if isinstance(value, list):
        if len(value) != 1:
            raise NotMigratableError(f"axis={value} normalises over several axes at once")
        return value[0]
    return value


def _batch_normalization(arguments: Arguments, context: Context) -> Ruled:
    arguments.set("axis", _one_axis(arguments.value("axis", -1)))
    arguments.keep("momentum", "epsilon", "center", "scale")
    arguments.for_variables("gamma", "beta")
    arguments.objects("initializers", "moving_mean_initializer", "moving_variance_initializer")
    arguments.drop("renorm", False)
    for key in ("renorm_clipping", "renorm_momentum", "fused", "synchronized"):
        arguments.drop(key)
    arguments.drop("virtual_batch_size", None)
    arguments.drop("adjustment", None)
    epsilon = arguments.value("epsilon", 1e-3)
    ruled = Ruled(arguments.finish("BatchNormalization"))
    if context.generation == 2 and isinstance(epsilon, float) and epsilon < LEAST_EPSILON:
        ruled.notes.append(f"epsilon {epsilon:g}: over images TensorFlow up to 2.10 took {LEAST_EPSILON:g} at least")
    return ruled


def _layer_normalization(arguments: Arguments, context: Context) -> Ruled:
    arguments.require("axis", "epsilon")
    axis = arguments.value("axis", -1)
    arguments.set("axis", axis[0] if isinstance(axis, list) and len(axis) == 1 else axis)
    arguments.keep("epsilon", "center", "scale")
    arguments.for_variables("gamma", "beta")
    arguments.drop("rms_scaling", False)
    return Ruled(arguments.finish("LayerNormalization"))


def _group_normalization(arguments: Arguments, context: Context) -> Ruled:
    arguments.require("groups", "axis", "epsilon")
    arguments.keep("groups", "axis", "epsilon", "center", "scale")
    arguments.for_variables("gamma", "beta")
    return Ruled(arguments.finish("GroupNormalization"))


def _normalization(arguments: Arguments, context: Context) -> Ruled:
    arguments.keep("axis", "mean", "variance", "invert")
    return Ruled(arguments.finish("Normalization"))


RULES = table(
    Rule(
        ("BatchNormalization", "BatchNormalizationV1", "BatchNormalizationV2", "SyncBatchNormalization"),
        "BatchNormalization",
        "axis=[n] becomes n; fused is dropped; renorm and virtual_batch_size stop",
        f"{_NEW}/batch_normalization.py",
        _batch_normalization,
    ),
    Rule(
        ("LayerNormalization",),
        "LayerNormalization",
        "axis=[n] becomes n",
        f"{_NEW}/layer_normalization.py",
        _layer_normalization,
    ),
    Rule(
        ("GroupNormalization",),
        "GroupNormalization",
        "as it is",
        f"{_NEW}/group_normalization.py",
        _group_normalization,
    ),
    simple(("UnitNormalization",), "UnitNormalization", keep=("axis",), source=f"{_NEW}/unit_normalization.py"),
    simple(
        ("Rescaling",),
        "Rescaling",
        keep=("scale", "offset"),
        source="tensorflow/python/keras/layers/preprocessing/image_preprocessing.py (TF 2.3)",
    ),
    Rule(
        ("Normalization",),
        "Normalization",
        "as it is",
        "keras/src/layers/preprocessing/normalization.py (Keras 3.15)",
        _normalization,
    ),
)
