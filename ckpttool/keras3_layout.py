"""Where Keras 3 keeps the variables of a layer: groups by class and counter, parts by attribute, variables by number.

A model's layers are the groups of `layers/`, each called after its class in snake case with a counter (`dense`,
`dense_1`); what a wrapper layer or an RNN holds inside lies in groups called after attributes (`forward_layer/cell`).
Source: keras/src/saving/saving_lib.py, `_save_container_state` and `_walk_saveable` (Keras 3.15; files of Keras 3.0.5,
3.3.3 and 3.8 and of tf.keras 2.13 and 2.15 looked at).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .checkpoint import TensorSpec
from .keras_config import Json, LayerConfig, ModelConfig
from .keras_variables import Variable, Variables, cell_names, expected_variables

LAYERS = "layers"
LAYERS_OF_2_13 = "_layer_checkpoint_dependencies"  # what tf.keras 2.13 calls the same group

RECURRENT = frozenset("SimpleRNN LSTM GRU ConvLSTM1D ConvLSTM2D ConvLSTM3D".split())
LOOKUPS = frozenset("TextVectorization StringLookup IntegerLookup".split())  # their vocabularies are asset files
_ATTENTION = {"MultiHeadAttention": "", "GroupQueryAttention": "_", "GroupedQueryAttention": "_"}
_QUANTIZED = {
    "int8": ("{}", "bias", "{}_scale"),
    "int4": ("{}", "bias", "{}_scale", "{}_zero", "g_idx"),
    "float8": ("{}", "bias", "inputs_scale", "inputs_amax_history", "{}_scale", "{}_amax_history",
               "outputs_grad_scale", "outputs_grad_amax_history"),
    "gptq": ("bias", "quantized_{}", "{}_scale", "{}_zero", "g_idx"),
    "awq": ("bias", "quantized_{}", "{}_scale", "{}_zero", "awq_scales", "g_idx"),
}  # fmt: skip
_OPTIONAL = ("bias", "{}_zero", "g_idx")  # left out where the layer has none
_QUANTIZABLE = {"Dense": "kernel", "EinsumDense": "kernel", "Embedding": "embeddings",
                "ReversibleEmbedding": "embeddings"}  # fmt: skip

# By number of variables, for files without a configuration. A count that two sets of names would fit is left out.
_SETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Dense EinsumDense Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose",
     ("kernel", "kernel bias")),
    ("DepthwiseConv1D DepthwiseConv2D", ("depthwise_kernel", "depthwise_kernel bias")),
    ("SeparableConv1D SeparableConv2D",
     ("depthwise_kernel pointwise_kernel", "depthwise_kernel pointwise_kernel bias")),
    ("SimpleRNN LSTM GRU ConvLSTM1D ConvLSTM2D ConvLSTM3D SimpleRNNCell LSTMCell GRUCell",
     ("kernel recurrent_kernel", "kernel recurrent_kernel bias")),
    ("Embedding", ("embeddings",)),
    ("ReversibleEmbedding", ("embeddings", "embeddings reverse_embeddings")),
    ("BatchNormalization", ("moving_mean moving_variance", "gamma beta moving_mean moving_variance")),
    ("LayerNormalization GroupNormalization", ("gamma beta",)),
    ("RMSNormalization AdditiveAttention", ("scale",)),
    ("Normalization", ("mean variance count",)),
    ("PReLU", ("alpha",)),
    ("SpectralNormalization", ("kernel vector_u",)),
)  # fmt: skip
_BY_COUNT = {
    name: {len(one.split()): one.split() for one in names} for classes, names in _SETS for name in classes.split()
}
_WEIGHTLESS = tuple(
    """InputLayer Dropout Flatten Activation Concatenate Add Lambda Reshape ReLU Softmax GlobalAveragePooling1D
    GlobalAveragePooling2D MaxPooling1D MaxPooling2D AveragePooling2D ZeroPadding2D Dot Multiply Rescaling Masking
    GlobalMaxPooling1D GlobalMaxPooling2D SpatialDropout1D GaussianNoise Subtract Average Maximum UpSampling2D
    LeakyReLU Permute RepeatVector Cropping2D""".split()
)
_COMPOSED = ("Bidirectional", "TimeDistributed", "RNN", "SpectralNormalization", "StackedRNNCells", "Functional",
             "Sequential")  # fmt: skip
_OBJECT_NUMBER = re.compile(r'(, )?"shared_object_id": \d+')
_FROZEN = frozenset("moving_mean moving_variance mean variance count vector_u".split())


@dataclass(frozen=True, slots=True)
class Part:
    """A group of a layer that holds variables."""

    groups: tuple[str, ...]  # under the layer's own group: ("forward_layer", "cell"); () for its own variables
    prefix: tuple[str, ...]  # of the variables' paths inside the layer: ("forward_lstm",)
    class_name: str  # whose variables they are
    config: Json | None  # of that class; None where no configuration tells
    titles: tuple[str | None, ...] = ()  # what Keras since 3.6 notes as the name of each group in `groups`


def is_keras3(entry: Json) -> bool:
    """Whether a model's configuration is in the form of Keras 3, by how it writes input layers and calls.

    Keras 3 has `batch_shape` where Keras 1 and 2 have `batch_input_shape`, and calls are objects with `args`.
    Source: keras/src/layers/core/input_layer.py and keras/src/models/functional.py (Keras 3.15).
    """
    config = entry.get("config")
    listed = config.get("layers") if isinstance(config, Mapping) else config
    if not isinstance(listed, list):
        return str(entry.get("module")).startswith("keras") or isinstance(entry.get("registered_name"), str)
    for layer in listed:
        if not isinstance(layer, Mapping):
            return False
        inside = layer.get("config")
        if isinstance(inside, Mapping):
            if "batch_input_shape" in inside:
                return False
            if "batch_shape" in inside:
                return True
            if isinstance(inside.get("dtype"), Mapping):
                return True
        calls = layer.get("inbound_nodes")
        if isinstance(calls, list) and calls:
            return isinstance(calls[0], Mapping)
    return False


@functools.cache
def snake_case(class_name: str) -> str:
    """The group name of a class. Source: keras/src/utils/naming.py, `to_snake_case` (Keras 3.15)."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def plain_class(class_name: str) -> str:
    """The class without its package: `Custom>Block` is `Block`; Keras 2's `Model` is Keras 3's `Functional`.

    `GroupQueryAttention` is the public name of the class `GroupedQueryAttention`, after which its group is called.
    """
    name = class_name.rpartition(">")[2]
    return {"Model": "Functional", "BatchNormalizationV1": "BatchNormalization",
            "BatchNormalizationV2": "BatchNormalization", "GroupQueryAttention": "GroupedQueryAttention",
            }.get(name, name)  # fmt: skip


