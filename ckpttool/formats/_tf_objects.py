"""Layers, names and roles from an object graph: what a variable is shows by how its object is reached.

Keys mislead: in a Keras 3 checkpoint the weights' keys begin with `optimizer/_trainable_variables`, in a SavedModel of
a nested model with `variables/3`. So the model is walked from the root, layer by layer, around optimizers and metrics.
Source: object graphs of TF 1.14 to 2.21, Keras 2.2.4-tf to 2.15 and Keras 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..checkpoint import Notice, Role, TensorSpec, whole_number
from . import _tf_layer_names, _tf_names
from ._bundle import Bundle, Entry
from ._object_graph import KEY, Attribute, ObjectGraph
from ._tf_layer_names import Part, Variable
from ._tf_names import Placed, Stored
from ._tf_slot_names import averages, names_in_slots, shadows

VALUE = "VARIABLE_VALUE"
_SLOT_MARK = "/.OPTIMIZER_SLOT/"
_POSITION, _WEIGHTED = "layer-", "layer_with_weights-"
MAX_DEPTH = 150  # objects inside objects: real models stay under 20; deeper ones are placed by their names

# Lists of variables and layers that are reached another way too.
_COLLECTIONS = frozenset(
    """variables trainable_variables non_trainable_variables weights trainable_weights non_trainable_weights
    regularization_losses _trainable_variables _non_trainable_variables _all_variables _variables layers _layers
    _tracked _self_tracked_trackables _updates _losses""".split()
)
_BOOKKEEPING = frozenset(
    """keras_api signatures save_counter metrics _metrics compiled_metrics compiled_loss _compile_metrics _compile_loss
    _loss_tracker loss_tracker _loss loss _losses_override _inbound_nodes _outbound_nodes _seed_generators
    seed_generator _random_generator seed_generators _compiled_trainable_state train_function test_function
    predict_function train_tf_function state_spec _misc_assets assets initializer _state_var""".split()
)
_OPTIMIZER_EDGES = frozenset({"optimizer", "_optimizer"})
_INNER = frozenset(
    """cell cells layer forward_layer backward_layer _query_dense _key_dense _value_dense _output_dense
    _attention_layer""".split()
)


@dataclass(frozen=True, slots=True)
class Hint:
    """What a SavedModel says of an object."""

    name: str | None
    class_name: str | None
    trainable: bool | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """Beside the object graph: objects' names and classes, and variables' names, by node."""

    objects: Mapping[int, Hint] = field(default_factory=dict)
    variables: Mapping[int, str] = field(default_factory=dict)


def place(graph: ObjectGraph, bundle: Bundle, hints: Hints = Hints()) -> Placed:
    """Give every stored tensor its layer and its role.

    Parameters
    ----------
    graph : the bundle's object graph
    bundle : the index
    hints : what else is known of the objects
    """
    return _Walk(graph, bundle, hints).place()


def place_by_keys(bundle: Bundle) -> Placed:
    """Without an object graph: paths of objects as they stand in the keys."""
    stored: list[Stored] = []
    slots: list[Stored] = []
    graph: list[TensorSpec] = []
    for key, entry in bundle.entries.items():
        if key == KEY:
            graph.append(TensorSpec((KEY,), entry.shape, entry.dtype_name, Role.BOOKKEEPING, locator=key))
            continue
        name = _object_path(key)
        each = Stored(name, entry.shape, entry.dtype_name, key)
        (slots if _SLOT_MARK in key else stored).append(each)
    placed = _tf_names.place(stored)
    placed.loose += graph
    placed.loose += [
        TensorSpec(tuple(each.name.split("/")), each.shape, each.dtype, Role.OPTIMIZER, locator=each.locator)
        for each in slots
    ]
    return placed


class _Walk:
    def __init__(self, graph: ObjectGraph, bundle: Bundle, hints: Hints) -> None:
        self._graph = graph
        self._entries = bundle.entries
        self._hints = hints
        self._values: dict[int, Attribute] = {}
        self._others: list[Attribute] = []
        for node, attributes in enumerate(graph.attributes):
            for attribute in attributes:
                if attribute.key not in self._entries:
                    continue
                if attribute.name == VALUE and node not in self._values:
                    self._values[node] = attribute
                else:
                    self._others.append(attribute)
        self._optimizers = set(graph.slots) | {n for n, c in enumerate(graph.children) if c and _is_optimizer(c)}
        self._copies = self._copies_of_variables()
        self._slots = {slot.node for slots in graph.slots.values() for slot in slots}
        self._weights = self._reachable()
        self._shadows = shadows(self._values, self._entries, self._weights)
        self._weights -= self._shadows.keys()
        self._visited: set[int] = set()
        self._doubled: dict[str, str] = {}  # key of a weight's second copy -> that of the first
        self._slot_names = names_in_slots(graph, self._optimizers, self._values, self._weights)
        self._useful = self._leading_to_weights()

    # -- roles ------------------------------------------------------------------------------------------------------

    def _reachable(self) -> set[int]:
        """Variables that the root leads to, past optimizers, metrics and counters, by any list."""
        seen, stack = {0}, [0]
        while stack:
            node = stack.pop()
            children = self._graph.children[node]
            if node in self._optimizers:
                stack += [c for n, c in children.items() if n == "_trainable_variables" and c not in seen]
                seen.update(stack)
                continue
            if _is_metric(children):
                continue
            for name, child in children.items():
                if child in seen or name in _BOOKKEEPING:
                    continue
                if name not in _OPTIMIZER_EDGES or child in self._optimizers:
                    seen.add(child)
                    stack.append(child)
        return (seen & self._values.keys()) - self._slots - self._copies.keys() - self._counters()

    def _counters(self) -> set[int]:
        """Whole numbers that the root itself holds beside a model: the step, the epoch."""
        root = self._graph.children[0]
        if not any(child not in self._values and self._graph.children[child] for child in root.values()):
            return set()
        found = set()
        for node in root.values():
            if node in self._values:
                entry = self._entries[self._values[node].key]
                if not entry.shape and entry.dtype_name.startswith(("int", "uint")):
                    found.add(node)
        return found

    def _copies_of_variables(self) -> dict[int, tuple[str, str]]:
        """Copies that hang on a variable as `replica_1` …: node -> key of the variable, name of the copy."""
        found = {}
        for node, attribute in self._values.items():
            for name, child in self._graph.children[node].items():
                if name.startswith("replica_") and name[8:].isdecimal() and child in self._values and child != node:
                    entry, other = self._entries[attribute.key], self._entries[self._values[child].key]
                    if entry.shape == other.shape:
                        found[child] = (attribute.key, name)
        return found

    def _leading_to_weights(self) -> set[int]:
        """Every object from which a weight is reached by way of layers and attributes."""
        parents: dict[int, list[int]] = {}
        for node, children in enumerate(self._graph.children):
            if children and node not in self._optimizers and not _is_metric(children):
                for name, child in children.items():
                    if name not in _BOOKKEEPING and name not in _COLLECTIONS:
                        parents.setdefault(child, []).append(node)
        for node, children in enumerate(self._graph.children):
            for name in ("_layers", "_tracked", "layers"):
                if name in children and node not in self._optimizers:
                    parents.setdefault(children[name], []).append(node)
        useful, stack = set(self._weights), list(self._weights)
        while stack:
            for parent in parents.get(stack.pop(), ()):
                if parent not in useful:
                    useful.add(parent)
                    stack.append(parent)
        return useful

    # -- the model --------------------------------------------------------------------------------------------------

    def place(self) -> Placed:
        placed = Placed()
        root = self._part(0, "", 0)
        inner = [part for part in root.parts if part.has_variables()]
        if not root.functional and not root.variables and len(inner) == 1 and not inner[0].is_leaf():
            root = inner[0]  # Checkpoint(model=…): the model's layers, not the model as a layer
        self._place_rest(root, placed)
        placed.layers = _tf_layer_names.layers(root) + placed.layers
        paths = {spec.locator: spec.path for layer in placed.layers for spec in layer.all_tensors()}
        self._place_loose(placed, paths)
        return placed

    def _part(self, node: int, local: str, depth: int) -> Part:
        """An object with the variables and objects in it, each of which is met once."""
        self._visited.add(node)
        part = Part(local, self._hints.objects.get(node))
        for name, child, position in self._steps(node):
            if child in self._visited and position is not None:  # shared with another model: the place stays
                part.functional = True
                part.parts.append(Part(name, self._hints.objects.get(child), position=position))
            if child in self._visited or name in _BOOKKEEPING or child in self._optimizers:
                continue
            if child in self._values:
                if child in self._weights:
                    self._visited.add(child)
                    part.variables.append(self._variable(name, child))
                continue
            if position is not None:
                part.functional = True
            if child not in self._useful or depth >= MAX_DEPTH:
                if position is not None:
                    self._visited.add(child)
                    part.parts.append(Part(name, self._hints.objects.get(child), position=position))
                continue
            inner = self._part(child, name, depth + 1)
            inner.position = position
            inner.absorbed = name in _INNER and not inner.functional
            part.parts.append(inner)
        return part

    def _variable(self, name: str, node: int) -> Variable:
        attribute = self._values[node]
        entry = self._entries[attribute.key]
        full_name = self._hints.variables.get(node) or self._slot_names.get(node) or attribute.full_name
        return Variable(name, full_name, entry.shape, entry.dtype_name, attribute.key)

    def _steps(self, node: int) -> Iterator[tuple[str, int, int | None]]:
        """The children that make up the model, in its order: (local name, node, position among the layers)."""
        children = self._graph.children[node]
        weighted = {child: name for name, child in children.items() if name.startswith(_WEIGHTED)}
        positions = sorted((int(name[6:]), child) for name, child in children.items() if _is_position(name))
        for position, child in positions:
            yield weighted.get(child, f"layer-{position}"), child, position
        if "_functional" in children and not positions:  # Keras 3: a built Sequential holds its layers in a Functional
            yield from self._steps(children["_functional"])
            self._visited.add(children["_functional"])
        if "_operations" in children:
            operations = self._graph.children[children["_operations"]]
            self._visited.add(children["_operations"])
            for name, child in sorted(operations.items(), key=_numeric):
                if (number := whole_number(name)) is not None:
                    yield f"layer-{name}", child, number
        later = []
        for name, child in children.items():
            if name.startswith(_WEIGHTED) or _is_position(name) or name in ("_operations", "_functional"):
                continue
            if name in _COLLECTIONS:
                later.append((name, child))
            else:
                yield name, child, None
        for name, child in later:
            if name in ("_layers", "_tracked", "layers"):
                yield name, child, None

    # -- what the walk did not meet -----------------------------------------------------------------------------------

    def _place_rest(self, root: Part, placed: Placed) -> None:
        """Weights that only lists of variables lead to: by their names; one that is stored twice, once."""
        if self._weights <= self._visited:
            return
        twins = _Twins(self._entries)
        for variable in root.all_variables():
            twins.first_of(variable)
        rest: list[Stored] = []
        for node in sorted(self._weights - self._visited, key=self._public_first):
            variable = self._variable("", node)
            first = twins.first_of(variable)
            if first is not None:
                self._doubled[variable.key] = first
                continue
            entry = self._entries[variable.key]
            name = variable.full_name or _object_path(variable.key)
            rest.append(Stored(name, entry.shape, entry.dtype_name, variable.key))
        if self._doubled:
            message = (
                f"{len(self._doubled)} weights are stored twice with equal checksums; each is listed and written once"
            )
            placed.notices.append(Notice("stored-twice", message))
        names = {each.name for each in rest}
        if len(names) == len(rest):
            rest = _tf_layer_names.without_model_scope(rest)
        else:
            rest = [Stored(_object_path(e.locator), e.shape, e.dtype, e.locator) for e in rest]
        placed.layers += _tf_names.layers_by_name(rest)

    def _public_first(self, node: int) -> tuple[object, ...]:
        """`variables/2` before `variables/10`, and both before the private list of the same variables."""
        key = self._values[node].key
        return key.startswith("_"), *_numeric((key, node))

    def _place_loose(self, placed: Placed, paths: Mapping[str, tuple[str, ...]]) -> None:
        """Slots with the variable that they belong to, the optimizer's numbers, counters and other values."""
        done = set(paths)
        owners: dict[str, tuple[str, str]] = {}
        for slots in self._graph.slots.values():
            for slot in slots:
                if slot.node in self._values and slot.variable in self._values:
                    owners[self._values[slot.node].key] = (self._values[slot.variable].key, slot.name)
        owners.update((key, (first, "copy")) for key, first in self._doubled.items())
        for node, (key, name) in self._copies.items():
            owners.setdefault(self._values[node].key, (key, name))
        copies = {self._values[node].key for node in self._copies}
        kept = averages(self._graph, self._optimizers, self._values, self._weights)
        kept.update((self._values[node].key, owner) for node, owner in self._shadows.items())
        of_optimizer = {self._values[node].key for node in self._below(self._optimizers) if node in self._values}
        weights = {self._values[node].key for node in self._weights}
        for key, entry in self._entries.items():
            if key in done or (key in weights and key not in self._doubled):
                continue
            owner, slot_name = owners.get(key) or kept.get(key) or ("", "")
            role = Role.OPTIMIZER if owner or key in of_optimizer or _SLOT_MARK in key else Role.BOOKKEEPING
            if key in self._doubled:
                role = Role.BOOKKEEPING
            elif key in copies:
                role = Role.BOOKKEEPING if owner in paths else Role.OPTIMIZER
            path = tuple(_object_path(key).split("/"))
            placed.loose.append(
                TensorSpec(path, entry.shape, entry.dtype_name, role, paths.get(owner), slot_name or None, key)
            )

    def _below(self, nodes: set[int]) -> set[int]:
        seen, stack = set(nodes), list(nodes)
        while stack:
            for child in self._graph.children[stack.pop()].values():
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
        return seen


