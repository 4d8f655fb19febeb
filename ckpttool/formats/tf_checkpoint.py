"""TensorFlow's V2 checkpoint: an index and its data files, name-based (TF1 Saver) or object-based (TF2, Keras).

Reads names, shapes and, of the values, only the object graph, which is stored as one. Needs neither TensorFlow nor
protobuf nor, for listing, NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint, Notice, TensorSpec, WrittenBy
from ..errors import CheckpointError, CorruptCheckpointError, ReaderClosedError
from ..limits import Limits
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match
from . import _object_graph, _tf_names, _tf_objects, _tf_places
from ._bundle import Bundle, Entry
from ._bundle_values import BundleValues, joined
from ._tf_sniffing import assign, matched

if TYPE_CHECKING:
    import numpy as np

    from ._saved_objects import SavedObject

__all__ = ["FORMAT", "Reader", "assign", "sniff"]

FORMAT = "tf-checkpoint"
_OBJECT_KEY = "/.ATTRIBUTES/VARIABLE_VALUE"
_SHOWN = 5


def sniff(probe: Probe) -> Match | None:
    """Recognise an index, a data file beside one, a prefix, a state file, or a folder of these."""
    return matched(probe, FORMAT, _tf_places.BUNDLE)


def _opened(place: _tf_places.Place, limits: Limits) -> Bundle:
    """The index of a place."""
    if place.parts is None:
        return Bundle(place.index, place.prefix, limits)
    from ._bundle_parts import JoinedBundle  # here, since few saves are not finished

    return JoinedBundle(place.parts, limits)


class Reader(Closing):
    """One V2 checkpoint, found through a probe."""

    def __init__(self, probe: Probe, place: _tf_places.Place | None = None) -> None:
        place = place or probe.tensorflow()
        if place is None:
            raise CorruptCheckpointError("no checkpoint of TensorFlow", path=probe.path)
        self._path = probe.path
        self._place = place
        self._bundle: Bundle | None = _opened(place, probe.limits)
        self._values = BundleValues(self._bundle, verify=probe.options.checksums)
        self._joined: dict[str, tuple[str, ...]] = {}
        self._described = False
        self._parsed: tuple[_object_graph.ObjectGraph | None, list[Notice]] | None = None

    def close(self) -> None:
        """Forget the index; data files are open only while a tensor is read."""
        self._bundle = self._parsed = None

    @property
    def bundle(self) -> Bundle:
        """The index.

        Raises
        ------
        ReaderClosedError : the reader is closed
        """
        if self._bundle is None:
            raise ReaderClosedError("the reader is closed", path=self._path)
        return self._bundle

    def hints_of(self, objects: list[SavedObject]) -> _tf_objects.Hints | None:
        """What a SavedModel's objects say of those of the checkpoint."""
        graph, _ = self._graph()
        if graph is None:
            return None
        from ._saved_objects import hints

        return hints(objects, graph)

    def describe(self, hints: _tf_objects.Hints | None = None) -> Checkpoint:
        """Layers by the object graph where there is one, else by names; other tensors by their roles.

        Parameters
        ----------
        hints : what a SavedModel knows of the objects
        """
        graph, notices = self._graph()
        if graph is not None:
            placed = _tf_objects.place(graph, self.bundle, hints or _tf_objects.Hints())
        elif notices:  # there is, or was, an object graph
            placed = _tf_objects.place_by_keys(self.bundle)
        else:
            placed = _tf_names.place(
                _tf_names.Stored(name, entry.shape, entry.dtype_name, name)
                for name, entry in self.bundle.entries.items()
            )
        self._joined = placed.joined
        self._described = True
        return Checkpoint(
            format=FORMAT,
            container="tensor-bundle",
            kind="checkpoint",
            layers=tuple(placed.layers),
            loose=tuple(placed.loose),
            written_by=WrittenBy(tensorflow=self._version()),
            metadata=self._metadata(graph is None),
            warnings=(*self._place.notices, *notices, *self._shard_notices(), *placed.notices),
        )

    def _metadata(self, name_based: bool) -> tuple[tuple[str, str], ...]:
        """The layout, and what a TF1 graph beside the checkpoint tells."""
        if not name_based:
            return (("layout", "object-based"),)
        from ._meta_graph import replicas_beside

        return (("layout", "name-based"), *replicas_beside(self._place.prefix, self.bundle.entries))

    def _version(self) -> str | None:
        """TensorFlow's version in the `.meta` file beside the checkpoint, where there is one."""
        path = Path(f"{self._place.prefix}.meta")
        if not path.is_file():
            return None
        from ._meta_graph import version_in_meta

        return version_in_meta(path)

    def _graph(self) -> tuple[_object_graph.ObjectGraph | None, list[Notice]]:
        if self._parsed is None:
            self._parsed = self._read_graph()
        return self._parsed

    def _read_graph(self) -> tuple[_object_graph.ObjectGraph | None, list[Notice]]:
        """The object graph; without its data file the names in the keys must do."""
        entry = self.bundle.entries.get(_object_graph.KEY)
        if entry is None:
            return None, self._lost_graph()
        if not self.bundle.shard_path(entry.shard).is_file():
            message = "the data file with the object graph is missing: layers are named by their keys alone"
            return None, [Notice("no-object-graph", message)]
        texts = self._values.strings(_object_graph.KEY, entry)
        if len(texts) != 1:
            raise CorruptCheckpointError("damaged: the object graph is not one value", path=self.bundle.index)
        try:
            return _object_graph.parse(texts[0], self.bundle.limits.max_objects), []
        except CheckpointError as error:
            error.path = error.path or str(self.bundle.index)
            raise

    def _lost_graph(self) -> list[Notice]:
        """Keys of objects without the graph: it was in a part that is missing."""
        if self._place.parts is None or not any(key.endswith(_OBJECT_KEY) for key in self.bundle.entries):
            return []
        message = "the part with the object graph is missing: layers are named by their keys alone"
        return [Notice("no-object-graph", message)]

    def _shard_notices(self) -> Iterator[Notice]:
        for code, numbers, what in (
            ("missing-shard", self.bundle.missing_shards(), "missing"),
            ("short-shard", self.bundle.short_shards(), "truncated"),
        ):
            if numbers:
                names = ", ".join(self.bundle.shard_path(number).name for number in numbers[:_SHOWN])
                more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
                affected = sum(entry.shard in numbers for entry in self.bundle.entries.values() if not entry.slices)
                yield Notice(code, f"{what}: {names}{more}; up to {affected} tensors cannot be read")

    def files(self) -> list[Path]:
        """The index and the data files, those that are missing too."""
        bundle = self.bundle
        return [*bundle.indexes(), *(bundle.shard_path(number) for number in sorted(bundle.used_shards()))]

    def _parts(self, spec: TensorSpec) -> list[tuple[str, Entry]]:
        """The entries that a locator stands for: one, or those of a variable's parts in order."""
        bundle = self.bundle
        entry = bundle.entries.get(spec.locator)
        if entry is not None:
            return [(spec.locator, entry)]
        if not self._described:
            self.describe()
        keys = self._joined.get(spec.locator)
        if keys is None:
            raise CorruptCheckpointError(f"holds no tensor '{spec.locator}'", path=self._path)
        return [(key, bundle.entries[key]) for key in keys]

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each; text as one array."""
        for key, entry in self._parts(spec):
            yield from self._values.blocks(key, entry, max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`; text as an array of `bytes`."""
        return joined(self.iter_blocks(spec), spec)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie, with the checksum that they should have; None where they are in parts."""
        parts = self._parts(spec)
        return self._values.extent(*parts[0]) if len(parts) == 1 else None