_CLASSES = {snake_case(name): name for name in (*_BY_COUNT, *_WEIGHTLESS, *_COMPOSED, *_ATTENTION)}


def class_of_group(group: str) -> str | None:
    """Keras's own class that a group's name tells, its counter aside; None for any other name."""
    return _CLASSES.get(group) or _CLASSES.get(re.sub(r"_\d+$", "", group))


class Counter:
    """Names of one container's groups: `dense`, `dense_1` …"""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def name(self, class_name: str) -> str:
        """The next group name of a class."""
        base = snake_case(plain_class(class_name))
        number = self._used.get(base, -1) + 1
        self._used[base] = number
        return f"{base}_{number}" if number else base


def group_names(model: ModelConfig) -> list[str]:
    """The group of each layer of a model, in its order."""
    counter = Counter()
    return [counter.name(layer.class_name) for layer in model.layers]


def found_groups(
    model: ModelConfig, stored: Iterable[str], met_before: Callable[[ModelConfig], list[bool]]
) -> list[str | None]:
    """The stored group of each layer of a model, in its order; None for a layer that is stored elsewhere.

    Keras 3 counts every layer of a class, tf.keras 2.15 only those that it has not met in another model, tf.keras 2.13
    those with weights twice. So where the counters do not fit, the n-th group of a class is the n-th layer's.

    Parameters
    ----------
    model : the layers
    stored : the names of the groups in the model's container
    met_before : says for each layer of a model whether it was met earlier; asked only where the counters do not fit
    """
    by_base: dict[str, list[tuple[int, str]]] = {}
    for group in stored:
        base, number = _base_and_number(group)
        by_base.setdefault(base, []).append((number, group))
    counted = group_names(model)
    result: list[str | None] = list(counted)
    of_base: dict[str, list[int]] = {}
    for i, layer in enumerate(model.layers):
        of_base.setdefault(snake_case(plain_class(layer.class_name)), []).append(i)
    for base, places in of_base.items():
        groups = [group for _, group in sorted(by_base.get(base, ()))]
        held = set(groups)
        absent = [i for i in places if counted[i] not in held]
        extra = held - {counted[i] for i in places}
        if not extra and not absent:
            continue
        met = met_before(model)
        if not extra and all(met[i] for i in absent):
            continue
        for ranked in (places, [i for i in places if not met[i]]):
            if len(ranked) == len(groups):
                for i in places:
                    result[i] = groups[ranked.index(i)] if i in ranked else None
                break
    return result


