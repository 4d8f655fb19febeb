"""What a TF1 graph beside a checkpoint says of replicas: `multi_gpu_model` leaves them in the names of its nodes.

Call k of the template stands in the scope `replica_<k>/<template>`, its slice of the batch is the node
`replica_<k>/<lambda>/Slice`, and a ConcatV2 joins what the calls give, in their order. Variables lie outside of these
scopes, so the checkpoint itself shows nothing. Only names, kinds and inputs of nodes are looked at.
Source: multi_gpu_model of Keras 2.0.9 to 2.3.1 and of tf.keras 1.12 to 1.15 (utils/multi_gpu_utils.py).
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptCheckpointError
from . import _wire

_SLICE = r"replica_(\d+)/[^/]+/Slice"
_CALL = r"replica_(\d+)/([^/]+)/(.+)"


class Replicas(NamedTuple):
    """A template that a graph computes several times."""

    template: str
    calls: int
    slices: int  # of the batch, for all calls together
    joins: int  # outputs of the template that are joined


class _Node(NamedTuple):
    name: str
    inputs: tuple[str, ...]


def replicas_in_meta(path: Path) -> Replicas | None:
    """The replicas in a `.meta` file; None where it proves none, is not there, or is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"replica_0/") < 0 or data.find(b"replica_1/") < 0:
                return None
            return _proven(list(_nodes(data)))  # type: ignore[arg-type]  # it is sliced as bytes are
    except (OSError, ValueError, CorruptCheckpointError):  # ValueError: an empty file
        return None


def _nodes(data: bytes) -> Iterator[_Node]:
    """The nodes of the graph that may slice or join: MetaGraphDef 2 GraphDef, 1 NodeDef {1 name, 2 op, 3 input}."""
    for graph in _wire.fields(data):
        if graph.number != 2 or graph.kind != _wire.BYTES:
            continue
        for field in _wire.message(data, graph):
            if field.number != 1:
                continue
            name, kind, inputs = "", b"", []
            for each in _wire.message(data, field):
                if each.kind != _wire.BYTES:
                    continue
                if each.number == 1:
                    name = _wire.text(data, each.value, each.end)
                elif each.number == 2:
                    kind = data[each.value : each.end]
                    if kind not in (b"Slice", b"ConcatV2"):
                        break
                elif each.number == 3:
                    inputs.append(_wire.text(data, each.value, each.end))
            if kind in (b"Slice", b"ConcatV2"):
                yield _Node(name, tuple(inputs))


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
        if match and len(match[1]) < 6 and node.inputs:
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
