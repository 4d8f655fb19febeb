"""Model configurations of Keras 1, 2 and 3 as plain data. Never imports keras, never decodes a function.

Keras stores a model as JSON: a Sequential lists its layers; a functional model also says, for each call of a layer
(a node), which tensors went in. Three generations write three forms of the same thing; `parse_config` reads them all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ConfigError, LimitExceededError
from .keras_nodes import NO_ARGUMENTS, as_list, leaf_kwargs, references, without_merge
from .keras_nodes import Json as Json
from .keras_nodes import TensorRef as TensorRef
from .keras_nodes import is_reference as is_reference
from .limits import Limits

_MODEL_CLASSES = frozenset({"Model", "Functional", "Sequential", "Graph"})
MAX_ACCEPTED = 4  # the whole and its template, of two files: each is asked for by several modules
_accepted: dict[str, ModelConfig] = {}
JSON_LEVELS = 5  # of one model or layer inside of another: config, layers, the entry, inbound_nodes, a node
_WRAPPER_CLASSES = frozenset({"TimeDistributed", "Bidirectional"})


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
    def is_unnamed(self) -> bool:
        """Whether the configuration does not state the name: a Sequential in a Sequential, up to Keras 2.1."""
        return isinstance(self.entry.get("config"), list) and not isinstance(self.entry.get("name"), str)

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
    model = _parsed(text, limits, path)
    _accepted[text] = model
    while len(_accepted) > MAX_ACCEPTED:
        del _accepted[next(iter(_accepted))]
    return model


def accepted_config(text: str) -> ModelConfig:
    """A configuration that `parse_config` has accepted before, under whatever limits; parsed again only when forgotten.

    Raises
    ------
    ConfigError, LimitExceededError : as `parse_config`
    """
    known = _accepted.get(text)
    return parse_config(text) if known is None else known


def _parsed(text: str, limits: Limits, path: object) -> ModelConfig:
    if len(text) > limits.max_config_bytes:
        raise LimitExceededError(
            f"a model configuration of {len(text):,} characters", path=path, limit="max_config_bytes"
        )
    try:
        document = json.loads(text)
        if isinstance(document, str):
            document = json.loads(document)
    except RecursionError:
        raise LimitExceededError("the model configuration is nested too deep", path=path) from None
    except ValueError as error:
        raise ConfigError(f"the model configuration is not JSON ({error})", path=path) from error
    if _deeper_than(document, JSON_LEVELS * limits.max_depth):
        raise LimitExceededError("the model configuration is nested too deep", path=path, limit="max_depth")
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
            raise LimitExceededError(
                f"models nested deeper than {self._limits.max_depth}", path=self._path, limit="max_depth"
            )
        config = entry["config"]
        listed = config if isinstance(config, list) else config["layers"]
        if entry["class_name"] == "Sequential":
            listed = list(without_merge(listed, self._limits.max_depth))
        functional = isinstance(config, Mapping) and ("input_layers" in config or "output_layers" in config)
        layers = _numbered(tuple([self._layer(item, depth, functional) for item in listed]))
        names = [layer.name for layer in layers]
        if functional and len(set(names)) != len(names):
            raise ConfigError("the model configuration names a layer twice", path=self._path)
        name = config.get("name") if isinstance(config, Mapping) else None
        if not isinstance(name, str):
            name = entry.get("name") if isinstance(entry.get("name"), str) else None
        inputs: tuple[TensorRef, ...] = ()
        outputs: tuple[TensorRef, ...] = ()
        if functional:
            inputs = tuple(references(config.get("input_layers", [])))
            outputs = tuple(references(config.get("output_layers", [])))
            layers, inputs, outputs = self._calls_from_zero(layers, inputs, outputs)
        return ModelConfig(entry["class_name"], name, layers, inputs, outputs, functional, entry)

    def _layer(self, entry: Any, depth: int, functional: bool) -> LayerConfig:
        self._layers += 1
        if self._layers > self._limits.max_layers:
            raise LimitExceededError(
                f"more than {self._limits.max_layers:,} layers", path=self._path, limit="max_layers"
            )
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
        nodes = tuple(self._node(raw) for raw in as_list(entry.get("inbound_nodes"))) if functional else ()
        module = entry.get("module") if isinstance(entry.get("module"), str) else None
        plain = config if isinstance(config, Mapping) else {}
        return LayerConfig(name, entry["class_name"], plain, nodes, model, inner, module, entry)

    def _wrapped(self, entry: Json, depth: int) -> LayerConfig:
        if depth > self._limits.max_depth:
            raise LimitExceededError(
                f"layers nested deeper than {self._limits.max_depth}", path=self._path, limit="max_depth"
            )
        return self._layer(entry, depth + 1, False)

    def _node(self, raw: Any) -> Node:
        self._nodes += 1
        if self._nodes > self._limits.max_nodes:
            raise LimitExceededError(
                f"more than {self._limits.max_nodes:,} calls of layers", path=self._path, limit="max_nodes"
            )
        if isinstance(raw, Mapping) and isinstance(raw.get("kwargs"), Mapping):
            kwargs: Json = raw["kwargs"]
        else:
            kwargs = next(leaf_kwargs(raw), NO_ARGUMENTS)
        return Node(tuple(references(raw)), raw, kwargs)

    @staticmethod
    def _in_arguments(node: Node, names: Mapping[str, int]) -> Iterator[TensorRef]:
        """Tensors given by keyword in the form of Keras 2; lists that merely look like a reference are not."""
        if not isinstance(node.raw, Mapping):
            yield from (ref for ref in references(list(node.kwargs.values())) if ref.layer in names)

    def _calls_from_zero(
        self, layers: tuple[LayerConfig, ...], inputs: tuple[TensorRef, ...], outputs: tuple[TensorRef, ...]
    ) -> tuple[tuple[LayerConfig, ...], tuple[TensorRef, ...], tuple[TensorRef, ...]]:
        """Number the calls of nested models from 0.

        Up to tf.keras 2.15 call 0 of a nested model is its own construction, which is not in `inbound_nodes`; Keras 3
        counts from 0. Which of the two a file means shows in its references: none to index 0 means the former.
        """
        nested = {layer.name for layer in layers if layer.model is not None}
        calls = {layer.name: len(layer.nodes) for layer in layers}
        layers = tuple([self._with_arguments(layer, calls) for layer in layers])
        everywhere = [ref for layer in layers for node in layer.nodes for ref in node.inputs] + [*inputs, *outputs]
        from_zero = {ref.layer for ref in everywhere if ref.call == 0}
        shifted = {name for name in nested if name not in from_zero}

        def fix(ref: TensorRef) -> TensorRef:
            moved = ref._replace(call=ref.call - 1) if ref.layer in shifted else ref
            if moved.layer not in calls or not 0 <= moved.call < max(1, calls[moved.layer]) or moved.tensor < 0:
                raise ConfigError(f"the model configuration refers to a missing call of '{ref.layer}'", path=self._path)
            return moved

        def fixed(node: Node) -> Node:
            moved = tuple([fix(ref) for ref in node.inputs])
            return node if moved == node.inputs else Node(moved, node.raw, node.kwargs)

        layers = tuple([_with_nodes(layer, tuple([fixed(node) for node in layer.nodes])) for layer in layers])
        return layers, tuple(map(fix, inputs)), tuple(map(fix, outputs))

    def _with_arguments(self, layer: LayerConfig, calls: Mapping[str, int]) -> LayerConfig:
        """The layer with tensors that were given by keyword among the inputs of its nodes."""
        if not any(node.kwargs for node in layer.nodes):
            return layer
        nodes = [Node((*node.inputs, *self._in_arguments(node, calls)), node.raw, node.kwargs) for node in layer.nodes]
        return _with_nodes(layer, tuple(nodes))


def _numbered(layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    """Unnamed models of one model apart from each other: `sequential`, `sequential_1` …"""
    if sum(layer.is_unnamed for layer in layers) < 2:
        return layers
    numbers = itertools.count()
    return tuple(
        replace(layer, name=f"{layer.name}_{number}" if (number := next(numbers)) else layer.name)
        if layer.is_unnamed
        else layer
        for layer in layers
    )


def _with_nodes(layer: LayerConfig, nodes: tuple[Node, ...]) -> LayerConfig:
    if nodes == layer.nodes:
        return layer
    return LayerConfig(
        layer.name, layer.class_name, layer.config, nodes, layer.model, layer.inner, layer.module, layer.entry
    )
