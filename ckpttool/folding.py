"""One value for each variable where a file holds several: copies of replicas, and moving averages beside weights.

A description marks a copy as a loose tensor of the role BOOKKEEPING whose slot is `replica_1` … and which belongs to
the variable (`slot_of`). The variable itself is the primary replica's, number 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .checkpoint import Checkpoint, Layer, Notice, Role, TensorSpec
from .errors import CorruptCheckpointError, UsageError
from .reading import BLOCK_BYTES, Extent, Reader, View

if TYPE_CHECKING:
    import numpy as np

AVERAGE_SLOTS = frozenset({"ExponentialMovingAverage", "average", "ema"})
_REPLICA = re.compile(r"replica_(\d{1,9})")
_SHOWN = 5

Copies = dict[tuple[str, ...], dict[int, TensorSpec]]  # path of the variable -> number of the replica -> its copy


def replica_copies(checkpoint: Checkpoint) -> Copies:
    """The copies of model variables, by the variable's path and the replica's number; optimizer slots are not asked."""
    found: Copies = {}
    for spec in checkpoint.loose:
        match = _REPLICA.fullmatch(spec.slot or "")
        if match and spec.role is Role.BOOKKEEPING and spec.slot_of is not None:
            found.setdefault(spec.slot_of, {})[int(match[1])] = spec
    return found


def without_copies(checkpoint: Checkpoint) -> Checkpoint:
    """The same without the replicas' copies."""
    copies = {spec.locator for of_one in replica_copies(checkpoint).values() for spec in of_one.values()}
    return replace(checkpoint, loose=tuple(spec for spec in checkpoint.loose if spec.locator not in copies))


def missing_copies(checkpoint: Checkpoint) -> list[str]:
    """Variables that lack a copy which others have, with the numbers that they lack."""
    copies = replica_copies(checkpoint)
    numbers = {number for of_one in copies.values() for number in of_one}
    missing = []
    for path, of_one in copies.items():
        lacking = sorted(numbers - set(of_one))
        if lacking:
            missing.append(f"{'/'.join(path)} ({', '.join(f'replica_{number}' for number in lacking)})")
    return missing


@dataclass(frozen=True, slots=True)
class _Fold:
    """A variable, its copies, and which of all is given."""

    spec: TensorSpec
    copies: tuple[tuple[int, TensorSpec], ...]
    chosen: TensorSpec


