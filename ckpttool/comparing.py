"""`verify`: proof that one file is another. Tensors bit for bit or through the stated transformation, then outputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .assets import differing_files
from .checkpoint import Checkpoint, TensorSpec
from .copying import little_endian_bytes
from .errors import CheckpointError, MissingDependencyError, UsageError
from .keras_config import parse_config
from .migration.generation import generation_of
from .migration.plan import LayerPlan, Plan, WeightPlan, inner_model
from .migration.planning import NotMigratedError, Replacements, make_plan
from .migration.transformations import apply
from .opening import recognise
from .predicting import (
    FreshProcess,
    FreshProcessError,
    FreshResult,
    OldModel,
    Outputs,
    old_model,
    old_outputs,
    outputs_of,
)
from .probe import Probe
from .reading import OnProgress, Progress, Reader
from .reference import NoReferenceError
from .registry import holds_assets
from .sample_inputs import Case, tolerance
from .source import Source, SourceOptions, open_source
from .transforms import model_config
from .verification import ATOL, RTOL, Difference, Prediction, Verification


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to prove, and with which code of the user's own."""

    rtol: float = RTOL
    seed: int = 0
    predict: bool = True
    replace: Mapping[str, str] = field(default_factory=dict)
    custom_objects: str | None = None
    on_progress: OnProgress | None = None


