"""Give the groups of a Keras 3 weights file their layers and variables their names, or say that they are not known.

As stored, a file of Keras 3 is a tree of groups called after classes and attributes, its variables numbered. With a
configuration the tree is walked beside it. Without one, Keras since 3.6 notes each layer's name; older files tell
class and counter only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .assets import gathered, with_unplaced
from .checkpoint import Asset, Checkpoint, Layer, Notice, Role, TensorSpec
from .errors import WeightsMismatchError
from .flat_order import holds_model
from .keras3_layout import (
    LAYERS,
    LAYERS_OF_2_13,
    LOOKUPS,
    Part,
    found_groups,
    is_custom,
    parts_of,
    plain_class,
    shared_key,
    stored_variables,
)
from .keras3_unnamed import children_of, name_groups, quantized_notice
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variables

Path = tuple[str, ...]


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Name the tensors of a stored description.

    Parameters
    ----------
    checkpoint : as the reader describes it: the tree of groups, each Layer called after its group
    model : the configuration of the whole, or of the one nested model that holds all weights; None goes by the names
        noted in the file
    path : the file, for messages

    Returns
    -------
    the same tensors (equal locators) under the model's layers

    Raises
    ------
    WeightsMismatchError : the stored weights fit no layer of the configuration
    """
    return with_unplaced(checkpoint, _assigned(checkpoint, model, path))


def _assigned(checkpoint: Checkpoint, model: ModelConfig | None, path: object) -> Checkpoint:
    if model is None:
        return name_groups(checkpoint)
    given = checkpoint.config is None
    naming = _Naming(path, strict=given, may_share=_nests(model))
    try:
        layers = naming.model(checkpoint.layers, model, ())
    except WeightsMismatchError:
        template = _only_model(checkpoint)
        if template is None:
            raise
        return _as_template(checkpoint, template, model, path)
    named = replace(checkpoint, layers=layers, loose=(*checkpoint.loose, *naming.loose))
    return named.with_warnings(*naming.notices)


def _nests(model: ModelConfig) -> bool:
    return any(layer.model is not None or layer.inner is not None for layer in model.layers)


def _only_model(checkpoint: Checkpoint) -> Layer | None:
    """The one group of `layers` that holds all weights and is a model itself."""
    inside = children_of(checkpoint.layers, LAYERS) or children_of(checkpoint.layers, LAYERS_OF_2_13)
    weighted = [node for node in inside if any(True for _ in node.all_tensors())]
    only = weighted[0] if len(weighted) == 1 else None
    if only is None or not any(child.name in (LAYERS, LAYERS_OF_2_13) for child in only.layers):
        return None
    return only


def _as_template(checkpoint: Checkpoint, template: Layer, model: ModelConfig, path: object) -> Checkpoint:
    """The configuration is that of the nested model."""
    outer = name_groups(checkpoint)
    name = template.title or template.name
    naming = _Naming(path, strict=True, may_share=_nests(model))
    inside = naming.model(template.layers, model, (name,))
    layers = tuple(
        Layer(name, model.class_name, layer.tensors, inside, layer.trainable, layer.calls, assets=layer.assets)
        if layer.name == name
        else layer
        for layer in outer.layers
    )
    named = replace(outer, layers=layers, loose=(*outer.loose, *naming.loose), config_of=(name,))
    return named.with_warnings(*naming.notices)