class FoldedReplicas(View):
    """A reader that gives one value for each variable, and compares the copies while it reads.

    Parameters
    ----------
    reader : the file's
    checkpoint : its description, with the copies
    replica : whose values to give; None and 0 are the primary's

    Raises
    ------
    UsageError : the file, or one variable of it, has no copy of that replica
    """

    def __init__(self, reader: Reader, checkpoint: Checkpoint, replica: int | None = None) -> None:
        super().__init__(reader)
        self._folds: dict[str, _Fold] = {}
        self._largest: dict[str, tuple[float, int]] = {}
        copies = replica_copies(checkpoint)
        numbers = sorted({0, *(number for of_one in copies.values() for number in of_one)})
        if replica is not None and replica not in numbers:
            held = f"0 to {numbers[-1]}" if len(numbers) > 1 else "one value for each variable"
            raise UsageError(f"holds no copies of replica {replica}: it holds {held}")
        for spec in checkpoint.weights():
            of_one = copies.get(spec.path, {})
            if not of_one:
                continue
            if replica and replica not in of_one:
                raise UsageError(f"{spec.name}: there is no copy of replica {replica}")
            chosen = of_one[replica] if replica else spec
            self._folds[spec.locator] = _Fold(spec, tuple(sorted(of_one.items())), chosen)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        fold = self._folds.get(spec.locator)
        if fold is None:
            return self._reader.read(spec)
        for _ in self.iter_blocks(spec):
            pass
        return self._reader.read(fold.chosen)

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The chosen replica's elements block by block; on the way the others are compared with the primary's."""
        fold = self._folds.get(spec.locator)
        if fold is None:
            yield from self._reader.iter_blocks(spec, max_bytes)
            return
        others = [(number, self._reader.iter_blocks(copy, max_bytes)) for number, copy in fold.copies]
        for primary in self._reader.iter_blocks(fold.spec, max_bytes):
            given = primary
            for (number, blocks), (_, copy) in zip(others, fold.copies, strict=True):
                block = next(blocks, None)
                if block is None or block.size != primary.size:
                    raise CorruptCheckpointError(f"{copy.name}: fewer values than {spec.name}")
                self._compare(spec.name, number, primary, block)
                if copy is fold.chosen:
                    given = block
            yield given
        for _, blocks in others:
            for _ in blocks:  # to its end, where its checksum is verified
                pass

    def extent(self, spec: TensorSpec) -> Extent | None:
        """None for a variable with copies, which must be compared."""
        return None if spec.locator in self._folds else self._reader.extent(spec)

    def _compare(self, name: str, number: int, primary: np.ndarray, block: np.ndarray) -> None:
        import numpy as np

        if primary.tobytes() == block.tobytes():
            return
        if primary.dtype.kind in "OSU":
            difference = float("inf")
        else:
            kind = np.complex128 if primary.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = np.abs(primary.astype(kind) - block.astype(kind))
            difference = float(np.nanmax(gaps)) if not np.isnan(gaps).all() else float("nan")
        largest = self._largest.get(name)
        if largest is None or not difference <= largest[0]:
            self._largest[name] = (difference, number)

    def notices(self) -> tuple[Notice, ...]:
        """What was found different in what was read so far, the largest difference first."""
        if not self._largest:
            return ()
        ordered = sorted(self._largest.items(), key=_by_difference)
        shown = ", ".join(f"{name} by up to {gap:.6g} (replica {number})" for name, (gap, number) in ordered[:_SHOWN])
        more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
        message = (
            f"replicas differ in {len(ordered)} of {len(self._folds)} variables: {shown}{more}; "
            "--replica N takes another replica's values"
        )
        return (Notice("replicas-differ", message, ordered[0][0]),)


def _by_difference(item: tuple[str, tuple[float, int]]) -> float:
    return -item[1][0] if item[1][0] == item[1][0] else float("-inf")


def reading_notices(reader: Reader) -> tuple[Notice, ...]:
    """What a reader found while values were read."""
    found = getattr(reader, "notices", None)
    return tuple(found()) if callable(found) else ()


def with_averages(checkpoint: Checkpoint) -> Checkpoint:
    """The same with the values of moving averages in place of the weights that have them.

    Raises
    ------
    UsageError : the file holds no moving averages
    """
    averages = {spec.slot_of: spec for spec in checkpoint.loose if _is_average(spec) and spec.slot_of is not None}
    weights = list(checkpoint.weights())
    taken = [spec for spec in weights if spec.path in averages]
    if not taken:
        raise UsageError("holds no moving averages of its weights (--ema)")
    layers = tuple(_averaged(layer, averages) for layer in checkpoint.layers)
    message = f"{len(taken)} of {len(weights)} weights are their moving averages; the others have none"
    return replace(checkpoint, layers=layers).with_warnings(Notice("moving-averages", message))


def _is_average(spec: TensorSpec) -> bool:
    return spec.role is Role.OPTIMIZER and (spec.slot or "").rpartition("/")[2] in AVERAGE_SLOTS


def _averaged(layer: Layer, averages: Mapping[tuple[str, ...], TensorSpec]) -> Layer:
    tensors = tuple(
        replace(spec, locator=averages[spec.path].locator)
        if spec.path in averages and averages[spec.path].shape == spec.shape
        else spec
        for spec in layer.tensors
    )
    return replace(layer, tensors=tensors, layers=tuple(_averaged(inner, averages) for inner in layer.layers))
