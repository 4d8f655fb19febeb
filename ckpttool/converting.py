"""`unwrap`: the template out of its wrapper, into a file of its own; `convert`: the whole. Plan, write, report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import conversion_notes
from .beside import config_beside
from .casting import CastReader
from .checkpoint import Checkpoint, Role
from .custom_classes import custom_notices
from .default_names import default_name, output_format
from .errors import EmptyResultError, UnsupportedError
from .folding import reading_notices
from .output import OUTPUT_OPTIONS, check_distinct, check_output, output_file
from .reading import BLOCK_BYTES, OnProgress
from .registry import format_module
from .replicas import EqualReplicas
from .reporting import ConversionReport, TensorRecord, file_sha256, write_json
from .source import Source, SourceOptions, open_source
from .transforms import without_roles
from .wrapping import Evidence, command_line, require_proof
from .written_config import without_lora, written_config

if TYPE_CHECKING:
    from .migration.plan import Plan as MigrationPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion will write; a dry run prints it, a real run executes the same value."""

    output: Path
    format_name: str
    checkpoint: Checkpoint
    notes: tuple[str, ...]
    removed: Evidence | None = None  # the wrapper that is taken out
    migration: MigrationPlan | None = None  # how its layers become those of Keras 3, where they must


def unwrap(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    to: str | None = None,
    weights_only: bool = False,
    dtype: str | None = None,
    keep_optimizer: bool = False,
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> ConversionReport:
    """Write the single-GPU template of a checkpoint; one without a wrapper is written clean in the same way.

    Parameters
    ----------
    path : the source; opened read-only
    output : a new file; None writes `<stem>-single` in the current folder, with the suffix `default_name` gives
    to : the output's format, where its suffix does not say it
    weights_only : leave the configuration out
    dtype : "float16", "bfloat16" or "float32" for all floating weights
    keep_optimizer : carry the optimizer's state over, from legacy HDF5 to legacy HDF5 and from '.keras' to
        '.keras'; elsewhere the report says why it is left out
    report : a new JSON file for the map from each stored tensor to each written one, with sha256
    dry_run : write nothing; the returned report says what would be written
    overwrite : replace existing outputs
    options : how to read the source
    on_progress : called as values move

    Returns
    -------
    counts, names, warnings and the receipt's sentence

    Raises
    ------
    UnprovenWrapperError : the file looks wrapped and does not prove it
    EmptyResultError : it holds no weights
    OutputExistsError, OutputIsInputError, OutputError : the output cannot be written
    CheckpointError : whatever is wrong with the source
    """
    target = Path(output) if output is not None else None
    request = _Request(
        "unwrap",
        path,
        target,
        to,
        weights_only,
        dtype,
        report,
        dry_run,
        overwrite,
        options,
        on_progress,
        keep_optimizer,
    )
    return _run(request)


def convert(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str | None = None,
    weights_only: bool = False,
    dtype: str | None = None,
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> ConversionReport:
    """Write the same content in another container: layers, wrapper and optimizer state, as far as it can hold them.

    Parameters
    ----------
    path : the source; opened read-only
    output : a new file
    to : the output's format, where its suffix does not say it
    weights_only : leave the configuration and the optimizer state out
    dtype, report, dry_run, overwrite, options, on_progress : as in `unwrap`

    Returns
    -------
    counts, names, warnings and the receipt's sentence

    Raises
    ------
    UnprovenWrapperError, EmptyResultError, OutputExistsError, OutputIsInputError, OutputError, CheckpointError :
        as in `unwrap`
    """
    target = Path(output)
    request = _Request(
        "convert", path, target, to, weights_only, dtype, report, dry_run, overwrite, options, on_progress
    )
    return _run(request)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a caller asked for."""

    command: str
    path: str | os.PathLike[str]
    target: Path | None
    to: str | None
    weights_only: bool
    dtype: str | None
    report: str | os.PathLike[str] | None
    dry_run: bool
    overwrite: bool
    options: SourceOptions
    on_progress: OnProgress | None
    keep_optimizer: bool = False


def _run(request: _Request) -> ConversionReport:
    path, options = request.path, request.options
    target = request.target or _default_output(request)
    format_name = output_format(target, request.to)
    if options.theano:
        # A legacy file goes with its configuration, which says in which order the axes of a kernel are.
        options = replace(options, keep_layout=format_name == "keras-h5")
    report = None if request.report is None else Path(request.report)
    outputs = [target] if report is None else [target, report]
    check_distinct(outputs)
    with open_source(path, options) as source:
        beside = config_beside(source.path) if source.whole.config is None else None
        require_proof(source.wrapper, os.fspath(path), request.command, os.fspath(target), config_beside=beside)
        for each, option in zip(outputs, OUTPUT_OPTIONS, strict=False):
            inputs = [*source.files(), *_extra_inputs(options)]
            check_output(each, overwrite=request.overwrite, inputs=inputs, option=option)
        if request.command == "convert":
            plan = plan_convert(source, target, format_name, weights_only=request.weights_only)
        else:
            plan = plan_unwrap(
                source, target, format_name,
                weights_only=request.weights_only, keep_optimizer=request.keep_optimizer, options=options,
            )  # fmt: skip
        plan = _about_format(source, plan)
        if format_name == "keras-archive":
            plan = _rebuilt(source, plan, request)
        reader = source.reader
        if request.dtype is not None:
            source = replace(source, reader=CastReader(source.reader, plan.checkpoint, request.dtype))
            plan = replace(plan, checkpoint=source.reader.describe())
        result = describe_plan(source, plan)
        if request.dry_run:
            return replace(result, dry_run=True)
        _write(source, plan, overwrite=request.overwrite, on_progress=request.on_progress)
        result = replace(result, warnings=(*result.warnings, *reading_notices(reader)))
        if isinstance(source.reader, CastReader):
            result = replace(result, notes=(*result.notes, source.reader.sentence()))
        if report is not None:
            full = replace(result, records=tuple(_records(source, plan)), source_sha256=file_sha256(source.path))
            write_json(full.to_json(), report, overwrite=request.overwrite, inputs=[*source.files(), target])
        return result


def _default_output(request: _Request) -> Path:
    with open_source(request.path, request.options) as source:
        return default_name(request.path, source.whole.format, source.template.config is not None, to=request.to)


def _extra_inputs(options: SourceOptions) -> list[Path]:
    return [] if options.config is None else [Path(options.config)]


def _rebuilt(source: Source, plan: Plan, request: _Request) -> Plan:
    """A `.keras` file holds a configuration of Keras 3; a model of Keras 1 or 2 is rebuilt as `migrate` does it.

    Raises
    ------
    UnsupportedError : it cannot be rebuilt here, with the command that does
    """
    from .migration.planning import NotMigratedError, describe_changes, make_plan, to_be_built

    if not to_be_built(plan.checkpoint):
        return plan
    files = (os.fspath(source.path), *request.options.words())
    try:
        built = make_plan(plan.checkpoint)
    except NotMigratedError as error:
        kept = source.wrapper if request.command == "convert" else None
        message = conversion_notes.not_rebuilt(error, kept, files, plan.output)
        raise UnsupportedError(message, path=source.path) from error
    proof = command_line("ckpttool", "verify", files[0], os.fspath(plan.output), *files[1:])
    notes = (*plan.notes, *describe_changes(built), f"to prove it: {proof}")
    return replace(plan, notes=notes, migration=built)


def plan_unwrap(
    source: Source,
    output: Path,
    format_name: str,
    *,
    weights_only: bool,
    keep_optimizer: bool = False,
    options: SourceOptions = SourceOptions(),
) -> Plan:
    """Decide what to write and what to say about it.

    Raises
    ------
    EmptyResultError : the template holds no weights
    """
    template = without_roles(source.template, Role.OPTIMIZER, Role.BOOKKEEPING)
    template = replace(template, training_config=None)
    if keep_optimizer:
        from .kept_optimizer import with_optimizer

        template = with_optimizer(source, template, format_name, weights_only=weights_only)
    if weights_only and not _needs_config(format_name):
        template = replace(template, config=None, kind="weights")
    if format_name == "keras-h5":
        config, notices = written_config(template)
        template = without_lora(replace(template, config=config).with_warnings(*notices))
    if not any(True for _ in template.weights()):
        raise EmptyResultError(conversion_notes.empty(source), path=source.path)
    template = template.with_warnings(*custom_notices(template))
    notes: list[str] = []
    if source.wrapper is None:
        looked = "not looked for a wrapper (--no-wrapper)" if options.no_wrapper else "no data-parallel wrapper found"
        notes.append(f"{looked}: written as it is")
    elif source.wrapper.twins and not source.wrapper.assumed:
        copies = sum(len(twins) for _, twins in source.wrapper.twins)
        notes.append(f"{copies} tensors are copies, each compared value by value as it was read")
    if source.template.config is None and not weights_only:
        notes.append("the source holds no configuration: weights only")
    if format_name == "keras-h5":
        notes.extend(conversion_notes.order_note(source, template))
        notes.extend(conversion_notes.keras3_note(source, template, output, options))
    return Plan(output, format_name, template, tuple(notes), source.wrapper)


def plan_convert(source: Source, output: Path, format_name: str, *, weights_only: bool) -> Plan:
    """Decide what to write of the whole: everything, as far as the format can hold it.

    Raises
    ------
    EmptyResultError : the source holds no weights
    """
    whole = source.whole
    notes: list[str] = []
    if next(whole.weights(), None) is None:
        raise EmptyResultError(conversion_notes.empty(source), path=source.path)
    if source.wrapper is not None:
        over = f" over {source.wrapper.replicas}" if source.wrapper.replicas else ""
        notes.append(f"the wrapper is kept: {source.wrapper.kind}{over}; 'ckpttool unwrap' takes it out")
    keeps = getattr(format_module(format_name), "OPTIMIZER_FROM", ())
    if weights_only or not ("*" in keeps or whole.format in keeps):
        whole = without_roles(whole, Role.OPTIMIZER)
    whole = without_roles(whole, Role.BOOKKEEPING)
    if weights_only and not _needs_config(format_name):
        whole = replace(whole, config=None, training_config=None, kind="weights")
    if format_name == "keras-h5":
        whole = without_lora(whole)
    return Plan(output, format_name, whole, tuple(notes))


def _about_format(source: Source, plan: Plan) -> Plan:
    """What the format cannot hold, and where the tensors come from, for formats that can note it."""
    notes, checkpoint = list(plan.notes), plan.checkpoint
    module = format_module(plan.format_name)
    if "*" in getattr(module, "OPTIMIZER_FROM", ()) and checkpoint.optimizer_tensors():
        from .numbered_slots import with_slots_as_names

        checkpoint = with_slots_as_names(checkpoint)
    if checkpoint.config is not None and not getattr(module, "HOLDS_CONFIG", True):
        notes.append(f"the configuration is left out: {plan.format_name} holds tensors only")
        if not _needs_config(plan.format_name):
            checkpoint = replace(checkpoint, config=None, training_config=None, kind="weights")
    if plan.format_name == "keras-weights" and (checkpoint.written_by.keras_major or 2) < 3:
        notes.append("the layout is that of Keras 3: for Keras up to 2.11 write '.h5'")
    cast = getattr(module, "becomes_float32", None)
    changed = [spec for spec in checkpoint.weights() if cast is not None and cast(spec)]
    if changed:
        dtypes = ", ".join(dict.fromkeys(spec.dtype for spec in changed))
        notes.append(f"{len(changed)} tensors: {dtypes} is written as float32, exactly")
    turned = getattr(source.reader, "turned", 0)  # of the view that --theano puts around the reader
    if turned:
        notes.append(f"{turned} convolution kernels of Theano turned")
    about = [("source", source.path.name)]
    if source.path.is_file():
        about.append(("source_bytes", str(source.path.stat().st_size)))
    checkpoint = replace(checkpoint, metadata=(*checkpoint.metadata, *about))
    return replace(plan, checkpoint=checkpoint, notes=tuple(notes))


def _needs_config(format_name: str) -> bool:
    """Whether the format is laid out by the configuration, though it does not hold it."""
    return bool(getattr(format_module(format_name), "NEEDS_CONFIG", False))


def describe_plan(source: Source, plan: Plan) -> ConversionReport:
    """The report of a plan, before or after it is executed."""
    specs = list(plan.checkpoint.weights())
    stored = {spec.locator for spec in source.whole.weights()}
    assets = conversion_notes.assets_written(plan.format_name, plan.checkpoint, rebuilt=plan.migration is not None)
    warnings = [
        *plan.checkpoint.warnings,
        *conversion_notes.left_behind(source, specs),
        *conversion_notes.asset_notices(source, plan.format_name, plan.checkpoint, assets),
    ]
    return ConversionReport(
        source=os.fspath(source.path),
        output=os.fspath(plan.output),
        format=plan.format_name,
        kind="model" if plan.checkpoint.config and not _needs_config(plan.format_name) else "weights",
        tensors=len({spec.locator for spec in specs}),
        of_tensors=len(stored),
        parameters=sum(spec.size for spec in specs),
        nbytes=sum(spec.nbytes for spec in specs),
        wrapper=plan.removed,
        optimizer_left_out=bool(source.whole.optimizer_tensors()) and not plan.checkpoint.optimizer_tensors(),
        optimizer_kept=len(plan.checkpoint.optimizer_tensors()),
        assets_kept=len(assets),
        assets_left_out=len(source.whole.all_assets().keys() - assets.keys()),
        warnings=tuple(warnings),
        notes=plan.notes,
    )


def _write(source: Source, plan: Plan, *, overwrite: bool, on_progress: OnProgress | None) -> None:
    reader = source.reader
    if plan.removed is None and isinstance(reader, EqualReplicas):
        reader = reader.inner
    with output_file(plan.output, overwrite=overwrite, inputs=source.files()) as temporary:
        if plan.migration is not None:
            from .migration.run import write_archive

            write_archive(replace(source, template=plan.checkpoint), plan.migration, temporary, on_progress=on_progress)
            return
        format_module(plan.format_name).write(reader, plan.checkpoint, temporary, on_progress=on_progress)
        source.opened.verify()


def _records(source: Source, plan: Plan) -> Iterator[TensorRecord]:
    """Each written tensor beside the stored one and the sha256 of its bytes."""
    import hashlib

    from .copying import little_endian_bytes

    if plan.migration is not None:
        from .migration.run import tensor_records

        yield from tensor_records(replace(source, template=plan.checkpoint), plan.migration)
        return
    for spec in plan.checkpoint.weights():
        digest = hashlib.sha256()
        for block in source.reader.iter_blocks(spec, BLOCK_BYTES):
            digest.update(little_endian_bytes(block))
        yield TensorRecord(spec.locator, spec.name, spec.shape, spec.dtype, digest.hexdigest())
