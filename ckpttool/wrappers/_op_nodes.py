"""Op layers of tf.keras and Keras 3 in one form: which operation, on which operands.

A plain TensorFlow call on a Keras tensor becomes a layer: TensorFlowOpLayer with a NodeDef (TF 1.14–2.3), TFOpLambda
and SlicingOpLambda with a function's name (TF 2.4–2.15), an operation's own class in Keras 3. Operands are tensors of
the graph or constants that stand in the JSON. Nothing is looked up or run.
Source: tensorflow/python/keras/engine/base_layer.py (TF 2.3), keras/layers/core/tf_op_layer.py and
keras/engine/node.py (Keras 2.4–2.15), keras/src/ops/ (Keras 3.0–3.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..keras_config import LayerConfig, Node, TensorRef

OP_CLASSES = frozenset({"TensorFlowOpLayer", "TFOpLambda", "SlicingOpLambda"})
CONSTANT = "_CONSTANT_VALUE"  # marks a constant first argument (keras/engine/node.py, Keras 2.4–2.15)

_NODE_DEFS = {  # operation of a NodeDef -> (ours, names of its operands)
    "Shape": ("shape", "x"),
    "StridedSlice": ("strided_slice", "x begin end strides"),
    "Slice": ("slice", "x begin size"),
    "Split": ("split", "axis x"),
    "SplitV": ("split", "x parts axis"),
    "FloorDiv": ("floordiv", "x y"),
    "RealDiv": ("truediv", "x y"),
    "Mul": ("multiply", "x y"),
    "Add": ("add", "x y"),
    "AddV2": ("add", "x y"),
    "Sub": ("subtract", "x y"),
    "Floor": ("floor", "x"),
    "Cast": ("cast", "x"),
    "Identity": ("identity", "x"),
    "Pack": ("stack", "*"),
    "ConcatV2": ("concat", "* axis"),
}
_FUNCTIONS: dict[str, tuple[str, dict[str, str]]] = {  # last part of a function's name -> (ours, renamed arguments)
    "shape": ("shape", {}),
    "getitem": ("getitem", {"slice_spec": "key"}),
    "slice": ("slice", {}),
    "split": ("split", {"num_or_size_splits": "parts"}),
    "floor_div": ("floordiv", {}),
    "floordiv": ("floordiv", {}),
    "truediv": ("truediv", {}),
    "divide": ("truediv", {}),
    "multiply": ("multiply", {}),
    "add": ("add", {}),
    "subtract": ("subtract", {}),
    "floor": ("floor", {}),
    "cast": ("cast", {}),
    "identity": ("identity", {}),
    "stack": ("stack", {}),
    "concat": ("concat", {}),
}
_KERAS3 = {  # operation of Keras 3 -> (ours, names of its positional arguments)
    "Split": ("split", "x"),
    "GetItem": ("getitem", "x key"),
    "Slice": ("slice", "x begin size"),
    "Identity": ("identity", "x"),
    "Concatenate": ("concat", "list"),
}
_LISTS = ("stack", "concat")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an op layer. An operand is a TensorRef, a constant, or a list or mapping of such."""

    name: str
    operands: Mapping[str, Any]
    listed: tuple[Any, ...] = ()  # the operands of `stack` and `concat`


def is_op(layer: LayerConfig) -> bool:
    """An op layer of tf.keras, or an operation of Keras 3 that stands in the graph beside layers.

    Keras 3's legacy HDF5 does not store an operation's module.
    """
    if layer.class_name in OP_CLASSES or (layer.module or "").startswith("keras.src.ops"):
        return True
    unstated = layer.module is None and layer.class_name in _KERAS3 and layer.class_name != "Concatenate"
    return unstated and any(isinstance(node.raw, Mapping) for node in layer.nodes)


def operation(layer: LayerConfig, call: int) -> Operation | None:
    """What one call computes, or None for an operation that no batch slice or merge is made of."""
    node = layer.nodes[call]
    if layer.class_name == "TensorFlowOpLayer":
        return _of_node_def(layer, node)
    if layer.class_name in OP_CLASSES:
        return _of_function(layer, node)
    return _of_keras3(layer, node)


