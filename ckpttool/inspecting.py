"""`inspect`: what a checkpoint is, without reading a value."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .beside import config_beside, holders, weights_beside
from .changed_defaults import changed_defaults
from .checkpoint import ITEM_BYTES, Checkpoint, Layer, Notice, Role, TensorSpec, notices_json
from .default_names import default_name, migrated_name, stem_of
from .embeddings import embedding_candidates
from .errors import UnsupportedError
from .reading import OnProgress, Progress
from .registry import TENSORFLOW_FORMATS
from .selecting import fits
from .source import Source, SourceOptions, open_source
from .transforms import model_config
from .wrapping import Evidence, command_line

if TYPE_CHECKING:
    from .keras_config import ModelConfig
    from .statistics import Statistics

LAYERS_AT_ONCE = 100  # in one piece of JSON text: few writes, and no text of the whole in memory


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
    statistics: Mapping[str, Statistics | None] = field(default_factory=dict)  # by locator, where they were asked for
    with_optimizer: bool = False  # list the optimizer's tensors too

    def layers(self) -> Iterator[tuple[tuple[str, ...], Layer]]:
        """The template's layers, flat, in model order; only those that fit the pattern, where one was given."""
        for path, layer in self.template.walk():
            if self.pattern is None or fits(path, self.pattern):
                yield path, layer
        for name, tensors in self._loose_weights().items():
            if self.pattern is None or fits((name,), self.pattern):
                yield (name,), Layer(name, tensors=tuple(tensors))

    def _loose_weights(self) -> dict[str, list[TensorSpec]]:
        """The model's own variables, of no layer, by the group that holds them."""
        groups: dict[str, list[TensorSpec]] = {}
        for spec in self.template.loose:
            if spec.role is Role.WEIGHT:
                groups.setdefault(spec.path[0], []).append(spec)
        return groups

    def optimizer_tensors(self) -> tuple[TensorSpec, ...]:
        """The optimizer's tensors, where they were asked for."""
        return self.whole.optimizer_tensors() if self.with_optimizer else ()

    def bookkeeping_tensors(self) -> tuple[TensorSpec, ...]:
        """Counters, metrics, copies, the record of objects: what is neither the model's nor the optimizer's."""
        return tuple(spec for spec in self.whole.loose if spec.role is Role.BOOKKEEPING)

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
        known = None
        if self.whole.training_config is not None:
            from .optimizer_slots import optimizer_of

            known = optimizer_of(self.whole.training_config)
        class_name = None if known is None else known.class_name
        if not tensors and class_name is None:
            return None
        found: dict[str, Any] = {"class_name": class_name, "tensors": len(tensors)}
        return {**found, "wrappers": list(known.wrappers)} if known is not None and known.wrappers else found

    def signatures(self) -> list[dict[str, Any]]:
        """A SavedModel's signatures: name, inputs and outputs."""
        return [json.loads(text) for key, text in self.whole.metadata if key.startswith("signature:")]

    def to_json(self) -> dict[str, Any]:
        """The object of `inspect --json`."""
        document = self._head()
        document["layers"] = [layer_json(path, layer, self.statistics) for path, layer in self.layers()]
        return {**document, **self._tail()}

    def assets_json(self) -> list[dict[str, Any]]:
        """`assets`: the files of layers beside the weights, in the order of the layers."""
        return [
            {"path": "/".join((*path, asset.place)), "layer": "/".join(path) or None, "bytes": asset.nbytes,
             "stored_as": asset.locator}
            for path, asset in self.whole.all_assets().values()
        ]  # fmt: skip

    def _bookkeeping_json(self) -> dict[str, Any]:
        """`bookkeeping`, where the file holds any: with the layers and the optimizer's state all that is stored."""
        found = [tensor_json(spec, self.statistics) for spec in self.bookkeeping_tensors()]
        return {"bookkeeping": found} if found else {}

    def json_chunks(self, *, one_line: bool) -> Iterator[str]:
        """The same as text, piece by piece; on one line, or with one line a key and one a layer."""
        separator, indent = (", ", "") if one_line else (",\n ", "\n  ")
        between = ", " if one_line else ",\n  "
        head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self._head().items()]
        yield f"{'{' if one_line else '{' + chr(10) + ' '}{separator.join(head)}{separator}" + '"layers": ['
        pending: list[str] = []
        first = True
        for path, layer in self.layers():
            pending.append(json.dumps(layer_json(path, layer, self.statistics)))
            if len(pending) == LAYERS_AT_ONCE:
                yield (indent if first else between) + between.join(pending)
                pending, first = [], False
        if pending:
            yield (indent if first else between) + between.join(pending)
        tail = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self._tail().items()]
        yield (
            f"{'' if one_line else chr(10) + ' '}]{separator}{separator.join(tail)}{'' if one_line else chr(10)}" + "}"
        )

    def _head(self) -> dict[str, Any]:
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
        }

    def _tail(self) -> dict[str, Any]:
        optimizer = self.optimizer()
        if optimizer is not None and self.with_optimizer:
            optimizer["state"] = [slot_json(spec, self.statistics) for spec in self.optimizer_tensors()]
        return {
            "optimizer": optimizer,
            "embeddings": list(self.embeddings),
            "totals": self.totals(),
            "warnings": notices_json(self.warnings),
            "next": self.next_command,
            **self._bookkeeping_json(),
            **({"assets": self.assets_json()} if self.whole.all_assets() else {}),
            **({"signatures": self.signatures()} if self.signatures() else {}),
        }


