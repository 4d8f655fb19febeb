"""Convolutions of every kind, pooling.

Source: keras/layers/convolutional.py, pooling.py (Keras 2.2.4), tensorflow/python/keras/layers/convolutional.py
(TF 1.15, 2.10), keras/src/layers/convolutional, pooling (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._rule import SAME, Arguments, Context, Rule, Ruled, simple, table
from .activations import linear_activation

_OLD = "keras/layers/convolutional.py (Keras 2.2.4)"
_NEW = "keras/src/layers/convolutional (Keras 3.15)"
_POOLING = "keras/layers/pooling.py (Keras 2.2.4)"
_GEOMETRY = ("kernel_size", "strides", "padding", "data_format", "dilation_rate")


def _convolution(
    scaled: Sequence[str], variables: Sequence[str], keep: Sequence[str], one_group: bool
) -> Callable[[Arguments, Context], Ruled]:
    def apply(arguments: Arguments, context: Context) -> Ruled:
        ruled = linear_activation(arguments, context, [(name,) for name in scaled])
        arguments.keep(*_GEOMETRY, "use_bias", *keep)
        arguments.for_variables(*variables)
        arguments.common_regularizer()
        if one_group:
            if "filters" not in keep:
                arguments.drop("filters")
            arguments.drop("groups", 1)  # stored since TF 2.3, unknown to these classes in Keras 3
            for part in ("initializer", "regularizer", "constraint"):
                if "kernel" not in variables:
                    arguments.drop(f"kernel_{part}")  # stored since TF 1.14 beside those of the real kernels
        if "filters" not in keep:
            ruled.names[("depthwise_kernel",)] = "kernel"
        ruled.spec = arguments.finish(_CLASSES.get(arguments.class_name, arguments.class_name))
        return ruled

    return apply


_CLASSES = {
    "Convolution1D": "Conv1D", "Convolution2D": "Conv2D", "Convolution3D": "Conv3D", "SeparableConvolution1D":
    "SeparableConv1D", "SeparableConvolution2D": "SeparableConv2D", "Convolution2DTranspose": "Conv2DTranspose",
    "Convolution3DTranspose": "Conv3DTranspose", "Deconvolution2D": "Conv2DTranspose", "Deconv2D": "Conv2DTranspose",
}  # fmt: skip

_POOLS = tuple(f"{kind}Pooling{rank}D" for kind in ("Max", "Average") for rank in (1, 2, 3))
_GLOBAL = tuple(f"Global{kind}Pooling{rank}D" for kind in ("Max", "Average") for rank in (1, 2, 3))

RULES = table(
    Rule(
        ("Conv1D", "Conv2D", "Conv3D", "Convolution1D", "Convolution2D", "Convolution3D"),
        SAME,
        "hard_sigmoid: kernel and bias scaled by 1.2",
        _OLD,
        _convolution(("kernel", "bias"), ("kernel", "bias"), ("filters", "groups"), False),
    ),
    Rule(
        ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "Convolution2DTranspose", "Convolution3DTranspose"),
        SAME,
        "groups=1 is dropped; hard_sigmoid as for Conv2D",
        f"{_NEW}/base_conv_transpose.py",
        _convolution(("kernel", "bias"), ("kernel", "bias"), ("filters", "output_padding"), True),
    ),
    Rule(
        ("DepthwiseConv1D", "DepthwiseConv2D"),
        SAME,
        "groups=1, filters and the unused kernel_* are dropped; hard_sigmoid as for Conv2D",
        f"{_NEW}/base_depthwise_conv.py",
        _convolution(("depthwise_kernel", "bias"), ("depthwise", "bias"), ("depth_multiplier",), True),
    ),
    Rule(
        ("SeparableConv1D", "SeparableConv2D", "SeparableConvolution1D", "SeparableConvolution2D"),
        SAME,
        "groups=1 and the unused kernel_* are dropped; hard_sigmoid: pointwise kernel and bias scaled by 1.2",
        f"{_NEW}/base_separable_conv.py",
        _convolution(
            ("pointwise_kernel", "bias"), ("depthwise", "pointwise", "bias"), ("filters", "depth_multiplier"), True
        ),
    ),
    simple(_POOLS, SAME, keep=("pool_size", "strides", "padding", "data_format"), source=_POOLING),
    simple(_GLOBAL, SAME, keep=("data_format", "keepdims"), source=_POOLING),
)
