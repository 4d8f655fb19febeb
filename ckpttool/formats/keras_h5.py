"""Legacy Keras HDF5: full models and weights of Keras 1 and 2, tf.keras, and Keras 3's `model.save("x.h5")`.

A full model keeps its weights in the group `model_weights`; in a weights-only file the root is that group. It has one
group for every layer of the model, weightless ones too; `layer_names` gives their order and `weight_names` of each the
order of its datasets, which is what loaders go by. A nested model is one group: all its weights in one flat list.
Source: keras/engine/saving.py (Keras 2.2.4), keras/src/legacy/saving/legacy_h5_format.py (Keras 3.15).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np

from ..assignment import assign
from ..checkpoint import ITEM_BYTES, Checkpoint, Layer, Notice, Role, TensorSpec, WrittenBy
from ..copying import copy_tensor
from ..errors import CorruptCheckpointError, LimitExceededError, ReaderClosedError, UnsupportedError
from ..flat_order import default_order
from ..keras_config import LayerConfig, ModelConfig
from ..probe import Probe
from ..reading import BLOCK_BYTES, Extent, Match, OnProgress, Progress
from ..reading import Reader as SourceReader
from ..transforms import model_config
from ._hdf5 import Hdf5Dataset, Hdf5Group, numpy_dtype, writing

__all__ = ["FORMAT", "Reader", "assign", "sniff", "write"]

FORMAT = "keras-h5"
ATTRIBUTE_LIMIT_BYTES = 64_512  # Keras splits a longer list into name0, name1 (legacy_h5_format.py, Keras 3.15)


def sniff(probe: Probe) -> Match | None:
    """Recognise the layout by `layer_names`, `model_config` or what a save that died leaves."""
    file = probe.hdf5()
    if file is None:
        return None
    root = file.root
    if _has_list(root, "layer_names"):
        return Match(FORMAT, "attribute 'layer_names' on the root")
    weights = root.group("model_weights")
    if weights is not None and (_has_list(weights, "layer_names") or root.text("model_config") is not None):
        return Match(FORMAT, "group 'model_weights'")
    if root.text("keras_version") is not None and root.text("backend") is not None and not root.names():
        return Match(FORMAT, "attributes 'keras_version' and 'backend' without groups")
    if root.text("model_config") is not None:
        return Match(FORMAT, "attribute 'model_config' on the root")
    return None


def _has_list(group: Hdf5Group, name: str) -> bool:
    return group.texts(name) is not None


class Reader:
    """One legacy Keras HDF5 file, opened through a probe."""

    def __init__(self, probe: Probe) -> None:
        file = probe.hdf5()
        if file is None:
            raise CorruptCheckpointError("not HDF5", path=probe.path)
        self._probe = probe
        self._file = file
        self._path = probe.path
        self._datasets: dict[str, Hdf5Dataset] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self._datasets.clear()
        self._probe.close()

    def describe(self) -> Checkpoint:
        """Groups as layers, in `layer_names` order, each with its flat list of tensors in `weight_names` order."""
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self._path)
        root = self._file.root
        config = root.text("model_config")
        weights = root.group("model_weights")
        if weights is None:
            if config is not None:
                raise CorruptCheckpointError("a model configuration without weights; it is incomplete", path=self._path)
            weights = root
        layer_names = weights.texts("layer_names")
        if layer_names is None:
            raise self._half_written(root)
        if len(layer_names) > self._file.limits.max_layers:
            raise LimitExceededError(f"lists {len(layer_names):,} layers", path=self._path)
        if len(set(layer_names)) != len(layer_names):
            raise CorruptCheckpointError("'layer_names' names a layer twice; its save failed half-way", path=self._path)
        layers = tuple(self._layer(weights, name) for name in layer_names)
        own = self._tensors(weights.group("top_level_model_weights"), ("top_level_model_weights",), Role.WEIGHT)
        slots = self._tensors(root.group("optimizer_weights"), ("optimizer",), Role.OPTIMIZER) if config else ()
        return Checkpoint(
            format=FORMAT,
            container="hdf5",
            kind="model" if config is not None else "weights",
            layers=layers,
            loose=(*own, *slots),
            config=config,
            written_by=WrittenBy(
                keras=root.text("keras_version") or weights.text("keras_version"),
                backend=root.text("backend") or weights.text("backend"),
            ),
            training_config=root.text("training_config"),
            warnings=self._foreign(root, weights, layer_names, config is not None),
        )

    def _layer(self, weights: Hdf5Group, name: str) -> Layer:
        group = weights.group(name)
        if group is None:
            raise CorruptCheckpointError(
                f"'layer_names' lists '{name}', but there is no such group; the file is incomplete", path=self._path
            )
        return Layer(name, tensors=self._tensors(group, (name,), Role.WEIGHT))

    def _tensors(self, group: Hdf5Group | None, prefix: tuple[str, ...], role: Role) -> tuple[TensorSpec, ...]:
        if group is None:
            return ()
        names = group.texts("weight_names")
        if names is None:
            if role is Role.WEIGHT and prefix != ("top_level_model_weights",):
                raise CorruptCheckpointError(
                    f"{prefix[0]}: the group has no 'weight_names'; its save failed half-way, try another copy",
                    path=self._path,
                )
            return ()
        if len(set(names)) != len(names):
            raise CorruptCheckpointError(
                f"{prefix[0]}: 'weight_names' names a tensor twice, so the file cannot say which is which; "
                "its save failed half-way, try another copy",
                path=self._path,
            )
        return tuple(self._tensor(group, name, prefix, role, place) for place, name in enumerate(names))

    def _tensor(self, group: Hdf5Group, name: str, prefix: tuple[str, ...], role: Role, place: int) -> TensorSpec:
        dataset = group.dataset(name)
        if dataset is None:
            raise CorruptCheckpointError(
                f"{prefix[0]}: 'weight_names' lists '{name}', the group does not hold it; the file is incomplete, "
                "try another copy",
                path=self._path,
            )
        info = dataset.info()
        path = (*prefix, *name.split("/"))
        return TensorSpec(path, info.shape, info.dtype, role, locator=dataset.path, position=place)

    def _half_written(self, root: Hdf5Group) -> CorruptCheckpointError:
        reason = "no 'layer_names'" if root.names() else "no layers"
        version = root.text("keras_version")
        return CorruptCheckpointError(
            f"half-written: {reason}; Keras {version or 'of that time'} failed while saving it "
            "(Keras up to 2.1 cannot save a multi-GPU model whole), so look for a weights file beside it",
            path=self._path,
        )

    def _foreign(
        self, root: Hdf5Group, weights: Hdf5Group, layer_names: tuple[str, ...], full: bool
    ) -> tuple[Notice, ...]:
        """Name what lies beside the model, since it is not carried along."""
        known = {name.split("/", 1)[0] for name in layer_names} | {"top_level_model_weights"}
        beside = [name for name in weights.names() if name not in known]
        if full:
            beside += [name for name in root.names() if name not in ("model_weights", "optimizer_weights")]
        if not beside:
            return ()
        shown = ", ".join(sorted(beside)[:5])
        return (Notice("foreign-content", f"beside the model the file holds {shown}; it is left out"),)

    def _dataset(self, spec: TensorSpec) -> Hdf5Dataset:
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self._path)
        dataset = self._file.root.dataset(spec.locator)
        if dataset is None:
            raise CorruptCheckpointError(f"holds no tensor '{spec.locator}'", path=self._path)
        return dataset

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        yield from self._dataset(spec).blocks(max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        blocks = list(self.iter_blocks(spec))
        dtype = numpy_dtype(spec.dtype)
        joined = np.concatenate(blocks) if blocks else np.empty(0, dtype)
        if joined.size != spec.size:
            raise UnsupportedError(f"{spec.name}: {joined.size} values for shape {spec.shape}", path=self._path)
        return joined.reshape(spec.shape)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie in the file, or None where they are chunked, compressed or big-endian."""
        return self._dataset(spec).extent()


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write a description as a legacy Keras HDF5 file, its values streamed from a reader.

    A full model where the description holds a configuration, else weights. Each top-level layer becomes one group; a
    nested model's tensors go in the order that a loader expects: trainable ones first, by the configuration's flags.
    Text attributes are bytes: Keras up to 2.3 and tf.keras up to 2.4 call `decode` on what they read.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : layers and configuration to write; loose tensors of the role OPTIMIZER are not written
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : a tensor's dtype or a name has no place in the format
    OSError : the file cannot be written
    """
    places: list[tuple[TensorSpec, int]] = []
    with writing(), h5py.File(path, "w") as file:
        full = checkpoint.config is not None
        root = file.create_group("model_weights") if full else file
        for holder in {id(file): file, id(root): root}.values():
            _write_versions(holder, checkpoint.written_by)
        if full:
            file.attrs["model_config"] = _ascii(checkpoint.config or "")
        listed = _listed(checkpoint)
        _write_names(root, "layer_names", [_checked(layer.name) for layer in listed.layers])
        for layer, tensors in zip(listed.layers, group_tensors(listed), strict=True):
            group = _require_group(root, _checked(layer.name))
            named = list(_weight_names(layer, tensors))
            _write_names(group, "weight_names", [name for name, _ in named])
            for name, spec in named:
                dataset = _allocate(group, name, spec)
                if spec.nbytes:
                    places.append((spec, dataset.get_offset()))
    _fill(reader, path, places, on_progress)


def _listed(checkpoint: Checkpoint) -> Checkpoint:
    """Without a Sequential's InputLayer, which is in its configuration since TF 2.3 and in `model.layers` never."""
    model = model_config(checkpoint)
    if model is None or model.class_name != "Sequential":
        return checkpoint
    return replace(checkpoint, layers=tuple(each for each in checkpoint.layers if each.class_name != "InputLayer"))


