"""Saves that TensorFlow did not finish: the parts that devices or workers wrote, which nothing merged.

A save writes each part as a bundle of its own, `P_temp/part-0000I-of-0000N` (up to TF 2.3 the folder is
`P_temp_<32 hex digits>`; on S3 a part is `P.part-…`). Then MergeV2Checkpoints renames the
data files to `P.data-…`, writes `P.index` and removes the folder. A job that is killed before leaves the parts.
Source: tensorflow/python/checkpoint/functional_saver.py, python/training/saver.py (TF 1.12 to 2.21).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..checkpoint import Notice
from ..errors import CorruptCheckpointError, UsageError

_PART = r"(?s)(.*)-([0-9]{5})-of-([0-9]{5})\.index"
_FOLDER = r"(?s)(.*)_temp(?:_[0-9a-f]{32})?"
_WRITTEN = r"(?s)part-[0-9]{5}-of-[0-9]{5}\.(?:data-|index).*"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one save that are there."""

    prefix: str  # what the checkpoint would be called had it been finished
    base: str  # what the parts' paths begin with
    count: int  # how many there should be
    found: tuple[int, ...]  # the numbers of those whose index is there

    def path(self, number: int) -> str:
        """The prefix of one part."""
        return f"{self.base}-{number:05d}-of-{self.count:05d}"

    @property
    def missing(self) -> int:
        """How many parts are not there."""
        return self.count - len(self.found)

    def notice(self) -> Notice:
        """That the save was not finished, and which parts there are."""
        folder = os.path.basename(os.path.dirname(os.path.abspath(self.base)))
        start = f"the save was not finished: its parts in '{folder}' were never merged; "
        if not self.missing:
            every = "the only part is there" if self.count == 1 else f"all {self.count} parts are there"
            return Notice("unfinished-save", f"{start}{every} and read as one checkpoint")
        there = set(self.found)
        lacking: list[str] = []
        for number in range(self.count):
            if number not in there and len(lacking) <= _SHOWN:
                lacking.append(os.path.basename(self.path(number)))
        shown = ", ".join(lacking[:_SHOWN]) + (" …" if self.missing > _SHOWN else "")
        message = f"{start}{len(self.found)} of {self.count} parts are there and read as one; missing: {shown}"
        return Notice("unfinished-save", message)


def is_temporary(name: str) -> bool:
    """Whether a folder's name is that of a save's parts."""
    return _saved_as(name) is not None


def _saved_as(folder_name: str) -> str | None:
    """The name of the checkpoint whose parts a folder holds; None for another folder."""
    match = re.fullmatch(_FOLDER, folder_name) if "_temp" in folder_name else None
    return None if match is None else match[1]


def part_of(prefix: str) -> tuple[int, int] | None:
    """The number of a part and how many there should be, by the part's own path."""
    match = re.fullmatch(_PART, f"{os.path.basename(prefix)}.index")
    if match is None or not (match[1] == "part" or match[1].endswith(".part")) or int(match[2]) >= int(match[3]):
        return None
    return int(match[2]), int(match[3])


def of_prefix(prefix: str, names: Iterable[str]) -> Parts | None:
    """The parts of the checkpoint of that prefix, or those whose own names begin with it.

    Parameters
    ----------
    prefix : as it was given
    names : what is in its folder

    Raises
    ------
    UsageError : several saves of that prefix were not finished
    """
    folder, base = os.path.split(prefix)
    names = list(names)
    found = [parts for one in (base, f"{base}.part") if (parts := _among(folder, one, names, prefix))]
    for name in sorted(names):
        if _saved_as(name) == base:
            parts = of_folder(os.path.join(folder, name))
            found += [parts] if parts else []
    if len(found) > 1:
        shown = ", ".join(sorted(os.path.basename(os.path.dirname(parts.base)) for parts in found))
        raise UsageError(f"several saves of it were not finished: {shown}; give one's folder", path=prefix)
    return found[0] if found else None


def of_folder(folder: str) -> Parts | None:
    """The parts in a temporary folder, or in another that holds nothing but parts.

    Raises
    ------
    UsageError : it holds parts of several saves
    CorruptCheckpointError : it holds data of parts, but no index
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    saved_as = _saved_as(os.path.basename(folder))
    prefix = folder if saved_as is None else os.path.join(os.path.dirname(folder), saved_as)
    parts = _among(folder, "part", names, prefix)
    if parts is None and saved_as is not None and any(re.fullmatch(_WRITTEN, name) for name in names):
        raise CorruptCheckpointError("a save that was broken off before any part had its index", path=folder)
    return parts


def in_folder(folder: str, names: Iterable[str]) -> list[Parts]:
    """Every save in a folder that was not finished; of one that has nothing to read, nothing."""
    found: list[Parts] = []
    loose: set[str] = set()
    names = list(names)
    for name in sorted(names):
        path = os.path.join(folder, name)
        if is_temporary(name) and os.path.isdir(path):
            try:
                parts = of_folder(path)
            except (UsageError, CorruptCheckpointError):
                continue
            found += [parts] if parts else []
        elif ".part-" in name and (match := re.fullmatch(_PART, name)) and match[1].endswith(".part"):
            loose.add(match[1])
    for base in sorted(loose):
        parts = _among(folder, base, names, os.path.join(folder, base.removesuffix(".part")))
        found += [parts] if parts else []
    return found


def _among(folder: str, base: str, names: Iterable[str], prefix: str) -> Parts | None:
    """The parts `base-0000I-of-0000N` in a folder: those of the one save that is whole, where there are of several."""
    numbers: dict[int, list[int]] = {}
    for name in names:
        if name.startswith(f"{base}-") and (match := re.fullmatch(_PART, name)) and match[1] == base:
            number, count = int(match[2]), int(match[3])
            if number < count and os.path.isfile(os.path.join(folder, name)):
                numbers.setdefault(count, []).append(number)
    whole = [count for count, found in numbers.items() if len(found) == count]
    if len(numbers) > 1 and len(whole) != 1:
        shown = ", ".join(f"{len(found)} of {count}" for count, found in sorted(numbers.items()))
        raise UsageError(f"holds parts of several saves: {shown}; keep one save's parts", path=folder or ".")
    if not numbers:
        return None
    count = whole[0] if len(numbers) > 1 else next(iter(numbers))
    return Parts(prefix, os.path.join(folder, base), count, tuple(sorted(numbers[count])))
