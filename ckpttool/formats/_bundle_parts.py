"""The bundles of a save that was not finished, joined into one as TensorFlow's MergeV2Checkpoints would.

Every part's data file becomes a shard; the slices of a variable that several parts hold are put together.
Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, MergeBundles (TF 2.21).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from ..errors import CorruptCheckpointError, LimitExceededError
from ..limits import Limits
from ._bundle import MAX_SLICES, Bounds, Bundle, Entry, Piece
from ._tf_unmerged import Parts

_Key = TypeVar("_Key", str, bytes)


class JoinedBundle(Bundle):
    """The parts that are there, as one index.

    Parameters
    ----------
    parts : where they are
    limits : bounds on entries and names, of all parts together

    Raises
    ------
    CorruptCheckpointError : a part is damaged, or two parts contradict each other
    """

    def __init__(self, parts: Parts, limits: Limits) -> None:
        self.index = Path(parts.prefix)
        self.prefix = parts.prefix
        self.limits = limits
        self.big_endian = False
        self.entries = {}
        self._slice_entries = {}
        self._parts = parts
        self._shards: dict[Path, int] = {}  # every data file and its number
        self._slices: dict[str, dict[Bounds, None]] = {}
        for place, number in enumerate(parts.found):
            prefix = parts.path(number)
            part = Bundle(Path(f"{prefix}.index"), prefix, limits)
            if place and part.big_endian != self.big_endian:
                raise CorruptCheckpointError("its parts were written in different orders of bytes", path=self.index)
            self.big_endian = part.big_endian
            self._join(part)
        for name, slices in self._slices.items():
            self.entries[name] = self.entries[name]._replace(slices=tuple(slices))
        self.entries = dict(sorted(self.entries.items(), key=_bytewise))
        self._files = list(self._shards)
        self.shards = len(self._files)

    def _join(self, part: Bundle) -> None:
        for name, entry in part.entries.items():
            self._add(self.entries, name, entry, part, name)
            if entry.slices:
                slices = self._slices.setdefault(name, {})
                slices.update(dict.fromkeys(entry.slices))
                if len(slices) > MAX_SLICES:
                    raise LimitExceededError(f"more than {MAX_SLICES:,} slices of one variable", path=self.index)
        for key, entry in part.slice_entries():
            self._add(self._slice_entries, key, entry, part, f"a slice in '{part.index.name}'")
        if len(self.entries) + len(self._slice_entries) > self.limits.max_objects:
            raise LimitExceededError(
                f"more than {self.limits.max_objects:,} entries", path=self.index, limit="max_objects"
            )

    def _add(self, known: dict[_Key, Entry], key: _Key, entry: Entry, part: Bundle, what: str) -> None:
        """Take over an entry; one that another part has too must be of the same variable and the same bytes."""
        other = known.get(key)
        if other is None:
            number = self._shards.setdefault(part.shard_path(entry.shard), len(self._shards))
            known[key] = entry._replace(shard=number)
        elif (other.dtype, other.shape) != (entry.dtype, entry.shape) or bool(other.slices) != bool(entry.slices):
            raise CorruptCheckpointError(
                f"{what}: two parts describe it differently; give the path of the part to read", path=self.index
            )
        elif (other.size, other.crc) != (entry.size, entry.crc):
            raise CorruptCheckpointError(
                f"{what}: two parts hold different values of it; give the path of the part to read", path=self.index
            )

    def indexes(self) -> list[Path]:
        """The parts' own indexes."""
        return [Path(f"{self._parts.path(number)}.index") for number in self._parts.found]

    def shard_path(self, number: int) -> Path:
        """A part's data file; where the save was broken off during the merge, it has its new name already."""
        file = self._files[number]
        if not self._parts.missing and not os.path.lexists(file):
            merged = super().shard_path(number)
            if os.path.isfile(merged):
                return merged
        return file

    def pieces(self, name: str, entry: Entry) -> list[Piece]:
        """As of any bundle; some may be in the parts that are missing."""
        try:
            return super().pieces(name, entry)
        except CorruptCheckpointError as error:
            if self._parts.missing:
                error.message += f": {self._parts.missing} of {self._parts.count} parts of the save are missing"
            raise


def _bytewise(item: tuple[str, Entry]) -> bytes:
    return item[0].encode("utf-8", "surrogateescape")
