"""`unwrap`: the template out of its wrapper, into a file of its own. Plan, write, report."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import Checkpoint, Notice, Role, TensorSpec
from .errors import EmptyResultError, UsageError
from .output import check_distinct, check_output, output_file
from .reading import BLOCK_BYTES, OnProgress
from .registry import FORMATS, OUTPUT_SUFFIXES, format_module
from .reporting import ConversionReport, TensorRecord, write_json
from .source import Source, SourceOptions, open_source
from .transforms import without_roles
from .wrapping import command_line, require_proof
from .written_config import written_config

if TYPE_CHECKING:
    from .migration.plan import Plan as MigrationPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion will write; a dry run prints it, a real run executes the same value."""

    output: Path
    format_name: str
    checkpoint: Checkpoint
    notes: tuple[str, ...]
    migration: MigrationPlan | None = None  # how its layers become those of Keras 3, where they must


def unwrap(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    to: str | None = None,
    weights_only: bool = False,
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
    output : a new file; None writes `<stem>-single.h5` in the current folder
    to : the output's format, where its suffix does not say it
    weights_only : leave the configuration out
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
    target = Path(output) if output is not None else default_output(path)
    format_name = output_format(target, to)
    outputs = [target, *([Path(report)] if report is not None else [])]
    check_distinct(outputs)
    with open_source(path, options) as source:
        require_proof(source.wrapper, os.fspath(path), "unwrap", os.fspath(target))
        for each in outputs:
            check_output(each, overwrite=overwrite, inputs=[source.path, *_extra_inputs(options)])
        plan = plan_unwrap(source, target, format_name, weights_only=weights_only, options=options)
        result = describe_plan(source, plan)
        if dry_run:
            return replace(result, dry_run=True)
        _write(source, plan, overwrite=overwrite, on_progress=on_progress)
        if report is not None:
            full = replace(result, records=tuple(_records(source, plan)), source_sha256=_sha256(source.path))
            write_json(full.to_json(), Path(report), overwrite=overwrite, inputs=[source.path, target])
        return result


def _extra_inputs(options: SourceOptions) -> list[Path]:
    return [] if options.config is None else [Path(options.config)]


def default_output(path: str | os.PathLike[str]) -> Path:
    """`<stem>-single.h5` in the current folder."""
    return Path(f"{Path(path).stem.removesuffix('.weights') or 'model'}-single.h5")


def output_format(output: Path, to: str | None) -> str:
    """The format that `to` or the suffix names.

    Raises
    ------
    UsageError : unknown, or not one that can be written
    """
    if to is not None:
        if to not in OUTPUT_SUFFIXES.values():
            raise UsageError(f"cannot write '{to}'; --to takes {', '.join(sorted(set(OUTPUT_SUFFIXES.values())))}")
        return to
    name = output.name.lower()
    if name.endswith(".weights.h5") and ".weights.h5" not in OUTPUT_SUFFIXES:
        raise UsageError(
            "'.weights.h5' is the layout of Keras 3, which is not written yet; for legacy weights use a plain '.h5'",
            path=output,
        )
    for suffix, format_name in OUTPUT_SUFFIXES.items():
        if name.endswith(suffix):
            return format_name
    raise UsageError(
        f"its suffix names no format; use {', '.join(OUTPUT_SUFFIXES)}, or --to with one of "
        f"{', '.join(name for name in FORMATS if name in OUTPUT_SUFFIXES.values())}",
        path=output,
    )


def plan_unwrap(
    source: Source, output: Path, format_name: str, *, weights_only: bool, options: SourceOptions = SourceOptions()
) -> Plan:
    """Decide what to write and what to say about it.

    Raises
    ------
    EmptyResultError : the template holds no weights
    """
    template = without_roles(source.template, Role.OPTIMIZER, Role.BOOKKEEPING)
    template = replace(template, training_config=None)
    if weights_only:
        template = replace(template, config=None, kind="weights")
    if format_name == "keras-h5":
        config, notices = written_config(template)
        template = replace(template, config=config).with_warnings(*notices)
    if not any(True for _ in template.weights()):
        raise EmptyResultError("holds no weights, so there is nothing to write", path=source.path)
    notes: list[str] = []
    if source.wrapper is None:
        notes.append("no data-parallel wrapper found: written as it is")
    if source.template.config is None and not weights_only:
        notes.append("the source holds no configuration: weights only")
    notes.extend(_order_note(source, template))
    if format_name == "keras-archive" and (built := _migration(template)) is not None:
        from .migration.planning import describe_changes

        line = command_line("ckpttool", "verify", os.fspath(source.path), os.fspath(output), *options.words())
        return Plan(output, format_name, template, (*notes, *describe_changes(built), f"to prove it: {line}"), built)
    notes.extend(_keras3_note(source, template, output, options))
    return Plan(output, format_name, template, tuple(notes))


def _migration(template: Checkpoint) -> MigrationPlan | None:
    """How to build a `.keras` file of a template, where its configuration is older than Keras 3."""
    from .migration.planning import make_plan, to_be_built

    return make_plan(template) if to_be_built(template) else None


def _order_note(source: Source, template: Checkpoint) -> list[str]:
    """Inside a flat list frozen layers stand last, so without a configuration the order of layers is not known."""
    if source.wrapper is None or source.whole.config is not None:
        return []
    return [
        "layers are named and ordered as they are stored: load this file by name (load_weights(…, by_name=True)), "
        "or give the model's JSON with --config for its own order and nesting"
    ]


def _keras3_note(source: Source, template: Checkpoint, output: Path, options: SourceOptions) -> list[str]:
    major = template.written_by.keras_major
    if template.config is None or (major is not None and major >= 3):
        return []
    line = command_line("ckpttool", "migrate", os.fspath(source.path), *options.words(), "-o", f"{output.stem}.keras")
    return [f"for tf_keras and the old Keras; Keras 3 refuses most configurations of its age, so for Keras 3: {line}"]


def describe_plan(source: Source, plan: Plan) -> ConversionReport:
    """The report of a plan, before or after it is executed."""
    specs = list(plan.checkpoint.weights())
    stored = {spec.locator for spec in source.whole.weights()}
    warnings = [*plan.checkpoint.warnings, *_left_behind(source, specs)]
    return ConversionReport(
        source=os.fspath(source.path),
        output=os.fspath(plan.output),
        format=plan.format_name,
        kind="weights" if plan.checkpoint.config is None else "model",
        tensors=len({spec.locator for spec in specs}),
        of_tensors=len(stored),
        parameters=sum(spec.size for spec in specs),
        nbytes=sum(spec.nbytes for spec in specs),
        wrapper=source.wrapper,
        optimizer_left_out=bool(source.whole.optimizer_tensors()),
        warnings=tuple(warnings),
        notes=plan.notes,
    )


def _left_behind(source: Source, written: Sequence[TensorSpec]) -> list[Notice]:
    """Weights outside the template; a proven wrapper has none."""
    kept = {spec.locator for spec in written}
    left = [spec.name for spec in source.whole.weights() if spec.locator not in kept]
    if not left:
        return []
    shown = ", ".join(left[:3]) + (" …" if len(left) > 3 else "")
    return [Notice("weights-left-out", f"{len(left)} tensors outside of the template are left out: {shown}")]


def _write(source: Source, plan: Plan, *, overwrite: bool, on_progress: OnProgress | None) -> None:
    with output_file(plan.output, overwrite=overwrite, inputs=[source.path]) as temporary:
        if plan.migration is not None:
            from .migration.run import write_archive

            write_archive(replace(source, template=plan.checkpoint), plan.migration, temporary, on_progress=on_progress)
            return
        format_module(plan.format_name).write(source.reader, plan.checkpoint, temporary, on_progress=on_progress)


def _records(source: Source, plan: Plan) -> Iterator[TensorRecord]:
    """Each written tensor beside the stored one and the sha256 of its bytes."""
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


def _sha256(path: Path) -> str | None:
    """The source file's checksum; None for a folder."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
