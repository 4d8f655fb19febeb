"""Write Keras 3 weights and archives: groups by class and counter, each with the layer's name, values streamed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py

from ..assets import FOLDER
from ..checkpoint import Asset, Checkpoint, TensorSpec
from ..copying import copy_tensors, open_new
from ..errors import UnsupportedError
from ..keras3_groups import StoredGroup, stored_groups
from ..keras3_layout import is_keras3
from ..reading import OnProgress, Reader, asset_chunks
from ..transforms import OWN_CLASS
from ._hdf5_writing import allocate, writing
from ._window import WriteWindow
from ._zip_writing import MAX_NAME_BYTES, ZipWriter

Place = tuple[TensorSpec, int]  # a tensor and where its values go in the output, in bytes


def write_weights(reader: Reader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write a description as Keras 3 weights (`.weights.h5`), its values streamed from a reader.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : its configuration decides the groups; without one only files of the same layout can be written
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : no configuration, or a layer that Keras 3 does not have
    OSError : the file cannot be written
    """
    groups = list(stored_groups(checkpoint))
    with writing(), h5py.File(path, "w", locking=False) as file:
        places = _lay_out(file, groups, 0)
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        copy_tensors(reader, places, descriptor, on_progress)
    finally:
        os.close(descriptor)


def write_archive(reader: Reader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write a full model as a `.keras` archive, from a Keras 3 configuration as it is.

    Members are stored uncompressed and dated 1980, so that equal models give equal files.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : with the configuration of Keras 3
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : no configuration, or one of Keras 1 or 2
    OSError : the file cannot be written
    """
    config = json.dumps(archive_config(checkpoint))
    groups = list(stored_groups(checkpoint))
    with open_new(path) as file:
        archive = ZipWriter(file.fileno())
        archive.add("metadata.json", json.dumps(_metadata(checkpoint)).encode())
        archive.add("config.json", config.encode())
        wanted = sum(spec.nbytes for group in groups for spec in group.tensors)
        offset = archive.begin("model.weights.h5", wanted)
        window = WriteWindow(file.fileno(), offset)
        with writing(), h5py.File(window, "w") as weights:
            places = _lay_out(weights, groups, offset)
        window.check()
        copy_tensors(reader, places, file.fileno(), on_progress)
        archive.end()
        for name, asset in _asset_members(groups):
            archive.add_pieces(name, asset.nbytes, asset_chunks(reader, asset))
        archive.close()


def _asset_members(groups: Sequence[StoredGroup]) -> Iterator[tuple[str, Asset]]:
    """Name of the member, and asset file.

    Raises
    ------
    UnsupportedError : two files come to one place, or a name is not one that every reader of archives takes
    """
    seen: set[str] = set()
    for group in groups:
        for asset in group.assets:
            name = FOLDER + (f"{group.path}/" if group.path else "") + asset.place
            if "\\" in name or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
                raise UnsupportedError(f"the asset file {asset.locator!a} has a name that may not stand in an archive")
            if name in seen:
                raise UnsupportedError(f"the asset file {asset.locator!a} has no place of its own in the output")
            seen.add(name)
            yield name, asset


def archive_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of `config.json`.

    Raises
    ------
    UnsupportedError : no configuration, or one of Keras 1 or 2
    """
    text = checkpoint.config or dict(checkpoint.metadata).get(OWN_CLASS)
    if text is None or checkpoint.config_of:
        raise UnsupportedError(
            "holds no model configuration, which a '.keras' file needs; give it with --config, or write '.weights.h5'"
        )
    document = json.loads(text)
    if isinstance(document, str):
        document = json.loads(document)
    entry: Mapping[str, Any] = document.get("model_config", document) if "class_name" not in document else document
    if not is_keras3(entry):
        raise UnsupportedError(
            "its configuration is one of Keras 1 or 2, which no '.keras' file holds as it is; 'ckpttool migrate' makes "
            "one that Keras 3 loads"
        )
    result = {key: value for key, value in entry.items() if key != "compile_config"}
    result.setdefault("module", _module(entry))
    result.setdefault("registered_name", result["class_name"] if result["module"] not in ("keras",) else None)
    if checkpoint.training_config is not None:
        result["compile_config"] = json.loads(checkpoint.training_config)
    return result


def _module(entry: Mapping[str, Any]) -> str | None:
    """The module that Keras 3 notes beside its own two model classes."""
    return {"Functional": "keras.src.models.functional", "Sequential": "keras"}.get(str(entry.get("class_name")))


def _metadata(checkpoint: Checkpoint) -> dict[str, str]:
    major = checkpoint.written_by.keras_major
    version = checkpoint.written_by.keras if major is not None and major >= 3 else None
    saved = dict(checkpoint.metadata).get("date_saved") or time.strftime("%Y-%m-%d@%H:%M:%S")
    return {"keras_version": version or "3.0.0", "date_saved": saved}


def _lay_out(file: h5py.File, groups: Sequence[StoredGroup], base: int) -> list[Place]:
    """Make the groups, with the names that Keras notes since 3.6, and room for tensors; offsets count `base` in."""
    places: list[Place] = []
    for each in groups:
        for text in (each.path, each.title or "", *each.names):
            if not _is_utf8(text):
                raise UnsupportedError(f"the name {text!a} is no text of UTF-8, as Keras 3 needs it; write '.h5'")
        group = file.require_group(f"{each.path}/vars" if each.path else "vars")
        if each.title is not None:
            group.attrs["name"] = each.title
        for name, spec in each.named():
            offset = allocate(group, name, spec)
            if offset is not None:
                places.append((spec, base + offset))
    return places


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