def _fill(
    reader: SourceReader, path: Path, places: list[tuple[TensorSpec, int]], on_progress: OnProgress | None
) -> None:
    """Put the values where the closed file has room for them; HDF5 itself would copy each block twice."""
    total = sum(spec.nbytes for spec, _ in places)
    done = 0
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        for spec, offset in places:
            done += copy_tensor(reader, spec, descriptor, offset)
            if on_progress is not None:
                on_progress(Progress(done, total, spec.name))
    finally:
        os.close(descriptor)


def group_tensors(checkpoint: Checkpoint) -> Iterator[list[TensorSpec]]:
    """For each top-level layer, its tensors in the order of the group's flat list."""
    model = model_config(checkpoint)
    for layer in checkpoint.layers:
        config = model.layer(layer.name) if model is not None else None
        tensors = list(layer.all_tensors())
        if layer.layers:
            tensors = _flattened(config, tensors)
        yield tensors


def _flattened(config: LayerConfig | None, tensors: list[TensorSpec]) -> list[TensorSpec]:
    """By the configuration's flags where every class is Keras's own, else as they were stored."""
    if config is not None:
        order = default_order(ModelConfig("Model", None, (config,)))
        by_path = {spec.path: spec for spec in tensors}
        paths = [(*slot.layer, *slot.variable.path) for slot in order]
        if len(set(paths)) == len(paths) == len(tensors) and set(paths) == set(by_path):
            return [by_path[each] for each in paths]
    if all(spec.position is not None for spec in tensors):
        return sorted(tensors, key=lambda spec: spec.position or 0)
    return tensors


