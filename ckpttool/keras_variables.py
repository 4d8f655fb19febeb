"""Which variables Keras's own layers have, as far as their configuration fixes them.

A shape holds numbers where the configuration fixes the axis and symbols where the graph would: axes of one layer with
the same symbol are equal (the four vectors of a BatchNormalization). No shape inference through the graph. Kept apart
from `keras_config` because this is a table about layers and that is a parser.

Source: the `build` methods of Keras 1.2.2, 2.0.9–2.3.1, tf.keras 1.4–2.15 and Keras 3.15; the order is that of
`layer.weights`: trainable variables as created, then the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .keras_config import Json, LayerConfig

Axis = int | str


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable that a layer is expected to have."""

    path: tuple[str, ...]  # ("kernel",), or ("forward_lstm", "kernel") inside a wrapper layer
    shape: tuple[Axis, ...] | None  # None: the rank is not known either
    trainable: bool = True

    def fits(self, shape: Sequence[int], symbols: dict[str, int]) -> bool:
        """Whether a stored shape fits; `symbols` holds the axes bound so far in this layer and is extended."""
        if self.shape is None:
            return True
        if len(shape) != len(self.shape):
            return False
        bound: dict[str, int] = {}
        for axis, length in zip(self.shape, shape, strict=True):
            expected = axis if isinstance(axis, int) else symbols.get(axis, bound.get(axis))
            if expected is None:
                bound[str(axis)] = length
            elif expected != length:
                return False
        symbols.update(bound)
        return True


Variables = tuple[Variable, ...]
_Rule = Callable[[Json], Variables | None]

_WEIGHTLESS = frozenset(
    """InputLayer Activation Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise GaussianDropout
    AlphaDropout Flatten Reshape Permute RepeatVector Masking Lambda ActivityRegularization Merge Add Subtract Multiply
    Average Maximum Minimum Concatenate Dot Cropping1D Cropping2D Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    UpSampling1D UpSampling2D UpSampling3D MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D
    AveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D
    GlobalAveragePooling2D GlobalAveragePooling3D MaxPool1D MaxPool2D MaxPool3D AvgPool1D AvgPool2D AvgPool3D LeakyReLU
    ELU ThresholdedReLU Softmax ReLU TensorFlowOpLayer TFOpLambda SlicingOpLambda Identity UnitNormalization
    Rescaling""".split()
)


def expected_variables(layer: LayerConfig) -> Variables | None:
    """The variables of a leaf layer in `layer.weights` order; None for a class that is not Keras's own.

    None also for a quantized layer, which holds integers and scales in place of its weights, and for one with LoRA,
    which a legacy file holds in factors and a `.keras` file merged.
    """
    if is_stored_otherwise(layer.config):
        return None
    return _expected(layer.class_name, layer.config)


def is_stored_otherwise(config: Json) -> bool:
    """Whether a layer of Keras 3 is quantized or has LoRA.

    Dtype policies of quantized layers have a mode: `QuantizedDTypePolicy`, `Int4DTypePolicy`, `int8_from_float32` …
    """
    if not isinstance(config, Mapping):
        return False
    policy = config.get("dtype")
    if isinstance(policy, Mapping):
        policy = "_from_" if isinstance(policy.get("config"), Mapping) and "mode" in policy["config"] else ""
    return bool(config.get("lora_rank")) or (isinstance(policy, str) and "_from_" in policy)


def is_keras_class(class_name: str) -> bool:
    """Whether the table knows the class: an own class of the same name shows by its arguments alone."""
    return class_name in _WEIGHTLESS or class_name in _RULES


def _expected(class_name: str, config: Json) -> Variables | None:
    if class_name in _WEIGHTLESS:
        return ()
    if not isinstance(config, Mapping):
        return None
    rule = _RULES.get(class_name)
    try:
        if rule is None or "output_dim" in config or "nb_filter" in config:
            from .keras1_variables import is_keras1, keras1_variables

            if is_keras1(class_name, config):
                return keras1_variables(class_name, config)
        return None if rule is None else rule(config)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return None  # an own class that has a Keras class's name, with other arguments


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"not a size: {value!r}")
    return int(value)


def _sizes(value: Any, rank: int) -> tuple[int, ...]:
    """A kernel size as a tuple: a number, a list, or tf.keras's `{"class_name": "__tuple__", "items": […]}`."""
    if isinstance(value, Mapping):
        value = value["items"]
    if isinstance(value, list):
        sizes = tuple(_integer(item) for item in value)
        if len(sizes) != rank:
            raise ValueError("kernel size of another rank")
        return sizes
    return (_integer(value),) * rank


def _named(shapes: Mapping[str, tuple[Axis, ...] | None], *frozen: str) -> Variables:
    return tuple(Variable((name,), shape, name not in frozen) for name, shape in shapes.items())


def _with_bias(config: Json, shapes: dict[str, tuple[Axis, ...] | None], bias: tuple[Axis, ...]) -> Variables:
    if config.get("use_bias", True):
        shapes["bias"] = bias
    return _named(shapes)


