"""What a migration will do, as frozen data: printed by a dry run, executed by the builder as it is.

Nothing here knows keras. Arguments of a layer are JSON values, or one of three marked values: a `KerasObject` (an
initializer, regularizer or constraint), a `LayerSpec` (a layer inside a layer, or one that serves as an activation),
or a tuple of `LayerSpec` (stacked cells).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..keras_config import TensorRef

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transformation:
    """One exact change of a tensor's values on its way into Keras 3; `transformations.py` knows what each name does."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.arguments)
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """One variable of a new layer and the stored tensor it comes from."""

    variable: str  # its name in Keras 3: "kernel"
    source: Path  # path of the stored tensor in the template
    transformations: tuple[Transformation, ...] = ()  # none: bit for bit

    def describe(self) -> str:
        """The transformation in words; "as stored" for none."""
        return ", then ".join(map(str, self.transformations)) or "as stored"


@dataclass(frozen=True, slots=True)
class KerasObject:
    """An initializer, regularizer or constraint of Keras 3."""

    module: str  # "initializers", "regularizers" or "constraints"
    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserLayer:
    """A layer that the user's own code makes: by a callable they named, or a class in a file they named."""

    how: str  # "module:callable", or "custom", "object" or "function" of their file
    entry: Mapping[str, Any]  # the stored entry: class_name and config


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How to make one Keras 3 layer."""

    class_name: str  # of keras.layers
    arguments: Mapping[str, Any] = field(default_factory=dict)
    model: ModelPlan | None = None  # for a nested model: class_name is "Functional" or "Sequential"
    user: UserLayer | None = None  # for a layer of the user's own


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer; tensors are `TensorRef`, everything else is a constant."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JoinedMask:
    """In place of an argument: the mask that all masked ones of some tensors agree on."""

    tensors: tuple[TensorRef, ...]
    of: int  # how many tensors are joined, unmasked ones too
    always: bool  # also where Keras 3 would have the same by itself


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer of the new model, where it came from, its calls and its weights."""

    name: str
    spec: LayerSpec
    old_name: str
    old_class: str
    calls: tuple[Call, ...] = ()
    weights: tuple[WeightPlan, ...] = ()  # in the order of `layer.weights`
    before: tuple[LayerSpec, ...] = ()  # layers that each call's first argument goes through first
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model: layers in the old order, inputs and outputs in the old order."""

    name: str
    sequential: bool
    layers: tuple[LayerPlan, ...]
    inputs: tuple[TensorRef, ...] = ()
    outputs: tuple[TensorRef, ...] = ()
    trainable: bool | None = None
    input_spec: LayerSpec | None = None  # of a Sequential: its InputLayer, or None for that of its first model

    def walk(self, prefix: Path = ()) -> Iterator[tuple[Path, LayerPlan]]:
        """Yield (path in the new model, layer) at any depth, outer ones first."""
        for layer in self.layers:
            path = (*prefix, layer.name)
            yield path, layer
            if layer.spec.model is not None:
                yield from layer.spec.model.walk(path)
            inner = inner_model(layer.spec)
            if inner is not None:
                yield from inner.walk((*path, inner.name))

    def all_weights(self) -> Iterator[tuple[Path, LayerPlan, WeightPlan]]:
        """Yield (path of the layer, layer, weight) of every variable."""
        for path, layer in self.walk():
            for weight in layer.weights:
                yield path, layer, weight


def inner_model(spec: LayerSpec) -> ModelPlan | None:
    """The model that a TimeDistributed applies, at any depth of wrapping."""
    inside = spec.arguments.get("layer")
    while isinstance(inside, LayerSpec):
        if inside.model is not None:
            return inside.model
        inside = inside.arguments.get("layer")
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole migration of one model."""

    model: ModelPlan
    generation: int  # 1, 2 or 3: the Keras that wrote it
    notes: tuple[str, ...] = ()
    custom: tuple[str, ...] = ()  # layers of the user's own in it

    def transformed(self) -> list[tuple[str, str]]:
        """(tensor, transformation in words) of every tensor that is not taken bit for bit."""
        return [
            ("/".join(weight.source), weight.describe())
            for _, _, weight in self.model.all_weights()
            if weight.transformations
        ]

    def to_json(self) -> dict[str, Any]:
        """The plan as `--dry-run --json` shows it."""
        return {
            "generation": self.generation,
            "model": model_json(self.model),
            "notes": list(self.notes),
            "custom": list(self.custom),
        }


def model_json(model: ModelPlan) -> dict[str, Any]:
    """A model as plain JSON."""
    return {
        "name": model.name,
        "class_name": "Sequential" if model.sequential else "Functional",
        "inputs": [list(ref) for ref in model.inputs],
        "outputs": [list(ref) for ref in model.outputs],
        "layers": [layer_json(layer) for layer in model.layers],
    }


def layer_json(layer: LayerPlan) -> dict[str, Any]:
    """One layer as plain JSON."""
    return {
        "name": layer.name,
        "from": {"name": layer.old_name, "class_name": layer.old_class},
        "before": [value_json(spec) for spec in layer.before],
        **value_json(layer.spec),
        "calls": [{"positional": value_json(call.positional), "keywords": value_json(call.keywords)}
                  for call in layer.calls],
        "weights": [{"variable": each.variable, "stored_as": "/".join(each.source), "transformation": each.describe()}
                    for each in layer.weights],
        "notes": list(layer.notes),
    }  # fmt: skip


def value_json(value: Any) -> Any:
    """An argument, specification or reference as plain JSON."""
    if isinstance(value, LayerSpec):
        shown: dict[str, Any] = {"class_name": value.class_name, "arguments": value_json(value.arguments)}
        if value.model is not None:
            shown["model"] = model_json(value.model)
        if value.user is not None:
            shown["user"] = value.user.how
        return shown
    if isinstance(value, KerasObject):
        return {"class_name": f"{value.module}.{value.class_name}", "config": value_json(value.config)}
    if isinstance(value, TensorRef):
        return {"tensor": list(value)}
    if isinstance(value, JoinedMask):
        return {"mask_of": [list(ref) for ref in value.tensors]}
    if isinstance(value, Mapping):
        return {str(key): value_json(each) for key, each in value.items()}
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, list | tuple):
        return [value_json(each) for each in value]
    return value
