"""Write legacy Keras HDF5: what `keras_h5` reads.

The structure is written through HDF5, with room for the values; the values then go straight into the closed file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from ..checkpoint import Checkpoint, Layer, Role, TensorSpec
from ..copying import copy_tensors
from ..errors import UnsupportedError
from ..flat_order import default_order
from ..keras3_groups import KERAS3_FORMATS
from ..keras_config import LayerConfig, ModelConfig
from ..migration.generation import generation_of
from ..reading import OnProgress
from ..reading import Reader as SourceReader
from ..transforms import model_config
from ..weight_names import is_keras1_array
from ._hdf5_writing import allocate, writing

ATTRIBUTE_LIMIT_BYTES = 64_512  # Keras splits a longer list into name0, name1 (legacy_h5_format.py, Keras 3.15)
LAYOUT_VERSIONS = {2: "2.15.0", 3: "3.0.0"}  # by generation, where a source states none: the layout did not change
_HOLDING_CELLS = ("RNN", "Bidirectional", "TimeDistributed")  # of whose parts some may be frozen
TOP_LEVEL = "top_level_model_weights"  # a group of the model's own variables; it is not in layer_names


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write a description as a legacy Keras HDF5 file, its values streamed from a reader.

    A full model where the description holds a configuration, else weights. Each top-level layer becomes one group; a
    nested model's tensors go in the order that a loader expects: trainable ones first, by the configuration's flags.
    Text attributes are bytes: Keras up to 2.3 and tf.keras up to 2.4 call `decode` on what they read.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : layers and configuration to write; optimizer state and `training_config` too, where it has them
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : a tensor's dtype or a name has no place in the format
    OSError : the file cannot be written
    """
    places: list[tuple[TensorSpec, int]] = []
    with writing(), h5py.File(path, "w", locking=False) as file:
        full = checkpoint.config is not None
        root = file.create_group("model_weights") if full else file
        for holder in {id(file): file, id(root): root}.values():
            _write_versions(holder, *_versions(checkpoint))
        if checkpoint.config is not None:
            file.attrs["model_config"] = _ascii(checkpoint.config)
            if checkpoint.training_config is not None:
                file.attrs["training_config"] = _ascii(checkpoint.training_config)
        listed = _listed(checkpoint)
        _write_names(root, "layer_names", [_checked(layer.name) for layer in listed.layers])
        for layer, tensors in zip(listed.layers, group_tensors(listed), strict=True):
            group = _require_group(root, layer.name)
            places += _write_group(group, list(_weight_names(layer, tensors)))
        loose = [spec for spec in checkpoint.loose if spec.role is Role.WEIGHT]
        if loose:
            places += _write_group(root.create_group(TOP_LEVEL), _stored_names(loose))
        slots = checkpoint.optimizer_tensors()
        if slots and full:
            places += _write_group(file.create_group("optimizer_weights"), _stored_names(slots))
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        copy_tensors(reader, places, descriptor, on_progress)
    finally:
        os.close(descriptor)


def _listed(checkpoint: Checkpoint) -> Checkpoint:
    """Without a Sequential's InputLayer, which is in its configuration since TF 2.3 and in `model.layers` never."""
    model = model_config(checkpoint)
    if model is None or model.class_name != "Sequential":
        return checkpoint
    return replace(checkpoint, layers=tuple(each for each in checkpoint.layers if each.class_name != "InputLayer"))


def _write_group(group: h5py.Group, named: Sequence[tuple[str, TensorSpec]]) -> list[tuple[TensorSpec, int]]:
    """`weight_names` and a dataset for each; returns the offsets where values have to go."""
    _write_names(group, "weight_names", [name for name, _ in named])
    places: list[tuple[TensorSpec, int]] = []
    for name, spec in named:
        offset = allocate(group, name, spec)
        if offset is not None:
            places.append((spec, offset))
    return places


def _stored_names(specs: Sequence[TensorSpec]) -> list[tuple[str, TensorSpec]]:
    """Loose tensors keep the names they were stored by, without the group in front."""
    return [(_checked("/".join(spec.path[1:] or spec.path)), spec) for spec in specs]


def group_tensors(checkpoint: Checkpoint) -> Iterator[list[TensorSpec]]:
    """For each top-level layer, its tensors in the order of the group's flat list."""
    model = model_config(checkpoint)
    for layer in checkpoint.layers:
        config = model.layer(layer.name) if model is not None else None
        tensors = list(layer.all_tensors())
        if checkpoint.format in KERAS3_FORMATS and any(spec.path[-1].endswith("_scale") for spec in tensors):
            tensors = _quantized_last(layer)
        elif layer.layers:
            tensors = _flattened(config, tensors)
        elif config is not None and config.class_name in _HOLDING_CELLS:
            tensors = _by_flags(config, tensors) or tensors
        yield tensors


