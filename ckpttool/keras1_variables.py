"""Which variables the layers of Keras 1 have, by their own arguments: `output_dim`, `nb_filter`, `nb_row` …

A variable that Keras still has gets today's name (`W` is `kernel`); the arrays of single gates keep theirs (`W_i`),
since one of today's variables is four or three of them.

Source: the `build` methods of Keras 1.2.2 (keras/layers/core.py, convolutional.py, recurrent.py, local.py,
advanced_activations.py, convolutional_recurrent.py); the order is that of `layer.weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .keras_config import Json
from .keras_variables import Axis, Variable, Variables

ONLY_KERAS1 = frozenset("TimeDistributedDense Highway MaxoutDense SReLU ParametricSoftplus".split())
LSTM_GATES, GRU_GATES = "icfo", "zrh"  # the order in which a layer lists the arrays of its gates

_Shape = tuple[Axis, ...] | None


def is_keras1(class_name: str, config: Json) -> bool:
    """Whether a layer's arguments are those of Keras 1 (an Embedding's have not changed)."""
    if class_name in ONLY_KERAS1:
        return True
    if class_name == "Embedding" or "units" in config or "filters" in config:
        return False
    return "output_dim" in config or "nb_filter" in config


def keras1_variables(class_name: str, config: Json) -> Variables | None:
    """The variables of a Keras 1 layer in `layer.weights` order; None for a class that is not in its library.

    Raises
    ------
    KeyError, TypeError, ValueError : the arguments are not those of that class
    """
    rule = _RULES.get(class_name)
    return None if rule is None else rule(config)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"not a size: {value!r}")
    return int(value)


def _named(*variables: tuple[str, _Shape]) -> Variables:
    return tuple(Variable((name,), shape) for name, shape in variables)


def _with_bias(config: Json, kernel: _Shape, bias: _Shape) -> Variables:
    return _named(("kernel", kernel), *([("bias", bias)] if config.get("bias", True) else []))


def _dense(config: Json) -> Variables:
    units = _size(config["output_dim"])
    return _with_bias(config, ("input", units), (units,))


def _kernel(config: Json, sizes: tuple[int, ...], inputs: Axis, outputs: Axis) -> tuple[Axis, ...]:
    """Channels first for `dim_ordering` "th", whatever the backend."""
    return (outputs, inputs, *sizes) if config.get("dim_ordering") == "th" else (*sizes, inputs, outputs)


def _sizes(config: Json, *names: str) -> tuple[int, ...]:
    return tuple(_size(config[name]) for name in names)


def _convolution(*names: str) -> Callable[[Json], Variables]:
    def rule(config: Json) -> Variables:
        filters = _size(config["nb_filter"])
        return _with_bias(config, _kernel(config, _sizes(config, *names), "input", filters), (filters,))

    return rule


def _convolution_1d(config: Json) -> Variables:
    """`(length, 1, input, filters)` in 1.2, `(filters, input, length, 1)` before."""
    filters = _size(config["nb_filter"])
    _size(config["filter_length"])
    return _with_bias(config, ("first", "second", "third", "fourth"), (filters,))


def _separable(config: Json) -> Variables:
    filters, multiplier = _size(config["nb_filter"]), _size(config.get("depth_multiplier", 1))
    depthwise = _kernel(config, _sizes(config, "nb_row", "nb_col"), "input", multiplier)
    pointwise = _kernel(config, (1, 1), "between", filters)
    bias: list[tuple[str, _Shape]] = [("bias", (filters,))] if config.get("bias", True) else []
    return _named(("depthwise_kernel", depthwise), ("pointwise_kernel", pointwise), *bias)


def _locally_connected(config: Json) -> Variables:
    _size(config["nb_filter"])
    return _with_bias(config, ("places", "patch", "filters"), None)


def _recurrent(gates: str) -> Callable[[Json], Variables]:
    def rule(config: Json) -> Variables:
        units = _size(config["output_dim"])
        if not gates or config.get("consume_less") == "gpu":
            wide = units * max(1, len(gates))
            return _named(("kernel", ("input", wide)), ("recurrent_kernel", (units, wide)), ("bias", (wide,)))
        return _gates(gates, ("input", units), (units, units), (units,))

    return rule


def _gates(gates: str, kernel: _Shape, recurrent: _Shape, bias: _Shape) -> Variables:
    parts = (("W", kernel), ("U", recurrent), ("b", bias))
    return _named(*((f"{part}_{gate}", shape) for gate in gates for part, shape in parts))


def _convolutional_lstm(config: Json) -> Variables:
    filters = _size(config["nb_filter"])
    sizes = _sizes(config, "nb_row", "nb_col")
    kernel, recurrent = _kernel(config, sizes, "input", filters), _kernel(config, sizes, filters, filters)
    return _gates(LSTM_GATES, kernel, recurrent, (filters,))


def _highway(config: Json) -> Variables:
    bias: list[tuple[str, _Shape]] = [("bias", ("input",)), ("b_carry", ("input",))] if config.get("bias", True) else []
    return _named(("kernel", ("input", "input")), ("W_carry", ("input", "input")), *bias)


def _maxout(config: Json) -> Variables:
    units, features = _size(config["output_dim"]), _size(config["nb_feature"])
    return _with_bias(config, (features, "input", units), (features, units))


def _s_shaped(config: Json) -> Variables:
    return _named(("t_left", None), ("a_left", None), ("t_right", None), ("a_right", None))


def _softplus(config: Json) -> Variables:
    return _named(("alpha", None), ("betas", None))


_RULES: dict[str, Callable[[Json], Variables]] = {
    "Dense": _dense,
    "TimeDistributedDense": _dense,
    "Convolution1D": _convolution_1d,
    "AtrousConvolution1D": _convolution_1d,
    "Convolution2D": _convolution("nb_row", "nb_col"),
    "AtrousConvolution2D": _convolution("nb_row", "nb_col"),
    "Deconvolution2D": _convolution("nb_row", "nb_col"),
    "Convolution3D": _convolution("kernel_dim1", "kernel_dim2", "kernel_dim3"),
    "SeparableConvolution2D": _separable,
    "LocallyConnected1D": _locally_connected,
    "LocallyConnected2D": _locally_connected,
    "SimpleRNN": _recurrent(""),
    "LSTM": _recurrent(LSTM_GATES),
    "GRU": _recurrent(GRU_GATES),
    "ConvLSTM2D": _convolutional_lstm,
    "Highway": _highway,
    "MaxoutDense": _maxout,
    "SReLU": _s_shaped,
    "ParametricSoftplus": _softplus,
}
