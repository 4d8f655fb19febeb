"""What a checkpoint holds, as frozen data: no file handle, no values, no I/O.

A description can be compared, pickled and written by hand in a test. Values are read through a Reader, which finds a
tensor's bytes by its `locator`; everything else about a tensor may be changed by a transformation.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

_MAX_DIGITS = 19
ITEM_BYTES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
}


class Role(enum.Enum):
    """What a tensor serves."""

    WEIGHT = "weight"
    OPTIMIZER = "optimizer"
    BOOKKEEPING = "bookkeeping"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor: what it is, never its values."""

    path: tuple[str, ...]  # ("conv1", "kernel"): what users see; transformations may change it
    shape: tuple[int, ...]  # () for a scalar; a 0 axis is legal
    dtype: str  # logical: "bfloat16" even where HDF5 holds two opaque bytes; "string" for text
    role: Role = Role.WEIGHT  # set by the layout, not guessed from the name
    slot_of: tuple[str, ...] | None = None  # the variable an optimizer slot belongs to
    slot: str | None = None  # which slot: "m", "v", "momentum"
    locator: str = ""  # where its bytes are, in its format's words; nothing changes it
    position: int | None = None  # place in its format's list, where the order carries meaning
    trainable: bool = True  # the variable's own nature: False for moving statistics, whatever the layer's flag

    @property
    def name(self) -> str:
        """The path as users write it: `conv1/kernel`."""
        return "/".join(self.path)

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory; 0 for text, whose length the description does not know."""
        return self.size * ITEM_BYTES.get(self.dtype, 0)

    @property
    def is_quantized(self) -> bool:
        """Whether it holds scaled or packed integers in place of a kernel or an embedding table."""
        return self.dtype in ("int8", "uint8") and len(self.shape) >= 2 and self.role is Role.WEIGHT


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that a layer keeps beside its weights, such as a vocabulary; its bytes mean nothing to ckpttool."""

    place: str  # below the layer's own group: "vocabulary.txt", "_lookup_layer/vocabulary.txt"
    nbytes: int
    locator: str  # where its bytes are, in its format's words; nothing changes it


@dataclass(frozen=True, slots=True)
class Layer:
    """A named part of the model. It has tensors of its own, or layers inside, or neither, seldom both."""

    name: str
    class_name: str | None = None  # None where the file does not say
    tensors: tuple[TensorSpec, ...] = ()
    layers: tuple[Layer, ...] = ()
    trainable: bool | None = None
    calls: int = 1  # how often the model calls it: more than 1 for a shared layer
    title: str | None = None  # its own name, where a format as stored calls the group something else; None once named
    assets: tuple[Asset, ...] = ()

    def walk(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Layer]]:
        """Yield (path, layer) of this layer and of all inside it, outer ones first, in model order."""
        path = (*prefix, self.name)
        yield path, self
        for layer in self.layers:
            yield from layer.walk(path)

    def all_tensors(self) -> Iterator[TensorSpec]:
        """Yield the tensors of this layer and of all inside it, in model order."""
        yield from self.tensors
        for layer in self.layers:
            yield from layer.all_tensors()


def whole_number(text: str) -> int | None:
    """The number that a text of decimal digits stands for; None of other texts, and of more digits than any file has.

    Python refuses to read more than 4,300 digits, with a ValueError.
    """
    return int(text) if len(text) < _MAX_DIGITS and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """Versions as the file states them; None where it does not."""

    keras: str | None = None
    tensorflow: str | None = None
    backend: str | None = None

    @property
    def keras_major(self) -> int | None:
        """1, 2 or 3; None where the file states no version."""
        return whole_number((self.keras or "").split(".", 1)[0])

    @property
    def keras_numbers(self) -> tuple[int, ...]:
        """The first three numbers of the version: (2, 2, 4) of `2.2.4-tf`; () where the file states none."""
        parts = map(whole_number, (self.keras or "").removesuffix("-tf").split(".")[:3])
        return tuple(number for number in parts if number is not None)


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning about the file: `code` is stable, `message` is for people, `path` is the layer or tensor."""

    code: str
    message: str
    path: str | None = None


def notices_json(notices: Sequence[Notice]) -> list[dict[str, Any]]:
    """Warnings as the JSON outputs show them."""
    return [{"code": each.code, "message": each.message, "path": each.path} for each in notices]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The description of one checkpoint.

    `layers` nest where the file nests and stay in the file's order, weightless ones too, since legacy HDF5 is matched
    by order. `config` is the model JSON as stored: data to report, never code to run. `config_of` is the path of the
    layer which that configuration describes; () means the whole.
    """

    format: str
    container: str
    kind: str  # "model", "weights", "checkpoint" or "savedmodel"
    layers: tuple[Layer, ...] = ()
    loose: tuple[TensorSpec, ...] = ()  # tensors of no layer: optimizer slots, counters
    config: str | None = None
    config_of: tuple[str, ...] = ()
    written_by: WrittenBy = WrittenBy()
    training_config: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    warnings: tuple[Notice, ...] = ()
    assets: tuple[Asset, ...] = ()  # of the model itself, or of no layer that is known

    def walk(self) -> Iterator[tuple[tuple[str, ...], Layer]]:
        """Yield (path, layer) of every layer, outer ones first, in model order."""
        for layer in self.layers:
            yield from layer.walk()

    def weights(self) -> Iterator[TensorSpec]:
        """Yield the model's own tensors, in model order."""
        for layer in self.layers:
            yield from layer.all_tensors()
        for spec in self.loose:
            if spec.role is Role.WEIGHT:
                yield spec

    def optimizer_tensors(self) -> tuple[TensorSpec, ...]:
        """The optimizer's slots and counters, in the file's order."""
        return tuple(spec for spec in self.loose if spec.role is Role.OPTIMIZER)

    def all_assets(self) -> dict[str, tuple[tuple[str, ...], Asset]]:
        """Locator -> path of the layer that an asset file belongs to (() for the model itself), and the file."""
        found: list[tuple[tuple[str, ...], Asset]] = [((), asset) for asset in self.assets]
        found += [(path, asset) for path, layer in self.walk() for asset in layer.assets]
        result: dict[str, tuple[tuple[str, ...], Asset]] = {}
        for path, asset in found:
            result.setdefault(asset.locator, (path, asset))
        return result

    def with_warnings(self, *notices: Notice) -> Checkpoint:
        """A copy with more warnings."""
        return replace(self, warnings=(*self.warnings, *notices))