def _dense(config: Json) -> Variables:
    units = _integer(config["units"])
    return _with_bias(config, {"kernel": ("input", units)}, (units,))


def _convolution(rank: int) -> _Rule:
    def rule(config: Json) -> Variables:
        filters = _integer(config["filters"])
        kernel: tuple[Axis, ...] = (*_sizes(config["kernel_size"], rank), "input", filters)
        return _with_bias(config, {"kernel": kernel}, (filters,))

    return rule


def _transposed(rank: int) -> _Rule:
    def rule(config: Json) -> Variables:
        filters = _integer(config["filters"])
        kernel: tuple[Axis, ...] = (*_sizes(config["kernel_size"], rank), filters, "input")
        return _with_bias(config, {"kernel": kernel}, (filters,))

    return rule


def _depthwise(rank: int) -> _Rule:
    def rule(config: Json) -> Variables:
        multiplier = _integer(config.get("depth_multiplier", 1))
        kernel: tuple[Axis, ...] = (*_sizes(config["kernel_size"], rank), "input", multiplier)
        return _with_bias(config, {"depthwise_kernel": kernel}, ("output",))

    return rule


def _separable(rank: int) -> _Rule:
    def rule(config: Json) -> Variables:
        filters = _integer(config["filters"])
        multiplier = _integer(config.get("depth_multiplier", 1))
        depthwise: tuple[Axis, ...] = (*_sizes(config["kernel_size"], rank), "input", multiplier)
        pointwise: tuple[Axis, ...] = (*(1,) * rank, "between", filters)
        return _with_bias(config, {"depthwise_kernel": depthwise, "pointwise_kernel": pointwise}, (filters,))

    return rule


def _locally_connected(config: Json) -> Variables:
    _integer(config["filters"])
    return _with_bias(config, {"kernel": None}, None)  # type: ignore[arg-type]


def _batch_normalization(config: Json) -> Variables | None:
    if config.get("renorm"):
        return None
    shapes: dict[str, tuple[Axis, ...] | None] = {}
    if config.get("scale", True):
        shapes["gamma"] = ("channels",)
    if config.get("center", True):
        shapes["beta"] = ("channels",)
    shapes["moving_mean"] = shapes["moving_variance"] = ("channels",)
    return _named(shapes, "moving_mean", "moving_variance")


def _scale_and_center(config: Json) -> Variables:
    names = [name for name, flag in (("gamma", "scale"), ("beta", "center")) if config.get(flag, True)]
    return _named(dict.fromkeys(names))


def _embedding(config: Json) -> Variables:
    return _named({"embeddings": (_integer(config["input_dim"]), _integer(config["output_dim"]))})


def _recurrent(gates: int) -> _Rule:
    def rule(config: Json) -> Variables:
        units = _integer(config["units"])
        wide = gates * units
        bias: tuple[Axis, ...] = (2, wide) if config.get("reset_after") else (wide,)
        return _with_bias(config, {"kernel": ("input", wide), "recurrent_kernel": (units, wide)}, bias)

    return rule


def _cudnn(gates: int) -> _Rule:
    def rule(config: Json) -> Variables:
        units = _integer(config["units"])
        wide = gates * units
        return _named({"kernel": ("input", wide), "recurrent_kernel": (units, wide), "bias": (2 * wide,)})

    return rule


