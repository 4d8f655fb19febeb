"""Which variables of a model its optimizer trains, in the order of the optimizer's list."""

from __future__ import annotations

from .checkpoint import Checkpoint, Role, TensorSpec
from .flat_order import leaves, trainable_order
from .keras3_groups import KERAS3_FORMATS
from .keras3_layout import LOOKUPS, is_custom, plain_class
from .keras_config import ModelConfig
from .keras_variables import expected_variables
from .transforms import model_config
from .wrappers._op_nodes import is_op


def trainable_variables(checkpoint: Checkpoint, *, frozen_too: bool = False) -> tuple[TensorSpec, ...] | None:
    """The trainable variables by the configuration's flags, in model order; in Keras 1 sorted by their stored names.

    None where a class is not Keras's own, so that its variables are not known to be trainable, or where the stored
    tensors are not those of the configuration.
    Source: keras/engine/training.py, `collect_trainable_weights` (Keras 1.2.2); keras/src/layers/layer.py,
    `trainable_variables` (Keras 3.15).

    Parameters
    ----------
    checkpoint : with names assigned
    frozen_too : take variables of layers whose flag says that they are not trained
    """
    model = model_config(checkpoint)
    if model is None:
        return None
    if checkpoint.format in KERAS3_FORMATS:
        return _of_keras3(checkpoint, model, frozen_too)
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


def _of_keras3(checkpoint: Checkpoint, model: ModelConfig, frozen_too: bool) -> tuple[TensorSpec, ...] | None:
    """Each layer's own flag decides; what a class that is not Keras's own holds is not known."""
    if any(spec.role is Role.WEIGHT for spec in checkpoint.loose):
        return None  # variables of the model itself, which its own class made
    layers = dict(checkpoint.walk())
    found: dict[str, TensorSpec] = {}
    for leaf in leaves(model):
        layer = layers.get(leaf.path)
        tensors = () if layer is None else tuple(layer.all_tensors())
        class_name = plain_class(leaf.config.class_name)
        if class_name in LOOKUPS or not tensors:
            continue
        if is_custom(leaf.config) or any(spec.path[-1].isdecimal() or spec.is_quantized for spec in tensors):
            return None
        if leaf.config.trainable is not False or frozen_too:
            found.update((spec.locator, spec) for spec in tensors if spec.trainable)
    return tuple(found.values())


def _stored_name(spec: TensorSpec) -> str:
    return spec.locator.rpartition("/")[2]
