"""`saved_model.pb` and `keras_metadata.pb`: objects with their names and classes, found without decoding the graph.

Source: tensorflow/core/protobuf/saved_model.proto, saved_object_graph.proto (TF 2.21);
keras/protobuf/saved_metadata.proto (Keras 2.10).
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, CorruptCheckpointError, LimitExceededError, UnreadableError
from ..limits import Limits
from . import _wire
from ._meta_graph import MetaGraph, Signature, read_meta_graph
from ._object_graph import ObjectGraph
from ._tf_objects import Hint, Hints

_MAX_META_GRAPHS = 64  # train, eval and serve are three


@dataclass(slots=True)
class SavedObject:
    """A node of the saved object graph."""

    children: dict[str, int]
    metadata: str = ""  # JSON, where a Keras object keeps it here
    variable: str | None = None  # a variable's name
    is_variable: bool = False
    user_object: bool = False


class SavedModelFile:
    """The two files, read once.

    Parameters
    ----------
    folder : of the SavedModel
    limits : bounds on objects and JSON

    Raises
    ------
    CorruptCheckpointError : `saved_model.pb` is not a SavedModel
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._limits = limits
        self.meta_graphs: list[MetaGraph] = []
        self.objects: list[SavedObject] | None = None
        path = folder / "saved_model.pb"
        try:
            with path.open("rb") as file:
                if path.stat().st_size == 0:
                    raise CorruptCheckpointError("damaged: empty", path=path)
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read(data)  # type: ignore[arg-type]  # it is sliced as bytes are
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror or error}", path=path) from error
        except CheckpointError as error:
            if error.path is None:
                error.message = f"damaged: {error.message}"
                error.path = str(path)
            raise
        if self.objects is not None:
            self._add_keras_metadata(folder / "keras_metadata.pb")

    def _read(self, data: bytes) -> None:
        for field in _wire.fields(data):
            if field.number == 2 and field.kind == _wire.BYTES:
                if len(self.meta_graphs) >= _MAX_META_GRAPHS:
                    raise LimitExceededError(f"more than {_MAX_META_GRAPHS} meta graphs")
                self.meta_graphs.append(read_meta_graph(data, field.value, field.end))
        if not self.meta_graphs:
            raise CorruptCheckpointError("it holds no meta graph")
        place = next((graph.objects for graph in self.meta_graphs if graph.objects is not None), None)
        if place is not None:
            self.objects = self._objects(data, *place)

    def _objects(self, data: bytes, start: int, end: int) -> list[SavedObject]:
        found: list[SavedObject] = []
        for field in _wire.fields(data, start, end):
            if field.number == 1 and field.kind == _wire.BYTES:
                if len(found) >= self._limits.max_objects:
                    raise LimitExceededError(f"more than {self._limits.max_objects:,} objects", limit="max_objects")
                found.append(_object(data, field))
        return found

    def _add_keras_metadata(self, path: Path) -> None:
        """Nodes {2 node_id, 3 node_path, 4 identifier, 5 metadata}; node 0 has no id."""
        if not path.is_file():
            return
        try:
            if path.stat().st_size > self._limits.max_config_bytes:
                raise LimitExceededError("too large for Keras metadata", path=path, limit="max_config_bytes")
            data = path.read_bytes()
        except OSError:
            return
        try:
            for field in _wire.fields(data):
                if field.number == 1 and field.kind == _wire.BYTES:
                    node, text = 0, ""
                    for each in _wire.message(data, field):
                        if each.number == 2 and each.kind == _wire.VARINT:
                            node = each.value
                        elif each.number == 5 and each.kind == _wire.BYTES:
                            text = _wire.text(data, each.value, each.end)
                    if self.objects is not None and node < len(self.objects):
                        self.objects[node].metadata = text
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"damaged: {error.message}", path=path) from error

    def tensorflow(self) -> str | None:
        """The version that wrote it."""
        return next((graph.tensorflow for graph in self.meta_graphs if graph.tensorflow), None)

    def signatures(self) -> list[Signature]:
        """The signatures of all meta graphs, each name once."""
        found: dict[str, Signature] = {}
        for graph in self.meta_graphs:
            for signature in graph.signatures:
                found.setdefault(signature.name, signature)
        return list(found.values())

    def expects_variables(self) -> bool:
        """Whether the object graph has variables, so that `variables/` should be there."""
        return any(each.is_variable for each in self.objects or ())

    def root_metadata(self) -> dict[str, Any]:
        """The metadata of the model: the root's, or that of the only object below it that has a configuration."""
        if not self.objects:
            return {}
        root = parsed(self.objects[0].metadata)
        if "model_config" in root:
            return root
        nodes = {node for node in self.objects[0].children.values() if node < len(self.objects)}
        below = [parsed(self.objects[node].metadata) for node in sorted(nodes)]
        models = [metadata for metadata in below if isinstance(metadata.get("model_config"), dict)]
        return models[0] if len(models) == 1 else root


def _object(data: bytes, field: _wire.Field) -> SavedObject:
    found = SavedObject({})
    for each in _wire.message(data, field):
        if each.kind != _wire.BYTES:
            continue
        if each.number == 1:
            node, name = 0, ""
            for part in _wire.message(data, each):
                if part.number == 1 and part.kind == _wire.VARINT:
                    node = part.value
                elif part.number == 2 and part.kind == _wire.BYTES:
                    name = _wire.text(data, part.value, part.end)
            found.children[name] = node
        elif each.number == 4:
            found.user_object = True
            for part in _wire.message(data, each):
                if part.number == 3 and part.kind == _wire.BYTES:
                    found.metadata = _wire.text(data, part.value, part.end)
        elif each.number == 7:
            found.is_variable = True
            for part in _wire.message(data, each):
                if part.number == 6 and part.kind == _wire.BYTES:
                    found.variable = _wire.text(data, part.value, part.end)
    return found


def parsed(metadata: str) -> dict[str, Any]:
    """A Keras object's metadata; empty where it is none, or no JSON."""
    if not metadata:
        return {}
    try:
        document = json.loads(metadata)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def hints(objects: list[SavedObject], graph: ObjectGraph) -> Hints:
    """Names and classes for the bundle's own object graph; its nodes have other numbers, so by paths from the root."""
    named: dict[int, Hint] = {}
    variables: dict[int, str] = {}
    if not objects or not len(graph):
        return Hints(named, variables)
    seen, stack = {0}, [(0, 0)]
    while stack:
        saved, node = stack.pop()
        each = objects[saved]
        if each.variable:
            variables[node] = each.variable
        elif each.metadata and (hint := _hint(parsed(each.metadata))) is not None:
            named[node] = hint
        for name, child in graph.children[node].items():
            other = each.children.get(name)
            if other is not None and other < len(objects) and child not in seen:
                seen.add(child)
                stack.append((other, child))
    return Hints(named, variables)


def _hint(metadata: dict[str, Any]) -> Hint | None:
    name, class_name = metadata.get("name"), metadata.get("class_name")
    trainable = metadata.get("trainable")
    if not isinstance(name, str) or not isinstance(class_name, str):
        return None
    return Hint(name, class_name.rpartition(">")[2], trainable if isinstance(trainable, bool) else None)
