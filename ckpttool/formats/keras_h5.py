"""Legacy Keras HDF5: full models and weights of Keras 1 and 2, tf.keras, and Keras 3's `model.save("x.h5")`.

A full model keeps its weights in the group `model_weights`; in a weights-only file the root is that group. It has one
group for every layer of the model, weightless ones too; `layer_names` gives their order and `weight_names` of each the
order of its datasets, which is what loaders go by. A nested model is one group: all its weights in one flat list.
Source: keras/engine/saving.py (Keras 2.2.4), keras/src/legacy/saving/legacy_h5_format.py (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..assignment import assign
from ..checkpoint import Checkpoint, Layer, Notice, Role, TensorSpec, WrittenBy
from ..errors import CorruptCheckpointError, LimitExceededError, ReaderClosedError, UnsupportedError
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match, OnProgress
from ..reading import Reader as SourceReader
from ._hdf5 import Hdf5Dataset, Hdf5Group, numpy_dtype
from ._hdf5_datasets import DatasetInfo, extent_of, plain_blocks

__all__ = ["FORMAT", "Reader", "assign", "sniff", "write"]

FORMAT = "keras-h5"
OPTIMIZER_FROM = ("keras-h5",)  # formats whose optimizer state can be written: names and order are Keras's own
TOP_LEVEL = "top_level_model_weights"  # a group of the model's own variables, written since TF 2.10; not in layer_names
_ATTRIBUTES = frozenset(("model_config", "training_config", "keras_version", "backend", "layer_names"))


def sniff(probe: Probe) -> Match | None:
    """Recognise the layout by `layer_names`, `model_config` or what a save that died leaves."""
    file = probe.hdf5()
    if file is None:
        return None
    root = file.root
    if root.has_texts("layer_names"):
        return Match(FORMAT, "attribute 'layer_names' on the root")
    weights = root.group("model_weights")
    if weights is not None and (weights.has_texts("layer_names") or root.text("model_config") is not None):
        return Match(FORMAT, "group 'model_weights'")
    if root.text("keras_version") is not None and root.text("backend") is not None and not root.names():
        return Match(FORMAT, "attributes 'keras_version' and 'backend' without groups")
    if root.text("model_config") is not None:
        return Match(FORMAT, "attribute 'model_config' on the root")
    if weights is not None or _looks_cut_off(root):
        return Match(FORMAT, "groups of layers without 'layer_names'")
    return None


def _looks_cut_off(root: Hdf5Group) -> bool:
    """A save that failed at `layer_names` leaves groups with `weight_names` and nothing on the root."""
    groups = [group for name in root.names()[:3] if (group := root.group(name)) is not None]
    return bool(groups) and all(group.has_texts("weight_names") for group in groups)


class Reader(Closing):
    """One legacy Keras HDF5 file, opened through a probe."""

    def __init__(self, probe: Probe) -> None:
        file = probe.hdf5()
        if file is None:
            raise CorruptCheckpointError("not HDF5", path=probe.path)
        self._probe = probe
        self._file = file
        self._path = probe.path
        self._infos: dict[str, DatasetInfo] = {}  # by locator: a dataset is opened once for all that is asked of it

    def close(self) -> None:
        """Release the file."""
        self._infos.clear()
        self._probe.close()

    def describe(self) -> Checkpoint:
        """Groups as layers, in `layer_names` order, each with its flat list of tensors in `weight_names` order."""
        root = self._file.root
        config = root.text("model_config")
        listed = config is None and root.has_texts("layer_names")  # then a layer may have any name
        weights = root if listed else root.group("model_weights")
        if weights is None:
            if config is not None:
                raise CorruptCheckpointError("a model configuration without weights; it is incomplete", path=self._path)
            weights = root
        layer_names = weights.texts("layer_names")
        if layer_names is None:
            raise self._half_written(root, weights)
        if len(layer_names) > self._file.limits.max_layers:
            raise LimitExceededError(f"lists {len(layer_names):,} layers", path=self._path, limit="max_layers")
        if len(set(layer_names)) != len(layer_names):
            raise CorruptCheckpointError("'layer_names' names a layer twice; its save failed half-way", path=self._path)
        layers = tuple([self._layer(weights, name) for name in layer_names])
        own = self._tensors(weights.group(TOP_LEVEL), (TOP_LEVEL,), Role.WEIGHT)
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
            if role is Role.WEIGHT and prefix != (TOP_LEVEL,):
                raise CorruptCheckpointError(
                    f"{prefix[0]}: the group has no 'weight_names'; its save failed half-way (Keras 1 and 2.0 cannot "
                    "store more than 64 kB of names), try another copy",
                    path=self._path,
                )
            return ()
        if len(set(names)) != len(names):
            raise CorruptCheckpointError(
                f"{prefix[0]}: 'weight_names' names a tensor twice, so the file cannot say which is which; "
                "its save failed half-way, try another copy",
                path=self._path,
            )
        return tuple([self._tensor(group, name, prefix, role, place) for place, name in enumerate(names)])

    def _tensor(self, group: Hdf5Group, name: str, prefix: tuple[str, ...], role: Role, place: int) -> TensorSpec:
        dataset = group.dataset(name)
        if dataset is None:
            raise CorruptCheckpointError(
                f"{prefix[0]}: 'weight_names' lists '{name}', the group does not hold it; the file is incomplete, "
                "try another copy",
                path=self._path,
            )
        info = dataset.info()
        self._infos[dataset.path] = info
        return TensorSpec(
            (*prefix, *name.split("/")), info.shape, info.dtype, role, locator=dataset.path, position=place
        )

    def _half_written(self, root: Hdf5Group, weights: Hdf5Group) -> CorruptCheckpointError:
        version = root.text("keras_version")
        if root.names():
            cause = "Keras 1 and 2.0 cannot store more than 64 kB of layer names; try another copy"
            if version is not None and not version.startswith(("1.", "2.0.")):
                cause = "try another copy"
            return CorruptCheckpointError(f"half-written: no 'layer_names'; its save failed ({cause})", path=self._path)
        return CorruptCheckpointError(
            f"half-written: no layers; Keras {version or 'of that time'} failed while saving it "
            "(Keras up to 2.1 cannot save a multi-GPU model whole), so look for a weights file beside it",
            path=self._path,
        )

    def _foreign(
        self, root: Hdf5Group, weights: Hdf5Group, layer_names: tuple[str, ...], full: bool
    ) -> tuple[Notice, ...]:
        """Name what lies beside the model, since it is not carried along."""
        known = {name.split("/", 1)[0] for name in layer_names} | {TOP_LEVEL}
        beside = [name for name in weights.names() if name not in known]
        if full:
            beside += [name for name in root.names() if name not in ("model_weights", "optimizer_weights")]
        attributes = [*root.attribute_names(), *(weights.attribute_names() if full else ())]
        foreign = [
            name for name in attributes if name not in _ATTRIBUTES and name.rstrip("0123456789") != "layer_names"
        ]
        parts = [", ".join(sorted(beside)[:5])] if beside else []
        if foreign:
            parts.append(f"attributes {', '.join(sorted(set(foreign))[:5])}")
        if not parts:
            return ()
        return (Notice("foreign-content", f"beside the model the file holds {' and '.join(parts)}; left out"),)

    def _info(self, spec: TensorSpec) -> DatasetInfo:
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self._path)
        info = self._infos.get(spec.locator)
        if info is None:
            info = self._infos[spec.locator] = self._dataset(spec).info()
        return info

    def _dataset(self, spec: TensorSpec) -> Hdf5Dataset:
        dataset = self._file.root.dataset(spec.locator)
        if dataset is None:
            raise CorruptCheckpointError(f"holds no tensor '{spec.locator}'", path=self._path)
        return dataset

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        info = self._info(spec)
        if info.offset is not None and not info.unreadable:
            yield from plain_blocks(self._file, spec.locator, info, max_bytes)
        else:
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
        return extent_of(self._file, spec.locator, self._info(spec))


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write a description as a legacy Keras HDF5 file; see `_keras_h5_writing.write`, loaded only when it is used."""
    from ._keras_h5_writing import write as write_file

    write_file(reader, checkpoint, path, on_progress=on_progress)
