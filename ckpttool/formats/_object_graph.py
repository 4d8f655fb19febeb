"""The object graph of a TF2 checkpoint: which objects held which variables, and under which keys these are stored.

Node 0 is the root. Nodes may be shared and may form cycles: a `save_weights` file of TF 2.10 has a child of the root
that is the root.
Source: tensorflow/core/protobuf/trackable_object_graph.proto (TF 2.21).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import CorruptCheckpointError, LimitExceededError
from . import _wire

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


class Attribute(NamedTuple):
    """A value that a node has: a variable's is called VARIABLE_VALUE."""

    name: str
    full_name: str  # the variable's name, without `:0`; empty for variables made under a strategy before TF 2.10
    key: str  # in the bundle


class Slot(NamedTuple):
    """A slot variable, on the node of its optimizer."""

    variable: int  # the node of the variable that it belongs to
    name: str  # "m", "v", "momentum"
    node: int  # the node of the slot variable itself


@dataclass(slots=True)
class ObjectGraph:
    """Nodes by number: children by local name in stored order, attributes, and slots of optimizers."""

    children: list[dict[str, int]] = field(default_factory=list)
    attributes: list[tuple[Attribute, ...]] = field(default_factory=list)
    slots: dict[int, list[Slot]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.children)


def parse(data: bytes, max_nodes: int) -> ObjectGraph:
    """Read a TrackableObjectGraph.

    Parameters
    ----------
    data : the message, as the bundle stores it
    max_nodes : bound on nodes; ten times as many children are allowed

    Raises
    ------
    CorruptCheckpointError : not such a message, or a child that does not exist
    LimitExceededError : more nodes or children than allowed
    """
    graph = ObjectGraph()
    names: dict[bytes, str] = {}
    edges = 0
    for node in _wire.fields(data):
        if node.number != 1:
            continue
        if len(graph.children) >= max_nodes:
            raise LimitExceededError(f"an object graph of more than {max_nodes:,} nodes")
        if node.kind != _wire.BYTES:
            raise CorruptCheckpointError("damaged: a node of the object graph is no message")
        try:
            edges += _node(data, node.value, node.end, graph, names)
        except IndexError:
            raise CorruptCheckpointError("damaged: a node of the object graph is cut off") from None
        if edges > 10 * max_nodes:
            raise LimitExceededError(f"an object graph of more than {10 * max_nodes:,} edges")
    count = len(graph.children)
    for children in graph.children:
        if children and max(children.values()) >= count:
            raise CorruptCheckpointError("damaged: the object graph refers to a node that it does not have")
    for slots in graph.slots.values():
        if any(slot.variable >= count or slot.node >= count for slot in slots):
            raise CorruptCheckpointError("damaged: the object graph refers to a node that it does not have")
    return graph


def _node(data: bytes, at: int, end: int, graph: ObjectGraph, names: dict[bytes, str]) -> int:
    """Append one node; returns how many edges it has."""
    children: dict[str, int] = {}
    attributes: list[Attribute] = []
    slots: list[Slot] = []
    edges = 0
    while at < end:
        tag = data[at]
        length = data[at + 1]
        at += 2
        if tag not in (0x0A, 0x12, 0x1A):
            tag, at, length = _other(data, at - 2, end)
        elif length > 127:
            length, at = _wire.varint(data, at - 1, end)
        stop = at + length
        if stop > end:
            raise CorruptCheckpointError("damaged: a part of the object graph is longer than its node")
        if tag == 0x0A:
            number, name = _child(data, at, stop, names)
            children[name] = number
            edges += 1
        elif tag == 0x12:
            attributes.append(_attribute(data, at, stop))
        elif tag == 0x1A:
            slots.append(_slot(data, at, stop))
        edges += 1
        at = stop
    if slots:
        graph.slots[len(graph.children)] = slots
    graph.children.append(children)
    graph.attributes.append(tuple(attributes))
    return edges


def _other(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Tag, start and length of any field, those of later versions too."""
    field = next(_wire.fields(data, at, end))
    if field.kind != _wire.BYTES:
        return 0, field.end, 0
    return field.number << 3 | field.kind, field.value, field.end - field.value


def _child(data: bytes, at: int, stop: int, names: dict[bytes, str]) -> tuple[int, str]:
    """An ObjectReference: node and local name; these names repeat, so each is decoded once."""
    number = 0
    if data[at] == 0x08:
        number = data[at + 1]
        at += 2
        if number > 127:
            number, at = _wire.varint(data, at - 1, stop)
    if at < stop and data[at] == 0x12 and data[at + 1] < 128 and at + 2 + data[at + 1] == stop:
        stored = data[at + 2 : stop]
        name = names.get(stored)
        if name is None:
            name = names[stored] = stored.decode("utf-8", "surrogateescape")
        return number, name
    name = ""
    for each in _wire.fields(data, at, stop):
        if each.number == 1 and each.kind == _wire.VARINT:
            number = each.value
        elif each.number == 2 and each.kind == _wire.BYTES:
            name = _wire.text(data, each.value, each.end)
    return number, name


def _attribute(data: bytes, at: int, stop: int) -> Attribute:
    """A SerializedTensor; written out flat for a variable's, of which there are as many as tensors."""
    name_end = at + 16
    if data[at : at + 2] == b"\x0a\x0e" and data[at + 2 : name_end] == b"VARIABLE_VALUE":
        place, full_name = name_end, ""
        if place < stop and data[place] == 0x12 and data[place + 1] < 128:
            end = place + 2 + data[place + 1]
            full_name = data[place + 2 : end].decode("utf-8", "surrogateescape")
            place = end
        if place + 1 < stop and data[place] == 0x1A:
            length, start = data[place + 1], place + 2
            if length > 127:
                length, start = _wire.varint(data, place + 1, stop)
            if start + length == stop:
                return Attribute("VARIABLE_VALUE", full_name, data[start:stop].decode("utf-8", "surrogateescape"))
    found = {1: "", 2: "", 3: ""}
    for each in _wire.fields(data, at, stop):
        if each.number in found and each.kind == _wire.BYTES:
            found[each.number] = _wire.text(data, each.value, each.end)
    return Attribute(found[1], found[2], found[3])


def _slot(data: bytes, at: int, stop: int) -> Slot:
    variable = node = 0
    name = ""
    for each in _wire.fields(data, at, stop):
        if each.number == 1:
            variable = each.value
        elif each.number == 2 and each.kind == _wire.BYTES:
            name = _wire.text(data, each.value, each.end)
        elif each.number == 3:
            node = each.value
    return Slot(variable, name, node)
