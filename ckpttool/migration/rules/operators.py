"""Plain TensorFlow operators in a functional model: `TFOpLambda`, `SlicingOpLambda`, `TensorFlowOpLayer`.

They name a TensorFlow function (or hold one node of a graph). A function of the tables below becomes the function of
`keras.ops` that computes the same; any other stops, since its name alone proves nothing.
Source: keras/layers/core/tf_op_layer.py (Keras 2.10), tensorflow/python/keras/engine/base_layer.py,
TensorFlowOpLayer (TF 1.15, 2.2), keras/src/ops (Keras 3.15).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...checkpoint import whole_number
from ...keras_config import Json, LayerConfig, TensorRef
from ..plan import Call, LayerSpec
from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, plain, table

OPERATORS = ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer")

_BINARY = {
    "math.add": "add", "__operators__.add": "add", "math.subtract": "subtract", "math.multiply": "multiply",
    "math.divide": "divide", "math.truediv": "divide", "__operators__.truediv": "divide", "math.maximum": "maximum",
    "math.minimum": "minimum", "math.pow": "power", "__operators__.sub": "subtract", "__operators__.mul": "multiply",
}  # fmt: skip
_UNARY = {
    "nn.relu": "relu", "nn.relu6": "relu6", "nn.elu": "elu", "nn.selu": "selu", "math.sigmoid": "sigmoid",
    "nn.sigmoid": "sigmoid", "math.tanh": "tanh", "nn.tanh": "tanh", "math.softplus": "softplus",
    "nn.softplus": "softplus", "nn.softsign": "softsign", "nn.silu": "silu", "nn.swish": "silu", "math.exp": "exp",
    "math.log": "log", "math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "math.square": "square", "math.abs": "absolute",
    "math.negative": "negative", "math.sin": "sin", "math.cos": "cos", "stop_gradient": "stop_gradient",
}  # fmt: skip
_REDUCTIONS = {"math.reduce_mean": "mean", "math.reduce_sum": "sum", "math.reduce_max": "max", "math.reduce_min": "min",
               "math.reduce_prod": "prod"}  # fmt: skip

# operator of a graph's node -> the function above that it is
_NODE_BINARY = {
    "Add": "add", "AddV2": "add", "Sub": "subtract", "Mul": "multiply", "RealDiv": "divide", "Maximum": "maximum",
    "Minimum": "minimum", "Pow": "power", "MatMul": "matmul", "BatchMatMulV2": "matmul",
}  # fmt: skip
_NODE_UNARY = {
    "Relu": "relu", "Relu6": "relu6", "Elu": "elu", "Selu": "selu", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Softplus": "softplus", "Softsign": "softsign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Rsqrt": "rsqrt",
    "Square": "square", "Abs": "absolute", "Neg": "negative", "Softmax": "softmax",
}  # fmt: skip
_NODE_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod"}
_NODE_OTHERS = ("ConcatV2", "Reshape", "Transpose", "ExpandDims", "Cast")
_NODE_TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 10: "bool", 19: "float16", "DT_FLOAT": "float32",
               "DT_DOUBLE": "float64", "DT_INT32": "int32", "DT_INT64": "int64", "DT_BOOL": "bool",
               "DT_HALF": "float16"}  # fmt: skip

Keywords = dict[str, Any]
_Made = tuple[str, tuple[Any, ...], Keywords]  # function of keras.ops, positional and keyword arguments


def operator_layer(layer: LayerConfig, calls: Sequence[Call]) -> tuple[LayerSpec, list[Call]]:
    """The `keras.ops` function of an operator layer and its calls.

    Raises
    ------
    NotMigratableError : a function or an argument that is not in the tables
    """
    made = [_node(layer, call) if layer.class_name == "TensorFlowOpLayer" else _function(layer, call) for call in calls]
    names = {name for name, _, _ in made}
    if len(names) != 1:
        raise NotMigratableError("it is never called")
    return LayerSpec(f"ops.{names.pop()}"), [Call(positional, keywords) for _, positional, keywords in made]


def is_known_operator(class_name: str, config: Json) -> bool:
    """Whether an operator layer holds a function or a node of the tables."""
    if class_name == "SlicingOpLambda":
        return config.get("function") == "__operators__.getitem"
    if class_name == "TFOpLambda":
        return config.get("function") in {**_BINARY, **_UNARY, **_REDUCTIONS, **_SPECIAL}
    try:
        name = _parsed_node(config.get("node_def")).get("op")
    except NotMigratableError:
        return False
    return name in {*_NODE_BINARY, *_NODE_UNARY, *_NODE_REDUCTIONS, *_NODE_OTHERS}


def _function(layer: LayerConfig, call: Call) -> _Made:
    name = layer.config.get("function")
    if layer.class_name == "SlicingOpLambda":
        name = "__operators__.getitem"
    keywords = {key: plain(value) for key, value in call.keywords.items() if value is not None and key != "name"}
    first = call.positional[0]
    if isinstance(name, str) and name in _BINARY:
        return _BINARY[name], (first, _take(name, keywords, "y")), keywords
    if isinstance(name, str) and name in _UNARY and not keywords:
        return _UNARY[name], (first,), {}
    if isinstance(name, str) and name in _REDUCTIONS and set(keywords) <= {"axis", "keepdims"}:
        return _REDUCTIONS[name], (first,), {key: _axes(value) for key, value in keywords.items()}
    special = _SPECIAL.get(str(name))
    if special is None:
        given = f"({', '.join(sorted(keywords))})" if keywords else ""
        raise NotMigratableError(f"the TensorFlow function {name!s:.60}{given} is not in the table")
    made = special(first, keywords)
    if keywords:
        raise NotMigratableError(f"{name} is called with {', '.join(sorted(keywords))}")
    return made


def _take(name: str, keywords: Keywords, key: str) -> Any:
    if key not in keywords:
        raise NotMigratableError(f"{name} is called without {key}")
    return keywords.pop(key)


def _axes(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _constant(value: Any) -> Any:
    """A shape or an order of axes, which must be numbers."""
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) for each in listed):
        raise NotMigratableError("a shape that is computed while the model runs")
    return tuple(value) if isinstance(value, list) else value


def _concat(first: Any, keywords: Keywords) -> _Made:
    return "concatenate", (first,), {"axis": keywords.pop("axis", 0)}


def _stack(first: Any, keywords: Keywords) -> _Made:
    return "stack", (first,), {"axis": keywords.pop("axis", 0)}


def _expand_dims(first: Any, keywords: Keywords) -> _Made:
    return "expand_dims", (first,), {"axis": _take("expand_dims", keywords, "axis")}


def _squeeze(first: Any, keywords: Keywords) -> _Made:
    return "squeeze", (first,), {"axis": _axes(keywords.pop("axis", None))}


def _reshape(first: Any, keywords: Keywords) -> _Made:
    return "reshape", (first, _constant(_take("reshape", keywords, "shape"))), {}


def _transpose(first: Any, keywords: Keywords) -> _Made:
    keywords.pop("conjugate", None)
    return "transpose", (first,), {"axes": _constant(_take("transpose", keywords, "perm"))}


def _cast(first: Any, keywords: Keywords) -> _Made:
    return "cast", (first, _take("cast", keywords, "dtype")), {}


def _softmax(first: Any, keywords: Keywords) -> _Made:
    return "softmax", (first,), {"axis": keywords.pop("axis", -1)}


def _leaky_relu(first: Any, keywords: Keywords) -> _Made:
    return "leaky_relu", (first,), {"negative_slope": keywords.pop("alpha", 0.2)}


def _gelu(first: Any, keywords: Keywords) -> _Made:
    return "gelu", (first,), {"approximate": keywords.pop("approximate", False)}


def _clip(first: Any, keywords: Keywords) -> _Made:
    low, high = _take("clip", keywords, "clip_value_min"), _take("clip", keywords, "clip_value_max")
    return "clip", (first, low, high), {}


def _matmul(first: Any, keywords: Keywords) -> _Made:
    for key in ("transpose_a", "transpose_b", "adjoint_a", "adjoint_b", "a_is_sparse", "b_is_sparse"):
        if keywords.pop(key, False):
            raise NotMigratableError(f"matmul is called with {key}")
    return "matmul", (first, _take("matmul", keywords, "b")), {}


def _l2_normalize(first: Any, keywords: Keywords) -> _Made:
    """x / max(norm, √epsilon), as tensorflow/python/ops/nn_impl.py, l2_normalize."""
    epsilon = float(keywords.pop("epsilon", 1e-12))
    axis = keywords.pop("axis", None)
    if not isinstance(axis, int):
        raise NotMigratableError("l2_normalize over no axis or several")
    return "normalize", (first,), {"axis": axis, "epsilon": epsilon**0.5}


def _tile(first: Any, keywords: Keywords) -> _Made:
    return "tile", (first, _constant(_take("tile", keywords, "multiples"))), {}


def _reverse(first: Any, keywords: Keywords) -> _Made:
    return "flip", (first,), {"axis": _constant(_take("reverse", keywords, "axis"))}


def _argmax(first: Any, keywords: Keywords) -> _Made:
    return "argmax", (first,), {"axis": keywords.pop("axis", 0)}


def _split(first: Any, keywords: Keywords) -> _Made:
    count = _take("split", keywords, "num_or_size_splits")
    if not isinstance(count, int):
        raise NotMigratableError("split into unequal parts")
    return "split", (first, count), {"axis": keywords.pop("axis", 0)}


def _getitem(first: Any, keywords: Keywords) -> _Made:
    """`x[…]`: the builder applies the key itself."""
    stored = _take("getitem", keywords, "slice_spec")
    parts = stored if isinstance(stored, list) else [stored]
    return "getitem", (first, tuple(_slice_part(each) for each in parts)), {}


def _slice_part(part: Any) -> Any:
    if isinstance(part, Mapping):
        if part.get("class_name") == "__ellipsis__" or part.get("type") == "Ellipsis":
            return "..."
        if set(part) <= {"start", "stop", "step"}:
            ends = [part.get("start"), part.get("stop"), part.get("step")]
            if all(each is None or isinstance(each, int) for each in ends):
                return slice(*ends)
    if part is None or (isinstance(part, int) and not isinstance(part, bool)):
        return part
    raise NotMigratableError("a slice that is computed while the model runs")


_SPECIAL: dict[str, Callable[[Any, Keywords], _Made]] = {
    "concat": _concat, "stack": _stack, "expand_dims": _expand_dims, "squeeze": _squeeze, "reshape": _reshape,
    "transpose": _transpose, "compat.v1.transpose": _transpose, "cast": _cast, "nn.softmax": _softmax,
    "nn.leaky_relu": _leaky_relu, "nn.gelu": _gelu, "clip_by_value": _clip, "linalg.matmul": _matmul,
    "math.l2_normalize": _l2_normalize, "linalg.l2_normalize": _l2_normalize, "nn.l2_normalize": _l2_normalize,
    "tile": _tile, "reverse": _reverse, "math.argmax": _argmax, "split": _split, "__operators__.getitem": _getitem,
}  # fmt: skip


def _node(layer: LayerConfig, call: Call) -> _Made:
    """One node of a graph, with its constant inputs beside it."""
    node = _parsed_node(layer.config.get("node_def"))
    name, attributes = node.get("op"), node.get("attr", {})
    inputs = _inputs(layer, call)
    if name in _NODE_BINARY and len(inputs) == 2:
        if any(_flag(attributes, key) for key in ("transpose_a", "transpose_b", "adj_x", "adj_y")):
            raise NotMigratableError(f"{name} turns its matrices")
        return _NODE_BINARY[name], tuple(inputs), {}
    if name in _NODE_UNARY and len(inputs) == 1:
        return _NODE_UNARY[name], (inputs[0],), {}
    if name in _NODE_REDUCTIONS and len(inputs) == 2:
        keepdims = _flag(attributes, "keep_dims")
        return _NODE_REDUCTIONS[name], (inputs[0],), {"axis": _constant(plain(inputs[1])), "keepdims": keepdims}
    if name == "ConcatV2" and len(inputs) >= 2:
        return "concatenate", (inputs[:-1],), {"axis": _constant(inputs[-1])}
    if name == "Reshape" and len(inputs) == 2:
        return "reshape", (inputs[0], _constant(inputs[1])), {}
    if name == "Transpose" and len(inputs) == 2:
        return "transpose", (inputs[0],), {"axes": _constant(inputs[1])}
    if name == "ExpandDims" and len(inputs) == 2:
        return "expand_dims", (inputs[0],), {"axis": _constant(inputs[1])}
    if name == "Cast" and _node_type(attributes) is not None:
        return "cast", (inputs[0], _node_type(attributes)), {}
    raise NotMigratableError(f"the TensorFlow operator {name!s:.60} is not in the table")


def _parsed_node(stored: Any) -> Mapping[str, Any]:
    """TF 1.15 stores the node as an object, 2.x as JSON text."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except (ValueError, RecursionError):
            stored = None
    if not isinstance(stored, Mapping) or not isinstance(stored.get("attr", {}), Mapping):
        raise NotMigratableError("its node is not stored as JSON")
    return stored


