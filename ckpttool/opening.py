"""`open_checkpoint`: the only function that turns a path into a Reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import Checkpoint
from .errors import AmbiguousFormatError, ConfigError, UsageError
from .limits import Limits
from .probe import Probe
from .reading import Match, Reader, ReadOptions, View
from .registry import CONTAINERS, FOLDER_SIGNS, FORMATS, TENSORFLOW_FORMATS, format_module

if TYPE_CHECKING:
    from .keras_config import ModelConfig


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    format_name: str | None = None,
    config: str | os.PathLike[str] | None = None,
    limits: Limits = Limits(),
    read: ReadOptions = ReadOptions(),
) -> NamedReader:
    """Open a checkpoint for reading, whatever its suffix says.

    Parameters
    ----------
    path : a file or folder
    format_name : one of the formats' names, where several recognise the content
    config : a file with the model's configuration: JSON, or another checkpoint that holds one
    limits : bounds that the file must stay in
    read : which step, replica or averages to read, and whether checksums are verified

    Returns
    -------
    a context manager with `describe`, `read`, `iter_blocks` and `extent`; its tensors have the model's names

    Raises
    ------
    CheckpointNotFoundError, UnreadableError : there is no such file, or it cannot be read
    UnknownFormatError, AmbiguousFormatError : no format recognises it, or several do
    CheckpointError : whatever else is wrong with it
    """
    given = None if config is None else read_config(config, limits)
    probe = Probe(path, limits, read)
    try:
        match = recognise(probe, format_name)
        if read.step is not None and match.format not in TENSORFLOW_FORMATS:
            raise UsageError("holds one model and no steps to choose from (--step)", path=path)
        module = format_module(match.format)
        reader: Reader = module.Reader(probe)
    except BaseException:
        probe.close()
        raise
    return NamedReader(reader, getattr(module, "assign", _as_described), Path(path), given, limits)


def recognise(probe: Probe, format_name: str | None = None) -> Match:
    """Ask every format; exactly one must answer.

    Raises
    ------
    UnknownFormatError : none does
    AmbiguousFormatError : several do, and none was named
    UsageError : the named format does not exist or does not recognise the content
    """
    if format_name is not None and format_name not in FORMATS:
        raise UsageError(f"unknown format '{format_name}'; formats are {', '.join(FORMATS)}")
    tried = list(FORMATS) if format_name is None else [format_name]
    asked = [name for name in tried if _may_fit(probe, name)]
    matches = [match for name in asked if (match := format_module(name).sniff(probe)) is not None]
    if not matches:
        if format_name is not None:
            raise UsageError(f"not recognised as {format_name}", path=probe.path)
        raise probe.unknown(tried)
    if len(matches) > 1:
        found = "; ".join(f"{match.format} ({match.reason})" for match in matches)
        raise AmbiguousFormatError(f"several formats fit: {found}; choose with --format NAME", path=probe.path)
    only: Match = matches[0]
    return only


def _may_fit(probe: Probe, name: str) -> bool:
    """Whether the format is worth asking, as far as the first bytes and the names in the folder tell."""
    container = probe.container()
    if name in TENSORFLOW_FORMATS:
        if container in ("hdf5", "zip") and ".data-" not in probe.path.name:
            return False  # a data file may begin with any bytes; nothing else of TensorFlow's begins with these
        place = probe.tensorflow()
        return place is not None and place.kind == name
    if container == "folder" and name in FOLDER_SIGNS and FOLDER_SIGNS[name] not in probe.names:
        return False
    return container in CONTAINERS.get(name, (container,))


def read_config(path: str | os.PathLike[str], limits: Limits = Limits()) -> ModelConfig:
    """The model configuration in a file of JSON or YAML, or in another checkpoint.

    Raises
    ------
    ConfigError : the file holds none
    """
    from .keras_config import parse_config
    from .keras_yaml import looks_like_yaml

    probe = Probe(path, limits)
    if probe.head.lstrip()[:1] in (b"{", b'"'):
        if probe.size_bytes > limits.max_config_bytes:
            raise ConfigError("too large for a model configuration", path=path)
        return parse_config(Path(path).read_text("utf-8", "surrogateescape"), limits, path=path)
    if looks_like_yaml(probe.head):
        from .keras_yaml import to_json

        if probe.size_bytes > limits.max_config_bytes:
            raise ConfigError("too large for a model configuration", path=path)
        text = to_json(Path(path).read_text("utf-8", "surrogateescape"), limits, path=path)
        return parse_config(text, limits, path=path)
    try:
        match = recognise(probe)
        with format_module(match.format).Reader(probe) as reader:
            described = reader.describe()
    finally:
        probe.close()
    if described.config is None:
        raise ConfigError("holds no model configuration; give model JSON or YAML, or a full model", path=path)
    model = parse_config(described.config, limits, path=path)
    stated = {"keras_version": described.written_by.keras, "backend": described.written_by.backend}
    return replace(model, raw={**model.raw, **stated})  # beside the model, as `to_json()` states them


Assign = Callable[..., Checkpoint]  # (checkpoint, model or None, *, path) -> Checkpoint


def _as_described(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """For formats whose tensors already have their layers and names."""
    return checkpoint


def _with_stated_version(stored: Checkpoint, model: ModelConfig) -> Checkpoint:
    """With the Keras that a given configuration states, where the file states none, as TensorFlow's do.

    A legacy HDF5 file without a version is Keras 1's, whatever wrote the configuration.
    """
    keras, backend = model.raw.get("keras_version"), model.raw.get("backend")
    if stored.written_by.keras is not None or stored.format == "keras-h5" or not isinstance(keras, str):
        return stored
    if stored.written_by.backend is None and isinstance(backend, str):
        return replace(stored, written_by=replace(stored.written_by, keras=keras, backend=backend))
    return replace(stored, written_by=replace(stored.written_by, keras=keras))


class NamedReader(View):
    """A format's reader whose description has the model's own nesting and names.

    A format module that stores tensors flat or by position has a function `assign` that gives them their names.
    """

    def __init__(self, reader: Reader, assign: Assign, path: Path, config: ModelConfig | None, limits: Limits) -> None:
        super().__init__(reader)
        self._assign = assign
        self._path = path
        self._config = config
        self._limits = limits
        self._described: Checkpoint | None = None

    def close(self) -> None:
        """Release the file."""
        self._described = None
        super().close()

    def files(self) -> list[Path]:
        """The files beside the path itself that the checkpoint consists of."""
        found = getattr(self._reader, "files", None)
        return list(found()) if callable(found) else []

    def verify(self) -> None:
        """Compare the checksums that cover more than one tensor, once the tensors were copied.

        Raises
        ------
        CorruptCheckpointError : one does not fit
        """
        compare = getattr(self._reader, "verify", None)
        if callable(compare):
            compare()

    def stored(self) -> Checkpoint:
        """The description as the format gives it, before names are assigned."""
        return self._reader.describe()

    def describe(self) -> Checkpoint:
        """The description with the model's nesting and names; made once."""
        if self._described is None:
            self._described = self._assigned(self._reader.describe())
        return self._described

    def _assigned(self, stored: Checkpoint) -> Checkpoint:
        if self._config is not None:
            named = self._assign(_with_stated_version(stored, self._config), self._config, path=self._path)
            return replace(named, config=self._config.json())
        if stored.config is None:
            return self._assign(stored, None, path=self._path)
        from .keras_config import parse_config  # here, since most of TensorFlow's files have no configuration

        model = parse_config(stored.config, self._limits, path=self._path)
        return self._assign(stored, model, path=self._path)