def _base_and_number(group: str) -> tuple[str, int]:
    base, _, number = group.rpartition("_")
    return (base, int(number)) if base and number.isdecimal() and len(number) < 10 else (group, 0)


def is_custom(layer: LayerConfig) -> bool:
    """A class that is not Keras's own, whatever it is called: `registered_name` has a package."""
    registered = layer.entry.get("registered_name") if isinstance(layer.entry, Mapping) else None
    return ">" in layer.class_name or (isinstance(registered, str) and ">" in registered)


def parts_of(class_name: str, config: Json | None) -> tuple[Part, ...] | None:
    """The groups of a layer that is no model; None where only its configuration could tell and there is none."""
    if class_name in RECURRENT:
        cell = f"{snake_case(class_name)}_cell"
        return (Part(("cell",), (), class_name, config, (cell,)),)
    if class_name in _ATTENTION:
        return tuple(
            Part((f"{_ATTENTION[class_name]}{attribute}_dense",), (name,), "EinsumDense",
                 None if config is None else {"use_bias": config.get("use_bias", True)}, (name,))
            for attribute, name in
            (("query", "query"), ("key", "key"), ("value", "value"), ("output", "attention_output"))
        )  # fmt: skip
    if class_name in ("Bidirectional", "TimeDistributed", "RNN", "SpectralNormalization"):
        if config is None:
            return None
        try:
            return tuple({"Bidirectional": _both_ways, "RNN": _cells}.get(class_name, _wrapped)(class_name, config))
        except (KeyError, TypeError, AttributeError):
            return None
    return (Part((), (), class_name, config),)


def _inside(attribute: str, entry: Json, name: str) -> Iterator[Part]:
    """The parts of a layer in an attribute."""
    for part in parts_of(plain_class(entry["class_name"]), entry["config"]) or ():
        yield Part((attribute, *part.groups), (name, *part.prefix), part.class_name, part.config, (name, *part.titles))


def _name_of(entry: Json) -> str:
    return str(entry["config"].get("name") or snake_case(entry["class_name"]))


def _wrapped(class_name: str, config: Json) -> Iterator[Part]:
    entry = config["layer"]
    yield from _inside("layer", entry, _name_of(entry))
    if class_name == "SpectralNormalization":  # its own variables come last, as in `layer.weights`
        yield Part((), (), class_name, {"layer": _name_of(entry)}, (str(config.get("name")),))


def _both_ways(class_name: str, config: Json) -> Iterator[Part]:
    entry = config["layer"]
    base = _name_of(entry).removeprefix("forward_")
    given = config.get("backward_layer")
    yield from _inside("forward_layer", entry, f"forward_{base}")
    if isinstance(given, Mapping):
        yield from _inside("backward_layer", given, f"backward_{_name_of(given).removeprefix('backward_')}")
    else:
        yield from _inside("backward_layer", entry, f"backward_{base}")


def _cells(class_name: str, config: Json) -> Iterator[Part]:
    entry = config["cell"]
    if entry["class_name"] != "StackedRNNCells":
        yield from _inside("cell", entry, _name_of(entry))
        return
    counter = Counter()
    cells = entry["config"]["cells"]
    for name, cell in zip(cell_names(cells), cells, strict=True):
        for part in _inside(counter.name(cell["class_name"]), cell, name):
            titles = ("stacked_rnn_cells", None, *part.titles)
            yield Part(("cell", "cells", *part.groups), part.prefix, part.class_name, part.config, titles)


