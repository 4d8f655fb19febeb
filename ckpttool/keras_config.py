"""Model configurations of Keras 1, 2 and 3 as plain data. Never imports keras, never decodes a function.

Keras stores a model as JSON: a Sequential lists its layers; a functional model also says, for each call of a layer
(a node), which tensors went in. Three generations write three forms of the same thing; `parse_config` reads them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

from .errors import ConfigError, LimitExceededError
from .limits import Limits

Json = Mapping[str, Any]

_MODEL_CLASSES = frozenset({"Model", "Functional", "Sequential", "Graph"})
JSON_LEVELS = 5  # of one model or layer inside of another: config, layers, the entry, inbound_nodes, a node
_WRAPPER_CLASSES = frozenset({"TimeDistributed", "Bidirectional"})


class TensorRef(NamedTuple):
    """A tensor of the graph: output `tensor` of call `call` (from 0) of layer `layer`."""

    layer: str
    call: int
    tensor: int


@dataclass(frozen=True, slots=True)
class Node:
    """One call of a layer."""

    inputs: tuple[TensorRef, ...]  # in argument order, nested structures flattened
    raw: Any = None  # as stored, for rebuilding; node indices of nested models not yet shifted
    kwargs: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer of a configuration: its own arguments, its calls, and the model inside it, if any."""

    name: str
    class_name: str
    config: Json
    nodes: tuple[Node, ...] = ()
    model: ModelConfig | None = None  # for a nested model
    inner: LayerConfig | None = None  # for TimeDistributed: the layer it applies
    module: str | None = None
    entry: Json = field(default_factory=dict)  # the stored entry: {"class_name", "config", "name", ...}

    @property
    def trainable(self) -> bool | None:
        """The layer's own flag; None where the configuration does not state it (nested models before 2.15)."""
        value = self.config.get("trainable") if isinstance(self.config, Mapping) else None
        return value if isinstance(value, bool) else None

    @property
    def calls(self) -> int:
        """How often the layer is called in its model; in a Sequential once."""
        return max(1, len(self.nodes))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model: its layers in `model.layers` order and, where it is functional, its inputs and outputs."""

    class_name: str
    name: str | None
    layers: tuple[LayerConfig, ...]
    inputs: tuple[TensorRef, ...] = ()
    outputs: tuple[TensorRef, ...] = ()
    functional: bool = False
    raw: Json = field(default_factory=dict)  # {"class_name", "config", ...} as stored

    def layer(self, name: str) -> LayerConfig | None:
        """The layer of that name, or None."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def walk(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], LayerConfig]]:
        """Yield (path, layer) of every layer at any depth, outer ones first."""
        for layer in self.layers:
            yield from _walk_layer(layer, prefix)

    def input_names(self) -> tuple[str, ...]:
        """Names of the input layers, in the model's input order."""
        if self.functional:
            return tuple(ref.layer for ref in self.inputs)
        return tuple(layer.name for layer in self.layers if layer.class_name == "InputLayer")

    def output_names(self) -> tuple[str, ...]:
        """Names of the layers that give the outputs, in output order."""
        if self.functional:
            return tuple(ref.layer for ref in self.outputs)
        return (self.layers[-1].name,) if self.layers else ()

    def json(self) -> str:
        """The configuration as Keras stores it in a file: `class_name` and `config`, ASCII."""
        kept = {key: self.raw[key] for key in ("module", "class_name", "config", "registered_name", "build_config")
                if key in self.raw}  # fmt: skip
        return json.dumps(kept)


def _walk_layer(layer: LayerConfig, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], LayerConfig]]:
    path = (*prefix, layer.name)
    yield path, layer
    if layer.model is not None:
        yield from layer.model.walk(path)
    if layer.inner is not None and (layer.inner.model is not None or layer.inner.inner is not None):
        yield from _walk_layer(layer.inner, path)


def parse_config(text: str, limits: Limits = Limits(), *, path: object = None) -> ModelConfig:
    """Read a model's JSON, as `to_json()` or an HDF5 attribute holds it.

    Parameters
    ----------
    text : the JSON; a JSON string that holds JSON (a common mistake of scripts) is read too
    limits : bounds on size, depth, layers and calls
    path : the file it comes from, for messages

    Raises
    ------
    ConfigError : not JSON, or not a model's configuration
    LimitExceededError : larger or deeper than the limits
    """
    if len(text) > limits.max_config_bytes:
        raise LimitExceededError(f"a model configuration of {len(text):,} characters", path=path)
    try:
        document = json.loads(text)
        if isinstance(document, str):
            document = json.loads(document)
    except RecursionError:
        raise LimitExceededError("the model configuration is nested too deep", path=path) from None
    except ValueError as error:
        raise ConfigError(f"the model configuration is not JSON ({error})", path=path) from error
    if _deeper_than(document, JSON_LEVELS * limits.max_depth):
        raise LimitExceededError("the model configuration is nested too deep", path=path)
    return model_from_json(document, limits, path=path)


