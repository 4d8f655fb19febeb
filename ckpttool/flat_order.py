"""The order in which Keras lists the weights of a nested model: trainable ones first, then the others.

Legacy HDF5 keeps a nested model as one flat list, `layer.trainable_weights + layer.non_trainable_weights` at every
level. A frozen layer has no trainable weights, so its own move behind those of its siblings, among the moving
statistics. One rule holds for Keras 1.2.2 to Keras 3 (tried with eleven models in sixteen versions). What changed:

- Freezing a model marks its layers since TF 1.14, while before only the model, whose flag no file holds. What is frozen
  then goes layer by layer, also inside a TimeDistributed.
- A frozen layer inside a Bidirectional counts since TF 1.14. Before, the Bidirectional's own flag replaces it, and the
  configuration shows the one that was replaced (keras/layers/wrappers.py, 2.2.4).
- Keras 2.0.9 does not obey the own flag of wrappers and recurrent layers (keras/layers/recurrent.py and wrappers.py
  there: `trainable_weights` are those of the cell or layer inside); 2.1.6 does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .keras_config import LayerConfig, ModelConfig
from .keras_variables import Variable, expected_variables

_DISOBEDIENT = frozenset({"TimeDistributed", "Bidirectional", "RNN", "SimpleRNN", "LSTM", "GRU"})
MAX_GUESSED_FLAGS = 6  # models whose own flag is tried both ways: 64 orders; nobody freezes more models one by one


@dataclass(frozen=True, slots=True)
class Slot:
    """A variable of a layer inside the model, waiting for its tensor."""

    layer: tuple[str, ...]  # path inside the model
    variable: Variable
    number: int  # place in the layer's own list


Order = tuple[Slot, ...]
_Flags = Mapping[tuple[str, ...], bool]  # path of a layer -> whether it is trainable, whatever its flag says


@dataclass(frozen=True, slots=True)
class Leaf:
    """A layer that is no model, with its path inside the model."""

    path: tuple[str, ...]
    config: LayerConfig


def leaves(model: ModelConfig, prefix: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every layer that is no model, in model order."""
    for layer in model.layers:
        yield from leaves_of(layer, prefix)


def leaves_of(layer: LayerConfig, prefix: tuple[str, ...]) -> Iterator[Leaf]:
    """The leaf layers of one entry: itself, or those of the model that it is or wraps."""
    path = (*prefix, layer.name)
    if layer.model is not None:
        yield from leaves(layer.model, path)
    elif holds_model(layer) and layer.inner is not None:
        yield from leaves_of(layer.inner, path)
    else:
        yield Leaf(path, layer)


def holds_model(layer: LayerConfig) -> bool:
    """True for a nested model and for a TimeDistributed around one, at any depth."""
    return layer.model is not None or (layer.inner is not None and holds_model(layer.inner))


def orders(model: ModelConfig, *, freezing_marks_layers: bool, may_disobey: bool = False) -> dict[Order, int]:
    """Every order that the list of a nested model may have, and of how many models it takes the freezing for granted.

    The likeliest come first: those that take the fewest.

    Parameters
    ----------
    model : its leaf layers must all be Keras's own
    freezing_marks_layers : True for writers since TF 1.14, where a frozen model's layers say so themselves
    may_disobey : True for writers of which some versions do not obey the own flag of wrappers and recurrent layers
    """
    guessed = [path for path, inner in _nested_models(model, ()) if _flag_unknown(inner, freezing_marks_layers)]
    if may_disobey:
        frozen = (
            path for path, each in _inside(model, ()) if each.trainable is False and each.class_name in _DISOBEDIENT
        )
        guessed = [*frozen, *guessed]
    count = len(guessed)
    choices = sorted(itertools.product((True, False), repeat=min(count, MAX_GUESSED_FLAGS)), key=_frozen)
    if count > MAX_GUESSED_FLAGS:
        single = [tuple(place != frozen for place in range(count)) for frozen in range(count)]
        choices = [(True,) * count, *single, (False,) * count]
    found: dict[Order, int] = {}
    for choice in choices:
        flags = dict(zip(guessed, choice, strict=True))
        trainable, other = _split(model, (), flags, freezing_marks_layers)
        found.setdefault((*trainable, *other), _frozen(choice))
    return found