class _Naming:
    """One walk of a configuration along the stored tree."""

    def __init__(self, path: object, *, strict: bool, may_share: bool) -> None:
        self._path = path
        self._strict = strict  # the configuration was given: whatever does not fit it is an error
        self._may_share = may_share  # only layers of several models can be one layer
        self._first: dict[str, Layer] = {}
        self.notices: list[Notice] = []
        self.loose: list[TensorSpec] = []

    def model(self, nodes: Sequence[Layer], model: ModelConfig, prefix: Path) -> tuple[Layer, ...]:
        """The layers of a model whose group holds `nodes`."""
        container = next((node for node in nodes if node.name in (LAYERS, LAYERS_OF_2_13)), None)
        stored = {node.name: node for node in container.layers} if container is not None else {}
        groups = found_groups(model, stored, self._met_before)
        layers = [
            self._layer(config, stored.pop(group, None) if group is not None else None, (*prefix, config.name))
            for config, group in zip(model.layers, groups, strict=True)
        ]
        beside = [*stored.values(), *(node for node in nodes if node is not container)]
        layers.extend(self._unexplained(beside, prefix))
        return tuple(layers)

    def _unexplained(self, nodes: Sequence[Layer], prefix: Path) -> Iterator[Layer]:
        """Groups that the configuration does not list: attributes of an own class, or another model's layers."""
        for node in nodes:
            if not any(True for _ in node.all_tensors()):
                continue
            if self._strict and not prefix:
                raise WeightsMismatchError(
                    f"the group '{_group(node)}' is stored, but not in the configuration", path=self._path
                )
            for layer in name_groups(Checkpoint("", "", "weights", layers=(node,)), prefix).layers:
                name = "/".join((*prefix, layer.name))
                self.notices.append(
                    Notice("unmatched-layer", f"'{name}' is stored, but not in the configuration", name)
                )
                yield layer

    def _met_before(self, model: ModelConfig) -> list[bool]:
        """For each layer whether an equal one was met: in another model, or inside of a layer before it."""
        met: list[bool] = []
        inside: set[str] = set()
        for layer in model.layers:
            met.append(shared_key(layer) in self._first or shared_key(layer) in inside)
            if layer.model is not None:
                inside.update(shared_key(each) for _, each in layer.model.walk())
        return met

    def _layer(self, config: LayerConfig, node: Layer | None, path: Path) -> Layer:
        """A layer met again has no group of its own: Keras stores it where it met it first."""
        if not self._may_share:
            return self._named(config, node, path)
        if node is None or not (node.tensors or node.layers or node.assets):
            first = self._first.get(shared_key(config))
            if first is not None:
                return _moved(first, path)
        layer = self._named(config, node, path)
        if layer.tensors or layer.layers or layer.assets:
            self._first.setdefault(shared_key(config), layer)
        return layer

    def _named(self, config: LayerConfig, node: Layer | None, path: Path) -> Layer:
        nodes = node.layers if node is not None else ()
        own = node.tensors if node is not None else ()
        if config.model is not None:
            tensors = tuple(_renamed(spec, (*path, spec.path[-1])) for spec in own)
            return self._as(config, tensors, self.model(nodes, config.model, path), node.assets if node else ())
        if config.inner is not None and holds_model(config):
            inner = next((each for each in nodes if each.name == "layer"), None)
            inside = self._named(config.inner, inner, (*path, config.inner.name))
            return self._as(config, (), (inside,), node.assets if node else ())
        parts = None if is_custom(config) else parts_of(plain_class(config.class_name), config.config)
        if parts is None or (not parts[0].groups and len(parts) == 1 and stored_variables(parts[0], own) is None):
            return self._own_class(config, node, path)
        return self._as(config, self._leaf(config, parts, node, path), (), gathered(node))

    @staticmethod
    def _as(
        config: LayerConfig, tensors: tuple[TensorSpec, ...], layers: tuple[Layer, ...], assets: tuple[Asset, ...] = ()
    ) -> Layer:
        return Layer(config.name, config.class_name, tensors, layers, config.trainable, config.calls, assets=assets)

    def _own_class(self, config: LayerConfig, node: Layer | None, path: Path) -> Layer:
        """A class that is not Keras's own: what its group holds goes by the names noted there."""
        if node is None:
            return self._as(config, (), ())
        if plain_class(config.class_name) in LOOKUPS and not is_custom(config):
            return self._as(config, tuple(_weights_of_terms(node, path)), (), gathered(node))
        inside = name_groups(Checkpoint("", "", "weights", layers=node.layers), path).layers
        tensors = tuple(_renamed(spec, (*path, spec.path[-1])) for spec in node.tensors)
        if any(spec.position is not None for spec in tensors):
            self.notices.append(_unknown_names(path, config.class_name))
        return self._as(config, tensors, inside, gathered(node))

    def _leaf(
        self, config: LayerConfig, parts: Sequence[Part], node: Layer | None, path: Path
    ) -> tuple[TensorSpec, ...]:
        found: list[TensorSpec] = []
        missing = False
        quantized = False
        for part in parts:
            stored = _at(node, part.groups).tensors if node is not None else ()
            variables = stored_variables(part, stored)
            if variables is None and stored:
                self.notices.append(_unknown_names((*path, *part.prefix), config.class_name))
                found.extend(_renamed(spec, (*path, *part.prefix, spec.path[-1])) for spec in stored)
            elif variables and not stored:
                missing = True
            elif variables is not None:
                found.extend(self._fitted(config, part, variables, stored, path))
                quantized = quantized or any(spec.is_quantized for spec in stored)
        if missing:
            self._missing(config, path)
        if quantized:
            self.notices.append(quantized_notice("/".join(path)))
        return tuple(found)

    def _fitted(
        self, config: LayerConfig, part: Part, variables: Variables, stored: Sequence[TensorSpec], path: Path
    ) -> Iterator[TensorSpec]:
        symbols: dict[str, int] = {}
        fits = len(variables) == len(stored) and all(
            variable.fits(spec.shape, symbols) for variable, spec in zip(variables, stored, strict=True)
        )
        if not fits:
            wanted = ", ".join(f"{'/'.join(each.path)} {_shape(each.shape)}" for each in variables) or "no weights"
            held = ", ".join(str(spec.shape) for spec in stored[:8]) or "nothing"
            raise WeightsMismatchError(
                f"{'/'.join(path)} ({config.class_name}): its configuration asks for {wanted}; stored: {held}",
                path=self._path,
            )
        for variable, spec in zip(variables, stored, strict=True):
            target = (*path, *part.prefix, *variable.path)
            if len(variable.path) > 1:  # a wrapper that stores its layer's kernel a second time
                self.loose.append(replace(spec, path=target, role=Role.BOOKKEEPING))
            else:
                yield replace(spec, path=target, trainable=variable.trainable)

    def _missing(self, config: LayerConfig, path: Path) -> None:
        name = "/".join(path)
        if self._strict:
            raise WeightsMismatchError(f"the configuration has a layer '{name}' that is not stored", path=self._path)
        message = f"{name} ({config.class_name}): its weights are not in the file; it was saved before they were made"
        self.notices.append(Notice("weights-missing", message, name))


