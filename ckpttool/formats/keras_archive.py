"""Keras archives: the `.keras` zip of Keras 3 and tf.keras 2.12 to 2.15, and the folder of `save(zipped=False)`.

Members are `metadata.json`, `config.json`, `model.weights.h5` and assets, all stored uncompressed, so the HDF5 inside
is read in place. Files that zip tools packed again are inflated once, into an unnamed temporary file.
Source: keras/src/saving/saving_lib.py, `_save_model_to_fileobj` and `_save_model_to_dir` (Keras 3.15).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..assets import FOLDER, with_assets
from ..checkpoint import Asset, Checkpoint, Notice, TensorSpec, WrittenBy
from ..errors import (
    ConfigError,
    CorruptCheckpointError,
    LimitExceededError,
    UnreadableError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ..keras3_assignment import assign
from ..keras_config import is_model_entry
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match
from ..transforms import OWN_CLASS
from ._hdf5 import Hdf5File
from ._keras3_writing import write_archive as write
from .keras_weights import Reader as WeightsReader
from .keras_weights import open_window

__all__ = ["FORMAT", "Reader", "assign", "sniff", "write"]

FORMAT = "keras-archive"
OPTIMIZER_FROM = ("keras-weights", "keras-archive")
HOLDS_ASSETS = True
CONFIG, METADATA = "config.json", "metadata.json"
WEIGHTS = ("model.weights.h5", "variables.h5")  # the latter: the experimental archive of TF 2.11
PICKLED_WEIGHTS = "model.weights.npz"
MAX_METADATA_BYTES = 2**20  # two short strings; it is read before anything is known about the file


def sniff(probe: Probe) -> Match | None:
    """Recognise the member names."""
    if probe.is_dir:
        found = _weights_name(probe.names)
        return Match(FORMAT, f"folder with {CONFIG} and {found}") if found and CONFIG in probe.names else None
    archive = probe.zip()
    found = None if archive is None else _weights_name(archive.members)
    return Match(FORMAT, f"zip with {CONFIG} and {found}") if archive and found and CONFIG in archive.members else None


def _weights_name(names: Any) -> str | None:
    return next((name for name in (*WEIGHTS, PICKLED_WEIGHTS) if name in names), None)


class Reader(Closing):
    """One Keras archive."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._path = probe.path
        self._archive = probe.zip()
        names: Any = probe.names if self._archive is None else self._archive.members
        try:
            self._assets = list(self._asset_files())
            self._config = self._text(CONFIG, probe.limits.max_config_bytes)
            self._metadata = self._mapping(METADATA, MAX_METADATA_BYTES) if METADATA in names else {}
            self._weights = self._open_weights(_weights_name(names))
        except BaseException:
            self.close()
            raise

    def _asset_files(self) -> Iterator[Asset]:
        """All asset files, in the order of the archive or of their names in the folder.

        Raises
        ------
        LimitExceededError : more files than the bounds, or folders in folders
        """
        limits = self._probe.limits
        for number, (name, size) in enumerate(self._member_names()):
            if number >= limits.max_objects:
                raise LimitExceededError("holds too many asset files", path=self._path, limit="max_objects")
            if name.count("/") > limits.max_depth:
                raise LimitExceededError("nests its asset files too deep", path=self._path, limit="max_depth")
            yield Asset(name.removeprefix(FOLDER), size, name)

    def _member_names(self) -> Iterator[tuple[str, int]]:
        """Name and size of each asset file."""
        if self._archive is not None:
            for name, member in self._archive.members.items():
                if name.startswith(FOLDER) and not name.endswith("/"):
                    yield name, member.size_bytes
            return
        for folder, folders, names in os.walk(self._path / FOLDER, onerror=self._unlisted):
            folders.sort()
            for name in sorted([*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]):
                path = Path(folder, name)  # what is no file is listed too, and cannot be read
                yield path.relative_to(self._path).as_posix(), path.stat().st_size if path.is_file() else 0

    def _unlisted(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise UnreadableError(f"its asset files cannot be listed: {error.strerror}", path=self._path) from error

    def asset_chunks(self, asset: Asset) -> Iterator[bytes]:
        """The bytes of an asset file as they come; a member of an archive is counted and checked against its checksum.

        Raises
        ------
        CorruptCheckpointError, LimitExceededError : other or more bytes than the archive says
        UnsafeCheckpointError : a link that leads out of the folder, or what is no file
        """
        if self._archive is not None:
            yield from self._archive.chunks(asset.locator)
            return
        path = self._path / asset.locator
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._path)):
            raise UnsafeCheckpointError(
                f"the asset file '{asset.locator}' is a link out of the folder; copy the folder with its links "
                "followed (cp -rL) and give the copy",
                path=self._path,
            )
        if not path.is_file():
            raise UnsafeCheckpointError(
                f"the asset file '{asset.locator}' is no file, but a link to a folder or nothing, a pipe or a device",
                path=self._path,
            )
        done = 0
        try:
            with path.open("rb") as file:
                while chunk := file.read(BLOCK_BYTES):
                    done += len(chunk)
                    yield chunk
        except OSError as error:
            raise UnreadableError(f"'{asset.locator}' cannot be read: {error.strerror}", path=self._path) from error
        if done != asset.nbytes:
            raise CorruptCheckpointError(
                f"the asset file '{asset.locator}' became another while it was read; try again", path=self._path
            )

    def _open_weights(self, name: str | None) -> WeightsReader:
        if name == PICKLED_WEIGHTS:
            raise UnsupportedError(
                f"its weights are pickled ({PICKLED_WEIGHTS}), which ckpttool never loads; save it again in Keras with "
                "the default weights format",
                path=self._path,
            )
        if name is None:
            raise CorruptCheckpointError("the archive holds no weights", path=self._path)
        if self._archive is None:
            return open_window(self._probe, Hdf5File(self._path / name, self._probe.limits))
        window = self._archive.window(name, verify=self._probe.options.checksums)
        return open_window(self._probe, Hdf5File(self._path, self._probe.limits, window))

    def _text(self, name: str, max_bytes: int) -> str:
        if self._archive is not None:
            data = self._archive.read(name, max_bytes)
        else:
            if (self._path / name).exists() and not (self._path / name).is_file():
                raise UnreadableError(f"'{name}' is no file", path=self._path)
            try:
                with (self._path / name).open("rb") as file:
                    data = file.read(max_bytes + 1)
            except OSError as error:
                raise UnreadableError(f"'{name}' cannot be read: {error.strerror}", path=self._path) from error
            if len(data) > max_bytes:
                raise LimitExceededError(f"'{name}' is larger than {max_bytes:,} bytes", path=self._path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"'{name}' is not UTF-8 text", path=self._path) from error

    def _mapping(self, name: str, max_bytes: int) -> Mapping[str, Any]:
        return _parsed(self._text(name, max_bytes), name, self._path)

    def close(self) -> None:
        """Release the archive."""
        if hasattr(self, "_weights"):
            self._weights.close()
        self._probe.close()

    def verify(self) -> None:
        """Compare the checksum of the weights, of which the parts that were copied are known.

        Raises
        ------
        CorruptCheckpointError : it does not fit
        """
        if self._archive is not None:
            self._archive.verify()

    def describe(self) -> Checkpoint:
        """The groups as a tree of layers called after their groups, with the archive's configuration."""
        stored = with_assets(self._weights.describe(), self._assets)
        entry = _parsed(self._config, CONFIG, self._path)
        nests = is_model_entry(entry)
        compiled = entry.get("compile_config")
        version = self._metadata.get("keras_version")
        return replace(
            stored,
            format=FORMAT,
            container="folder" if self._archive is None else "zip",
            kind="model",
            config=self._config if nests else None,
            written_by=WrittenBy(keras=version if isinstance(version, str) else None),
            training_config=json.dumps(compiled) if compiled else None,
            metadata=(*stored.metadata, *self._kept(entry, nests)),
            warnings=(*stored.warnings, *self._warnings(entry, nests)),
        )

    def _kept(self, entry: Mapping[str, Any], nests: bool) -> Iterator[tuple[str, str]]:
        date = self._metadata.get("date_saved")
        if isinstance(date, str):
            yield "date_saved", date
        if not nests:
            yield OWN_CLASS, json.dumps(entry)

    def _warnings(self, entry: Mapping[str, Any], nests: bool) -> Iterator[Notice]:
        if not nests:
            name = entry.get("class_name")
            yield Notice(
                "own-class", f"the model is of the class '{name}', whose code holds its structure: the file does not"
            )

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        return self._weights.iter_blocks(spec, max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        return self._weights.read(spec)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie in the archive, or None where they must be decoded or were inflated."""
        return self._weights.extent(spec)


def _parsed(text: str, name: str, path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise LimitExceededError(f"'{name}' is nested too deep", path=path) from None
    except ValueError as error:
        raise ConfigError(f"'{name}' is not JSON ({error})", path=path) from error
    if not isinstance(document, Mapping):
        raise ConfigError(f"'{name}' holds no object", path=path)
    return document
