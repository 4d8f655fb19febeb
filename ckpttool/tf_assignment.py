"""Give the layers of a TensorFlow checkpoint, stored by position or attribute, the names of a model's configuration.

An object graph numbers the layers of a functional model as its configuration does, a Sequential's with or without its
InputLayer. Names that the file holds come before positions; positions before the mere order of layers with weights.
Every reading must fit all shapes; what was read by position is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from . import weight_names
from .checkpoint import Checkpoint, Layer, Notice, Role, TensorSpec
from .errors import WeightsMismatchError
from .flat_order import holds_model
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variable, expected_variables

Pairs = list[tuple[LayerConfig, Layer | None]]
_SHOWN = 8


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Name and nest the weights of a described checkpoint after a configuration.

    Parameters
    ----------
    checkpoint : as the format's reader describes it
    model : of the whole, or of the one model inside that holds all weights; None keeps the names as they are
    path : the file, for messages

    Returns
    -------
    the same tensors (equal locators) under the configuration's layers

    Raises
    ------
    WeightsMismatchError : the weights do not fit a configuration that the caller gave; one that the file itself
        holds and that does not fit is left out, with a warning
    """
    if model is None or not any(True for _ in checkpoint.weights()):
        return checkpoint
    try:
        return _assigned(checkpoint, model)
    except _NoFit as error:
        if checkpoint.config is not None:
            notice = Notice("configuration-unmatched", f"the file's own configuration is left out: {error}")
            return replace(checkpoint, config=None).with_warnings(notice)
        raise WeightsMismatchError(f"the configuration does not fit: {error}", path=path) from None


class _NoFit(Exception):
    """One reading does not fit, and where."""


@dataclass(slots=True)
class _Naming:
    """One attempt: what it inferred, and layers whose tensors are those of another place."""

    by_place: bool = True  # whether the order of stored layers means anything; that of names does not
    inferred: list[str] = field(default_factory=list)
    shared: dict[str, Layer] = field(default_factory=dict)  # layer name -> first place with its tensors


def _assigned(checkpoint: Checkpoint, model: ModelConfig) -> Checkpoint:
    by_place = ("layout", "name-based") not in checkpoint.metadata
    naming = _Naming(by_place)
    try:
        layers = _model(model, checkpoint.layers, (), naming)
        named = replace(checkpoint, layers=layers)
    except _NoFit as whole:
        naming = _Naming(by_place)
        try:
            named = _inside(checkpoint, model, naming, whole)
        except _NoFit:
            named = _by_own_names(checkpoint, model, whole)
    paths = {spec.locator: spec.path for layer in named.layers for spec in layer.all_tensors()}
    old = {spec.path: spec.locator for layer in checkpoint.layers for spec in layer.all_tensors()}
    loose = tuple(
        replace(spec, slot_of=paths.get(old.get(spec.slot_of, ""), spec.slot_of)) if spec.slot_of else spec
        for spec in checkpoint.loose
        if not (spec.role is Role.WEIGHT and spec.locator in paths)
    )
    named = replace(named, loose=loose)
    if not naming.inferred:
        return named
    shown = ", ".join(naming.inferred[:_SHOWN]) + (" …" if len(naming.inferred) > _SHOWN else "")
    message = f"{len(naming.inferred)} layers are named by their position in the configuration: {shown}"
    return named.with_warnings(Notice("names-inferred", message))


def _inside(checkpoint: Checkpoint, model: ModelConfig, naming: _Naming, whole: _NoFit) -> Checkpoint:
    """The configuration may be that of one model inside: a wrapper's template, or one of several roots."""
    fitting = []
    for place, layer in enumerate(checkpoint.layers):
        if layer.layers:
            attempt = _Naming(naming.by_place)
            name = model.name or layer.name
            try:
                fitting.append((place, name, _model(model, layer.layers, (name,), attempt), attempt, layer))
            except _NoFit:
                continue
    if len(fitting) != 1:
        raise whole
    place, name, layers, attempt, old = fitting[0]
    naming.inferred += attempt.inferred
    if name != old.name:
        naming.inferred.insert(0, f"{old.name} = {name}")
    nested = Layer(name, model.class_name, (), layers, old.trainable, old.calls)
    around = list(checkpoint.layers)
    around[place] = nested
    return replace(checkpoint, layers=tuple(around), config_of=(name,))


