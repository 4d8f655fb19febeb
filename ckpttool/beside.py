"""What lies beside a checkpoint: its configuration, weights that it lacks, other epochs of its run, its template."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .checkpoint import Checkpoint, Notice, TensorSpec
from .errors import CheckpointError, OutputError, UnknownFormatError, UsageError
from .limits import Limits
from .opening import open_checkpoint, recognise
from .probe import Probe
from .registry import OUTPUT_SUFFIXES
from .source import Source, SourceOptions, open_source
from .weight_names import strip_suffix

MAX_LOOKED_AT = 64  # files of a folder that are opened in search of weights: a run keeps fewer beside one model
KERAS_FORMATS = ("keras-h5", "keras-weights", "keras-archive")


def config_beside(path: Path) -> str | None:
    """The path of a JSON file with the checkpoint's stem, or None. It is offered to the user, never used unasked."""
    stem = path.name.removesuffix(path.suffix)
    for name in dict.fromkeys((f"{stem}.json", f"{stem.removesuffix('.weights')}.json")):
        try:
            with (path.parent / name).open("rb") as file:
                if file.read(64).lstrip()[:1] == b"{":
                    return os.fspath(path.parent / name)
        except OSError:
            continue
    return None


def weights_beside(path: Path, limits: Limits = Limits()) -> list[str]:
    """Names of up to three checkpoints in the same folder that hold weights, those of the same stem first."""
    try:
        names = sorted(os.listdir(path.parent if str(path.parent) else "."))
    except OSError:
        return []
    stem = path.name.partition(".")[0]
    candidates = [name for name in names if name != path.name and ".data-" not in name and name != "checkpoint"]
    candidates.sort(key=lambda name: not name.startswith(stem))
    found: list[str] = []
    for name in candidates[:MAX_LOOKED_AT]:
        if len(found) < 3 and _holds_weights(path.parent / name, limits):
            found.append(name)
    return found


def holders(found: list[str]) -> str:
    """The end of a sentence about a file without weights: which files in its folder have some."""
    return f"; beside it {', '.join(found)} {'does' if len(found) == 1 else 'do'}" if found else ""


def _holds_weights(path: Path, limits: Limits) -> bool:
    if not path.is_file():
        return False
    try:
        with open_checkpoint(path, limits=limits) as reader:
            return next(reader.describe().weights(), None) is not None
    except CheckpointError:
        return False


def family(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> list[Path]:
    """The Keras files in a folder that is no checkpoint itself, epochs in their order; empty for anything else."""
    folder = Path(path)
    if not os.path.isdir(folder):  # False for names that no file can have, too
        return []
    try:
        recognise(Probe(folder, options.limits), options.format_name)
    except UnknownFormatError:
        return sorted(_keras_files(folder, options.limits), key=_by_numbers)
    except CheckpointError:
        return []
    return []


def expanded(paths: Iterable[str], options: SourceOptions = SourceOptions()) -> list[str]:
    """The paths with each folder of Keras files replaced by its files."""
    found: list[str] = []
    for path in paths:
        found += [os.fspath(member) for member in family(path, options)] or [path]
    return found


@contextmanager
def family_outputs(members: Iterable[Path], output: str | None, to: str | None) -> Iterator[dict[str, Path]]:
    """Where each file of a folder is written: in another folder, under the same name.

    The folder is made at the start and removed at the end where nothing came into it.

    Raises
    ------
    UsageError : no folder is given for the outputs, or a file is
    OutputError : the folder cannot be made
    """
    if output is None or (os.path.lexists(output) and not Path(output).is_dir()):
        raise UsageError("several files are written: give a folder for them with -o", path=output)
    is_new = not os.path.lexists(output)
    try:
        Path(output).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror}", path=output) from error
    suffix = next((each for each, name in OUTPUT_SUFFIXES.items() if name == to), None)
    names = {os.fspath(member): member.name if suffix is None else f"{member.stem}{suffix}" for member in members}
    try:
        yield {member: Path(output, name) for member, name in names.items()}
    finally:
        if is_new and not os.listdir(output):
            os.rmdir(output)


def _keras_files(folder: Path, limits: Limits) -> Iterator[Path]:
    for entry in folder.iterdir():
        if not entry.is_file() or entry.name.startswith("."):
            continue
        probe: Probe | None = None
        try:
            probe = Probe(entry, limits)
            if recognise(probe).format in KERAS_FORMATS:
                yield entry
        except CheckpointError:
            continue
        finally:
            if probe is not None:
                probe.close()


def _by_numbers(path: Path) -> list[tuple[int, int, str]]:
    """`weights.9-0.52.hdf5` before `weights.10-0.48.hdf5`."""
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def disagreement(paths: Iterable[str | os.PathLike[str]], options: SourceOptions = SourceOptions()) -> Notice | None:
    """Whether of two files one is the other's template with other values: a run's template that was never trained.

    Values are read, block by block, only where one file is wrapped, the other is not, and both describe one template.
    """
    first, second, *more = [*paths, None, None]
    if first is None or second is None or any(each is not None for each in more):
        return None
    try:
        with open_source(first, options) as one, open_source(second, options) as other:
            if (one.wrapper is None) == (other.wrapper is None):
                return None
            pairs = _pairs(one.template, other.template)
            return None if pairs is None else _compared(one, other, pairs)
    except CheckpointError:
        return None  # each file's own error is shown where the file is


def _pairs(one: Checkpoint, other: Checkpoint) -> list[tuple[TensorSpec, TensorSpec]] | None:
    """The tensors of two templates, if their names (but for TensorFlow's suffixes), shapes and types are the same."""
    left, right = list(one.weights()), list(other.weights())
    if not left or len(left) != len(right):
        return None
    pairs = list(zip(left, right, strict=True))
    return pairs if all(_alike(a, b) for a, b in pairs) else None


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    names = [[strip_suffix(part) for part in spec.path] for spec in (one, other)]
    return names[0] == names[1] and one.shape == other.shape and one.dtype == other.dtype


def _compared(one: Source, other: Source, pairs: list[tuple[TensorSpec, TensorSpec]]) -> Notice | None:
    from .replicas import largest_difference

    apart: list[tuple[str, float]] = []
    for spec, twin in pairs:
        largest = largest_difference(one.reader, spec, other.reader, twin)
        if largest is not None:
            apart.append((spec.name, largest))
    if not apart:
        return None
    wrapped, plain = (one, other) if one.wrapper is not None else (other, one)
    name, largest = max(apart, key=lambda item: item[1])
    return Notice(
        "files-disagree",
        f"{wrapped.path} holds the same template as {plain.path} with other values: {len(apart)} of {len(pairs)} "
        f"tensors differ, {name} by up to {largest:.6g}; with cpu_relocation the wrapper trains a copy of its "
        f"template, so of one run the wrapper's file is the trained one",
    )
