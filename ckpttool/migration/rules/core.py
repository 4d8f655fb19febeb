"""Dense, Embedding, shapes, noise, masking and input layers.

Source: keras/layers/core.py, embeddings.py, noise.py (Keras 2.2.4), keras/src/layers/core, reshaping, regularization
(Keras 3.15).
"""

from __future__ import annotations

from ..plan import LayerSpec
from ._rule import SAME, Arguments, Context, NotMigratableError, Rule, Ruled, plain, policy, simple, table
from .activations import linear_activation

_CORE = "keras/layers/core.py (Keras 2.2.4)"
_NOISE = "keras/layers/noise.py (Keras 2.2.4)"
_SHAPES = "keras/src/layers/reshaping (Keras 3.15)"


def _dense(arguments: Arguments, context: Context) -> Ruled:
    ruled = linear_activation(arguments, context, [("kernel",), ("bias",)])
    arguments.keep("units", "use_bias")
    arguments.for_variables("kernel", "bias")
    arguments.common_regularizer()
    for key in ("lora_rank", "lora_alpha", "quantization_config"):
        arguments.drop(key, None)
    ruled.spec = arguments.finish("Dense")
    return ruled


def _embedding(arguments: Arguments, context: Context) -> Ruled:
    arguments.keep("input_dim", "output_dim", "mask_zero")
    arguments.for_variables("embeddings")
    arguments.drop("input_length")
    arguments.drop("sparse", False)
    arguments.drop("activity_regularizer", None)
    for key in ("lora_rank", "lora_alpha", "quantization_config"):
        arguments.drop(key, None)
    return Ruled(arguments.finish("Embedding"))


def input_layer(arguments: Arguments, context: Context) -> Ruled:
    """An InputLayer: its shape with the batch axis, dtype and name."""
    shape = None
    for key in ("batch_input_shape", "batch_shape"):
        if shape is None:
            shape = arguments.value(key)
    if shape is None:
        raise NotMigratableError("the input has no shape", replaceable=False)
    arguments.drop("ragged", False)
    arguments.drop("optional", False)
    arguments.drop("type_spec", None)
    arguments.drop("input_tensor", None)
    sparse = arguments.value("sparse", False)
    dtype = arguments.value("dtype")
    found: dict[str, object] = {"batch_shape": plain(shape)}
    found["dtype"] = _input_dtype(dtype, context)
    if sparse:
        found["sparse"] = True
    arguments.finish("InputLayer")
    return Ruled(LayerSpec("InputLayer", found))


def _input_dtype(value: object, context: Context) -> str:
    if value == "string":
        raise NotMigratableError("inputs of text are not migrated", replaceable=False)
    name = policy(value, context.dtype) or "float32"
    return "float32" if name.startswith("mixed_") else name


def _dropout(arguments: Arguments, context: Context) -> Ruled:
    arguments.keep("rate", "noise_shape", "seed")
    if isinstance(arguments.value("noise_shape"), list):
        arguments.set("noise_shape", tuple(arguments.value("noise_shape")))
    return Ruled(arguments.finish(arguments.class_name))


def _spatial_dropout(arguments: Arguments, context: Context) -> Ruled:
    """Keras 3's constructors take no `trainable`."""
    arguments.keep("rate", "seed")
    if arguments.class_name != "SpatialDropout1D":
        arguments.keep("data_format")
    arguments.drop("noise_shape")  # of the Dropout it derives from; these layers make their own
    spec = arguments.finish(arguments.class_name)
    return Ruled(LayerSpec(spec.class_name, {k: v for k, v in spec.arguments.items() if k != "trainable"}))


def _flatten(arguments: Arguments, context: Context) -> Ruled:
    """Before Keras 2.2 there was no `data_format`; Keras 3 would ask its own configuration."""
    arguments.set("data_format", arguments.value("data_format") or "channels_last")
    return Ruled(arguments.finish("Flatten"))


def _up_sampling(arguments: Arguments, context: Context) -> Ruled:
    if context.corners and arguments.value("interpolation", "nearest") != "nearest":
        raise NotMigratableError("bilinear interpolation took other points then (corners of pixels) than Keras 3")
    arguments.keep("size", "data_format", "interpolation")
    return Ruled(arguments.finish("UpSampling2D"))


def _reshape(arguments: Arguments, context: Context) -> Ruled:
    arguments.keep("target_shape")
    return Ruled(arguments.finish("Reshape"))


_ROWS = [
    Rule(
        ("Dense",),
        "Dense",
        "hard_sigmoid: kernel and bias scaled by 1.2",
        _CORE,
        _dense,
    ),
    Rule(
        ("Embedding",),
        "Embedding",
        "input_length is dropped",
        "keras/src/layers/core/embedding.py (Keras 3.15)",
        _embedding,
    ),
    Rule(
        ("InputLayer",),
        "InputLayer",
        "batch_input_shape is called batch_shape; ragged and text inputs stop",
        "keras/src/layers/core/input_layer.py (Keras 3.15)",
        input_layer,
    ),
    Rule(("Dropout", "AlphaDropout"), SAME, "as it is", _NOISE, _dropout),
    Rule(
        ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
        SAME,
        "trainable and noise_shape are dropped",
        "keras/src/layers/regularization/spatial_dropout.py (Keras 3.15)",
        _spatial_dropout,
    ),
    simple(("GaussianNoise",), "GaussianNoise", keep=("stddev", "seed"), source=_NOISE),
    simple(("GaussianDropout",), "GaussianDropout", keep=("rate", "seed"), source=_NOISE),
    simple(("ActivityRegularization",), "ActivityRegularization", keep=("l1", "l2"), drop={"activity_regularizer": ()},
           source=_CORE),
    Rule(("Flatten",), "Flatten", "without data_format: channels_last", _CORE, _flatten),
    Rule(("Reshape",), "Reshape", "as it is", _CORE, _reshape),
    simple(("Permute",), "Permute", keep=("dims",), source=_CORE),
    simple(("RepeatVector",), "RepeatVector", keep=("n",), source=_CORE),
    simple(("Masking",), "Masking", keep=("mask_value",), source=_CORE),
    simple(("Identity",), "Identity", source="keras/src/layers/core/identity.py (Keras 3.15)"),
    simple(("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"), SAME, keep=("padding", "data_format"),
           source=_SHAPES),
    simple(("Cropping1D",), "Cropping1D", keep=("cropping",), source=_SHAPES),
    simple(("Cropping2D", "Cropping3D"), SAME, keep=("cropping", "data_format"), source=_SHAPES),
    simple(("UpSampling1D",), "UpSampling1D", keep=("size",), source=_SHAPES),
    Rule(
        ("UpSampling2D",),
        "UpSampling2D",
        "bilinear of Keras 2.2, 2.3 and TF up to 1.14 stops: it sampled the pixels' corners",
        "keras/backend/tensorflow_backend.py, resize_images (Keras 2.3.1)",
        _up_sampling,
    ),
    simple(("UpSampling3D",), "UpSampling3D", keep=("size", "data_format"), source=_SHAPES),
]  # fmt: skip
RULES = table(*_ROWS)