def _of_node_def(layer: LayerConfig, node: Node) -> Operation | None:
    definition, constants = layer.config.get("node_def"), layer.config.get("constants")
    if not isinstance(definition, Mapping) or not isinstance(constants, Mapping):
        return None
    known = _NODE_DEFS.get(str(definition.get("op")))
    names = definition.get("input")
    if known is None or not isinstance(names, list):
        return None
    tensors = list(node.inputs)
    values: list[Any] = []
    for place in range(len(names)):
        if str(place) in constants:
            values.append(constants[str(place)])
        elif tensors:
            values.append(tensors.pop(0))
        else:
            return None
    if tensors:
        return None
    name, form = known
    attributes = _attributes(definition.get("attr"))
    if form.startswith("*"):
        axis = values.pop() if form == "* axis" else attributes.get("axis", 0)
        return Operation(name, {"axis": axis}, tuple(values))
    if len(values) != len(form.split()):
        return None
    operands = {**attributes, **dict(zip(form.split(), values, strict=True))}
    if "num_split" in attributes and "parts" not in operands:
        operands["parts"] = attributes["num_split"]
    return Operation(name, operands)


def _attributes(stored: Any) -> dict[str, int]:
    """Whole numbers among a NodeDef's attributes; protobuf's JSON writes them as text: `{"i": "2"}`."""
    found: dict[str, int] = {}
    for name, value in stored.items() if isinstance(stored, Mapping) else ():
        number = value.get("i") if isinstance(value, Mapping) else None
        if isinstance(number, str) and len(number) < 20 and number.removeprefix("-").isdecimal():
            found[name] = int(number)
        elif type(number) is int:
            found[name] = number
    return found


def _of_function(layer: LayerConfig, node: Node) -> Operation | None:
    known = _FUNCTIONS.get(str(layer.config.get("function", "")).rpartition(".")[2])
    raw = node.raw
    if known is None or not isinstance(raw, list) or not raw:
        return None
    name, renamed = known
    if name in _LISTS:  # a list of tensors, each with the same keyword arguments behind it
        items = [_operand(item[:3]) for item in raw if isinstance(item, list)]
        return Operation(name, {"axis": node.kwargs.get("axis", 0)}, tuple(items))
    if len(raw) == 1 and isinstance(raw[0], list):
        raw = raw[0]
    if len(raw) < 3:
        return None
    arguments = raw[3] if len(raw) > 3 and isinstance(raw[3], Mapping) else {}
    first = raw[2] if raw[0] == CONSTANT else _operand(raw[:3])
    given = {renamed.get(str(key), str(key)): _operand(value) for key, value in arguments.items()}
    return Operation(name, {"axis": 0, **given, "x": first})


def _of_keras3(layer: LayerConfig, node: Node) -> Operation | None:
    known = _KERAS3.get(layer.class_name)
    if known is None or not isinstance(node.raw, Mapping):
        return None
    name, form = known
    arguments = [_operand(value) for value in node.raw.get("args", [])]
    given = {key: _operand(value) for key, value in node.kwargs.items()}
    settings = {"axis": layer.config.get("axis", 0), "parts": layer.config.get("indices_or_sections")}
    if form == "list":
        listed = arguments[0] if arguments and isinstance(arguments[0], list) else []
        return Operation(name, settings, tuple(listed))
    return Operation(name, {**settings, **given, **dict(zip(form.split(), arguments, strict=False))})


def _operand(value: Any) -> Any:
    """A stored value with the references in it as TensorRef; calls of op layers are counted from 0 in every file."""
    if isinstance(value, list):
        if len(value) == 3 and type(value[0]) is str and type(value[1]) is int and type(value[2]) is int:
            return TensorRef(*value)
        return [_operand(item) for item in value]
    if isinstance(value, Mapping):
        inside = value.get("config")
        if value.get("class_name") == "__keras_tensor__" and isinstance(inside, Mapping):
            return _operand(inside.get("keras_history"))
        if value.get("class_name") == "__slice__" and isinstance(inside, Mapping):
            return _operand(inside)
        if value.get("class_name") == "__tuple__" and isinstance(value.get("items"), list):
            return [_operand(item) for item in value["items"]]
        return {key: _operand(item) for key, item in value.items()}
    return value