def _by_own_names(checkpoint: Checkpoint, model: ModelConfig, whole: _NoFit) -> Checkpoint:
    """Nothing nests in a TF1 checkpoint or a Keras 3 export, but each layer has its own name, by which it is found.

    What no layer of the configuration has is no part of the model: it is kept aside, and said.
    """
    by_name: dict[str, list[Layer]] = {}
    for _, layer in checkpoint.walk():
        by_name.setdefault(layer.name, []).append(layer)
    own = {name: found[0] for name, found in by_name.items() if len(found) == 1}
    naming = _Naming()
    try:
        layers = tuple(_named_leaf(each, own, (), naming) for each in model.layers if not _hidden(model, each))
    except _NoFit:
        raise whole from None
    taken = {spec.locator for layer in layers for spec in layer.all_tensors()}
    rest = [spec for layer in checkpoint.layers for spec in layer.all_tensors() if spec.locator not in taken]
    if not taken:
        raise whole
    aside = tuple(replace(spec, role=Role.BOOKKEEPING) for spec in rest)
    named = replace(checkpoint, layers=layers, loose=(*checkpoint.loose, *aside))
    if not rest:
        return named
    shown = ", ".join(spec.name for spec in rest[:_SHOWN]) + (" …" if len(rest) > _SHOWN else "")
    message = f"{len(rest)} stored variables are of no layer of the configuration and are left out: {shown}"
    return named.with_warnings(Notice("unmatched-layer", message))


def _named_leaf(config: LayerConfig, own: dict[str, Layer], prefix: tuple[str, ...], naming: _Naming) -> Layer:
    path = (*prefix, config.name)
    inner: tuple[LayerConfig, ...] = ()
    if config.model is not None:
        inner = tuple(each for each in config.model.layers if not _hidden(config.model, each))
    if config.model is None and config.inner is not None and holds_model(config):
        inner = (config.inner,)
    if inner:
        layers = tuple(_named_leaf(each, own, path, naming) for each in inner)
        return Layer(config.name, config.class_name, (), layers, config.trainable, config.calls)
    stored = own.get(config.name) if expected_variables(config) != () else None
    return _layer(config, stored, prefix, naming)


def _model(model: ModelConfig, layers: Sequence[Layer], prefix: tuple[str, ...], naming: _Naming) -> tuple[Layer, ...]:
    """The layers of a model, by the first reading that fits."""
    first: _NoFit | None = None
    for by_name, pairs in _readings(model, layers):
        if not (by_name or naming.by_place):
            continue
        attempt = _Naming(naming.by_place, shared=dict(naming.shared))
        try:
            named = tuple(
                _layer(config, stored, prefix, attempt) for config, stored in pairs if not _hidden(model, config)
            )
        except _NoFit as error:
            first = first or error
            continue
        if not by_name:
            attempt.inferred = [
                f"{stored.name} = {'/'.join((*prefix, config.name))}"
                for config, stored in pairs
                if stored is not None and stored.name != config.name and any(True for _ in stored.all_tensors())
            ] + attempt.inferred
        naming.inferred += attempt.inferred
        naming.shared.update(attempt.shared)
        return named
    raise first or _NoFit(_counts(model, layers))


def _readings(model: ModelConfig, layers: Sequence[Layer]) -> Iterator[tuple[bool, Pairs]]:
    """Ways to pair the configuration's layers with the stored ones, the surest first."""
    weighted = [layer for layer in layers if any(True for _ in layer.all_tensors())]
    by_name = {layer.name: layer for layer in layers}
    configs = {layer.name for layer in model.layers}
    if all(layer.name in configs for layer in weighted):
        yield True, [(config, by_name.get(config.name)) for config in model.layers]
    if len(model.layers) == len(layers):
        yield False, list(zip(model.layers, layers, strict=True))
    inputs = [config for config in model.layers if config.class_name == "InputLayer"]
    others = [config for config in model.layers if config.class_name != "InputLayer"]
    if inputs and len(others) == len(layers):
        yield False, [*((config, None) for config in inputs), *zip(others, layers, strict=True)]
    needing = [config for config in model.layers if _needs_weights(config)]
    if len(needing) == len(weighted):
        found = {id(config): layer for config, layer in zip(needing, weighted, strict=True)}
        yield False, [(config, found.get(id(config))) for config in model.layers]


def _hidden(model: ModelConfig, config: LayerConfig) -> bool:
    """A Sequential does not list its InputLayer among its layers."""
    return model.class_name == "Sequential" and config.class_name == "InputLayer"


