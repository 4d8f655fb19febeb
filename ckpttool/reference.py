"""The old model's configuration in a form that tf_keras may build: Keras's own classes, and nothing but data.

tf_keras unmarshals Lambda code without asking, so it never sees a stored configuration. This module writes a new one:
classes and activations of our list, initial values zero, no regularizers, constraints or module names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .keras_config import Json, is_model_entry
from .migration.rules import RULES
from .migration.rules._rule import plain, policy
from .migration.rules.objects import ACTIVATIONS
from .migration.rules.operators import OPERATORS, is_known_operator

_DROPPED = frozenset(
    """implementation build_config shared_object_id input_length build_input_shape noise_shape
    registered_name fused virtual_batch_size renorm renorm_clipping renorm_momentum ragged sparse seed""".split()
)
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell", "ConvLSTM1D", "ConvLSTM2D",
              "ConvLSTM3D")  # fmt: skip
_ACTIVATION_LAYERS = ("LeakyReLU", "ELU", "ReLU", "ThresholdedReLU", "Softmax")


class NoReferenceError(Exception):
    """The old model cannot be built by tf_keras; the message says why."""


def reference_entry(entry: Json) -> dict[str, Any]:
    """A stored model or layer, cleaned for tf_keras.

    Parameters
    ----------
    entry : `{"class_name", "config", …}` of Keras 2 or tf.keras, whole models too

    Raises
    ------
    NoReferenceError : a class or an activation that is not on the list
    """
    class_name = entry.get("class_name")
    if not isinstance(class_name, str):
        raise NoReferenceError("a layer without a class")
    kept = {key: entry[key] for key in ("name", "inbound_nodes") if key in entry}
    if is_model_entry(entry):
        return {"class_name": class_name, "config": _model(entry), **kept}
    if class_name not in (*RULES, "StackedRNNCells"):
        raise NoReferenceError(f"{class_name} is not built here for comparison")
    if class_name in OPERATORS:
        return _operator(entry, kept)
    config = entry.get("config")
    made, name = _layer(class_name, config if isinstance(config, Mapping) else {})
    return {"class_name": name, "config": made, **kept}


def _operator(entry: Json, kept: dict[str, Any]) -> dict[str, Any]:
    """tf_keras looks the function up by its stored name, so only names of our tables reach it."""
    config = entry.get("config")
    if not isinstance(config, Mapping) or not is_known_operator(str(entry["class_name"]), config):
        raise NoReferenceError(f"{entry['class_name']} holds a function that is not on the list")
    known = ("name", "trainable", "dtype", "function", "node_def", "constants")
    return {"class_name": entry["class_name"], "config": {key: config[key] for key in known if key in config}, **kept}


def _model(entry: Json) -> Any:
    config = entry["config"]
    if isinstance(config, list):
        return {"name": entry.get("name"), "layers": [reference_entry(layer) for layer in config]}
    kept = {key: config[key] for key in ("name", "input_layers", "output_layers") if key in config}
    if "input_layers" not in config and isinstance(plain(config.get("build_input_shape")), list):
        kept["build_input_shape"] = plain(config["build_input_shape"])
    return {**kept, "layers": [reference_entry(layer) for layer in config["layers"]]}


def _layer(class_name: str, config: Json) -> tuple[dict[str, Any], str]:
    made: dict[str, Any] = {}
    for key, value in config.items():
        if (key in _DROPPED and not class_name.startswith("LocallyConnected")) or (key == "time_major" and not value):
            continue
        if key.endswith("_initializer"):
            made[key] = "zeros"  # not drawn at random: the stored weights replace them
        elif not key.endswith(("_regularizer", "_constraint")):
            made[key] = _value(key, plain(value))
    if class_name in _RECURRENT:
        made.setdefault("activation", "tanh")
        if not class_name.startswith("SimpleRNN"):
            made.setdefault("recurrent_activation", "hard_sigmoid")
    if class_name in ("GRU", "GRUCell"):
        made["reset_after"] = bool(made.get("reset_after", False))
    if class_name == "ThresholdedReLU":
        made["theta"] = float(made.get("theta", 1.0))
    if class_name.startswith("BatchNormalizationV"):
        class_name = "BatchNormalization"
    if class_name.startswith("CuDNN"):
        class_name = class_name.removeprefix("CuDNN")
        made |= {"activation": "tanh", "recurrent_activation": "sigmoid"}
        if class_name == "GRU":
            made["reset_after"] = True
    return made, class_name


def _value(key: str, value: Any) -> Any:
    if key == "dtype":
        return policy(value, None)
    if key in ("layer", "backward_layer", "cell"):
        return None if value is None else reference_entry(_checked(value))
    if key == "cells" and isinstance(value, list):
        return [reference_entry(_checked(each)) for each in value]
    if key.endswith("activation"):
        return _activation(value)
    if isinstance(value, Mapping) and isinstance(value.get("value"), int | float):
        return value["value"]  # a NumPy number, as some versions store it
    if isinstance(value, Mapping) and key not in ("node_def", "constants"):
        raise NoReferenceError(f"{key} is an object")
    return value


def _checked(value: Any) -> Json:
    if not isinstance(value, Mapping):
        raise NoReferenceError("a layer inside a layer is not stored as one")
    return value


def _activation(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("class_name") in _ACTIVATION_LAYERS:
        return reference_entry(value)
    if isinstance(value, Mapping) and isinstance(value.get("config"), str):
        value = value["config"]
    if value is None:
        return None
    if value == "relu6":
        return {"class_name": "ReLU", "config": {"max_value": 6.0}}
    if value not in ACTIVATIONS:
        raise NoReferenceError(f"the activation {value!r:.40} is not on the list")
    return value
