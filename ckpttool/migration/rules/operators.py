"""Plain TensorFlow operators in a functional model: `TFOpLambda`, `SlicingOpLambda`, `TensorFlowOpLayer`.

They name a TensorFlow function; those of the table become the same function of `keras.ops`, others stop.
Source: keras/layers/core/tf_op_layer.py (Keras 2.10), tensorflow/python/keras/engine/base_layer.py (TF 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...keras_config import LayerConfig
from ..plan import Call, LayerSpec
from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, table

OPERATORS = ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer")


def operator_layer(layer: LayerConfig, calls: Sequence[Call]) -> tuple[LayerSpec, list[Call]]:
    """The `keras.ops` function of an operator layer and its calls.

    Raises
    ------
    NotMigratableError : a function that is not in the table
    """
    raise NotMigratableError(f"{layer.class_name} is not migrated")


def _apply(arguments: Arguments, context: Context) -> Ruled:
    raise NotMigratableError("an operator inside another layer is not migrated")


RULES = table(
    Rule(
        OPERATORS,
        "keras.ops",
        "functions of the table become those of keras.ops; others stop",
        "keras/layers/core/tf_op_layer.py (Keras 2.10)",
        _apply,
    )
)