def _needs_weights(config: LayerConfig) -> bool:
    if config.model is not None:
        return any(_needs_weights(layer) for layer in config.model.layers)
    if config.inner is not None and holds_model(config):
        return _needs_weights(config.inner)
    return expected_variables(config) != ()


def _counts(model: ModelConfig, layers: Sequence[Layer]) -> str:
    needing = sum(_needs_weights(config) for config in model.layers)
    weighted = [layer for layer in layers if any(True for _ in layer.all_tensors())]
    shown = ", ".join(layer.name for layer in weighted[:_SHOWN])
    return f"it has {needing} layers with weights, the file {len(weighted)} ({shown}), and names do not decide"


def _layer(config: LayerConfig, stored: Layer | None, prefix: tuple[str, ...], naming: _Naming) -> Layer:
    path = (*prefix, config.name)
    if config.model is not None:
        inside = _model(config.model, stored.layers if stored is not None else (), path, naming)
        return Layer(config.name, config.class_name, (), inside, config.trainable, config.calls)
    if config.inner is not None and holds_model(config):
        inner = next((layer for layer in stored.layers), None) if stored is not None else None
        nested = _layer(config.inner, inner, path, naming)
        return Layer(config.name, config.class_name, (), (nested,), config.trainable, config.calls)
    tensors = list(stored.all_tensors()) if stored is not None else []
    expected = expected_variables(config)
    if not tensors and expected and config.name in naming.shared:
        tensors = list(naming.shared[config.name].tensors)  # a layer that two models share is stored once
    named = _variables(config, path, expected, tensors, stored)
    layer = Layer(config.name, config.class_name, named, (), config.trainable, config.calls)
    if named:
        naming.shared.setdefault(config.name, layer)
    return layer


def _variables(
    config: LayerConfig,
    path: tuple[str, ...],
    expected: tuple[Variable, ...] | None,
    tensors: list[TensorSpec],
    stored: Layer | None,
) -> tuple[TensorSpec, ...]:
    """A leaf layer's tensors as its variables; a class that is not Keras's own keeps the stored names."""
    if expected is None:
        cut = _depth(tensors, stored)
        return tuple(replace(spec, path=(*path, *spec.path[cut:])) for spec in tensors)
    if len(expected) != len(tensors):
        raise _NoFit(f"{'/'.join(path)} ({config.class_name}) has {len(expected)} variables, stored are {len(tensors)}")
    symbols: dict[str, int] = {}
    left = list(tensors)
    parts = {variable.path[-2] for variable in expected if len(variable.path) > 1} - set(path)
    named = []
    for variable in expected:
        spec = _pick(variable, left, parts)
        if spec is None or not variable.fits(spec.shape, symbols):
            shape = "any shape" if variable.shape is None else str(variable.shape).replace("'", "")
            had = ", ".join(f"{each.path[-1]} {each.shape}" for each in tensors[:_SHOWN])
            raise _NoFit(f"{'/'.join((*path, *variable.path))} {shape} has no counterpart in {had}")
        left.remove(spec)
        named.append(replace(spec, path=(*path, *variable.path), trainable=variable.trainable))
    return tuple(named)


def _depth(tensors: Sequence[TensorSpec], stored: Layer | None) -> int:
    """How many parts of the tensors' paths are the stored layer's own."""
    if stored is None or not tensors:
        return 0
    first = tensors[0].path
    return first.index(stored.name) + 1 if stored.name in first[:-1] else max(0, len(first) - 1)


def _pick(variable: Variable, tensors: Sequence[TensorSpec], parts: set[str]) -> TensorSpec | None:
    """The stored tensor of that name; in a layer of several parts the one in the part of that name, else the first.

    Cells whose full names do not tell them apart are numbered in the order of the object graph: `kernel`, `kernel_1`.
    One that names another of the layer's parts is never taken for this one.
    """
    inner = variable.path[:-1]
    if not inner:
        return next((spec for spec in tensors if weight_names.agrees(spec.path[-1], variable.path[-1])), None)
    fitting = [spec for spec in tensors if weight_names.agrees(weight_names.variable(spec.path[-1:]) or spec.path[-1],
                                                               variable.path[-1])]  # fmt: skip
    side = next((side for side in ("forward", "backward") if inner[0].startswith(f"{side}_")), None)
    for spec in fitting:
        scopes = spec.path[:-1]
        if inner[-1] in scopes or (side is not None and any(scope.startswith(f"{side}_") for scope in scopes)):
            return spec
    return next((spec for spec in fitting if not (parts - {inner[-1]}) & set(spec.path[:-1])), None)
