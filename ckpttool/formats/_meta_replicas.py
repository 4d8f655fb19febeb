"""What a TF1 graph beside a checkpoint says of replicas: `multi_gpu_model` leaves them in the names of its nodes.

Call k of the template stands in the scope `replica_<k>/<template>`, its slice of the batch is the node
`replica_<k>/<lambda>/Slice`, and a ConcatV2 joins what the calls give, in their order. Variables lie outside of these
scopes, so the checkpoint itself shows nothing. Only names, kinds and inputs of nodes are looked at.
Source: multi_gpu_model of Keras 2.0.9 to 2.3.1 and of tf.keras 1.12 to 1.15 (utils/multi_gpu_utils.py).
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from ..errors import CorruptCheckpointError
from . import _wire

_SLICE = r"replica_([0-9]{1,5})/[^/]+/Slice"
_CALL = r"replica_([0-9]{1,5})/([^/]+)/(.+)"
_VARIABLES = (b"VarHandleOp", b"VariableV2", b"Variable")
_PARTITION = r"/part_[0-9]+$"
_MAX_BYTES = 2**31  # of a protocol buffer
_MAX_FIELDS = 3_000_000  # looked at: some 300,000 nodes, ten times those of the largest graph seen; two seconds
_MAX_FOUND = 20_000  # slices and joins: a model has some of each for each replica
_MAX_CALLS = 1_024  # replicas that one node joins
_MAX_NAME_BYTES = 4_096
_SEARCHED_BYTES = 2**20


class Replicas(NamedTuple):
    """A template that a graph computes several times."""

    template: str
    calls: int
    slices: int  # of the batch, for all calls together
    joins: int  # outputs of the template that are joined


class _Node(NamedTuple):
    name: str
    inputs: tuple[str, ...]


def replicas_in_meta(path: Path, keys: Iterable[str] = ()) -> Replicas | None:
    """The replicas in a `.meta` file; None where it proves none, is not there, is damaged or beyond all measure.

    Parameters
    ----------
    path : the file
    keys : of the checkpoint beside it; all must be variables of the graph, or it is that of another model
    """
    try:
        with path.open("rb") as file:
            if not _holds(file, b"replica_0/") or not _holds(file, b"replica_1/"):
                return None
            missing = set(keys)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                nodes = list(_nodes(data, missing))  # type: ignore[arg-type]  # it is sliced as bytes are
            return None if missing else _proven(nodes)
    except (OSError, ValueError, CorruptCheckpointError):  # ValueError: an empty file
        return None


def _holds(file: IO[bytes], text: bytes) -> bool:
    """Whether a file holds some bytes; read piece by piece, so that a large one takes no memory."""
    file.seek(0)
    before, size = b"", 0
    while piece := file.read(_SEARCHED_BYTES):
        size += len(piece)
        if size > _MAX_BYTES:
            raise CorruptCheckpointError("larger than a graph can be")
        if text in before + piece:
            return True
        before = piece[-len(text) :]
    return False


def _nodes(data: bytes, missing: set[str]) -> Iterator[_Node]:
    """The nodes of the graph that may slice or join; names of variables are taken from `missing`.

    MetaGraphDef 2 GraphDef, 1 NodeDef {1 name, 2 op, 3 input}, in this order in every file.
    """
    found = 0
    left = _MAX_FIELDS
    for graph in _wire.fields(data):
        left -= 1
        if graph.number != 2 or graph.kind != _wire.BYTES:
            continue
        for field in _wire.message(data, graph):
            left -= 3
            if left < 0:
                raise CorruptCheckpointError("too large a graph")
            if field.number != 1:
                continue
            node, looked_at = _node(data, field, missing)
            left -= looked_at
            if node is not None:
                found += 1
                if found > _MAX_FOUND:
                    raise CorruptCheckpointError("too many slices and joins for a model over replicas")
                yield node


def _node(data: bytes, field: _wire.Field, missing: set[str]) -> tuple[_Node | None, int]:
    """One node, if it may slice or join, and how many inputs it has."""
    start = end = 0
    kind = b""
    inputs: list[str] = []
    for each in _wire.message(data, field):
        if each.kind != _wire.BYTES:
            continue
        if each.end - each.value > _MAX_NAME_BYTES and each.number < 4:
            return None, len(inputs)
        if each.number == 1:
            start, end = each.value, each.end
        elif each.number == 2:
            kind = data[each.value : each.end]
            if kind in _VARIABLES:
                name = _wire.text(data, start, end)
                missing.discard(name)
                missing.discard(re.sub(_PARTITION, "", name))
            if kind not in (b"Slice", b"ConcatV2"):
                return None, 0
        elif each.number == 3:
            inputs.append(_wire.text(data, each.value, each.end))
            if (not inputs[0].startswith("replica_") and kind == b"ConcatV2") or len(inputs) > _MAX_CALLS:
                return None, len(inputs)
    name = _wire.text(data, start, end)
    if kind == b"ConcatV2" or (kind == b"Slice" and name.startswith("replica_")):
        return _Node(name, tuple(inputs)), len(inputs)
    return None, len(inputs)


def _proven(nodes: list[_Node]) -> Replicas | None:
    """One template, called as often as its results are joined, each call fed by slices of the same inputs."""
    joins = {found for node in nodes if (found := _join(node)) is not None}
    if not joins or len({(template, count) for template, _, count in joins}) != 1:
        return None
    template, _, count = next(iter(joins))
    sliced: dict[int, set[str]] = {}
    slices = 0
    for node in nodes:
        match = re.fullmatch(_SLICE, node.name)
        if match and node.inputs:
            if any(each.endswith("/Slice/begin") for each in node.inputs[1:]):
                return None  # from a constant place: a model of several inputs in one; batches are cut by their size
            sliced.setdefault(int(match[1]), set()).add(node.inputs[0])
            slices += 1
    if sorted(sliced) != list(range(count)) or any(sources != sliced[0] for sources in sliced.values()):
        return None
    return Replicas(template, count, slices, len(joins))


def _join(node: _Node) -> tuple[str, str, int] | None:
    """Which output of which template a node joins, of how many calls; its last input is the axis."""
    calls = [re.fullmatch(_CALL, name) for name in node.inputs[:-1]]
    if len(calls) < 2:
        return None
    found = set()
    for place, match in enumerate(calls):
        if match is None or match[1] != str(place):
            return None
        found.add((match[2], match[3]))
    return (*found.pop(), len(calls)) if len(found) == 1 else None
