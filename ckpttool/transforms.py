"""Pure functions from one description to another. No value moves: locators stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import TYPE_CHECKING

from .checkpoint import Asset, Checkpoint, Layer, Role, TensorSpec
from .errors import LayerNotFoundError

if TYPE_CHECKING:
    from .keras_config import LayerConfig, ModelConfig

# Keys of a description's metadata.
OWN_CLASS = "own_class"  # the entry of a model whose class is the user's own
GRAPH_REPLICAS = "graph_replicas"  # of the TF1 graph beside a checkpoint: template, replicas, slices, joins


def lift(checkpoint: Checkpoint, path: tuple[str, ...]) -> Checkpoint:
    """Make the layer at a path the whole model: its layers, its configuration, nothing of what is around it.

    Parameters
    ----------
    checkpoint : the whole
    path : of a layer with weights; a layer that holds no others becomes a model of one layer

    Raises
    ------
    LayerNotFoundError : there is no such layer
    """
    layer: Layer | None = None
    layers = checkpoint.layers
    for name in path:
        layer = next((each for each in layers if each.name == name), None)
        if layer is None:
            raise LayerNotFoundError(f"no layer '{'/'.join(path)}'")
        layers = layer.layers
    if layer is None:
        return checkpoint
    cut = len(path)
    own: tuple[TensorSpec, ...] = ()
    assets: tuple[Asset, ...] = ()
    if layer.layers and layer.class_name is not None:
        own, assets = layer.tensors, layer.assets  # of the model itself, of no layer
    elif layer.tensors or not layer.layers:
        cut -= 1
        layers = (layer,)
    return replace(
        checkpoint,
        layers=tuple(map_layer(each, lambda spec: replace(spec, path=spec.path[cut:])) for each in layers),
        loose=tuple(replace(spec, path=spec.path[cut:]) for spec in own),
        assets=assets,
        config=_config_of(checkpoint, path),
        config_of=(),
        training_config=None,
        metadata=(
            *(each for each in checkpoint.metadata if each[0] != OWN_CLASS),
            ("lifted_levels", str(len(path))),
        ),
    )


def _config_of(checkpoint: Checkpoint, path: tuple[str, ...]) -> str | None:
    """The nested model's own configuration, as JSON with the name that the outer entry may hold alone."""
    if checkpoint.config is None:
        return None
    from .keras_config import accepted_config  # here, since most descriptions have no configuration

    model = accepted_config(checkpoint.config)
    if checkpoint.config_of:
        return checkpoint.config if checkpoint.config_of == path else None
    nested = nested_model(model, path)
    return None if nested is None else nested.json()


def nested_model(model: ModelConfig, path: tuple[str, ...]) -> ModelConfig | None:
    """The model inside a model at a path, or None where the path leads to no model."""
    layer: LayerConfig | None = None
    current: ModelConfig | None = model
    for name in path:
        if layer is not None and layer.inner is not None and current is None:
            layer = layer.inner if layer.inner.name == name else None
        else:
            layer = current.layer(name) if current is not None else None
        if layer is None:
            return None
        current = layer.model
    return current


def has_copies(checkpoint: Checkpoint) -> bool:
    """Whether it holds copies of model variables that other replicas had; see `folding`."""
    return any(
        spec.role is Role.BOOKKEEPING and spec.slot is not None and spec.slot.startswith("replica_")
        for spec in checkpoint.loose
    )


def without_roles(checkpoint: Checkpoint, *roles: Role) -> Checkpoint:
    """The same without loose tensors of these roles."""
    return replace(checkpoint, loose=tuple(spec for spec in checkpoint.loose if spec.role not in roles))


def only(checkpoint: Checkpoint, locators: Container[str], path: tuple[str, ...]) -> Checkpoint:
    """A weights-only description of some tensors of the layer at a path, and of no other layer."""
    layers = tuple(_only_layer(layer, locators, path) for layer in checkpoint.layers if layer.name == path[0])
    return replace(checkpoint, kind="weights", layers=layers, loose=(), config=None, config_of=(), training_config=None)


def _only_layer(layer: Layer, locators: Container[str], path: tuple[str, ...]) -> Layer:
    inside = tuple(
        _only_layer(each, locators, path[1:]) for each in layer.layers if len(path) == 1 or each.name == path[1]
    )
    tensors = tuple(spec for spec in layer.tensors if spec.locator in locators)
    return replace(layer, tensors=tensors, layers=inside)


def model_config(checkpoint: Checkpoint) -> ModelConfig | None:
    """The parsed configuration of the whole, or None."""
    if checkpoint.config is None or checkpoint.config_of:
        return None
    from .keras_config import accepted_config

    return accepted_config(checkpoint.config)


def map_layer(layer: Layer, change: Callable[[TensorSpec], TensorSpec]) -> Layer:
    """The layer with each tensor of it and of all inside it changed."""
    return replace(
        layer,
        tensors=tuple(change(spec) for spec in layer.tensors),
        layers=tuple(map_layer(each, change) for each in layer.layers),
    )