def _frozen(choice: tuple[bool, ...]) -> int:
    return choice.count(False)


def default_order(model: ModelConfig) -> Order:
    """The order that a loader expects which goes by the configuration's own flags.

    A loader makes a layer that is frozen, while training freezes one that was made: only then its cells go one by one.
    """
    trainable, other = _split(model, (), {}, True, loading=True)
    return (*trainable, *other)


def trainable_order(model: ModelConfig) -> tuple[Slot, ...]:
    """The trainable variables by the configuration's own flags, in model order, as an optimizer takes them."""
    return tuple(_split(model, (), {}, True)[0])


def _nested_models(model: ModelConfig, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], LayerConfig]]:
    for layer in model.layers:
        current, path = layer, (*prefix, layer.name)
        while (inner := current.inner) is not None and holds_model(current):
            current, path = inner, (*path, inner.name)
        if current.model is not None:
            yield path, current
            yield from _nested_models(current.model, path)


def _inside(model: ModelConfig, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], LayerConfig]]:
    """Every layer at any depth with its path, wrapper layers and what they wrap too."""
    for layer in model.layers:
        current, path = layer, (*prefix, layer.name)
        yield path, current
        while (inner := current.inner) is not None and holds_model(current):
            current, path = inner, (*path, inner.name)
            yield path, current
        if current.model is not None:
            yield from _inside(current.model, path)


def _flag_unknown(layer: LayerConfig, freezing_marks_layers: bool) -> bool:
    if layer.trainable is True or layer.model is None:
        return False
    own = [leaf.config.trainable for leaf in leaves(layer.model) if expected_variables(leaf.config)]
    if layer.trainable is False:
        return False not in own or True in own  # Keras 3 lets the layers of a frozen model decide for themselves
    return not freezing_marks_layers or (False in own and True in own)


def flagged_variables(layer: LayerConfig, freezing_marks_layers: bool) -> tuple[Variable, ...] | None:
    """A leaf's variables in model order; a frozen half of a Bidirectional is not trainable, where its flag counts."""
    variables = expected_variables(layer)
    if variables is None or not freezing_marks_layers or layer.class_name != "Bidirectional" or layer.inner is None:
        return variables
    given = layer.config.get("backward_layer")
    inside = given.get("config") if isinstance(given, Mapping) else None
    backward = inside.get("trainable") if isinstance(inside, Mapping) else layer.inner.trainable
    frozen = {"forward_": layer.inner.trainable is False, "backward_": backward is False}
    return tuple(
        replace(each, trainable=False) if any(frozen[way] and each.path[0].startswith(way) for way in frozen) else each
        for each in variables
    )


def _split(
    model: ModelConfig,
    prefix: tuple[str, ...],
    flags: Mapping[tuple[str, ...], bool],
    marks: bool,
    *,
    loading: bool = False,
) -> tuple[list[Slot], list[Slot]]:
    """T(model) and N(model), by the children's own flags."""
    trainable: list[Slot] = []
    other: list[Slot] = []
    for layer in model.layers:
        first, second = _split_layer(layer, prefix, flags, marks, loading=loading)
        trainable += first
        other += second
    return trainable, other


def _split_layer(
    layer: LayerConfig,
    prefix: tuple[str, ...],
    flags: Mapping[tuple[str, ...], bool],
    marks: bool,
    *,
    loading: bool = False,
) -> tuple[list[Slot], list[Slot]]:
    path = (*prefix, layer.name)
    flag = layer.trainable
    if layer.model is not None:
        first, second = _split(layer.model, path, flags, marks, loading=loading)
    elif holds_model(layer) and layer.inner is not None:
        first, second = _split_layer(layer.inner, path, flags, marks, loading=loading)
    else:
        slots = [Slot(path, each, number) for number, each in enumerate(flagged_variables(layer, marks) or ())]
        first = [slot for slot in slots if slot.variable.trainable]
        second = [slot for slot in slots if not slot.variable.trainable]
    if flags.get(path, flag) is not False:
        return first, second
    if marks and layer.model is None and (holds_model(layer) or not loading):
        places = {leaf.path: place for place, leaf in enumerate(leaves_of(layer, prefix))}
        return [], sorted(first + second, key=lambda slot: (places[slot.layer], slot.number))
    return [], first + second
