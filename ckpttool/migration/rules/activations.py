"""Activations, as arguments and as layers. `hard_sigmoid` changed its slope: exact by scaling what goes into it.

Source: keras/activations.py, keras/layers/advanced_activations.py (Keras 2.2.4),
tensorflow/python/keras/layers/advanced_activations.py (TF 1.15, 2.10), keras/src/layers/activations (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..plan import LayerSpec
from ..transformations import HARD_SIGMOID_SCALE, scale_all
from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, VariablePath, simple, table
from .objects import activation_name

_LAYERS = "keras/src/layers/activations (Keras 3.15)"


def take_activation(arguments: Arguments, context: Context, key: str, default: str | None = None) -> tuple[Any, bool]:
    """The Keras 3 value of an activation argument, and whether it is Keras 2's `hard_sigmoid`.

    Raises
    ------
    NotMigratableError : a function or layer that is not Keras's own
    """
    stored = arguments.value(key, default)
    name = activation_name(stored, generation=context.generation)
    if name is not None:
        return name, name == "hard_sigmoid" and context.generation < 3
    spec = context.custom_activation(stored)
    if spec is None:
        raise NotMigratableError(f"{key} {_shown(stored)} is not Keras's own")
    return spec, False


def _shown(stored: Any) -> str:
    if isinstance(stored, dict):
        stored = stored.get("config") if isinstance(stored.get("config"), str) else stored.get("class_name")
    return f"{stored!r:.60}"


def linear_activation(arguments: Arguments, context: Context, variables: Iterable[VariablePath]) -> Ruled:
    """An activation over sums that are linear in the given variables; the class is set by `finish` afterwards."""
    value, hard = take_activation(arguments, context, "activation")
    arguments.set("activation", value)
    ruled = Ruled(LayerSpec(""))
    if hard:
        for path in variables:
            ruled.changes[path] = (scale_all(),)
        ruled.notes.append("hard_sigmoid: kernel and bias scaled by 1.2")
    return ruled


def hard_sigmoid_layer(dtype: Any) -> LayerSpec:
    """Keras 2's `hard_sigmoid` as one layer without weights, for places where nothing can be scaled."""
    policy = {} if dtype is None else {"dtype": dtype}
    scaled = LayerSpec("Rescaling", {"scale": HARD_SIGMOID_SCALE, **policy})
    return LayerSpec(
        "Pipeline", {"layers": (scaled, LayerSpec("Activation", {"activation": "hard_sigmoid", **policy}))}
    )


def _activation(arguments: Arguments, context: Context) -> Ruled:
    value, hard = take_activation(arguments, context, "activation")
    arguments.set("activation", value)
    spec = arguments.finish("Activation")
    if not hard:
        return Ruled(spec)
    dtype = {"dtype": spec.arguments["dtype"]} if "dtype" in spec.arguments else {}
    before = LayerSpec("Rescaling", {"name": f"{arguments.name}_times_1_2", "scale": HARD_SIGMOID_SCALE, **dtype})
    return Ruled(spec, before=(before,), notes=["hard_sigmoid: a Rescaling(1.2) in front"])


def _leaky_relu(arguments: Arguments, context: Context) -> Ruled:
    key = "negative_slope" if "negative_slope" in arguments else "alpha"
    arguments.set("negative_slope", _number(arguments.value(key, 0.3)))
    return Ruled(arguments.finish("LeakyReLU"))


def _elu(arguments: Arguments, context: Context) -> Ruled:
    arguments.set("alpha", _number(arguments.value("alpha", 1.0)))
    return Ruled(arguments.finish("ELU"))


def _number(value: Any) -> float:
    """Some versions store a NumPy scalar as `{"type": "ndarray", "value": 0.2}`."""
    if isinstance(value, dict):
        value = value.get(
            "value", value.get("config", {}).get("value") if isinstance(value.get("config"), dict) else None
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotMigratableError(f"{value!r:.40} is not a number")
    return float(value)


def _thresholded_relu(arguments: Arguments, context: Context) -> Ruled:
    arguments.set("threshold", _number(arguments.value("theta", 1.0)))
    return Ruled(arguments.finish("ReLU"))


def _relu(arguments: Arguments, context: Context) -> Ruled:
    for key in ("max_value", "negative_slope", "threshold"):
        value = arguments.value(key)
        if value is not None:
            arguments.set(key, _number(value))
    return Ruled(arguments.finish("ReLU"))


def _prelu(arguments: Arguments, context: Context) -> Ruled:
    arguments.for_variables("alpha")
    arguments.keep("shared_axes")
    return Ruled(arguments.finish("PReLU"))


RULES = table(
    Rule(
        ("Activation",),
        "Activation",
        "hard_sigmoid gets a Rescaling(1.2) in front; swish is called silu",
        "keras/backend/tensorflow_backend.py, hard_sigmoid (Keras 2.2.4); keras/src/ops/nn.py (Keras 3.15)",
        _activation,
    ),
    Rule(("LeakyReLU",), "LeakyReLU", "alpha is called negative_slope", f"{_LAYERS}/leaky_relu.py", _leaky_relu),
    Rule(("ELU",), "ELU", "as it is", f"{_LAYERS}/elu.py", _elu),
    Rule(
        ("ThresholdedReLU",),
        "ReLU",
        "ReLU(threshold=theta)",
        "keras/layers/advanced_activations.py (Keras 2.2.4)",
        _thresholded_relu,
    ),
    Rule(("ReLU",), "ReLU", "as it is", f"{_LAYERS}/relu.py", _relu),
    Rule(("PReLU",), "PReLU", "as it is", f"{_LAYERS}/prelu.py", _prelu),
    simple(("Softmax",), "Softmax", keep=("axis",), source=f"{_LAYERS}/softmax.py"),
)
