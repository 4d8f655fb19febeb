"""Which variables of a model its optimizer trains, in the order of the optimizer's list."""

from __future__ import annotations

from .checkpoint import Checkpoint, TensorSpec
from .flat_order import leaves, trainable_order
from .keras_variables import expected_variables
from .transforms import model_config
from .wrappers._op_nodes import is_op


def trainable_variables(checkpoint: Checkpoint) -> tuple[TensorSpec, ...] | None:
    """The trainable variables by the configuration's flags, in model order; in Keras 1 sorted by their stored names.

    None where a class is not Keras's own, so that its variables are not known to be trainable, or where the stored
    tensors are not those of the configuration.
    Source: keras/engine/training.py, `collect_trainable_weights` (Keras 1.2.2).
    """
    model = model_config(checkpoint)
    if model is None:
        return None
    if any(expected_variables(leaf.config) is None and not is_op(leaf.config) for leaf in leaves(model)):
        return None
    stored = {spec.path: spec for spec in checkpoint.weights()}
    found = [stored.get((*slot.layer, *slot.variable.path)) for slot in trainable_order(model)]
    variables = [spec for spec in found if spec is not None]
    if len(variables) != len(found):
        return None
    unique = list({spec.locator: spec for spec in variables}.values())
    if checkpoint.written_by.keras_major in (None, 1):
        unique.sort(key=_stored_name)
    return tuple(unique)


def _stored_name(spec: TensorSpec) -> str:
    return spec.locator.rpartition("/")[2]
