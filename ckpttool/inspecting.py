"""`inspect`: what a checkpoint is, without reading a value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .changed_defaults import changed_defaults
from .checkpoint import Checkpoint, Layer, Notice, TensorSpec
from .embeddings import embedding_candidates
from .reporting import notices_json
from .selecting import fits
from .source import Source, SourceOptions, open_source
from .transforms import model_config
from .wrapping import Evidence, command_line


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` found: the whole as stored, the template inside, and what to do next."""

    path: str
    whole: Checkpoint
    template: Checkpoint
    wrapper: Evidence | None
    embeddings: tuple[str, ...]
    warnings: tuple[Notice, ...]
    next_command: str | None
    unwrap_command: str | None
    pattern: str | None = None

    def layers(self) -> Iterator[tuple[tuple[str, ...], Layer]]:
        """The template's layers, flat, in model order; only those that fit the pattern, where one was given."""
        for path, layer in self.template.walk():
            if self.pattern is None or fits(path, self.pattern):
                yield path, layer

    def tensors(self) -> list[TensorSpec]:
        """The template's weights, a shared tensor once."""
        return list({spec.locator: spec for spec in self.template.weights()}.values())

    def totals(self) -> dict[str, int]:
        """Counts of the whole template, whatever the pattern: layers, tensors, parameters, bytes."""
        tensors = self.tensors()
        return {
            "layers": sum(1 for _ in self.template.walk()),
            "tensors": len(tensors),
            "parameters": sum(spec.size for spec in tensors),
            "bytes": sum(spec.nbytes for spec in tensors),
        }

    def optimizer(self) -> dict[str, Any] | None:
        """Class and number of tensors of the optimizer, or None where the file holds none."""
        tensors = self.whole.optimizer_tensors()
        class_name = _optimizer_class(self.whole.training_config)
        if not tensors and class_name is None:
            return None
        return {"class_name": class_name, "tensors": len(tensors)}

    def to_json(self) -> dict[str, Any]:
        """The object of `inspect --json`."""
        return {
            "schema": 1,
            "path": self.path,
            "format": self.whole.format,
            "container": self.whole.container,
            "kind": self.whole.kind,
            "written_by": {
                "keras": self.whole.written_by.keras,
                "tensorflow": self.whole.written_by.tensorflow,
                "backend": self.whole.written_by.backend,
            },
            "compiled": self.whole.training_config is not None,
            "wrapper": None if self.wrapper is None else self.wrapper.to_json(),
            "layers": [layer_json(path, layer) for path, layer in self.layers()],
            "optimizer": self.optimizer(),
            "embeddings": list(self.embeddings),
            "totals": self.totals(),
            "warnings": notices_json(self.warnings),
            "next": self.next_command,
        }


def layer_json(path: tuple[str, ...], layer: Layer) -> dict[str, Any]:
    """One entry of `layers`."""
    return {
        "path": "/".join(path),
        "name": layer.name,
        "class_name": layer.class_name,
        "trainable": layer.trainable,
        "calls": layer.calls,
        "tensors": [
            {
                "path": spec.name,
                "shape": list(spec.shape),
                "dtype": spec.dtype,
                "parameters": spec.size,
                "bytes": spec.nbytes,
                "stored_as": spec.locator,
            }
            for spec in layer.tensors
        ],
    }


def inspect(
    path: str | os.PathLike[str], *, layer: str | None = None, options: SourceOptions = SourceOptions()
) -> Inspection:
    """Describe a checkpoint: format, writer, wrapper, the template's layers, embeddings, optimizer, warnings.

    Parameters
    ----------
    path : a file or folder; no value of it is read
    layer : show only layers that fit this name, path or glob
    options : how to read the source

    Returns
    -------
    the description; `to_json()` gives the object of `inspect --json`

    Raises
    ------
    CheckpointError : the file cannot be read or understood
    """
    with open_source(path, options) as source:
        embeddings = tuple("/".join(where) for where, _ in embedding_candidates(source.template))
        inspection = Inspection(
            path=os.fspath(path),
            whole=source.whole,
            template=source.template,
            wrapper=source.wrapper,
            embeddings=embeddings,
            warnings=_warnings(source),
            next_command=None,
            unwrap_command=None,
            pattern=layer,
        )
        return _with_commands(inspection, source, options)


def _warnings(source: Source) -> tuple[Notice, ...]:
    notices = [*source.whole.warnings, *changed_defaults(source.template)]
    if source.wrapper is not None and not source.wrapper.certain:
        notices.append(
            Notice(
                "wrapper-not-proven",
                "a weights-only file cannot prove its wrapper; --config with the model's JSON does, "
                "--assume-wrapper takes it as given",
                "/".join(source.wrapper.template),
            )
        )
    tensors = list(source.template.weights())
    if not tensors:
        notices.append(Notice("no-weights", "the model holds no weights"))
    lambdas = _lambdas(source.template)
    if lambdas:
        notices.append(
            Notice("lambda", f"the template holds Lambda code, which ckpttool never runs: {', '.join(lambdas)}")
        )
    return tuple(notices)


def _lambdas(template: Checkpoint) -> list[str]:
    model = model_config(template)
    if model is None:
        return []
    return ["/".join(path) for path, layer in model.walk() if layer.class_name == "Lambda"]


def _with_commands(inspection: Inspection, source: Source, options: SourceOptions) -> Inspection:
    given = options.words()
    path, stem = inspection.path, Path(inspection.path).stem.removesuffix(".weights") or "model"
    template = "/".join(source.wrapper.template) if source.wrapper is not None else ""
    has_weights = any(True for _ in source.template.weights())
    if not has_weights:
        return inspection
    unwrap = command_line("ckpttool", "unwrap", path, *given, "-o", f"{stem}-single.h5")
    migrate = command_line("ckpttool", "migrate", path, *given, "-o", f"{stem}.keras")
    if source.wrapper is not None and not source.wrapper.certain:
        unwrap = command_line(
            "ckpttool", "unwrap", path, *given, "--assume-wrapper", template, "-o", f"{stem}-single.h5"
        )
    if source.template.config is not None:
        return replace(inspection, next_command=migrate, unwrap_command=unwrap if source.wrapper else None)
    if source.wrapper is not None:
        return replace(inspection, next_command=unwrap)
    if len(inspection.embeddings) >= 1:
        extract = command_line(
            "ckpttool", "extract", path, *given, "--layer", inspection.embeddings[0], "-o", "embedding.npy"
        )
        return replace(inspection, next_command=extract)
    return replace(inspection, next_command=unwrap)


def _optimizer_class(training_config: str | None) -> str | None:
    """The optimizer's class as the training configuration names it."""
    import json

    if training_config is None:
        return None
    try:
        document = json.loads(training_config)
    except (ValueError, RecursionError):
        return None
    entry = (document.get("optimizer_config") or document.get("optimizer")) if isinstance(document, dict) else None
    if isinstance(entry, str):
        return entry
    name = entry.get("class_name") if isinstance(entry, dict) else None
    return name.rpartition(">")[2] if isinstance(name, str) else None
