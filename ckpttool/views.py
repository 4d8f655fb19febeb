"""Readers around a reader, for what must see values: the same methods, so a writer sees only a Reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .assets import asset_chunks
from .checkpoint import Asset, Checkpoint, Layer, TensorSpec
from .reading import BLOCK_BYTES, Extent, Reader
from .theano import Turn

if TYPE_CHECKING:
    import numpy as np


def transposed(reader: Reader, checkpoint: Checkpoint) -> TurnedKernels:
    """All weights of a description with their axes reversed."""
    turns = [Turn(spec, (), tuple(range(len(spec.shape)))[::-1]) for spec in checkpoint.weights()]
    return TurnedKernels(reader, checkpoint, turns, checkpoint.written_by.backend)


class TurnedKernels:
    """Some tensors with axes reversed or in another order, all others as they are. Holds one tensor at a time.

    Parameters
    ----------
    reader : the source; closed with this view
    checkpoint : its description
    turns : how each tensor is turned; for convolution kernels of Theano see `theano.turns`
    backend : whose kernels they are then
    """

    def __init__(
        self, reader: Reader, checkpoint: Checkpoint, turns: Iterable[Turn], backend: str | None = "tensorflow"
    ) -> None:
        self._reader = reader
        self._turns = {turn.spec.locator: turn for turn in turns}
        layers = tuple(self._described(layer) for layer in checkpoint.layers)
        written_by = replace(checkpoint.written_by, backend=backend)
        self._checkpoint = replace(checkpoint, layers=layers, written_by=written_by)

    def _described(self, layer: Layer) -> Layer:
        tensors = tuple(
            replace(spec, shape=turn.shape) if (turn := self._turns.get(spec.locator)) else spec
            for spec in layer.tensors
        )
        return replace(layer, tensors=tensors, layers=tuple(self._described(each) for each in layer.layers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the source."""
        self._reader.close()

    @property
    def turned(self) -> int:
        """How many tensors are turned."""
        return len(self._turns)

    def asset_chunks(self, asset: Asset) -> Iterator[bytes]:
        """The bytes of an asset file, as they are."""
        return asset_chunks(self._reader, asset)

    def describe(self) -> Checkpoint:
        """The source's description with the shapes of the turned tensors."""
        return self._checkpoint

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, turned where it is one to turn."""
        turn = self._turns.get(spec.locator)
        if turn is None:
            return self._reader.read(spec)
        import numpy as np

        values = np.flip(self._reader.read(turn.spec), turn.flipped)
        return np.ascontiguousarray(values if turn.order is None else values.transpose(turn.order))

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, block by block."""
        if spec.locator not in self._turns:
            yield from self._reader.iter_blocks(spec, max_bytes)
            return
        values = self.read(spec).reshape(-1)
        step = max(1, max_bytes // values.itemsize)
        for start in range(0, values.size, step):
            yield values[start : start + step]

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the bytes lie as they are; None for a turned tensor."""
        return None if spec.locator in self._turns else self._reader.extent(spec)
