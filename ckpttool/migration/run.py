"""`migrate`: plan, build, save, prove, put in place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..assets import left_out
from ..checkpoint import Checkpoint, Role
from ..comparing import VerifyOptions, verify_archive, verify_checkpoint
from ..copying import little_endian_bytes
from ..errors import EmptyResultError, UsageError
from ..output import OUTPUT_OPTIONS, check_distinct, check_output, output_file
from ..reading import OnProgress
from ..registry import format_module
from ..reporting import TensorRecord, file_sha256, write_json
from ..source import Source, SourceOptions, open_source
from ..transforms import without_roles
from ..verification import Verification
from ..wrapping import require_proof
from .build import build_model, save_model
from .plan import Plan
from .planning import NotMigratedError, Replacements, describe_changes, make_plan
from .report import MigrationReport
from .transformations import apply
from .user_code import UserCode, load_user_code
from .weights import set_weights

TARGETS = {"keras": "keras-archive", "tf-keras": "keras-h5"}
_SUFFIXES = {"keras": (".keras",), "tf-keras": (".h5", ".hdf5")}


def migrate(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str | None = None,
    replace_layers: Mapping[str, str] | None = None,
    custom_objects: str | os.PathLike[str] | None = None,
    verify: bool = True,
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> MigrationReport:
    """Rebuild a legacy model with Keras 3's own layers, save it, and prove that it computes the same.

    Parameters
    ----------
    path : the source; a wrapper around the model is taken off first
    output : a new `.keras` file, or `.h5` for tf_keras
    to : "keras" or "tf-keras"; None goes by the suffix
    replace_layers : layer's name or path -> "module:callable" that makes its Keras 3 layer from the stored config
    custom_objects : a Python file with the model's own classes; imported because it is named here
    verify : prove the output before it is put in place
    report : a new JSON file with the tensors' map, checksums and the proof
    dry_run : only plan; keras is not imported
    overwrite : replace existing outputs
    options : how to read the source
    on_progress : called as weights are set

    Returns
    -------
    what was written and what is proven; `verified` is False where something could not be proven

    Raises
    ------
    NotMigratedError : layers that cannot be expressed, all of them listed; or the output differs, and is not kept
    UnprovenWrapperError : the file looks wrapped and does not prove it
    MissingDependencyError : Keras 3 is not installed
    CheckpointError : whatever is wrong with the source or the output
    """
    target = Path(output)
    kind = target_kind(target, to)
    chosen = VerifyOptions(replace=replace_layers or {}, custom_objects=_text(custom_objects), on_progress=on_progress)
    with open_source(path, options) as source:
        require_proof(source.wrapper, os.fspath(path), "migrate", os.fspath(target))
        inputs = [source.path, *([] if options.config is None else [Path(options.config)])]
        outputs = [target, *([] if report is None else [Path(report)])]
        check_distinct(outputs)
        for each, option in zip(outputs, OUTPUT_OPTIONS, strict=False):
            check_output(each, overwrite=overwrite, inputs=inputs, option=option)
        source = replace(source, template=_template(source))
        if kind == "tf-keras":
            done = _to_tf_keras(source, target, chosen, verify, dry_run, overwrite, on_progress)
        else:
            done = _to_keras(source, target, chosen, verify, dry_run, overwrite, on_progress)
        if report is not None and not dry_run:
            full = replace(
                done, records=tuple(tensor_records(source, done.plan)), source_sha256=file_sha256(source.path)
            )
            write_json(full.to_json(), Path(report), overwrite=overwrite, inputs=[*inputs, target])
        return done


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def target_kind(output: Path, to: str | None) -> str:
    """ "keras" or "tf-keras", by the option or the suffix.

    Raises
    ------
    UsageError : neither says, or they contradict each other
    """
    name = output.name.lower()
    by_suffix = next((kind for kind, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), None)
    if to is not None and to not in TARGETS:
        raise UsageError(f"cannot migrate to '{to}'; --to takes {' or '.join(TARGETS)}")
    if name.endswith(".weights.h5"):
        raise UsageError("a migration gives a whole model; use '.keras', or '.h5' for tf_keras", path=output)
    kind = to or by_suffix
    if kind is None:
        raise UsageError("its suffix says no format; use '.keras', or '.h5' for tf_keras", path=output)
    if not name.endswith(_SUFFIXES[kind]):
        raise UsageError(f"{kind} opens files by their suffix; end it in '{_SUFFIXES[kind][0]}'", path=output)
    return kind


def _template(source: Source) -> Checkpoint:
    template = replace(without_roles(source.template, Role.OPTIMIZER, Role.BOOKKEEPING), training_config=None)
    if template.config is None:
        raise NotMigratedError("holds no model configuration, so there is no model to build; give one with --config")
    return template


def _to_keras(
    source: Source, target: Path, chosen: VerifyOptions, verify: bool, dry_run: bool, overwrite: bool,
    on_progress: OnProgress | None,
) -> MigrationReport:  # fmt: skip
    user = load_user_code(chosen.replace, chosen.custom_objects)
    plan = make_plan(source.template, Replacements(chosen.replace, user.names()))
    done = _report(source, target, "keras-archive", plan)
    if dry_run:
        return replace(done, dry_run=True)
    proof: Verification | None = None
    with (
        output_file(target, overwrite=overwrite, inputs=[source.path]) as temporary,
        saved_archive(source, plan, user, temporary, on_progress=on_progress) as saved,
    ):
        if verify:
            proof = verify_archive(source, saved, chosen, plan)
            _refuse_wrong(proof)
    if proof is not None:
        proof = replace(proof, b=os.fspath(target))
    return replace(done, verification=proof)


def _refuse_wrong(proof: Verification) -> None:
    if proof.wrong:
        shown = ", ".join(proof.differing[:3])
        raise NotMigratedError(f"{proof.sentence()}{': ' + shown if shown else ''}; nothing is written")


def write_archive(source: Source, plan: Plan, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Build a plan and save it at a new path, whatever that is called."""
    with saved_archive(source, plan, UserCode(), path, on_progress=on_progress):
        pass


