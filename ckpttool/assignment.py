"""Give each stored tensor of a flat or positional layout its layer and its variable, or say why not.

Legacy HDF5 keeps one group a layer of the outer model; a nested model is one flat list. `assign` returns the same
description with the model's own nesting and names. Nothing is read but names and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import weight_names
from .checkpoint import Checkpoint, Layer, Notice, TensorSpec
from .errors import AmbiguousWeightsError, WeightsMismatchError
from .flat_order import Leaf, flagged_variables, holds_model, leaves_of
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variable, expected_variables


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Nest and name the tensors of a stored description.

    Parameters
    ----------
    checkpoint : as a format's reader describes it: one Layer a stored group, with a flat list of tensors
    model : the configuration of the whole, or of the one nested model that holds all weights; None keeps stored names
    path : the file, for messages

    Returns
    -------
    the same tensors (equal locators) under the model's layers; layers of the configuration without a group are added

    Raises
    ------
    WeightsMismatchError : the stored weights fit no layer of the configuration
    AmbiguousWeightsError : they fit several, and neither names nor order decide
    """
    if model is None:
        return replace(checkpoint, layers=tuple(_by_names(layer) for layer in checkpoint.layers))
    model = _named_by_groups(model, checkpoint)
    groups = {layer.name: layer for layer in checkpoint.layers}
    listed = {layer.name for layer in model.layers}
    weighted = [layer for layer in checkpoint.layers if layer.tensors]
    if weighted and not any(layer.name in listed for layer in weighted):
        return _assign_template(checkpoint, model, weighted, path)
    layers: list[Layer] = []
    taken: list[Notice] = []
    for config in model.layers:
        group = groups.pop(config.name, None)
        if group is None and _must_have_weights(config):
            raise WeightsMismatchError(f"the configuration has a layer '{config.name}' that is not stored", path=path)
        layers.append(_assign_layer(config, group, checkpoint, taken, path))
    left = [layer.name for layer in groups.values() if layer.tensors]
    if left:
        raise WeightsMismatchError(
            f"layer '{left[0]}' holds weights, but is not in the configuration; give that of this model", path=path
        )
    notices = tuple(
        Notice("unmatched-layer", f"layer '{name}' is stored, but not in the configuration", name) for name in groups
    )
    layers.extend(_by_names(layer) for layer in groups.values())
    named = replace(checkpoint, layers=tuple(layers)).with_warnings(*notices)
    return named.with_warnings(*taken, *_renamed(weighted, layers))


def _renamed(groups: Sequence[Layer], layers: Sequence[Layer]) -> Iterator[Notice]:
    """Where the stored names are those of no layer in a nested model, its tensors went by order and shapes alone."""
    nested = {layer.name: layer for layer in layers if layer.layers}
    for group in groups:
        if group.name not in nested:
            continue
        stored = {spec.locator: weight_names.clean(spec.path[1:]) for spec in group.tensors}
        strange = [
            "/".join(stored[spec.locator])
            for path, layer in nested[group.name].walk()
            if not layer.layers  # a model's own variables have no scope
            for spec in layer.tensors
            if weight_names.matches(stored[spec.locator], path[-1].split("/"), loosely=True) is None
        ]
        if strange:
            yield Notice(
                "names-inferred",
                f"{group.name}: {len(strange)} of {len(stored)} stored names, such as '{strange[0]}', are not those of "
                "their layers: these tensors go by order and shapes",
                group.name,
            )