def _weight_names(layer: Layer, tensors: list[TensorSpec]) -> Iterator[tuple[str, TensorSpec]]:
    """Names as Keras 2 gives them: `dense_1/kernel:0`; inside a nested model without the model's own scope."""
    seen: set[str] = set()
    for spec in tensors:
        parts = spec.path[1:] if layer.layers else spec.path
        base = "/".join(parts)
        name, number = f"{base}:0", 1
        while name in seen:
            name, number = f"{base}_{number}:0", number + 1
        seen.add(name)
        yield _checked(name), spec


def _checked(name: str) -> str:
    if any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
        raise UnsupportedError(f"the name '{name}' cannot be a path in HDF5")
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UnsupportedError(f"the name {name!a} holds half a character, which HDF5 cannot store") from None
    return name


def _require_group(root: h5py.Group, name: str) -> h5py.Group:
    """The group at a path, made where it is missing; h5py's own function takes no names but UTF-8."""
    place = root.id
    for part in name.encode("utf-8", "surrogateescape").split(b"/"):
        place = h5py.h5g.open(place, part) if place.links.exists(part) else h5py.h5g.create(place, part)
    return h5py.Group(place)


def _allocate(group: h5py.Group, name: str, spec: TensorSpec) -> h5py.h5d.DatasetID:
    """A contiguous dataset with room for its values and nothing written yet."""
    if spec.dtype not in ITEM_BYTES:
        raise UnsupportedError(f"{spec.name}: HDF5 of Keras holds no {spec.dtype} tensors")
    dtype = np.dtype(f"V{ITEM_BYTES[spec.dtype]}") if spec.dtype.startswith(("bfloat", "float8")) else spec.dtype
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # equal inputs give equal files
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(spec.shape) if spec.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    return h5py.h5d.create(group.id, name.encode("utf-8", "surrogateescape"), kind, space, properties, links)


def _write_versions(holder: h5py.Group, written_by: WrittenBy) -> None:
    if written_by.keras is not None:
        holder.attrs["keras_version"] = _ascii(written_by.keras)
    if written_by.backend is not None:
        holder.attrs["backend"] = _ascii(written_by.backend)


def _ascii(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _write_names(group: h5py.Group, attribute: str, names: list[str]) -> None:
    """A list attribute, cut into `name0`, `name1` … where HDF5 could not hold it whole.

    Source: keras/engine/saving.py, `save_attributes_to_hdf5_group` (Keras 2.2.4): even parts, as few as fit.
    """
    encoded = np.array([name.encode("utf-8", "surrogateescape") for name in names])
    if not names:
        group.attrs[attribute] = np.array([], np.float64)
        return
    if encoded.dtype.itemsize > ATTRIBUTE_LIMIT_BYTES:
        raise UnsupportedError(f"a name of {encoded.dtype.itemsize:,} bytes is too long for an HDF5 attribute")
    parts = 1
    while any(piece.nbytes > ATTRIBUTE_LIMIT_BYTES for piece in np.array_split(encoded, parts)):
        parts += 1
    if parts == 1:
        group.attrs[attribute] = encoded
        return
    for number, piece in enumerate(np.array_split(encoded, parts)):
        group.attrs[f"{attribute}{number}"] = piece