def _at(node: Layer, groups: Sequence[str]) -> Layer:
    """The group below a node; an empty one where there is none. A leading underscore may be there or not."""
    for group in groups:
        plain = group.lstrip("_")
        node = next((each for each in node.layers if each.name.lstrip("_") == plain), Layer(group))
    return node


def _weights_of_terms(node: Layer, path: Path) -> Iterator[TensorSpec]:
    """What a lookup layer stores: `idf_weights`, which TextVectorization holds once more in `_lookup_layer`."""
    for spec in node.tensors:
        yield replace(spec, path=(*path, spec.path[-1]), trainable=False)
    for child in node.layers:
        yield from _weights_of_terms(child, (*path, child.name))


def _renamed(spec: TensorSpec, path: Path) -> TensorSpec:
    return replace(spec, path=path)


def _moved(layer: Layer, path: Path) -> Layer:
    """The same layer where another model holds it too."""
    old = len(next(iter(layer.all_tensors())).path) if any(True for _ in layer.all_tensors()) else 0
    if not old:
        return replace(layer, name=path[-1])
    return _with_prefix(replace(layer, name=path[-1]), path)


def _with_prefix(layer: Layer, path: Path) -> Layer:
    tensors = []
    for spec in layer.tensors:
        place = max((i for i, part in enumerate(spec.path[:-1]) if part == layer.name), default=len(path) - 1)
        tensors.append(replace(spec, path=(*path, *spec.path[place + 1 :])))
    inside = tuple(_with_prefix(each, (*path, each.name)) for each in layer.layers)
    return replace(layer, tensors=tuple(tensors), layers=inside)


def _unknown_names(path: Path, class_name: str | None) -> Notice:
    name = "/".join(path)
    kind = f" ({class_name})" if class_name else ""
    message = f"{name}{kind}: the file numbers its variables and does not say what they are called"
    return Notice("names-unknown", message, name)


def _group(node: Layer) -> str:
    return next((spec.locator.rpartition("/vars/")[0] for spec in node.all_tensors()), node.name)


def _shape(shape: Sequence[int | str] | None) -> str:
    if shape is None:
        return "of any shape"
    return "(" + ", ".join("?" if isinstance(axis, str) else str(axis) for axis in shape) + ")"