def quantization_mode(config: Json | None) -> str | None:
    """`int8`, `int4`, `float8`, `gptq` or `awq` where the layer's dtype policy says so."""
    policy = config.get("dtype") if isinstance(config, Mapping) else None
    inner = policy.get("config") if isinstance(policy, Mapping) else None
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    if isinstance(policy, str) and "_from_" in policy:
        mode = policy
    return re.split(r"[/_]", mode)[0] if isinstance(mode, str) else None


def stored_variables(part: Part, tensors: Sequence[TensorSpec]) -> Variables | None:
    """What a part's variables are called, in stored order; None where that is not known.

    Parameters
    ----------
    part : the layer, cell or inner layer
    tensors : as stored; their number and dtypes tell apart what no configuration does
    """
    mode = quantization_mode(part.config)
    if mode is None and tensors and tensors[0].dtype in ("int8", "uint8"):
        mode = "int8" if len(tensors) <= 3 else "int4"
    if part.config is None and part.class_name in ("Dense", "EinsumDense") and len(tensors) in (7, 8):
        mode = "float8"
    if mode is not None and part.class_name in _QUANTIZABLE:
        return _quantized(mode, _QUANTIZABLE[part.class_name], part, tensors)
    if part.config is not None:
        return expected_of(part.class_name, part.config)
    names = _BY_COUNT.get(part.class_name, {}).get(len(tensors))
    return None if names is None else _named(names)


def _named(names: Iterable[str]) -> Variables:
    return tuple(Variable((name,), None, name not in _FROZEN) for name in names)


def _quantized(mode: str, main: str, part: Part, tensors: Sequence[TensorSpec]) -> Variables | None:
    """Optional variables are dropped, the likeliest absent ones first, until the stored number is met."""
    names = list(_QUANTIZED.get(mode, ()))
    no_bias = part.config is not None and part.config.get("use_bias") is False
    if part.config is None and mode in ("int8", "int4") and len(tensors) > 1:
        no_bias = len(tensors[1].shape) != 1 or len(tensors) == 2  # a bias is a vector, and stands second
    if main == "embeddings" or no_bias:
        names = [name for name in names if name != "bias"]
    count = len(tensors)
    for optional in ("g_idx", "{}_zero", "bias"):
        if len(names) > count and optional in _OPTIONAL and optional in names:
            names.remove(optional)
    if len(names) != count:
        return None
    trained = ("{}", "bias") if mode == "float8" else ("bias",)
    return tuple(Variable((name.format(main),), None, name in trained) for name in names)


def expected_of(class_name: str, config: Json) -> Variables | None:
    """The variables of a class by its configuration, those of Keras 3's own layers too; None for unknown classes."""
    if class_name == "EinsumDense":
        has_bias = config.get("use_bias", True) if "equation" not in config else config.get("bias_axes") is not None
        return _named(["kernel", "bias"] if has_bias else ["kernel"])
    if class_name == "SpectralNormalization":
        return (Variable((config["layer"], "kernel"), None), Variable(("vector_u",), None, False))
    if class_name == "RMSNormalization":
        return _named(["scale"])
    if class_name == "Normalization":
        return _named(["mean", "variance", "count"]) if config.get("mean") is None else ()
    if class_name == "ReversibleEmbedding":
        return _named(["embeddings"] if config.get("tie_weights", True) else ["embeddings", "reverse_embeddings"])
    if class_name == "LayerNormalization" and config.get("rms_scaling"):
        return _named(["gamma"])
    return expected_variables(LayerConfig(class_name, class_name, {**config, "lora_rank": None}))


def shared_key(layer: LayerConfig) -> str:
    """Equal for two entries that may be one layer: Keras 3 numbers shared objects, but not at their first entry."""
    text = json.dumps([layer.class_name, layer.name, layer.config], sort_keys=True, default=str)
    return _OBJECT_NUMBER.sub("", text)
