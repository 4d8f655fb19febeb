"""What the lists of an optimizer tell of the model's variables: names that the variables lost, and their averages.

Source: object graphs of TF 2.15 and Keras 3.15; keras/src/optimizers/base_optimizer.py (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from ._bundle import Entry
from ._object_graph import Attribute, ObjectGraph

_VARIABLES = "_trainable_variables"
_AVERAGES = "_model_variables_moving_average"
_SHADOW = "ExponentialMovingAverage"


def names_in_slots(
    graph: ObjectGraph, optimizers: Set[int], values: Mapping[int, Attribute], weights: Set[int]
) -> dict[int, str]:
    """Names of variables from those of their slots, where the variables' own do not tell them apart.

    All variables of a subclassed Keras 3 model are called `net/kernel`; the optimizer's first momentum of one is
    `adam/net_image_embedding_kernel_momentum`, and its list runs beside that of the variables.

    Parameters
    ----------
    graph : the object graph
    optimizers : nodes of optimizers
    values : nodes of variables
    weights : those of `values` that are the model's

    Returns
    -------
    node of a variable -> its name, such as `image_embedding/kernel`; empty where names are unique already
    """
    names = [values[node].full_name for node in weights]
    if not names or len(set(names)) == len(names) or "" in names:
        return {}
    scopes = {name.rpartition("/")[0] for name in names}
    model = f"{scopes.pop().replace('/', '_')}_" if len(scopes) == 1 else ""
    for variables, slots in _lists(graph, optimizers, values):
        texts = {variables[place]: values[node].full_name for place, node in slots.items()}
        found: dict[int, str] = {}
        for node, text in _between(texts).items():
            last = values[node].full_name.rpartition("/")[2]
            if text.endswith(f"_{last}"):
                found[node] = f"{text.removesuffix(f'_{last}').removeprefix(model)}/{last}"
        if found and len(set(found.values())) == len(found):
            return found
    return {}


def _lists(
    graph: ObjectGraph, optimizers: Iterable[int], values: Mapping[int, Attribute]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """The list of an optimizer's variables beside each list of one slot for every variable."""
    for optimizer in sorted(optimizers):
        children = graph.children[optimizer]
        if _VARIABLES not in children:
            continue
        variables = graph.children[children[_VARIABLES]]
        for name, child in children.items():
            slots = graph.children[child]
            if name != _VARIABLES and variables and slots.keys() == variables.keys():
                if all(node in values for node in (*slots.values(), *variables.values())):
                    yield variables, slots


def _between(names: Mapping[int, str]) -> dict[int, str]:
    """What stands between the optimizer's name and the slot's, which is the end that all have in common."""
    if len(names) < 2 or any("/" not in name for name in names.values()):
        return {}
    inner = {node: name.partition("/")[2] for node, name in names.items()}
    first, last = min(t[::-1] for t in inner.values()), max(t[::-1] for t in inner.values())
    width = 0
    while width < min(len(first), len(last)) and first[width] == last[width]:
        width += 1
    common = first[:width][::-1]
    slot = common[common.rfind("_") :] if "_" in common else ""
    return {node: name.removesuffix(slot) for node, name in inner.items()} if slot else {}


def averages(
    graph: ObjectGraph, optimizers: Iterable[int], values: Mapping[int, Attribute], weights: Set[int]
) -> dict[str, tuple[str, str]]:
    """Moving averages that an optimizer keeps in a list (Keras since 2.11).

    Returns
    -------
    key of an average -> key of the variable, and "average"; by place where the list of variables is stored too
    (Keras 3), else by the name inside the average's: `Adam/average/hidden/kernel`
    """
    found: dict[str, tuple[str, str]] = {}
    by_name = {values[node].full_name: node for node in weights if values[node].full_name}
    for optimizer in optimizers:
        children = graph.children[optimizer]
        if _AVERAGES not in children:
            continue
        by_place = graph.children[children[_VARIABLES]] if _VARIABLES in children else {}
        for place, node in graph.children[children[_AVERAGES]].items():
            if node not in values:
                continue
            own = values[node].full_name
            weight = by_place.get(place)
            if not by_place:
                weight = next((by_name[name] for name in by_name if f"/{name}/" in f"{own}/"), None)
            if weight in weights and weight is not None:
                found[values[node].key] = (values[weight].key, "average")
    return found


def shadows(
    values: Mapping[int, Attribute], entries: Mapping[str, Entry], weights: Set[int]
) -> dict[int, tuple[str, str]]:
    """Averages of `tf.train.ExponentialMovingAverage` that an object holds: named after the variable they belong to.

    Returns
    -------
    node of an average -> key of the variable, and the slot's name
    """
    found: dict[int, tuple[str, str]] = {}
    named = {node: values[node].full_name for node in weights if values[node].full_name.endswith(f"/{_SHADOW}")}
    if not named:
        return found
    by_name = {values[node].full_name: values[node].key for node in weights}
    for node, name in named.items():
        owner = by_name.get(name.removesuffix(f"/{_SHADOW}"))
        if owner is not None and entries[owner].shape == entries[values[node].key].shape:
            found[node] = (owner, _SHADOW)
    return found