def _named_by_groups(model: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """Give Sequentials inside a Sequential, which Keras up to 2.1 stores without a name, those of their groups."""
    unnamed = [layer for layer in model.layers if layer.is_unnamed]
    if not unnamed:
        return model
    known = {layer.name for layer in model.layers if not layer.is_unnamed}
    free = [group.name for group in checkpoint.layers if group.name not in known]
    if len(free) != len(unnamed):
        return model
    names = iter(free)
    layers = [replace(each, name=next(names)) if each.is_unnamed else each for each in model.layers]
    return replace(model, layers=tuple(layers))


def freezing_marks_layers(checkpoint: Checkpoint) -> bool:
    """Whether the writer marks the layers of a frozen model: tf.keras since TF 1.14, Keras 3 [see flat_order]."""
    parts = checkpoint.written_by.keras_numbers
    return parts >= ((2, 2, 4) if (checkpoint.written_by.keras or "").endswith("-tf") else (2, 4))


def _may_disobey(checkpoint: Checkpoint) -> bool:
    """Whether the writer is one of Keras 2.0 to 2.1.5, some of which do not obey every flag [see flat_order]."""
    return (2,) <= checkpoint.written_by.keras_numbers < (2, 1, 6)


def _assign_template(checkpoint: Checkpoint, model: ModelConfig, weighted: Sequence[Layer], path: object) -> Checkpoint:
    """The configuration may be that of the nested model which one group holds; else take layers by position."""
    taken: list[Notice] = []
    if len(weighted) == 1 and not _is_plain(weighted[0], model):
        group = weighted[0]
        config = LayerConfig(group.name, model.class_name, {}, model=model)
        nested = _assign_layer(config, group, checkpoint, taken, path)
        layers = tuple(nested if layer is group else layer for layer in checkpoint.layers)
        named = replace(checkpoint, layers=layers, config_of=(group.name,))
        return named.with_warnings(*taken, *_renamed(weighted, [nested]))
    configs = [layer for layer in model.layers if _must_have_weights(layer)]
    if len(configs) != len(weighted):
        raise WeightsMismatchError(
            f"the configuration has {len(configs)} layers with weights, the file {len(weighted)}, and no name fits; "
            "give the configuration of this model",
            path=path,
        )
    by_name = {
        config.name: _assign_layer(config, group, checkpoint, taken, path)
        for config, group in zip(configs, weighted, strict=True)
    }
    layers = tuple(
        by_name.get(config.name) or _assign_layer(config, None, checkpoint, taken, path) for config in model.layers
    )
    notice = Notice("names-inferred", f"no layer name fits the configuration: its {len(configs)} names go by position")
    return replace(checkpoint, layers=layers).with_warnings(notice, *taken)


def _is_plain(group: Layer, model: ModelConfig) -> bool:
    """Whether a group's tensors are in the scope of its own name alone: a layer, not a model that holds layers."""
    own = group.name.split("/")
    inner = {layer.name for layer in model.layers}
    stored = [weight_names.clean(spec.path[1:]) for spec in group.tensors]
    return all(_own_scope(parts, own) and not inner & set(parts[:-1]) for parts in stored)


def _must_have_weights(layer: LayerConfig) -> bool:
    if layer.model is not None:
        return any(_must_have_weights(inner) for inner in layer.model.layers)
    if layer.inner is not None and holds_model(layer):
        return _must_have_weights(layer.inner)
    return bool(expected_variables(layer))


def _assign_layer(
    config: LayerConfig, group: Layer | None, checkpoint: Checkpoint, notices: list[Notice], path: object
) -> Layer:
    tensors = group.tensors if group is not None else ()
    if holds_model(config):
        from .flat_assignment import assign_flat  # only a nested model needs it: a listing should start at once

        layers, own = _without_own(config, tensors)
        found = assign_flat(
            config,
            layers,
            freezing_marks_layers=freezing_marks_layers(checkpoint),
            may_disobey=_may_disobey(checkpoint),
            notices=notices,
            path=path,
        )
        return _build(config, (config.name,), {**found, (config.name,): own} if own else found)
    marks = freezing_marks_layers(checkpoint)
    return _leaf(config, (config.name,), _assign_leaf(Leaf((config.name,), config), tensors, marks, path))


def _without_own(
    config: LayerConfig, tensors: Sequence[TensorSpec]
) -> tuple[Sequence[TensorSpec], tuple[TensorSpec, ...]]:
    """The tensors of layers, and those of the nested model itself, whose names have no scope: `memory:0`.

    tf.keras lists variables that were set as attributes of a model, or added by its `add_weight`, behind those of the
    layers, trainable ones first (tensorflow/python/keras/engine/training.py, TF 2.3). A name without a scope is theirs
    only where every other name has one: names of Keras 1 have none.
    """
    named = [weight_names.clean(spec.path[1:]) for spec in tensors]
    bare = [len(parts) == 1 and weight_names.variable(parts) is None for parts in named]
    if not any(bare) or all(bare) or any(len(parts) == 1 and not own for parts, own in zip(named, bare, strict=True)):
        return tensors, ()
    leaves = [leaf.config.name.split("/") for leaf in leaves_of(config, ())]
    for parts, own in zip(named, bare, strict=True):
        if own and any(weight_names.matches(parts, leaf, loosely=True) is not None for leaf in leaves):
            return tensors, ()
    pairs = list(zip(tensors, named, bare, strict=True))
    return [spec for spec, _, own in pairs if not own], tuple(
        replace(spec, path=(config.name, *parts)) for spec, parts, own in pairs if own
    )


def _assign_leaf(leaf: Leaf, tensors: Sequence[TensorSpec], marks: bool, path: object) -> tuple[TensorSpec, ...]:
    """A layer's own group: Keras reads it by position, so names only have to agree."""
    expected = flagged_variables(leaf.config, marks)
    if expected is None:
        return tuple(_named_as_stored(leaf, spec) for spec in tensors)
    order = tuple(sorted(expected, key=_is_frozen))
    if order != expected:
        order = _order_of_parts(leaf, expected, order, tensors, marks, path)
    if fit(order, tensors) is None:
        from .flat_assignment import mismatch

        raise mismatch(leaf, order, tensors, path)
    named = {
        variable: replace(spec, path=(*leaf.path, *variable.path), trainable=variable.trainable)
        for variable, spec in zip(order, tensors, strict=True)
    }
    return tuple(named[variable] for variable in expected)


def _is_frozen(variable: Variable) -> bool:
    return not variable.trainable


def _order_of_parts(
    leaf: Leaf,
    expected: tuple[Variable, ...],
    by_flag: tuple[Variable, ...],
    tensors: Sequence[TensorSpec],
    marks: bool,
    path: object,
) -> tuple[Variable, ...]:
    """The order of a group of which some cells or halves are frozen: trainable ones first, unless the whole layer is.

    A layer frozen as a whole after it was made lists its cells one by one since TF 1.14. Names must not say otherwise:
    TensorFlow 2 puts the cell's name into them; before, the n-th variable of a name is `kernel_n`.

    Raises
    ------
    AmbiguousWeightsError : order and names say different things
    """
    whole = leaf.config.trainable is False
    readings = (expected, by_flag) if marks and whole else (by_flag,)
    parts = [weight_names.clean(spec.path[1:]) for spec in tensors]
    by_number = any(weight_names.numbered(each[-1])[1] for each in parts)
    agreeing = [
        order
        for order in readings
        if len(parts) != len(order)
        or all(_is_of_cell(*each, expected, by_number) for each in zip(order, parts, strict=True))
    ]
    fitting = [order for order in agreeing if fit(order, tensors) is not None] or agreeing
    if len(fitting) == 1:
        return fitting[0]
    raise AmbiguousWeightsError(
        f"{'/'.join(leaf.path)}: some of its parts are frozen, and stored order and stored names, such as "
        f"'{'/'.join(parts[0])}', do not agree on which tensor is of which",
        path=path,
    )


def _is_of_cell(variable: Variable, parts: Sequence[str], expected: Sequence[Variable], by_number: bool) -> bool:
    """Whether a stored name can be that of a cell's variable; one that says nothing can be any."""
    cells = {each.path[-2] for each in expected if len(each.path) > 1}
    named = cells & set(parts[:-1])
    if named:
        return variable.path[-2] in named
    if not by_number or not weight_names.direction_agrees(parts, variable.path):
        return not by_number
    alike = [each for each in expected if (each.path[:-2], each.path[-1]) == (variable.path[:-2], variable.path[-1])]
    base, number = weight_names.numbered(parts[-1])
    return base != variable.path[-1] or number == alike.index(variable)


def fit(expected: Sequence[Variable], tensors: Sequence[TensorSpec]) -> dict[str, int] | None:
    """The axes that make the tensors the layer's variables, in order; None where they cannot be."""
    if len(expected) != len(tensors):
        return None
    symbols: dict[str, int] = {}
    for variable, spec in zip(expected, tensors, strict=True):
        parts = weight_names.clean(spec.path[1:])
        if not weight_names.agrees(weight_names.variable(parts), variable.path[-1]):
            return None
        if not weight_names.direction_agrees(parts, variable.path):
            return None
        if not variable.fits(spec.shape, symbols):
            return None
    return symbols


def _named_as_stored(leaf: Leaf, spec: TensorSpec) -> TensorSpec:
    rest = weight_names.inside(weight_names.clean(spec.path[1:]), leaf.config.name.split("/"))
    return replace(spec, path=(*leaf.path, *rest))


def _build(config: LayerConfig, prefix: tuple[str, ...], found: dict[tuple[str, ...], tuple[TensorSpec, ...]]) -> Layer:
    """The nested Layer of a configuration, with the tensors that were found for each leaf."""
    if config.model is not None:
        inside = tuple(_build(layer, (*prefix, layer.name), found) for layer in config.model.layers)
    elif config.inner is not None and holds_model(config):
        inside = (_build(config.inner, (*prefix, config.inner.name), found),)
    else:
        return _leaf(config, prefix, found.get(prefix, ()))
    return Layer(config.name, config.class_name, found.get(prefix, ()), inside, config.trainable, config.calls)


def _leaf(config: LayerConfig, prefix: tuple[str, ...], tensors: tuple[TensorSpec, ...]) -> Layer:
    return Layer(config.name, config.class_name, tensors, (), config.trainable, config.calls)


def _by_names(group: Layer) -> Layer:
    """Without a configuration: the group's own tensors, or, where scopes name other layers, those as layers inside."""
    own = group.name.split("/")
    scopes: dict[tuple[str, ...], list[TensorSpec]] = {}
    named = [weight_names.without_cells(weight_names.clean(spec.path[1:])) for spec in group.tensors]
    front = weight_names.scopes_in_front(named, own)
    holds_others = any(len(parts[front:]) > 1 and not _own_scope(parts[front:], own) for parts in named)
    for spec, stored in zip(group.tensors, named, strict=True):
        parts = stored[front:]
        inside = holds_others and len(parts) == len(own) + 1 and parts[:-1] != tuple(own)  # `emb_2` of model `emb_1`
        if len(parts) == 1 or (_own_scope(parts, own) and not inside):
            key: tuple[str, ...] = ()
            inner = weight_names.inside(parts, own)
        else:
            key, inner = parts[:-1], parts[-1:]
        scopes.setdefault(key, []).append(replace(spec, path=(*own_path(group), *key, *inner)))
    if set(scopes) <= {()}:
        return replace(group, tensors=_unique(scopes.get((), ())))
    layers = tuple(Layer("/".join(key), tensors=_unique(tensors)) for key, tensors in scopes.items() if key)
    return replace(group, tensors=_unique(scopes.get((), ())), layers=layers)


def own_path(group: Layer) -> tuple[str, ...]:
    """A group's path: its name is one part, also where it holds '/'."""
    return (group.name,)


def _own_scope(parts: Sequence[str], own: Sequence[str]) -> bool:
    return any(weight_names.matches(parts, own, loosely=loosely) is not None for loosely in (False, True))


def _unique(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The same tensors, later ones of an equal path numbered `kernel_1`, `kernel_2`."""
    return tuple(_numbered(tensors))


def _numbered(tensors: Sequence[TensorSpec]) -> Iterator[TensorSpec]:
    seen: dict[tuple[str, ...], int] = {}
    for spec in tensors:
        count = seen.get(spec.path, 0)
        seen[spec.path] = count + 1
        yield replace(spec, path=(*spec.path[:-1], f"{spec.path[-1]}_{count}")) if count else spec
