"""Recurrent layers and their cells. Gates that use Keras 2's `hard_sigmoid` have their columns scaled by 1.2.

The columns of kernel, recurrent kernel and bias of one gate are all that goes into its activation, so scaling them is
scaling the activation's input: gates i, f, o of an LSTM, z, r of a GRU, by `recurrent_activation`; the candidate of a
GRU and a SimpleRNN's output by `activation`. An LSTM applies `activation` to its cell state too, which no kernel
makes: there the activation becomes a layer of two, Rescaling(1.2) and hard_sigmoid.

Source: keras/layers/recurrent.py, convolutional_recurrent.py, cudnn_recurrent.py (Keras 2.2.4), keras/layers/
recurrent.py (Keras 2.0.9), tensorflow/python/keras/layers/recurrent.py (TF 1.15), keras/src/layers/rnn (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plan import LayerSpec
from ..transformations import cudnn, scale_gates
from ._rule import SAME, Arguments, Context, NotMigratableError, Rule, Ruled, policy, table
from .activations import hard_sigmoid_layer, take_activation

_VARIABLES = ("kernel", "recurrent_kernel", "bias")
_SEQUENCE = ("return_sequences", "return_state", "go_backwards", "stateful", "unroll")
_OLD = "keras/layers/recurrent.py (Keras 2.2.4)"

_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
_RECURRENT = {"LSTM": (0, 1, 3), "GRU": (0, 1)}  # gates of recurrent_activation: i, f, o of i, f, c, o; z, r of z, r, h


def _kind(class_name: str) -> str:
    """LSTM, GRU or SimpleRNN, of a layer, a cell or a convolutional one."""
    return next(kind for kind in _GATES if kind in class_name)


def _take_activations(arguments: Arguments, context: Context, ruled: Ruled) -> None:
    kind = _kind(arguments.class_name)
    hard: list[int] = []
    value, is_hard = take_activation(arguments, context, "activation", "tanh")
    if is_hard and kind == "LSTM":
        value = hard_sigmoid_layer(policy(arguments.value("dtype"), context.dtype))
        ruled.notes.append("activation hard_sigmoid, also of the cell state: Rescaling(1.2) and hard_sigmoid as one")
    elif is_hard:
        hard.append(_GATES[kind] - 1)
    arguments.set("activation", value)
    if kind != "SimpleRNN":
        default = "sigmoid" if context.generation == 3 else "hard_sigmoid"
        value, is_hard = take_activation(arguments, context, "recurrent_activation", default)
        arguments.set("recurrent_activation", value)
        hard.extend(_RECURRENT[kind] if is_hard else ())
    if hard:
        for variable in _VARIABLES:
            ruled.changes[(variable,)] = (scale_gates(sorted(hard), _GATES[kind]),)
        ruled.notes.append(f"hard_sigmoid: columns of {len(hard)} of {_GATES[kind]} gates scaled by 1.2")


def _take_common(arguments: Arguments, context: Context) -> Ruled:
    """What cells and layers share."""
    ruled = Ruled(LayerSpec(""))
    _take_activations(arguments, context, ruled)
    arguments.keep("units", "use_bias", "dropout", "recurrent_dropout", "seed")
    arguments.for_variables("kernel", "recurrent", "bias")
    kind = _kind(arguments.class_name)
    if kind == "LSTM":
        arguments.keep("unit_forget_bias")
    if kind == "GRU":
        arguments.keep_or("reset_after", context.generation == 3)  # older files mean False and do not say it
        if arguments.value("reset_after") is None:
            arguments.set("reset_after", False)
    arguments.drop("implementation")
    return ruled


def _take_sequence(arguments: Arguments) -> None:
    """What layers have beside their cells."""
    arguments.keep(*_SEQUENCE)
    arguments.common_regularizer()
    arguments.drop("time_major", False)
    arguments.drop("input_length")
    arguments.drop("input_dim")
    arguments.keep("zero_output_for_mask")


def _layer(arguments: Arguments, context: Context) -> Ruled:
    ruled = _take_common(arguments, context)
    _take_sequence(arguments)
    if not arguments.value("zero_output_for_mask", False):
        arguments.unset("zero_output_for_mask")
    ruled.spec = arguments.finish(arguments.class_name)
    return ruled


def _cell(arguments: Arguments, context: Context) -> Ruled:
    if "units" not in arguments:
        raise NotMigratableError("its configuration does not say its units (Keras 2.0 did not store cells)")
    ruled = _take_common(arguments, context)
    ruled.spec = arguments.finish(arguments.class_name)
    arguments_of = dict(ruled.spec.arguments)
    arguments_of["name"] = arguments.name
    ruled.spec = LayerSpec(ruled.spec.class_name, arguments_of)
    return ruled


def _convolutional(arguments: Arguments, context: Context) -> Ruled:
    ruled = Ruled(LayerSpec(""))
    _take_activations(arguments, context, ruled)
    arguments.keep("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "use_bias",
                   "unit_forget_bias", "dropout", "recurrent_dropout", "seed")  # fmt: skip
    arguments.for_variables("kernel", "recurrent", "bias")
    arguments.drop("implementation")
    _take_sequence(arguments)
    arguments.drop("unroll", False)
    for key in ("unroll", "zero_output_for_mask"):
        arguments.unset(key)
    ruled.spec = arguments.finish(arguments.class_name)
    return ruled


def _cudnn(arguments: Arguments, context: Context) -> Ruled:
    kind = _kind(arguments.class_name)
    gates = _GATES[kind]
    arguments.keep("units", "return_sequences", "return_state", "go_backwards", "stateful")
    arguments.for_variables("kernel", "recurrent", "bias")
    arguments.common_regularizer()
    arguments.drop("time_major", False)
    for key in ("unroll", "implementation", "unit_forget_bias"):
        arguments.drop(key)
    arguments.set("activation", "tanh")
    arguments.set("recurrent_activation", "sigmoid")
    if kind == "GRU":
        arguments.set("reset_after", True)
    ruled = Ruled(arguments.finish(kind))
    for variable in _VARIABLES:
        ruled.changes[(variable,)] = (cudnn(variable, gates),)
    ruled.notes.append("CuDNN kernels and biases turned into those of the plain layer")
    return ruled


def _rnn(arguments: Arguments, context: Context) -> Ruled:
    """An RNN of one cell or of stacked cells; the variables are those of the cells, under their names."""
    stored = arguments.value("cell")
    if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict):
        raise NotMigratableError("its cell is not stored")
    stacked = stored.get("class_name") == "StackedRNNCells"
    entries: Sequence[Any] = stored["config"].get("cells", []) if stacked else [stored]
    changes: dict[tuple[str, ...], Any] = {}
    notes: list[str] = []
    cells: list[LayerSpec] = []
    for number, entry in enumerate(entries):
        made = context.nested(entry, context)
        name = entry["config"].get("name", f"cell_{number}")
        cells.append(made.spec)
        notes.extend(made.notes)
        changes.update({(name, *path): change for path, change in made.changes.items()})
    if stacked and stored["config"].get("reverse_state_order"):
        raise NotMigratableError("reverse_state_order=True has no counterpart in Keras 3")
    _take_sequence(arguments)
    if not arguments.value("zero_output_for_mask", False):
        arguments.unset("zero_output_for_mask")
    arguments.drop("num_constants", 0)
    arguments.set("cell", tuple(cells) if stacked else cells[0])
    return Ruled(arguments.finish("RNN"), changes, notes=notes)


RULES = table(
    Rule(
        ("SimpleRNN", "LSTM", "GRU"),
        SAME,
        "hard_sigmoid gates: columns scaled by 1.2; GRU without reset_after means False; implementation and "
        "time_major=False are dropped, time_major=True stops",
        _OLD,
        _layer,
    ),
    Rule(("SimpleRNNCell", "LSTMCell", "GRUCell"), SAME, "as their layers", _OLD, _cell),
    Rule(("RNN",), "RNN", "its cells by their rules", _OLD, _rnn),
    Rule(
        ("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
        SAME,
        "hard_sigmoid gates: columns scaled by 1.2; implementation and time_major=False are dropped",
        "keras/layers/convolutional_recurrent.py (Keras 2.2.4)",
        _convolutional,
    ),
    Rule(
        ("CuDNNLSTM", "CuDNNGRU"),
        "LSTM, GRU",
        "kernels turned gate by gate, the two biases added (LSTM) or stacked (GRU, reset_after=True)",
        "keras/engine/saving.py, _convert_rnn_weights (Keras 2.2.4)",
        _cudnn,
    ),
)
