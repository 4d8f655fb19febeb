"""What is worth knowing of a MetaGraphDef without its graph: versions, tags, signatures.

Source: tensorflow/core/protobuf/meta_graph.proto (TF 2.21). The graph and its functions are skipped by their length:
they are code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptCheckpointError
from ..transforms import GRAPH_REPLICAS
from . import _wire
from ._bundle import dtype_name

_REFERENCE = 100  # added to a type's number by graphs of TF1: a reference to a variable of that type
_MAX_INFO_BYTES = 16 * 2**20  # meta_info holds the list of ops used: some 100 kB


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a signature; a dimension of -1 is free, a shape of None unknown."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    def text(self) -> str:
        """`ids int32 (?, 4)`."""
        if self.shape is None:
            return f"{self.name} {self.dtype}"
        sizes = ", ".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.name} {self.dtype} ({sizes})"


@dataclass(frozen=True, slots=True)
class Signature:
    """A function that a SavedModel offers."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class MetaGraph:
    """One meta graph of a SavedModel."""

    tensorflow: str | None
    tags: tuple[str, ...]
    signatures: tuple[Signature, ...]
    objects: tuple[int, int] | None  # where its object graph lies in the file


def version_in_meta(path: Path) -> str | None:
    """The TensorFlow version in a `.meta` file beside a checkpoint; None where there is no such file or version."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
            if head[:1] != b"\x0a":
                return None
            length, start = _wire.varint(head, 1, len(head))
            file.seek(start)
            info = file.read(min(length, _MAX_INFO_BYTES))
        return _info(info, 0, len(info))[0]
    except (OSError, CorruptCheckpointError):
        return None  # it says nothing that the checkpoint itself needs


def replicas_beside(prefix: str, keys: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """What a checkpoint's `.meta` file tells of replicas, as metadata of its description: see `wrappers._graph`.

    Parameters
    ----------
    prefix : of the checkpoint
    keys : under which its tensors are stored
    """
    path = Path(f"{prefix}.meta")
    if not path.is_file():
        return ()
    from ._meta_replicas import replicas_in_meta

    found = replicas_in_meta(path, keys)
    return () if found is None else ((GRAPH_REPLICAS, " ".join(map(str, found))),)


def _info(data: bytes, start: int, end: int) -> tuple[str | None, tuple[str, ...]]:
    """MetaInfoDef: TensorFlow's version and the tags."""
    version, tags = None, []
    for field in _wire.fields(data, start, end):
        if field.kind == _wire.BYTES and field.number == 4:
            tags.append(_wire.text(data, field.value, field.end))
        elif field.kind == _wire.BYTES and field.number == 5:
            version = _wire.text(data, field.value, field.end) or None
    return version, tuple(tags)


def read_meta_graph(data: bytes, start: int, end: int) -> MetaGraph:
    """A MetaGraphDef within the bytes of a SavedModel."""
    version: str | None = None
    tags: tuple[str, ...] = ()
    signatures: list[Signature] = []
    objects = None
    for field in _wire.fields(data, start, end):
        if field.kind != _wire.BYTES:
            continue
        if field.number == 1:
            version, tags = _info(data, field.value, field.end)
        elif field.number == 5:
            signatures.append(_signature(data, field))
        elif field.number == 7:
            objects = (field.value, field.end)
    return MetaGraph(version, tags, tuple(sorted(signatures, key=lambda each: each.name)), objects)


def _entry(data: bytes, field: _wire.Field) -> tuple[str, _wire.Field | None]:
    """Key and value of a map's entry."""
    key, value = "", None
    for each in _wire.message(data, field):
        if each.number == 1 and each.kind == _wire.BYTES:
            key = _wire.text(data, each.value, each.end)
        elif each.number == 2:
            value = each
    return key, value


def _signature(data: bytes, field: _wire.Field) -> Signature:
    name, value = _entry(data, field)
    inputs: list[TensorInfo] = []
    outputs: list[TensorInfo] = []
    if value is not None:
        for each in _wire.message(data, value):
            if each.number in (1, 2) and each.kind == _wire.BYTES:
                (inputs if each.number == 1 else outputs).append(_tensor_info(data, each))
    return Signature(name, tuple(sorted(inputs, key=_name)), tuple(sorted(outputs, key=_name)))


def _name(info: TensorInfo) -> str:
    return info.name


def _tensor_info(data: bytes, field: _wire.Field) -> TensorInfo:
    name, value = _entry(data, field)
    dtype, shape = 0, None
    for each in _wire.message(data, value) if value is not None else ():
        if each.number == 2 and each.kind == _wire.VARINT:
            dtype = each.value
        elif each.number == 3 and each.kind == _wire.BYTES:
            shape = _shape(data, each)
    dtype = dtype - _REFERENCE if dtype > _REFERENCE else dtype
    return TensorInfo(name, dtype_name(dtype) if dtype else "unknown", shape)


def _shape(data: bytes, field: _wire.Field) -> tuple[int, ...] | None:
    """A TensorShapeProto whose sizes may be free."""
    sizes = []
    for each in _wire.message(data, field):
        if each.number == 3 and each.value:
            return None
        if each.number == 2 and each.kind == _wire.BYTES:
            sizes.append(_size(data, each))
    return tuple(sizes)


def _size(data: bytes, field: _wire.Field) -> int:
    values: Iterator[int] = (each.value for each in _wire.message(data, field) if each.number == 1)
    return _wire.signed(next(values, 0))