def _inputs(layer: LayerConfig, call: Call) -> list[Any]:
    """Tensors in order, constants at their places."""
    first = call.positional[0]
    tensors = list(first) if isinstance(first, list) else [first]
    stored = layer.config.get("constants")
    constants = (
        {whole_number(key): plain(value) for key, value in stored.items()} if isinstance(stored, Mapping) else {}
    )
    if not all(isinstance(each, TensorRef) for each in tensors):
        raise NotMigratableError("its inputs are not tensors")
    if not all(place is not None and place < len(tensors) + len(constants) for place in constants):
        raise NotMigratableError("its constants have no places among its inputs")
    found = []
    for place in range(len(tensors) + len(constants)):
        found.append(constants[place] if place in constants else tensors.pop(0))
    return found


def _flag(attributes: Mapping[str, Any], key: str) -> bool:
    value = attributes.get(key)
    return bool(value.get("b")) if isinstance(value, Mapping) else False


def _node_type(attributes: Mapping[str, Any]) -> str | None:
    value = attributes.get("DstT")
    return _NODE_TYPES.get(value.get("type")) if isinstance(value, Mapping) else None


def _apply(arguments: Arguments, context: Context) -> Ruled:
    raise NotMigratableError("an operator inside another layer is not migrated")


_NAMES = sorted({name.rpartition(".")[2] for name in (*_BINARY, *_UNARY, *_REDUCTIONS, *_SPECIAL)})
RULES = table(
    Rule(
        OPERATORS,
        "keras.ops",
        f"the functions {', '.join(_NAMES)} become those of keras.ops; any other stops",
        "keras/layers/core/tf_op_layer.py (Keras 2.10)",
        _apply,
    )
)
