"""SavedModels of TF1 and TF2: the variables are a V2 checkpoint; names, configuration, signatures come from the rest.

Keras up to 2.15 keeps the model's JSON beside the objects: in `keras_metadata.pb` (TF 2.5 and later), inside
`saved_model.pb` (TF 2.0 to 2.4), or in `assets/saved_model.json` (TF 1.14, 1.15). Functions are code: never decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, Notice, TensorSpec, WrittenBy
from ..errors import CorruptCheckpointError, ReaderClosedError, UnsupportedError
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match
from . import _tf_places
from ._meta_graph import Signature
from ._saved_objects import SavedModelFile
from ._tf_places import Place
from ._tf_sniffing import assign, matched
from .tf_checkpoint import Reader as VariablesReader

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FORMAT", "Reader", "assign", "sniff"]

FORMAT = "saved-model"
_CONFIG_KEYS = ("class_name", "config")


def sniff(probe: Probe) -> Match | None:
    """Recognise a folder with `saved_model.pb`, that file, its `variables/`, or a folder of numbered versions."""
    return matched(probe, FORMAT, _tf_places.SAVED_MODEL)


class Reader(Closing):
    """One SavedModel, found through a probe."""

    def __init__(self, probe: Probe) -> None:
        place = probe.tensorflow()
        if place is None:
            raise CorruptCheckpointError("no SavedModel", path=probe.path)
        self._folder = Path(place.prefix)
        self._limits = probe.limits
        self._notices = place.notices
        if not (self._folder / "saved_model.pb").is_file():
            raise UnsupportedError("'saved_model.pbtxt' is the text form, which is not read", path=self._folder)
        self._file = SavedModelFile(self._folder, probe.limits)
        prefix = self._folder / "variables" / "variables"
        self._variables: VariablesReader | None = None
        self._closed = False
        if Path(f"{prefix}.index").is_file():
            inner = Place(_tf_places.BUNDLE, str(prefix), "the variables of a SavedModel")
            self._variables = VariablesReader(probe, inner)

    def close(self) -> None:
        """Release the files."""
        self._closed = True
        if self._variables is not None:
            self._variables.close()

    def describe(self) -> Checkpoint:
        """Layers with the names of the Keras metadata where there is any, signatures, versions; no value is read."""
        self._check_open()
        parsed = self._file
        config, training, keras = self._configuration()
        inside = Checkpoint(FORMAT, "tensor-bundle", "savedmodel")
        notices: list[Notice] = []
        if self._variables is not None:
            hints = None if parsed.objects is None else self._variables.hints_of(parsed.objects)
            inside = self._variables.describe(hints)
        elif parsed.expects_variables():
            notices.append(Notice("no-variables", "the folder 'variables' is missing: the values are not there"))
        signatures = tuple(
            (f"signature:{each.name}", json.dumps(signature_json(each)))
            for each in parsed.signatures()
            if each.name != "__saved_model_init_op"
        )
        return replace(
            inside,
            format=FORMAT,
            kind="savedmodel",
            config=config,
            training_config=training,
            written_by=WrittenBy(keras, parsed.tensorflow(), "tensorflow" if keras else None),
            metadata=(*inside.metadata, *signatures),
            warnings=(*self._notices, *inside.warnings, *notices),
        )

    def _configuration(self) -> tuple[str | None, str | None, str | None]:
        """The model's JSON, the training configuration and the version of Keras, where the files hold them."""
        metadata = self._file.root_metadata()
        config = metadata.get("model_config")
        keras = metadata.get("keras_version")
        if not _is_config(config):
            config, keras = self._asset(), keras
            if config is not None and isinstance(config.get("keras_version"), str):
                keras = config["keras_version"]
        training = metadata.get("training_config")
        return (
            json.dumps({key: config[key] for key in _CONFIG_KEYS}) if _is_config(config) and config else None,
            json.dumps(training) if isinstance(training, dict) else None,
            keras if isinstance(keras, str) else None,
        )

    def _asset(self) -> dict[str, Any] | None:
        path = self._folder / "assets" / "saved_model.json"
        try:
            if not path.is_file() or path.stat().st_size > self._limits.max_config_bytes:
                return None
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return document if _is_config(document) else None

    def files(self) -> list[Path]:
        """The model's file and those of its variables."""
        return [self._folder / "saved_model.pb", *(self._variables.files() if self._variables is not None else ())]

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosedError("the reader is closed", path=self._folder)

    def _inside(self) -> VariablesReader:
        self._check_open()
        if self._variables is None:
            raise CorruptCheckpointError("holds no variables", path=self._folder)
        return self._variables

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        return self._inside().iter_blocks(spec, max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        return self._inside().read(spec)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie, or None."""
        return self._inside().extent(spec)


def _is_config(value: object) -> bool:
    """Whether it lists layers; of a model of the user's own class Keras keeps what `get_config` gives, mostly {}."""
    if not isinstance(value, dict) or not isinstance(value.get("class_name"), str):
        return False
    config = value.get("config")
    return isinstance(config, list) or (isinstance(config, dict) and isinstance(config.get("layers"), list))


def signature_json(signature: Signature) -> dict[str, Any]:
    """A signature as the JSON outputs show it; a dimension of null is free."""

    def tensors(infos: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": info.name,
                "dtype": info.dtype,
                "shape": None if info.shape is None else [None if size < 0 else size for size in info.shape],
            }
            for info in infos
        ]

    return {"name": signature.name, "inputs": tensors(signature.inputs), "outputs": tensors(signature.outputs)}