class _Twins:
    """Variables of one name and equal content, each in a list of its own: `variables/3` and `_all_variables/5`."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._firsts: dict[tuple[object, ...], dict[str, set[str]]] = {}  # key -> the lists that hold a copy of it

    def first_of(self, variable: Variable) -> str | None:
        """The key of what a variable is a copy of, each list holding one copy at most; None where it is the first.

        Two biases of zeros in one list are two: all variables of a subclassed Keras 3 model have the same names.
        """
        if not variable.full_name:
            return None
        entry = self._entries[variable.key]
        firsts = self._firsts.setdefault((variable.full_name, *_content(entry)), {})
        place = _object_path(variable.key).rpartition("/")[0]
        for key, lists in firsts.items():
            if place not in lists:
                lists.add(place)
                return key
        firsts[variable.key] = {place}
        return None


def _is_position(name: str) -> bool:
    return name.startswith(_POSITION) and name[6:].isdecimal() and len(name) < 16


def _object_path(key: str) -> str:
    """A key's path of objects: what stands before `/.ATTRIBUTES/`; objects that save themselves have `.TENSORS`."""
    return key.partition("/.ATTRIBUTES/")[0].partition("/.TENSORS/")[0]


def _content(entry: Entry) -> tuple[object, ...]:
    return entry.dtype, entry.shape, entry.size, entry.crc


def _numeric(item: tuple[str, int]) -> tuple[object, ...]:
    """Keys with numbers in numeric order: `variables/2` before `variables/10`."""
    parts = [(part, whole_number(part)) for part in item[0].split("/")]
    return tuple((1, 0, part) if number is None else (0, number, "") for part, number in parts)


def _is_optimizer(children: Mapping[str, int]) -> bool:
    """By its own numbers: `iter` and hyperparameters (TF 1.14 to 2.10), `_iterations` (2.11 and later, Keras 3)."""
    if "_iterations" in children or "iterations" in children or "_index_dict" in children:
        return True
    if "iter" in children and ("learning_rate" in children or "decay" in children or len(children) == 1):
        return True
    return "base_optimizer" in children or ("loss_scale" in children and "_optimizer" in children)


def _is_metric(children: Mapping[str, int]) -> bool:
    return "total" in children and "count" in children