@contextmanager
def saved_archive(
    source: Source, plan: Plan, user: UserCode, temporary: Path, *, on_progress: OnProgress | None = None
) -> Iterator[Path]:
    """Build the plan and save it under a name that Keras opens; it becomes `temporary` when the block ends well."""
    built = build_model(plan, user)
    set_weights(built, plan, source.template, source.reader, on_progress=on_progress)
    with _beside(temporary, ".keras") as saved:
        save_model(built, saved)
        yield saved


@contextmanager
def _beside(temporary: Path, suffix: str) -> Iterator[Path]:
    """A name beside a temporary output, with a suffix; what is there becomes the output when the block ends well."""
    saved = temporary.with_name(f"{temporary.name}{suffix}")
    try:
        yield saved
        os.replace(saved, temporary)
    finally:
        with suppress(FileNotFoundError):
            saved.unlink()


def _to_tf_keras(
    source: Source, target: Path, chosen: VerifyOptions, verify: bool, dry_run: bool, overwrite: bool,
    on_progress: OnProgress | None,
) -> MigrationReport:  # fmt: skip
    """The configuration as it is; the weights in the layout that tf_keras and the old Keras read."""
    if not any(True for _ in source.template.weights()):
        raise EmptyResultError("holds no weights, so there is nothing to write", path=source.path)
    done = _report(source, target, "keras-h5", None)
    if dry_run:
        return replace(done, dry_run=True)
    proof: Verification | None = None
    with (
        output_file(target, overwrite=overwrite, inputs=[source.path]) as temporary,
        _beside(temporary, ".h5") as saved,  # the temporary itself is locked, and HDF5 locks what it reads
    ):
        format_module("keras-h5").write(source.reader, source.template, saved, on_progress=on_progress)
        if verify:
            with open_source(saved, SourceOptions(no_wrapper=True)) as other:
                proof = verify_checkpoint(source, other, chosen)
            _refuse_wrong(proof)
    if proof is not None:
        proof = replace(proof, b=os.fspath(target))
    return replace(done, verification=proof)


def _report(source: Source, target: Path, format_name: str, plan: Plan | None) -> MigrationReport:
    specs = {spec.locator: spec for spec in source.template.weights()}
    notes = [] if source.wrapper is not None else ["no data-parallel wrapper found: migrated as it is"]
    if plan is not None:
        notes.extend(describe_changes(plan))
    return MigrationReport(
        source=os.fspath(source.path),
        output=os.fspath(target),
        format=format_name,
        tensors=len(specs),
        of_tensors=len({spec.locator for spec in source.whole.weights()}),
        parameters=sum(spec.size for spec in specs.values()),
        nbytes=sum(spec.nbytes for spec in specs.values()),
        wrapper=source.wrapper,
        optimizer_left_out=bool(source.whole.optimizer_tensors()),
        plan=plan,
        warnings=(
            *source.template.warnings,
            *left_out(source.whole.all_assets(), {}, "the layers are made anew; set their vocabularies again"),
        ),
        notes=tuple(notes),
    )


def tensor_records(source: Source, plan: Plan | None) -> Iterator[TensorRecord]:
    """Each stored tensor, its name in the new model, and the sha256 of what was written."""
    specs = {spec.path: spec for spec in source.template.weights()}
    if plan is None:
        for spec in specs.values():
            digest = hashlib.sha256()
            for block in source.reader.iter_blocks(spec):
                digest.update(little_endian_bytes(block))
            yield TensorRecord(spec.locator, spec.name, spec.shape, spec.dtype, digest.hexdigest())
        return
    for path, _, weight in plan.model.all_weights():
        spec = specs[weight.source]
        array = apply(weight.transformations, source.reader.read(spec))
        digest = hashlib.sha256(little_endian_bytes(array))
        written = "/".join((*path, *weight.source[len(path) : -1], weight.variable))
        yield TensorRecord(spec.locator, written, array.shape, spec.dtype, digest.hexdigest())