def _quantized_last(layer: Layer) -> list[TensorSpec]:
    """Layers that Keras 3 quantized: biases are trained, integers and scales not; of float8 the scales come first.

    Source: the order in which keras/src/layers/core/dense.py of Keras 3.15 makes variables when it is built quantized.
    """
    ordered: list[tuple[int, TensorSpec]] = []
    for _, each in layer.walk():
        float8 = any(spec.path[-1].endswith("_amax_history") for spec in each.tensors)
        scales = [spec for spec in each.tensors if float8 and not spec.trainable]
        for spec in (*scales, *(spec for spec in each.tensors if spec not in scales)):
            trained = each.trainable is not False and (spec.trainable or float8)
            ordered.append((0 if trained else 1, spec))
    return [spec for _, spec in sorted(ordered, key=_rank)]


def _rank(pair: tuple[int, TensorSpec]) -> int:
    return pair[0]


def _flattened(config: LayerConfig | None, tensors: list[TensorSpec]) -> list[TensorSpec]:
    """By the configuration's flags where every class is Keras's own, else as they were stored."""
    found = _by_flags(config, tensors) if config is not None else None
    if found is not None:
        return found
    if all(spec.position is not None for spec in tensors):
        return sorted(tensors, key=lambda spec: spec.position or 0)
    return tensors


def _by_flags(config: LayerConfig, tensors: list[TensorSpec]) -> list[TensorSpec] | None:
    """The order that a loader expects, where the tensors are those of Keras's own classes."""
    order = default_order(ModelConfig("Model", None, (config,)))
    by_path = {spec.path: spec for spec in tensors}
    paths = [(*slot.layer, *slot.variable.path) for slot in order]
    if len(set(paths)) == len(paths) == len(tensors) and set(paths) == set(by_path):
        return [by_path[each] for each in paths]
    return None


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
        raise UnsupportedError(f"the name '{name}' cannot be a path in HDF5; write '.safetensors'")
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


def _versions(checkpoint: Checkpoint) -> tuple[str | None, str | None]:
    """Keras's version and backend: as the source states them, else those whose layout the tensors have.

    Every loader takes a file without a version for one of Keras 1 and turns kernels of transposed convolutions, splits
    Bidirectional layers and joins gates while it loads (keras/engine/saving.py, `preprocess_weights_for_loading`,
    2.2.4; keras/src/legacy/saving/legacy_h5_format.py, 3.15). TensorFlow's formats, `.npz` and `.safetensors` state
    none; only legacy HDF5 of Keras 1 means that by it.
    """
    written_by = checkpoint.written_by
    if written_by.keras is not None or checkpoint.format == "keras-h5" or _is_keras1(checkpoint):
        return written_by.keras, written_by.backend
    model = model_config(checkpoint)
    return LAYOUT_VERSIONS[
        generation_of(checkpoint, model) if model is not None else 2
    ], written_by.backend or "tensorflow"


def _is_keras1(checkpoint: Checkpoint) -> bool:
    """Whether a model is Keras 1's by its configuration or by arrays of single gates."""
    model = model_config(checkpoint)
    if model is not None and generation_of(checkpoint, model) == 1:
        return True
    return any(is_keras1_array(spec.path[-1]) for spec in checkpoint.weights())


def _write_versions(holder: h5py.Group, keras: str | None, backend: str | None) -> None:
    if keras is not None:
        holder.attrs["keras_version"] = _ascii(keras)
    if backend is not None:
        holder.attrs["backend"] = _ascii(backend)


def _ascii(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _write_names(group: h5py.Group, attribute: str, names: list[str]) -> None:
    """A list attribute, cut into `name0`, `name1` … where HDF5 could not hold it whole.

    Source: keras/engine/saving.py, `save_attributes_to_hdf5_group` (Keras 2.2.4): even parts, as few as fit.
    """
    encoded = np.array([name.encode("utf-8", "surrogateescape") for name in names])
    if not names:
        _write_list(group, attribute, np.array([], np.float64))
        return
    if encoded.dtype.itemsize > ATTRIBUTE_LIMIT_BYTES:
        raise UnsupportedError(f"a name of {encoded.dtype.itemsize:,} bytes is too long for HDF5; write '.safetensors'")
    parts = 1
    while any(piece.nbytes > ATTRIBUTE_LIMIT_BYTES for piece in np.array_split(encoded, parts)):
        parts += 1
    if parts == 1:
        _write_list(group, attribute, encoded)
        return
    for number, piece in enumerate(np.array_split(encoded, parts)):
        _write_list(group, f"{attribute}{number}", piece)


def _write_list(group: h5py.Group, attribute: str, values: np.ndarray) -> None:
    """As `group.attrs[attribute] = values`, in a third of the time."""
    kind, space = h5py.h5t.py_create(values.dtype, logical=True), h5py.h5s.create_simple(values.shape)
    h5py.h5a.create(group.id, attribute.encode(), kind, space).write(values)