def _convolutional_lstm(rank: int) -> _Rule:
    def rule(config: Json) -> Variables:
        wide = 4 * _integer(config["filters"])
        sizes = _sizes(config["kernel_size"], rank)
        shapes: dict[str, tuple[Axis, ...] | None] = {
            "kernel": (*sizes, "input", wide),
            "recurrent_kernel": (*sizes, wide // 4, wide),
        }
        return _with_bias(config, shapes, (wide,))

    return rule


def _prelu(config: Json) -> Variables:
    return _named({"alpha": None})


def _attention(config: Json) -> Variables:
    shapes: dict[str, tuple[Axis, ...] | None] = {}
    if config["use_scale"]:
        shapes["scale"] = ()
    if config.get("score_mode") == "concat":
        shapes["concat_score_weight"] = ()
    return _named(shapes)


def _additive_attention(config: Json) -> Variables:
    return _named({"scale": ("units",)} if config["use_scale"] else {})


def _multi_head_attention(config: Json) -> Variables:
    heads, key = _integer(config["num_heads"]), _integer(config["key_dim"])
    value = _integer(config["value_dim"]) if config.get("value_dim") else key
    found: list[Variable] = []
    for part, kernel, bias in (
        ("query", ("query_input", heads, key), (heads, key)),
        ("key", ("key_input", heads, key), (heads, key)),
        ("value", ("value_input", heads, value), (heads, value)),
        ("attention_output", None if config.get("output_shape") else (heads, value, "output"), None),
    ):
        found.append(Variable((part, "kernel"), kernel))
        if config.get("use_bias", True):
            found.append(Variable((part, "bias"), bias))
    return tuple(found)


def _inner(config: Json) -> tuple[str, str, Json]:
    entry = config["layer"]
    class_name, inside = entry["class_name"], entry["config"]
    return class_name, _name(inside, class_name.lower()), inside


def _name(config: Json, otherwise: str) -> str:
    name = config.get("name")
    return name if isinstance(name, str) else otherwise


def _prefixed(name: str, class_name: str, config: Json) -> Variables | None:
    inside = _expected(class_name, config)
    if inside is None:
        return None
    return tuple(Variable((name, *variable.path), variable.shape, variable.trainable) for variable in inside)


def _renumbered(variables: Variables | None, tag: str) -> Variables | None:
    """Give the symbols of one part a name of their own, so that two parts do not bind each other's axes."""
    if variables is None:
        return None
    return tuple(
        Variable(
            variable.path,
            None
            if variable.shape is None
            else tuple(a if isinstance(a, int) else f"{tag}.{a}" for a in variable.shape),
            variable.trainable,
        )
        for variable in variables
    )


def _time_distributed(config: Json) -> Variables | None:
    class_name, name, inside = _inner(config)
    return _by_flag(_prefixed(name, class_name, inside), inside)


def _by_flag(variables: Variables | None, config: Json) -> Variables | None:
    """The variables of a part; where it is frozen itself, none of them is trainable."""
    if variables is None or config.get("trainable") is not False:
        return variables
    return tuple(replace(variable, trainable=False) for variable in variables)


def _bidirectional(config: Json) -> Variables | None:
    class_name, name, inside = _inner(config)
    base = name.removeprefix("forward_")
    forward = _prefixed(f"forward_{base}", class_name, inside)
    given = config.get("backward_layer")
    if isinstance(given, Mapping):
        back_name = _name(given["config"], base).removeprefix("backward_")
        backward = _prefixed(f"backward_{back_name}", given["class_name"], given["config"])
    else:
        backward = _prefixed(f"backward_{base}", class_name, inside)
    if forward is None or backward is None:
        return None
    return forward + backward


def _cells(config: Json) -> Variables | None:
    """An `RNN` of one cell or of stacked cells; each cell's variables under its name."""
    entry = config["cell"]
    entries = entry["config"]["cells"] if entry["class_name"] == "StackedRNNCells" else [entry]
    found: list[Variable] = []
    for number, (name, cell) in enumerate(zip(cell_names(entries), entries, strict=True)):
        part = _renumbered(_prefixed(name, cell["class_name"], cell["config"]), str(number))
        part = _by_flag(part, cell["config"])
        if part is None:
            return None
        found.extend(part)
    return tuple(found)


def cell_names(entries: Sequence[Json]) -> list[str]:
    """A name for each cell of a stack: its own, numbered where Keras let two have the same."""
    names: list[str] = []
    for number, cell in enumerate(entries):
        name = base = _name(cell["config"], f"cell_{number}")
        count = 0
        while name in names:
            count += 1
            name = f"{base}_{count}"
        names.append(name)
    return names


_RULES: dict[str, _Rule] = {
    "Dense": _dense,
    "Conv1D": _convolution(1),
    "Conv2D": _convolution(2),
    "Conv3D": _convolution(3),
    "Convolution1D": _convolution(1),
    "Convolution2D": _convolution(2),
    "Convolution3D": _convolution(3),
    "Conv1DTranspose": _transposed(1),
    "Conv2DTranspose": _transposed(2),
    "Conv3DTranspose": _transposed(3),
    "DepthwiseConv1D": _depthwise(1),
    "DepthwiseConv2D": _depthwise(2),
    "SeparableConv1D": _separable(1),
    "SeparableConv2D": _separable(2),
    "LocallyConnected1D": _locally_connected,
    "LocallyConnected2D": _locally_connected,
    "BatchNormalization": _batch_normalization,
    "BatchNormalizationV1": _batch_normalization,
    "BatchNormalizationV2": _batch_normalization,
    "SyncBatchNormalization": _batch_normalization,
    "LayerNormalization": _scale_and_center,
    "GroupNormalization": _scale_and_center,
    "Embedding": _embedding,
    "SimpleRNN": _recurrent(1),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "SimpleRNNCell": _recurrent(1),
    "LSTMCell": _recurrent(4),
    "GRUCell": _recurrent(3),
    "CuDNNLSTM": _cudnn(4),
    "CuDNNGRU": _cudnn(3),
    "ConvLSTM1D": _convolutional_lstm(1),
    "ConvLSTM2D": _convolutional_lstm(2),
    "ConvLSTM3D": _convolutional_lstm(3),
    "RNN": _cells,
    "PReLU": _prelu,
    "Attention": _attention,
    "AdditiveAttention": _additive_attention,
    "MultiHeadAttention": _multi_head_attention,
    "TimeDistributed": _time_distributed,
    "Bidirectional": _bidirectional,
}