def layer_json(path: tuple[str, ...], layer: Layer, statistics: Mapping[str, Statistics | None]) -> dict[str, Any]:
    """One entry of `layers`."""
    return {
        "path": "/".join(path),
        "name": layer.name,
        "class_name": layer.class_name,
        "trainable": layer.trainable,
        "calls": layer.calls,
        "tensors": [tensor_json(spec, statistics) for spec in layer.tensors],
    }


def tensor_json(spec: TensorSpec, statistics: Mapping[str, Statistics | None]) -> dict[str, Any]:
    """One entry of `tensors`; with `stats` where they were asked for."""
    size = spec.size
    document = {
        "path": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "parameters": size,
        "bytes": size * ITEM_BYTES.get(spec.dtype, 0),
        "stored_as": spec.locator,
    }
    if statistics:
        found = statistics.get(spec.locator)
        document["stats"] = None if found is None else found.to_json()
    return document


def slot_json(spec: TensorSpec, statistics: Mapping[str, Statistics | None]) -> dict[str, Any]:
    """One entry of `optimizer.state`."""
    owner = None if spec.slot_of is None else "/".join(spec.slot_of)
    return {**tensor_json(spec, statistics), "slot": spec.slot, "slot_of": owner}


def inspect(
    path: str | os.PathLike[str],
    *,
    layer: str | None = None,
    stats: bool = False,
    optimizer: bool = False,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> Inspection:
    """Describe a checkpoint: format, writer, wrapper, the template's layers, embeddings, optimizer, warnings.

    Parameters
    ----------
    path : a file or folder; no value of it is read unless `stats` asks for it
    layer : show only layers that fit this name, path or glob
    stats : compute statistics of each shown tensor
    optimizer : list the optimizer's tensors too
    options : how to read the source
    on_progress : called after each tensor whose statistics were computed

    Returns
    -------
    the description; `to_json()` gives the object of `inspect --json`

    Raises
    ------
    CheckpointError : the file cannot be read or understood
    """
    with open_source(path, options) as source:
        embeddings = tuple("/".join(where) for where, _ in embedding_candidates(source.template))
        whole = _with_named_state(source.whole) if optimizer else source.whole
        inspection = Inspection(
            path=os.fspath(path),
            whole=whole,
            template=source.template,
            wrapper=source.wrapper,
            embeddings=embeddings,
            warnings=(*_warnings(source), *whole.warnings[len(source.whole.warnings) :]),
            next_command=None,
            unwrap_command=None,
            pattern=layer,
            with_optimizer=optimizer,
        )
        if stats:
            inspection = replace(inspection, statistics=_statistics(source, inspection, on_progress))
        return _with_commands(inspection, source, options)


def _with_named_state(whole: Checkpoint) -> Checkpoint:
    from .numbered_slots import with_slots_as_names  # here and below: a listing in a blink loads only what it needs

    return with_slots_as_names(whole)


def _statistics(source: Source, inspection: Inspection, on_progress: OnProgress | None) -> dict[str, Statistics | None]:
    """Of every shown tensor, by locator; None for one that cannot be read or has no numbers."""
    from .statistics import statistics

    shown = {spec.locator: spec for _, layer in inspection.layers() for spec in layer.tensors}
    shown |= {spec.locator: spec for spec in inspection.optimizer_tensors()}
    total, done = sum(spec.nbytes for spec in shown.values()), 0
    found: dict[str, Statistics | None] = {}
    for locator, spec in shown.items():
        try:
            found[locator] = statistics(source.reader, spec)
        except UnsupportedError:
            found[locator] = None
        done += spec.nbytes
        if on_progress is not None:
            on_progress(Progress(done, total, spec.name))
    return found


def _warnings(source: Source) -> tuple[Notice, ...]:
    notices = [*source.whole.warnings, *changed_defaults(source.template)]
    if source.wrapper is not None and not source.wrapper.certain:
        why = "its slices hold no numbers that prove it; "
        if source.whole.config is None:
            why = "a weights-only file cannot prove its wrapper; --config with the model's JSON does, "
        message = f"{why}--assume-wrapper takes it as given"
        notices.append(Notice("wrapper-not-proven", message, "/".join(source.wrapper.template)))
    beside = config_beside(source.path) if source.whole.kind == "weights" and source.whole.config is None else None
    if beside is not None:
        message = f"'{beside}' beside it may be its configuration; it is used when asked for: --config {beside}"
        notices.append(Notice("config-beside", message, beside))
    if model_config(source.template) is not None or source.template.format == "keras-h5":
        from .custom_classes import custom_notices, stored_notices

        notices.extend((*custom_notices(source.template), *stored_notices(source.template)))
    if source.whole.format not in TENSORFLOW_FORMATS:
        from .theano import theano_notice

        theano = theano_notice(source.template)
        if theano is not None:
            notices.append(theano)
    if next(source.template.weights(), None) is None:
        found = weights_beside(source.path)
        notices.append(Notice("no-weights", f"the model holds no weights{holders(found)}", found[0] if found else None))
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
    path = inspection.path
    output = os.fspath(default_name(path, source.whole.format, source.template.config is not None))
    stem = stem_of(path)
    template = "/".join(source.wrapper.template) if source.wrapper is not None else ""
    has_weights = any(True for _ in source.template.weights())
    if not has_weights:
        return inspection
    model = model_config(source.template)
    migrated = model is not None and _is_migrated(source.template, model)
    if model is not None and output.endswith(".keras") and not migrated and not _is_keras3(model):
        output = f"{stem}-single.h5"
    unwrap = command_line("ckpttool", "unwrap", path, *given, "-o", output)
    migrate = command_line("ckpttool", "migrate", path, *given, "-o", migrated_name(stem, path))
    if source.wrapper is not None and not source.wrapper.certain:
        unwrap = command_line("ckpttool", "unwrap", path, *given, "--assume-wrapper", template, "-o", output)
    proven = source.wrapper is None or source.wrapper.certain
    if proven and migrated:
        if output.endswith(".keras"):
            unwrap = command_line("ckpttool", "unwrap", path, *given, "-o", f"{stem}-single.h5")
        return replace(inspection, next_command=migrate, unwrap_command=unwrap if source.wrapper else None)
    if source.wrapper is not None:
        return replace(inspection, next_command=unwrap)
    if len(inspection.embeddings) >= 1:
        extract = command_line(
            "ckpttool", "extract", path, *given, "--layer", inspection.embeddings[0], "-o", "embedding.npy"
        )
        return replace(inspection, next_command=extract)
    return replace(inspection, next_command=unwrap)


def _is_migrated(template: Checkpoint, model: ModelConfig) -> bool:
    from .migration.generation import is_keras1, takes_text

    return not _is_keras3(model) and not is_keras1(template) and not takes_text(model)


def _is_keras3(model: ModelConfig) -> bool:
    from .keras3_layout import is_keras3

    return is_keras3(model.raw)
