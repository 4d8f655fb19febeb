"""Floating weights in another floating type, block by block; how far values moved is measured on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from .assets import asset_chunks
from .checkpoint import Asset, Checkpoint, Layer, Role, TensorSpec
from .dtypes import numpy_dtype
from .errors import UnsupportedError, UsageError
from .reading import BLOCK_BYTES, Extent, Reader

CAST_DTYPES = ("float16", "bfloat16", "float32")
_FLOATING = ("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn")


class CastReader:
    """A reader whose floating weights have another type; integers, text and optimizer state stay as they are.

    Parameters
    ----------
    reader : the source; closed with this view
    checkpoint : what is to be written
    dtype : "float16", "bfloat16" or "float32"

    Raises
    ------
    UsageError : another dtype
    """

    def __init__(self, reader: Reader, checkpoint: Checkpoint, dtype: str) -> None:
        if dtype not in CAST_DTYPES:
            raise UsageError(f"cannot cast to '{dtype}'; --dtype takes {', '.join(CAST_DTYPES)}")
        self._reader = reader
        self._dtype = dtype
        self._stored: dict[str, TensorSpec] = {}
        self.largest_rounding = 0.0  # absolute difference between a value and what it became
        self.rounded_tensor: str | None = None
        layers = tuple(self._layer(layer) for layer in checkpoint.layers)
        loose = tuple(self._spec(spec) if spec.role is Role.WEIGHT else spec for spec in checkpoint.loose)
        self._checkpoint = replace(checkpoint, layers=layers, loose=loose)

    def _layer(self, layer: Layer) -> Layer:
        tensors = tuple(map(self._spec, layer.tensors))
        return replace(layer, tensors=tensors, layers=tuple(map(self._layer, layer.layers)))

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype not in _FLOATING or spec.dtype == self._dtype:
            return spec
        self._stored[spec.locator] = spec
        return replace(spec, dtype=self._dtype)

    @property
    def changed(self) -> int:
        """How many stored tensors get another type."""
        return len(self._stored)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the source."""
        self._reader.close()

    def asset_chunks(self, asset: Asset) -> Iterator[bytes]:
        """The bytes of an asset file, as they are."""
        return asset_chunks(self._reader, asset)

    def describe(self) -> Checkpoint:
        """What is to be written, with the new types."""
        return self._checkpoint

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, cast."""
        stored = self._stored.get(spec.locator)
        return self._reader.read(spec) if stored is None else self._cast(self._reader.read(stored), spec)

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, cast block by block."""
        stored = self._stored.get(spec.locator)
        if stored is None:
            yield from self._reader.iter_blocks(spec, max_bytes)
            return
        wide = max(1, numpy_dtype(self._dtype).itemsize // numpy_dtype(stored.dtype).itemsize)
        for block in self._reader.iter_blocks(stored, max_bytes // wide):
            yield self._cast(block, spec)

    def _cast(self, block: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """A block in the new type.

        Raises
        ------
        UnsupportedError : a finite value lies beyond the new type's range
        """
        with np.errstate(over="ignore"):
            result = block.astype(numpy_dtype(self._dtype))
        if (block.size and result.dtype.itemsize < 4) or block.dtype == np.float64:
            before, after = block.astype(np.float64), result.astype(np.float64)
            finite = np.isfinite(before)
            if not np.isfinite(after[finite]).all():
                worst = float(np.abs(before[finite]).max())
                raise UnsupportedError(
                    f"{spec.name} holds {worst:.6g}, which {self._dtype} cannot; try --dtype bfloat16 or float32"
                )
            moved = float(np.abs(before[finite] - after[finite]).max(initial=0.0))
            if moved > self.largest_rounding:
                self.largest_rounding, self.rounded_tensor = moved, spec.name
        return result

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the bytes lie as they are; None for a tensor that is cast."""
        return None if spec.locator in self._stored else self._reader.extent(spec)

    def sentence(self) -> str:
        """What the cast did, for the receipt."""
        if not self.changed:
            return f"all floating weights are {self._dtype} already"
        if self.rounded_tensor is None:
            return f"{self.changed} tensors cast to {self._dtype}, exactly"
        return (
            f"{self.changed} tensors cast to {self._dtype}; the largest rounding is {self.largest_rounding:.3g}, "
            f"in {self.rounded_tensor}"
        )