def verify(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    rtol: float = RTOL,
    seed: int = 0,
    predict: bool = True,
    replace: Mapping[str, str] | None = None,
    custom_objects: str | os.PathLike[str] | None = None,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> Verification:
    """Prove that B is A: every template tensor, and the outputs on random inputs.

    Parameters
    ----------
    a : the source, of any format that can be read; a wrapper around it is looked through
    b : what was made of it: a `.keras` file, or another checkpoint
    rtol : tolerance relative to the largest value of each output
    seed : of the first random inputs
    predict : compare outputs too; only tensors else
    replace, custom_objects : the user's own layers, as they were given to `migrate`
    options : how to read A
    on_progress : called as tensors are compared

    Returns
    -------
    what is proven; `verified` is the answer

    Raises
    ------
    CheckpointError : a file cannot be read
    """
    custom = None if custom_objects is None else os.fspath(custom_objects)
    chosen = VerifyOptions(rtol, seed, predict, replace or {}, custom, on_progress)
    with open_source(a, options) as source:
        if is_archive(Path(b)):
            try:
                return verify_archive(source, Path(b), chosen)
            except NotMigratedError:
                if source.template.written_by.keras_major != 3:
                    raise  # of Keras 3 nothing has to be rebuilt: what has no rule is compared as it is
        with open_source(b, SourceOptions()) as other:
            return verify_checkpoint(source, other, chosen)


def is_archive(path: Path) -> bool:
    """Whether a file is a zip with a `config.json`, as `.keras` archives are, and `.npz` files are not."""
    probe = Probe(path)
    try:
        return probe.container() == "zip" and recognise(probe).format == "keras-archive"
    except CheckpointError:
        return True  # a damaged zip: Keras's own reason why it does not load is part of the answer
    finally:
        probe.close()


def verify_archive(source: Source, path: Path, chosen: VerifyOptions, plan: Plan | None = None) -> Verification:
    """Compare a source with a `.keras` file that a fresh process loads in safe mode.

    Raises
    ------
    NotMigratedError : the source has layers without a rule
    """
    if plan is None:
        plan = make_plan(source.template, _replacements(chosen))
    reasons: list[str] = []
    made: list[Case] = []
    expected: Outputs = []
    old: OldModel | None = None
    modules = sorted({target.partition(":")[0] for target in chosen.replace.values()})
    with FreshProcess(path, custom_objects=chosen.custom_objects, modules=modules) as process:
        if chosen.predict:
            old, made, expected = _old(source, plan.generation, chosen.seed, reasons)
        try:
            found = process.run(made)
        except FreshProcessError as error:
            if plan.custom:
                reasons.append(f"{error.message}; its own layers must be registered with Keras")
            else:
                reasons.append(error.message)
            count = len(list(plan.model.all_weights()))
            return Verification(_name(source), os.fspath(path), 0, count, 0, not_verified=tuple(reasons))
    equal, transformed, differing = _archive_tensors(source, plan, found, chosen.on_progress)
    if not equal and not differing and not made:
        reasons.append("there is nothing to compare")
    prediction = None
    if old is not None and made:
        prediction = _compare(old, found.library, made, expected, found.outputs, chosen.rtol)
    return Verification(
        _name(source), os.fspath(path), equal, equal + len(differing), transformed, tuple(differing),
        prediction, found.library, tuple(reasons),
    )  # fmt: skip


def _name(source: Source) -> str:
    return os.fspath(source.path)


def _replacements(chosen: VerifyOptions) -> Replacements:
    if chosen.custom_objects is None:
        return Replacements(chosen.replace)
    from .migration.user_code import load_user_code

    return Replacements(chosen.replace, load_user_code(chosen.replace, chosen.custom_objects).names())


def _old(source: Source, generation: int, seed: int, reasons: list[str]) -> tuple[OldModel | None, list[Case], Outputs]:
    """The old model's outputs, or the reason why there are none."""
    try:
        old = old_model(source.template, source.reader, generation=generation)
        made, outputs = old_outputs(old, seed=seed)
    except (NoReferenceError, MissingDependencyError) as error:
        reasons.append(f"outputs not compared: {error}")
        return None, [], []
    return old, made, outputs


def _archive_tensors(
    source: Source, plan: Plan, found: FreshResult, on_progress: OnProgress | None
) -> tuple[int, int, list[str]]:
    """Count equal tensors; name those that differ or are missing."""
    specs = {spec.path: spec for spec in source.template.weights()}
    compared = _counter(specs.values(), on_progress)
    equal = transformed = 0
    differing: list[str] = []
    for path, layer in plan.model.walk():
        if not layer.weights or layer.spec.model is not None or inner_model(layer.spec) is not None:
            continue
        variables = found.layers.get(path)
        for number, weight in enumerate(layer.weights):
            variable = _variable(layer, variables, number, weight)
            if variable is not None and _equal(source.reader, specs[weight.source], weight, variable):
                equal += 1
                transformed += bool(weight.transformations)
            else:
                differing.append("/".join(weight.source))
            compared(specs[weight.source])
    return equal, transformed, differing


def _counter(specs: Iterable[TensorSpec], on_progress: OnProgress | None) -> Callable[[TensorSpec], None]:
    """What to call after each tensor, so that progress counts its bytes."""
    total = sum(spec.nbytes for spec in specs)
    done = 0

    def compared(spec: TensorSpec) -> None:
        nonlocal done
        done = min(total, done + spec.nbytes)
        if on_progress is not None:
            on_progress(Progress(done, total, spec.name))

    return compared


def _variable(
    layer: LayerPlan, variables: Sequence[Mapping[str, Any]] | None, number: int, weight: WeightPlan
) -> Mapping[str, Any] | None:
    if variables is None or len(variables) != len(layer.weights):
        return None
    names = [each["name"] for each in variables]
    if layer.spec.user is not None and names != [each.variable for each in layer.weights]:
        if len(set(names)) == len(names) and sorted(names) == sorted(each.variable for each in layer.weights):
            return variables[names.index(weight.variable)]
    return variables[number]


def _equal(reader: Reader, spec: TensorSpec, weight: WeightPlan, variable: Mapping[str, Any]) -> bool:
    """Bit for bit after the transformation; a wider variable holds the stored values exactly."""
    array = apply(weight.transformations, reader.read(spec))
    dtype = np.dtype(variable["dtype"]) if variable["dtype"] != "bfloat16" else _bfloat16()
    with np.errstate(over="ignore"):
        widened = array.astype(dtype)
    if list(widened.shape) != variable["shape"] or not _exact(array, widened):
        return False
    digest: str = hashlib.sha256(np.ascontiguousarray(widened).tobytes()).hexdigest()
    return digest == str(variable["sha256"])


def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _exact(array: np.ndarray, widened: np.ndarray) -> bool:
    if array.dtype == widened.dtype:
        return True
    return bool(np.array_equal(widened.astype(array.dtype), array, equal_nan=True))


def _compare(
    old: OldModel, new: str, made: Sequence[Case], expected: Outputs, outputs: Outputs, rtol: float
) -> Prediction:
    rtol, atol = tolerance(sorted(old.dtypes), rtol, ATOL)
    differences = tuple(_differences(expected, outputs, rtol, atol))
    return Prediction(
        old.library, new, tuple(dict.fromkeys(case.seed for case in made)),
        tuple(dict.fromkeys(case.batch for case in made)), rtol, atol, differences,
    )  # fmt: skip


def _differences(expected: Outputs, outputs: Outputs, rtol: float, atol: float) -> Iterator[Difference]:
    count = max((len(case) for case in (*expected, *outputs)), default=0)
    for number in range(count):
        absolute = largest = 0.0
        equal = True
        for old, new in zip(expected, outputs, strict=True):
            if number >= len(old) or number >= len(new) or old[number].shape != new[number].shape:
                equal, absolute = False, float("inf")
                continue
            a, b = old[number], new[number]
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            with np.errstate(invalid="ignore"):
                gap = np.where(same, 0.0, np.abs(a - b))
            finite = a[np.isfinite(a)]
            size = float(np.max(np.abs(finite), initial=0.0))
            worst = float(np.max(gap, initial=0.0))
            equal = equal and bool(worst <= atol + rtol * size)
            absolute, largest = max(absolute, worst), max(largest, size)
        yield Difference(number, absolute, largest, equal)


def verify_checkpoint(source: Source, other: Source, chosen: VerifyOptions) -> Verification:
    """Compare a source with another checkpoint, name by name, then the outputs where both hold a configuration.

    Raises
    ------
    UsageError : the source holds no weights
    CheckpointError : one of both cannot be read
    """
    mine = {spec.path: spec for spec in source.template.weights()}
    theirs = {spec.path: spec for spec in other.template.weights()}
    if not mine:
        raise UsageError("holds no weights to verify", path=source.path)
    compared = _counter(mine.values(), chosen.on_progress)
    differing: list[str] = []
    for path, spec in mine.items():
        if path not in theirs or not _same_bits(source.reader, spec, other.reader, theirs[path]):
            differing.append(spec.name)
        compared(spec)
    differing += [spec.name for path, spec in theirs.items() if path not in mine]
    if holds_assets(other.template.format):
        differing += differing_files(source.reader, source.template, other.reader, other.template)
    reasons: list[str] = []
    prediction = None
    if chosen.predict and source.template.config is not None and other.template.config is not None:
        prediction = _both(source, other, chosen, reasons)
    equal = sum(spec.name not in differing for spec in mine.values())
    return Verification(
        _name(source), _name(other), equal, len({*mine, *theirs}), 0, tuple(differing), prediction, None, tuple(reasons)
    )


def _same_bits(reader: Reader, spec: TensorSpec, other: Reader, theirs: TensorSpec) -> bool:
    if spec.shape != theirs.shape or spec.dtype != theirs.dtype:
        return False
    return _digest(reader, spec) == _digest(other, theirs)


def _digest(reader: Reader, spec: TensorSpec) -> bytes:
    digest = hashlib.sha256()
    for block in reader.iter_blocks(spec):
        digest.update(little_endian_bytes(block))
    return digest.digest()


def _both(source: Source, other: Source, chosen: VerifyOptions, reasons: list[str]) -> Prediction | None:
    old, made, expected = _old(source, _generation(source.template), chosen.seed, reasons)
    if old is None:
        return None
    try:
        new = old_model(other.template, other.reader, generation=_generation(other.template))
        outputs = outputs_of(new, made)
    except (NoReferenceError, CheckpointError) as error:
        reasons.append(f"outputs not compared: {error}")
        return None
    return _compare(old, new.library, made, expected, outputs, chosen.rtol)


def _generation(template: Checkpoint) -> int:
    model = model_config(template)
    if model is None:
        model = parse_config(template.config or "{}")
    return generation_of(template, model)
