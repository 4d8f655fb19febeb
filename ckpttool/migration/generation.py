"""Which Keras wrote a configuration, and which dtype its layers have where they do not say it."""

from __future__ import annotations

from collections.abc import Mapping

from ..checkpoint import Checkpoint, Layer, WrittenBy
from ..keras_config import LayerConfig, ModelConfig

_FLOATS = ("float16", "bfloat16", "float64")  # float32 is Keras's own default
_KERAS_1_ARGUMENTS = frozenset(
    """output_dim init nb_filter nb_row nb_col filter_length border_mode subsample dim_ordering inner_init
    inner_activation p consume_less pool_length input_dtype mode W_regularizer b_regularizer""".split()
)
_KERAS_1_CLASSES = frozenset(
    """Convolution1D Convolution2D Convolution3D Merge MaxoutDense Highway TimeDistributedDense Deconvolution2D
    AtrousConvolution1D AtrousConvolution2D SReLU ParametricSoftplus SeparableConvolution2D""".split()
)


def generation_of(template: Checkpoint, model: ModelConfig) -> int:
    """1, 2 or 3: by the version the file states, else by the form of its configuration.

    tf.keras 2.16 and later is Keras 3; tf_keras is Keras 2 and says 2.x.
    """
    major = template.written_by.keras_major
    if _keras_3_form(model):
        return 3
    if major == 3 and not _keras_2_form(model):
        return 3
    if major == 1 or (major is None and _keras_1_form(model)):
        return 1
    return 2


def is_keras1(template: Checkpoint) -> bool:
    """Whether a full model is of Keras 1, whose configurations nothing later opens and no rule rebuilds."""
    from ..transforms import model_config

    model = model_config(template)
    return model is not None and generation_of(template, model) == 1


def takes_text(model: ModelConfig) -> bool:
    """Whether an input of the model, at any depth, is text, which no rule rebuilds."""
    return any(layer.class_name == "InputLayer" and layer.config.get("dtype") == "string" for _, layer in model.walk())


def _keras_3_form(model: ModelConfig) -> bool:
    """`batch_shape` of inputs, dtype policies as objects, calls as objects."""
    for _, layer in model.walk():
        if any(isinstance(node.raw, Mapping) and "args" in node.raw for node in layer.nodes):
            return True
        if layer.class_name == "InputLayer" and "batch_shape" in layer.config:
            return True
        dtype = layer.config.get("dtype")
        if isinstance(dtype, Mapping) and dtype.get("class_name") == "DTypePolicy":
            return True
    return False


def _keras_2_form(model: ModelConfig) -> bool:
    return any("batch_input_shape" in layer.config for _, layer in model.walk())


def _keras_1_form(model: ModelConfig) -> bool:
    return any(_keras_1_layer(layer) for _, layer in model.walk())


def _keras_1_layer(layer: LayerConfig) -> bool:
    if layer.class_name in _KERAS_1_CLASSES:
        return True
    if layer.class_name == "Embedding":
        return "init" in layer.config
    return layer.model is None and not _KERAS_1_ARGUMENTS.isdisjoint(layer.config)


def version_of(written_by: WrittenBy) -> tuple[tuple[int, ...], bool]:
    """The stated version of Keras 2 as numbers, () where there is none, and whether it is that of tf.keras.

    tf.keras said `2.2.4-tf` up to TF 2.1 and `2.3.0-tf` in TF 2.2; later ones state a number beyond 2.3.
    """
    numbers = written_by.keras_numbers
    return numbers, (written_by.keras or "").endswith("-tf") or numbers >= (2, 4)


def corners_sampled(written_by: WrittenBy, model: ModelConfig) -> bool:
    """Whether bilinear upsampling took its samples from the pixels' corners, as TF 1 did, instead of their centres.

    So did Keras 2.2 and 2.3, and tf.keras up to TF 1.14; TF 1.15 says the same version, but writes `ragged` of inputs.
    Source: keras/backend/tensorflow_backend.py, resize_images (Keras 2.3.1); tensorflow/python/keras/backend.py and
    engine/input_layer.py (TF 1.14, 1.15).
    """
    numbers, is_tensorflow = version_of(written_by)
    if not numbers or not is_tensorflow:
        return True
    inputs = [layer.config for _, layer in model.walk() if layer.class_name == "InputLayer"]
    return numbers < (2, 2, 4) or (numbers == (2, 2, 4) and not any("ragged" in config for config in inputs))


def stored_dtype(layer: Layer | None) -> str | None:
    """The dtype that all of a layer's floating tensors have, where it is not float32."""
    if layer is None:
        return None
    found = {spec.dtype for spec in layer.all_tensors() if spec.dtype.startswith(("float", "bfloat"))}
    return found.pop() if len(found) == 1 and found <= set(_FLOATS) else None


def default_dtype(template: Checkpoint) -> str | None:
    """The dtype of layers without weights and without a stated dtype: that of all weights, if it is one."""
    found = {spec.dtype for spec in template.weights() if spec.dtype.startswith(("float", "bfloat"))}
    return found.pop() if len(found) == 1 and found <= set(_FLOATS) else None


def holds_masked_steps(written_by: WrittenBy) -> bool:
    """Whether a Bidirectional of that writer held its state at masked steps: up to Keras 2.3 and tf.keras 1.12."""
    numbers, is_tensorflow = version_of(written_by)
    return bool(numbers) and (numbers < (2, 2, 4) if is_tensorflow else True)
