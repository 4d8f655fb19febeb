"""Keras 3 weights: `.weights.h5` of Keras 3 and tf.keras 2.12 to 2.15, and the sharded `.weights.json`.

The group `layers/dense_1` is class name and counter, its variables the datasets `vars/0`, `vars/1` …; the layer's name
is the attribute `name` of the group `vars` since Keras 3.6. A group may hold both `vars` and other groups. Sharded
weights (Keras 3.10 and later) are several such files and a JSON index that says which group lies in which.
Source: keras/src/saving/saving_lib.py, `H5IOStore` and `ShardedH5IOStore` (Keras 3.15).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import Checkpoint, Notice, TensorSpec
from ..errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match, OnProgress
from ..reading import Reader as SourceReader
from ._hdf5 import Hdf5Dataset, Hdf5File, Hdf5Group, numpy_dtype
from ._hdf5_datasets import DatasetInfo, extent_of
from ._keras3_groups import Groups, holds_groups, locate

if TYPE_CHECKING:
    from ..keras_config import ModelConfig
__all__ = ["FORMAT", "Reader", "assign", "sniff", "write"]

FORMAT = "keras-weights"
OPTIMIZER_FROM = ("keras-weights", "keras-archive")
NEEDS_CONFIG = True  # it decides the groups' names, though the file does not hold it
HOLDS_CONFIG = False
_SHARD = re.compile(r"(?P<base>.+)_\d{5}\.weights\.h5")


def sniff(probe: Probe) -> Match | None:
    """Recognise the layout by its groups, or the index of shards by its keys."""
    if not probe.is_dir and probe.head.lstrip()[:1] == b"{":
        return Match(FORMAT, "JSON index of weight shards") if _index(probe) is not None else None
    file = probe.hdf5()
    if file is None or _is_legacy(file.root):
        return None
    found = holds_groups(file.root)
    return None if found is None else Match(FORMAT, f"numbered variables in the group '{found}'")


def _is_legacy(root: Hdf5Group) -> bool:
    return root.has_texts("layer_names") or root.has_texts("model_config") or root.group("model_weights") is not None


def _index(probe: Probe) -> Mapping[str, Any] | None:
    """The parsed index of a sharded file, or None for other JSON."""
    if probe.size_bytes > probe.limits.max_config_bytes:
        return None
    try:
        document = json.loads(probe.path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError):
        return None
    weight_map = document.get("weight_map") if isinstance(document, Mapping) else None
    if not isinstance(weight_map, Mapping) or not weight_map:
        return None
    keys = all(isinstance(key, str) and key.startswith("/") and key.endswith("/vars") for key in weight_map)
    return document if keys else None


class Reader(Closing):
    """One Keras 3 weights file, or the shards of one."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._path = probe.path
        self._sharded = False
        self._files: dict[str, Hdf5File] = {}
        self._offsets: dict[str, int] = {}  # by locator, of what `describe` saw
        file = probe.hdf5()
        if file is not None:
            self._files[""] = file
            return
        index = _index(probe)
        if index is None:
            raise CorruptCheckpointError("neither HDF5 nor an index of weight shards", path=probe.path)
        self._sharded = True
        try:
            self._open_shards(index["weight_map"])
        except BaseException:
            self.close()
            raise

    def _open_shards(self, weight_map: Mapping[str, Any]) -> None:
        listed: dict[str, list[str]] = {}
        for key, value in weight_map.items():
            for name in value if isinstance(value, list) else [value]:
                listed.setdefault(self._plain_name(name), []).append(key)
        if len(listed) > self._probe.limits.max_objects:
            raise LimitExceededError(f"lists {len(listed):,} shards", path=self._path, limit="max_objects")
        for name in sorted(listed):
            path = self._path.with_name(name)
            if not path.is_file():
                raise CheckpointNotFoundError(
                    f"the shard '{name}' is missing; put all shards beside the index", path=self._path
                )
            file = self._files[name] = Hdf5File(path, self._probe.limits)
            absent = next((key for key in listed[name] if file.root.group(key.strip("/")) is None), None)
            if absent is not None:
                raise CorruptCheckpointError(
                    f"the index lists '{absent}' in '{name}', which does not hold it; the shards are of another save",
                    path=self._path,
                )

    def _plain_name(self, name: object) -> str:
        if not isinstance(name, str) or not name.endswith(".h5") or Path(name).name != name or "\0" in name:
            raise UnsafeCheckpointError(f"refused shard name {name!r}: not a plain '.h5' name", path=self._path)
        return name

    def close(self) -> None:
        """Release the files."""
        for file in self._files.values():
            file.close()
        self._probe.close()

    def describe(self) -> Checkpoint:
        """The groups as a tree of layers called after their groups; `assign` gives them their names."""
        self._check_open()
        groups = Groups(self._files)
        self._offsets = groups.offsets
        return Checkpoint(
            format=FORMAT,
            container="hdf5 shards" if self._sharded else "hdf5",
            kind="weights",
            layers=groups.layers(),
            loose=tuple(groups.loose_tensors()),
            metadata=_noted(groups),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[Notice, ...]:
        part = _SHARD.fullmatch(self._path.name)
        if part is None or self._sharded:
            return ()
        index = f"{part['base']}.weights.json"
        with suppress(OSError):
            if self._path.with_name(index).is_file():
                return (Notice("one-shard", f"one of several shards; for the whole give '{index}'"),)
        return ()

    def _check_open(self) -> None:
        if not self._files or any(file.closed for file in self._files.values()):
            raise ReaderClosedError("the reader is closed", path=self._path)

    def _dataset(self, spec: TensorSpec) -> Hdf5Dataset:
        self._check_open()
        shard, name = locate(spec.locator)
        file = self._files.get(shard)
        dataset = None if file is None else file.root.dataset(name)
        if dataset is None:
            raise CorruptCheckpointError(f"holds no tensor '{spec.locator}'", path=self._path)
        return dataset

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        yield from self._dataset(spec).blocks(max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        blocks = list(self.iter_blocks(spec))
        joined = np.concatenate(blocks) if blocks else np.empty(0, numpy_dtype(spec.dtype))
        if joined.size != spec.size:
            raise UnsupportedError(f"{spec.name}: {joined.size} values for shape {spec.shape}", path=self._path)
        return joined.reshape(spec.shape)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie in its file, or None where they must be decoded."""
        offset = self._offsets.get(spec.locator)
        if offset is None:
            return self._dataset(spec).extent()
        self._check_open()
        shard, name = locate(spec.locator)
        return extent_of(self._files[shard], name, DatasetInfo(spec.shape, spec.dtype, offset, None))


def _noted(groups: Groups) -> tuple[tuple[str, str], ...]:
    """The names that Keras notes at the groups, for a writer of the same layout."""
    from ..keras3_groups import GROUP_NAMES

    return ((GROUP_NAMES, json.dumps(groups.titles)),) if groups.titles else ()


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Give the groups the model's names; see `keras3_assignment.assign`, loaded only for a file of this layout."""
    from ..keras3_assignment import assign as assign_names

    return assign_names(checkpoint, model, path=path)


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write Keras 3 weights; see `_keras3_writing.write_weights`, loaded only when it is used."""
    from ._keras3_writing import write_weights

    write_weights(reader, checkpoint, path, on_progress=on_progress)


def open_window(probe: Probe, file: Hdf5File) -> Reader:
    """A reader over an HDF5 file that the caller opened: the weights inside an archive."""
    reader = Reader.__new__(Reader)
    reader._probe = probe
    reader._path = probe.path
    reader._sharded = False
    reader._files = {"": file}
    reader._offsets = {}
    return reader