def _deeper_than(document: Any, limit: int) -> bool:
    """Whether lists and objects are nested deeper: everything that walks a configuration may then call itself."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def model_from_json(document: Any, limits: Limits = Limits(), *, path: object = None) -> ModelConfig:
    """Read a model from parsed JSON: `{"class_name": …, "config": …}`, bare or within `model_config`.

    Raises
    ------
    ConfigError : not a model's configuration
    LimitExceededError : more layers or calls than the limits, or nested deeper
    """
    if (
        isinstance(document, Mapping)
        and "class_name" not in document
        and isinstance(document.get("model_config"), Mapping)
    ):
        document = document["model_config"]
    if not isinstance(document, Mapping) or not isinstance(document.get("class_name"), str):
        raise ConfigError("not a model configuration: there is no 'class_name'", path=path)
    if not is_model_entry(document):
        raise ConfigError(
            f"'{document['class_name']}' lists no layers, so it is not a model's configuration", path=path
        )
    return _Parser(limits, path).model(document, 0)


def is_model_entry(entry: Json) -> bool:
    """True for the stored form of a nested or whole model, whatever its class is called."""
    config = entry.get("config")
    if isinstance(config, list):
        return entry.get("class_name") == "Sequential"
    if not isinstance(config, Mapping) or not isinstance(config.get("layers"), list):
        return False
    return entry.get("class_name") in _MODEL_CLASSES or "input_layers" in config or "output_layers" in config


class _Parser:
    def __init__(self, limits: Limits, path: object) -> None:
        self._limits = limits
        self._path = path
        self._layers = 0
        self._nodes = 0

    def model(self, entry: Json, depth: int) -> ModelConfig:
        if depth > self._limits.max_depth:
            raise LimitExceededError(f"models nested deeper than {self._limits.max_depth}", path=self._path)
        config = entry["config"]
        listed = config if isinstance(config, list) else config["layers"]
        functional = isinstance(config, Mapping) and ("input_layers" in config or "output_layers" in config)
        layers = tuple(self._layer(item, depth, functional) for item in listed)
        names = [layer.name for layer in layers]
        if functional and len(set(names)) != len(names):
            raise ConfigError("the model configuration names a layer twice", path=self._path)
        name = config.get("name") if isinstance(config, Mapping) else None
        if not isinstance(name, str):
            name = entry.get("name") if isinstance(entry.get("name"), str) else None
        inputs: tuple[TensorRef, ...] = ()
        outputs: tuple[TensorRef, ...] = ()
        if functional:
            inputs = tuple(_references(config.get("input_layers", [])))
            outputs = tuple(_references(config.get("output_layers", [])))
            layers, inputs, outputs = self._calls_from_zero(layers, inputs, outputs)
        return ModelConfig(entry["class_name"], name, layers, inputs, outputs, functional, entry)

    def _layer(self, entry: Any, depth: int, functional: bool) -> LayerConfig:
        self._layers += 1
        if self._layers > self._limits.max_layers:
            raise LimitExceededError(f"more than {self._limits.max_layers:,} layers", path=self._path)
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
            raise ConfigError("a layer of the model configuration has no 'class_name'", path=self._path)
        config = entry.get("config")
        if not isinstance(config, Mapping | list):
            config = {}
        name = entry.get("name")
        if not isinstance(name, str):
            name = config.get("name") if isinstance(config, Mapping) else None
        if not isinstance(name, str):
            name = entry["class_name"].lower()
        model = self.model(entry, depth + 1) if is_model_entry(entry) else None
        inner = None
        if isinstance(config, Mapping) and isinstance(config.get("layer"), Mapping):
            if entry["class_name"] in _WRAPPER_CLASSES and "class_name" in config["layer"]:
                inner = self._wrapped(config["layer"], depth)
        nodes = tuple(self._node(raw) for raw in _as_list(entry.get("inbound_nodes"))) if functional else ()
        module = entry.get("module") if isinstance(entry.get("module"), str) else None
        plain = config if isinstance(config, Mapping) else {}
        return LayerConfig(name, entry["class_name"], plain, nodes, model, inner, module, entry)

    def _wrapped(self, entry: Json, depth: int) -> LayerConfig:
        if depth > self._limits.max_depth:
            raise LimitExceededError(f"layers nested deeper than {self._limits.max_depth}", path=self._path)
        return self._layer(entry, depth + 1, False)

    def _node(self, raw: Any) -> Node:
        self._nodes += 1
        if self._nodes > self._limits.max_nodes:
            raise LimitExceededError(f"more than {self._limits.max_nodes:,} calls of layers", path=self._path)
        kwargs: Json = {}
        if isinstance(raw, Mapping) and isinstance(raw.get("kwargs"), Mapping):
            kwargs = raw["kwargs"]
        else:
            kwargs = next((item for item in _leaf_kwargs(raw)), {})
        return Node(tuple(_references(raw)), raw, kwargs)

    @staticmethod
    def _in_arguments(node: Node, names: Mapping[str, int]) -> Iterator[TensorRef]:
        """Tensors given by keyword in the form of Keras 2; lists that merely look like a reference are not."""
        if not isinstance(node.raw, Mapping):
            yield from (ref for ref in _references(list(node.kwargs.values())) if ref.layer in names)

    def _calls_from_zero(
        self, layers: tuple[LayerConfig, ...], inputs: tuple[TensorRef, ...], outputs: tuple[TensorRef, ...]
    ) -> tuple[tuple[LayerConfig, ...], tuple[TensorRef, ...], tuple[TensorRef, ...]]:
        """Number the calls of nested models from 0.

        Up to tf.keras 2.15 call 0 of a nested model is its own construction, which is not in `inbound_nodes`; Keras 3
        counts from 0. Which of the two a file means shows in its references: none to index 0 means the former.
        """
        nested = {layer.name for layer in layers if layer.model is not None}
        calls = {layer.name: len(layer.nodes) for layer in layers}
        layers = tuple(
            _with_nodes(
                layer,
                tuple(Node((*n.inputs, *self._in_arguments(n, calls)), n.raw, n.kwargs) for n in layer.nodes),
            )
            for layer in layers
        )
        everywhere = [ref for layer in layers for node in layer.nodes for ref in node.inputs] + [*inputs, *outputs]
        from_zero = {ref.layer for ref in everywhere if ref.call == 0}
        shifted = {name for name in nested if name not in from_zero}

        def fix(ref: TensorRef) -> TensorRef:
            moved = ref._replace(call=ref.call - 1) if ref.layer in shifted else ref
            if moved.layer not in calls or not 0 <= moved.call < max(1, calls[moved.layer]) or moved.tensor < 0:
                raise ConfigError(f"the model configuration refers to a missing call of '{ref.layer}'", path=self._path)
            return moved

        fixed = tuple(
            _with_nodes(layer, tuple(Node(tuple(map(fix, node.inputs)), node.raw, node.kwargs) for node in layer.nodes))
            for layer in layers
        )
        return fixed, tuple(map(fix, inputs)), tuple(map(fix, outputs))


def _with_nodes(layer: LayerConfig, nodes: tuple[Node, ...]) -> LayerConfig:
    return LayerConfig(
        layer.name, layer.class_name, layer.config, nodes, layer.model, layer.inner, layer.module, layer.entry
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_reference(item: Any) -> TypeGuard[list[Any]]:
    return (
        isinstance(item, list)
        and len(item) in (3, 4)
        and isinstance(item[0], str)
        and all(isinstance(number, int) and not isinstance(number, bool) for number in item[1:3])
        and (len(item) == 3 or isinstance(item[3], Mapping))
        and item[0] != "_CONSTANT_VALUE"  # marks a constant first argument (keras/engine/node.py, Keras 2.4)
    )


def is_reference(item: Any) -> TypeGuard[list[Any]]:
    """True for the stored form of a tensor in Keras 1 and 2: `[layer, call, tensor]`, with call arguments behind."""
    return _is_reference(item)


def _references(raw: Any) -> Iterator[TensorRef]:
    """Every tensor reference of a stored node, depth first: lists of Keras 1 and 2, dicts of Keras 3."""
    stack = [raw]
    while stack:
        item = stack.pop()
        if _is_reference(item):
            yield TensorRef(item[0], item[1], item[2])
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, Mapping):
            config = item.get("config")
            history = config.get("keras_history") if isinstance(config, Mapping) else None
            if item.get("class_name") == "__keras_tensor__" and _is_reference(history):
                yield TensorRef(*history)
            else:
                stack.extend(reversed(list(item.values())))


def _leaf_kwargs(raw: Any) -> Iterator[Json]:
    stack = [raw]
    while stack:
        item = stack.pop()
        if _is_reference(item):
            if len(item) == 4:
                yield item[3]
        elif isinstance(item, list):
            stack.extend(reversed(item))
