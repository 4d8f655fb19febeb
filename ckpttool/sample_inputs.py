"""Random inputs that a model accepts: ids below the tables they look up, numbers elsewhere. Pure data and NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .keras_config import LayerConfig, ModelConfig

SCALES = (1.0, 3.0, 0.3)  # of the numbers, one a seed: near, beyond and within the bends of activations
BATCHES = (1, 4)
LENGTHS = (8, 32, 128, 299)  # tried in turn for axes without a length; 299 is what the largest image models expect
SERIES_LENGTHS = (2048, 12_000)  # of series only: models of genomes crop 5,000 steps at each end

_PASSES = frozenset(
    """Reshape Flatten Permute RepeatVector Concatenate Cropping1D ZeroPadding1D Dropout SpatialDropout1D Masking
    TFOpLambda SlicingOpLambda TensorFlowOpLayer Identity Activation""".split()
)


@dataclass(frozen=True, slots=True)
class InputKind:
    """What an input may hold."""

    shape: tuple[int | None, ...]  # with the batch axis
    dtype: str
    bound: int | None = None  # whole numbers below this
    masked: float | None = None  # a value that marks padding


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs."""

    seed: int
    batch: int
    arrays: tuple[np.ndarray, ...]


def input_kinds(model: ModelConfig, shapes: Sequence[tuple[tuple[int | None, ...], str]]) -> list[InputKind]:
    """For each input of a model, in order, what it may hold.

    Parameters
    ----------
    model : the configuration, to follow each input to the layers that look it up
    shapes : shape (with the batch axis) and dtype of each input, as the built model has them
    """
    kinds = []
    for number, (shape, dtype) in enumerate(shapes):
        found = list(_uses(model, number))
        bounds = [value for what, value in found if what == "bound"]
        masked = [value for what, value in found if what == "masked"]
        kinds.append(
            InputKind(shape, dtype, int(min(bounds)) if bounds else None, float(masked[0]) if masked else None)
        )
    return kinds


def _uses(model: ModelConfig, number: int) -> Iterator[tuple[str, float]]:
    if not model.functional:
        yield from _along(model.layers)
        return
    names = model.input_names()
    if number >= len(names):
        return
    reached = {names[number]}
    for layer in _repeated(model.layers):
        for node in layer.nodes:
            for place, ref in enumerate(node.inputs):
                if ref.layer in reached:
                    yield from _use(layer, place)
                    if layer.class_name in _PASSES:
                        reached.add(layer.name)


def _repeated(layers: Sequence[LayerConfig]) -> Iterator[LayerConfig]:
    """Layers are not stored in graph order; three rounds reach through chains of three against it."""
    for _ in range(3):
        yield from layers


def _along(layers: Sequence[LayerConfig]) -> Iterator[tuple[str, float]]:
    for layer in layers:
        yield from _use(layer, 0)
        if layer.class_name not in _PASSES and layer.class_name != "InputLayer":
            return


def _use(layer: LayerConfig, place: int) -> Iterator[tuple[str, float]]:
    inside = layer
    while inside.inner is not None:
        inside = inside.inner
    if inside.model is not None:
        yield from _uses(inside.model, place)
        return
    if inside.class_name == "Embedding" and isinstance(inside.config.get("input_dim"), int):
        yield "bound", inside.config["input_dim"]
    value = inside.config.get("mask_value", 0.0)
    if inside.class_name == "Masking" and isinstance(value, int | float):
        yield "masked", value


def cases(kinds: Sequence[InputKind], *, seed: int, length: int) -> list[Case]:
    """Three seeds by two batch sizes; a stated batch size is kept.

    Parameters
    ----------
    kinds : of each input
    seed : of the first case; the others count up
    length : of axes without one
    """
    made = []
    fixed = {kind.shape[0] for kind in kinds if kind.shape and kind.shape[0] is not None}
    batches = tuple(sorted(size for size in fixed if size is not None)) or BATCHES
    for number, scale in enumerate(SCALES):
        for batch in batches[:2]:
            rng = np.random.default_rng([seed + number, batch])
            arrays = tuple(_array(kind, rng, batch, length, scale) for kind in kinds)
            made.append(Case(seed + number, batch, arrays))
    return made


def _array(kind: InputKind, rng: np.random.Generator, batch: int, length: int, scale: float) -> np.ndarray:
    shape = (batch, *(length if axis is None else axis for axis in kind.shape[1:]))
    dtype: Any = np.dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind.bound is not None:
        return rng.integers(0, kind.bound, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    array: np.ndarray = (scale * rng.standard_normal(shape)).astype(dtype)
    if kind.masked is not None and array.ndim > 2:
        array[::2, array.shape[1] // 2 :] = kind.masked
    return array


def tolerance(dtypes: Mapping[str, int] | Sequence[str], rtol: float, atol: float) -> tuple[float, float]:
    """The tolerance for the least exact dtype that a model computes in.

    float16 has 11 bits, bfloat16 8: sums of another order differ by some units of the last place.
    """
    names = " ".join(dtypes)
    if "bfloat16" in names:
        return max(rtol, 4e-2), max(atol, 4e-2)
    if "float16" in names:
        return max(rtol, 5e-3), max(atol, 5e-3)
    return rtol, atol
