"""Every way to name what TensorFlow saved, turned into one place: prefixes, their files, state files, folders.

TensorFlow itself takes a prefix as a glob, so its reader fails in a folder `run [1]`; here names are only compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import Notice
from ..errors import CheckpointNotFoundError, CorruptCheckpointError, UsageError
from ..limits import Limits
from . import _table

if TYPE_CHECKING:
    from ..probe import Probe
    from ._tf_unmerged import Parts

BUNDLE, V1, SAVED_MODEL = "tf-checkpoint", "tf-checkpoint-v1", "saved-model"

# Patterns are compiled when they are used: few paths need one, and all of them at import cost as much as a listing.
_SHARD = r"(?s)(.*)\.data-(\d{5})-of-(\d{5})"
_V1_SHARD = r"(?s)(.*)-(\d{5})-of-(\d{5})"
_STATED = rb"(?m)^\s*(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*\"((?:[^\"\\]|\\.)*)\""
_ESCAPE = rb"(?s)\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)"
_PLAIN_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
_MAX_STATE_BYTES = 16 * 2**20  # a state file lists at most some thousand paths
_SHOWN_STEPS = 20
_STATE_START = b"model_checkpoint_path"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint lies, and by which sign it was found."""

    kind: str  # BUNDLE, V1 or SAVED_MODEL
    prefix: str  # of a bundle: its files' names without suffix; of V1: the first file; of a SavedModel: its folder
    reason: str
    files: tuple[Path, ...] = ()  # V1: every file
    notices: tuple[Notice, ...] = ()
    parts: Parts | None = None  # of a bundle whose save was not finished: what it is joined of

    @property
    def index(self) -> Path:
        """A bundle's index."""
        return Path(f"{self.prefix}.index")


def locate(probe: Probe) -> Place | None:
    """What the path names, or None where it is nothing of TensorFlow's.

    Raises
    ------
    UsageError : the folder holds no such step, or several checkpoints and none is the newest
    CheckpointNotFoundError : a state file points to what is not there
    """
    if probe.is_dir:
        return _folder(probe)
    text = os.fspath(probe.path)
    if probe.is_prefix:
        return _prefix(text, "a prefix")
    name = probe.path.name
    match = _shard(name)
    if match and os.path.isfile(_beside(text, f"{match[1]}.index")):
        prefix = _beside(text, match[1])
        return Place(BUNDLE, prefix, "a data file beside its index", notices=_one_part(prefix))
    if _ends_like_a_table(probe):
        return _table_file(text)
    if name.endswith(".meta") and (found := _prefix(text.removesuffix(".meta"), "a .meta file's checkpoint")):
        return found
    if probe.head.lstrip().startswith(_STATE_START):
        return _stated(probe.path.parent, probe.path, probe.options.step)
    if name == "saved_model.pb":
        return Place(SAVED_MODEL, os.path.dirname(text) or ".", "the file 'saved_model.pb'")
    if name.endswith(".index") and probe.foreign() is None and probe.head[:1] not in (b"{", b"<"):
        return Place(BUNDLE, text.removesuffix(".index"), "the suffix '.index'")
    return None


def is_prefix(path: str) -> bool:
    """Whether files of a checkpoint begin with this path, which is none itself."""
    return bool(os.path.basename(path)) and _prefix(path, "") is not None


def _shard(name: str) -> re.Match[str] | None:
    """The parts of a data file's name: prefix, number, count."""
    return re.fullmatch(_SHARD, name) if ".data-" in name else None


def v1_shard(name: str) -> re.Match[str] | None:
    """The parts of the name of one of several V1 files: prefix, number, count."""
    return re.fullmatch(_V1_SHARD, name) if "-of-" in name else None


def _beside(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


def _ends_like_a_table(probe: Probe) -> bool:
    if probe.size_bytes < _table.FOOTER_BYTES:
        return False
    with probe.path.open("rb") as file:
        file.seek(-len(_table.MAGIC), os.SEEK_END)
        return file.read() == _table.MAGIC


def _table_file(path: str) -> Place:
    """An index or a V1 file: the value of the key "" is a header, or SavedTensorSlices, whose field 1 is a message."""
    table = _table.Table(Path(path), Limits())
    try:
        value = table.lookup(b"")
    finally:
        table.close()
    if value is not None and value[:1] == b"\x0a":
        return _v1(path)
    if value is None:
        raise CorruptCheckpointError("a table, but no checkpoint: it has no header", path=path)
    if not path.endswith(".index"):
        return Place(BUNDLE, path, "a table with a bundle's header")
    prefix = path.removesuffix(".index")
    return Place(BUNDLE, prefix, "a table with a bundle's header", notices=_one_part(prefix))


def _is_part(name: str) -> bool:
    """Whether a file's name is that of one part of a save on S3; all of them are one checkpoint."""
    from . import _tf_unmerged

    return _tf_unmerged.part_of(name.removesuffix(".index")) is not None


def _one_part(prefix: str) -> tuple[Notice, ...]:
    """That a bundle is only one part of a save."""
    if "part-" not in os.path.basename(prefix):
        return ()
    from . import _tf_unmerged

    part = _tf_unmerged.part_of(prefix)
    if part is None or part[1] == 1:
        return ()
    folder = os.path.basename(os.path.dirname(os.path.abspath(prefix)))
    message = f"one of {part[1]} parts of a save that was not finished; the path of '{folder}' reads them as one"
    return (Notice("one-part", message),)


def _v1(path: str) -> Place:
    """All files of a V1 checkpoint that one of them belongs to."""
    match = v1_shard(os.path.basename(path))
    if match is None:
        return Place(V1, path, "a table of saved tensor slices", (Path(path),))
    names = [f"{match[1]}-{number:05d}-of-{match[3]}" for number in range(min(int(match[3]), 100_000))]
    files = tuple(Path(_beside(path, name)) for name in names)
    missing = [file.name for file in files if not file.is_file()]
    notices: tuple[Notice, ...] = ()
    if missing:
        shown = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        notices = (Notice("missing-shard", f"{len(missing)} of {len(files)} files are missing: {shown}"),)
    return Place(V1, path, "a table of saved tensor slices", tuple(f for f in files if f.is_file()), notices)


def _prefix(prefix: str, reason: str) -> Place | None:
    """The checkpoint whose files begin with a path: V2 by its index, V1 by its one file or its shards."""
    if os.path.isfile(f"{prefix}.index"):
        return Place(BUNDLE, prefix, reason, notices=_one_part(prefix))
    if os.path.isfile(prefix):
        return _v1(prefix) if _is_table(prefix) else None
    folder, base = os.path.split(prefix)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return None
    for name in sorted(names):
        match = v1_shard(name)
        if match and match[1] == base and _is_table(os.path.join(folder, name)):
            return _v1(os.path.join(folder, name))
    if any(_is_part_of(base, name) for name in names):
        from . import _tf_unmerged

        return _joined(_tf_unmerged.of_prefix(prefix, names))
    return None


def _is_part_of(base: str, name: str) -> bool:
    return name.startswith(base) and (name.startswith("_temp", len(base)) or name.endswith(".index"))


def _joined(parts: Parts | None) -> Place | None:
    """A save that was not finished, as the checkpoint that it would have been."""
    if parts is None:
        return None
    return Place(BUNDLE, parts.prefix, "the parts of a save that was not finished", (), (parts.notice(),), parts)


def _unfinished(folder: str) -> list[Place]:
    """The saves in a folder that were not finished."""
    try:
        names = [name for name in os.listdir(folder) if "_temp" in name or ".part-" in name]
    except OSError:
        return []
    if not names:
        return []
    from . import _tf_unmerged

    return [place for parts in _tf_unmerged.in_folder(folder, names) if (place := _joined(parts))]


def _is_table(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-len(_table.MAGIC), os.SEEK_END)
            return file.read() == _table.MAGIC
    except OSError:
        return False


def _folder(probe: Probe) -> Place | None:
    text = os.fspath(probe.path)
    names = probe.names
    if "saved_model.pb" in names or "saved_model.pbtxt" in names:
        return Place(SAVED_MODEL, text, "the file 'saved_model.pb' in the folder")
    if "variables.index" in names and os.path.isfile(os.path.join(text, os.pardir, "saved_model.pb")):
        return Place(SAVED_MODEL, os.path.dirname(os.path.abspath(text)), "'saved_model.pb' beside the folder")
    if "variables" in names and os.path.isfile(os.path.join(text, "variables", "variables.index")):
        notice = Notice("no-saved-model", "'saved_model.pb' is missing: the variables are read, names may be poorer")
        prefix = os.path.join(text, "variables", "variables")
        return Place(BUNDLE, prefix, "the variables of a SavedModel", notices=(notice,))
    if "variables" in names and (places := _unfinished(os.path.join(text, "variables"))):
        return places[0]
    versions = sorted(
        (int(name), name)
        for name in names
        if name.isdecimal() and len(name) < 20 and os.path.isfile(os.path.join(text, name, "saved_model.pb"))
    )
    if versions:
        return _version(text, versions, probe.options.step)
    if "checkpoint" in names:
        state = probe.path / "checkpoint"
        if state.is_file() and _head(state).lstrip().startswith(_STATE_START):
            return _stated(probe.path, state, probe.options.step)
    found = [p for name in sorted(names) if (p := _unstated(os.path.join(text, name)))]
    if not found or all(os.path.basename(place.prefix).startswith("part-") for place in found):
        from . import _tf_unmerged

        if (_tf_unmerged.is_temporary(probe.path.name) or found) and (parts := _tf_unmerged.of_folder(text)):
            return _joined(parts)
        found = found or _unfinished(text)
    if not found:
        return None
    return _chosen(probe.path, list({place.prefix: place for place in found}.values()), None, probe.options.step)


def _unstated(path: str) -> Place | None:
    """A checkpoint that shows by the name of one of its files, in a folder without a state file."""
    name = os.path.basename(path)
    if ".part-" in name and _is_part(name):
        return None
    if name.endswith(".index") and _is_table(path):
        return Place(BUNDLE, path[: -len(".index")], "an index in the folder")
    if not name.endswith((".index", ".meta")) and not _shard(name):
        shard = v1_shard(name)
        if ((shard and shard[2] == "00000") or os.path.isfile(f"{path}.meta")) and _is_table(path):
            return _v1(path)
    return None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


def _version(folder: str, versions: list[tuple[int, str]], step: int | None) -> Place:
    """One of several numbered SavedModels: the newest, as TensorFlow Serving takes it."""
    numbers = [number for number, _ in versions]
    if step is not None and step not in numbers:
        raise UsageError(f"holds no version {step}; it holds {_listed(numbers)}", path=folder)
    name = versions[-1][1] if step is None else next(name for number, name in versions if number == step)
    notices: tuple[Notice, ...] = ()
    if len(versions) > 1 and step is None:
        message = f"the folder holds {len(versions)} versions; read {name}; another with --step: {_listed(numbers)}"
        notices = (Notice("several-checkpoints", message),)
    return Place(SAVED_MODEL, os.path.join(folder, name), "a folder of numbered versions", notices=notices)


def _stated(folder: Path, state: Path, step: int | None) -> Place:
    """What a state file names as the newest, or the asked step of it or of the folder."""
    try:
        if state.stat().st_size > _MAX_STATE_BYTES:
            raise CorruptCheckpointError("too large for a 'checkpoint' state file", path=state)
        data = state.read_bytes()
    except OSError as error:
        raise CheckpointNotFoundError(f"cannot be read: {error.strerror}", path=state) from error
    stated = [(match[1] == _STATE_START, _unescaped(match[2])) for match in re.finditer(_STATED, data)]
    newest_text = next((text for newest, text in stated if newest), None)
    if newest_text is None:
        raise CorruptCheckpointError("a 'checkpoint' state file that names no checkpoint", path=state)
    newest = _beside_state(folder, newest_text)
    if newest is None and step is None:
        name = os.path.basename(newest_text)
        raise CheckpointNotFoundError(
            f"points to '{newest_text}', and there is no '{name}.index' beside it; give the checkpoint's own path",
            path=state,
        )
    places = [newest] if newest else []
    places += [place for _, text in stated if (place := _beside_state(folder, text)) is not None]
    try:
        on_disk = sorted(name for name in os.listdir(folder) if name.endswith(".index"))
    except OSError:
        on_disk = []
    places += [place for name in on_disk if (place := _unstated(os.path.join(folder, name))) is not None]
    return _chosen(folder, list({place.prefix: place for place in places}.values()), newest, step)


def _beside_state(folder: Path, text: str) -> Place | None:
    """A stated path: relative to the folder; an absolute one, mostly another machine's, by its last part."""
    parts = Path(text).parts
    relative = os.path.basename(text) if os.path.isabs(text) or ".." in parts else text
    place = _prefix(os.path.join(folder, relative), "the state file 'checkpoint'")
    return place


def _unescaped(text: bytes) -> str:
    """A quoted string of the text format of protocol buffers."""

    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1].isdigit():
            return bytes([int(code, 8) & 255])
        if code[:1] == b"x" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        return _PLAIN_ESCAPES.get(code, code)

    return re.sub(_ESCAPE, plain, text).decode("utf-8", "surrogateescape")


def step_of(prefix: str) -> int | None:
    """The step at the end of a prefix: 7 for `model.ckpt-7`."""
    last = os.path.basename(prefix).rpartition("-")[2]
    return int(last) if last.isdecimal() and len(last) < 20 else None


def _chosen(folder: Path, places: list[Place], newest: Place | None, step: int | None) -> Place:
    """The asked step; else the stated one; else the highest of numbered ones; else the only one."""
    steps = {place.prefix: step_of(place.prefix) for place in places}
    known = sorted({number for number in steps.values() if number is not None})
    unfinished = [place for place in _unfinished(os.fspath(folder)) if place.prefix not in steps]
    if step is not None:
        fitting = [place for place in places if steps[place.prefix] == step]
        fitting = fitting or [place for place in unfinished if step_of(place.prefix) == step]
        if not fitting:
            raise UsageError(f"holds no checkpoint of step {step}; it holds {_listed(known) or 'none'}", path=folder)
        if len(fitting) > 1:
            names = ", ".join(sorted(os.path.basename(place.prefix) for place in fitting))
            raise UsageError(f"several checkpoints are of step {step}: {names}; give one's own path", path=folder)
        return fitting[0]
    chosen = newest
    if chosen is None:
        bases = {_base(place.prefix) for place in places}
        if len(places) > 1 and (len(bases) > 1 or None in steps.values()):
            bare = sorted(os.path.basename(place.prefix) or ".index" for place in places)
            names = ", ".join(bare[:_SHOWN_STEPS]) + (" …" if len(bare) > _SHOWN_STEPS else "")
            raise UsageError(f"holds several checkpoints: {names}; give one's own path", path=folder)
        chosen = max(places, key=lambda place: steps[place.prefix] or 0)
    if unfinished:
        chosen = replace(chosen, notices=(*chosen.notices, _beside_it(unfinished)))
    if len(places) == 1:
        return chosen
    others: Iterable[object] = known if len(known) == len(places) else sorted(map(os.path.basename, steps))
    message = (
        f"the folder holds {len(places)} checkpoints; read '{os.path.basename(chosen.prefix)}'; "
        f"another with --step or by its path: {_listed(others)}"
    )
    return replace(chosen, notices=(*chosen.notices, Notice("several-checkpoints", message)))


def _beside_it(unfinished: list[Place]) -> Notice:
    """That there are saves which were not finished, and which are not what is read."""
    shown = _listed(f"'{os.path.basename(place.prefix)}'" for place in unfinished)
    message = f"beside it are the parts of a save that was not finished, not read unless its path is given: {shown}"
    return Notice("unfinished-beside", message)


def _base(prefix: str) -> str:
    base, dash, last = os.path.basename(prefix).rpartition("-")
    return base if dash and last.isdecimal() else f"{base}{dash}{last}"


def _listed(numbers: Iterable[object]) -> str:
    texts = [str(number) for number in numbers]
    return ", ".join(texts[:_SHOWN_STEPS]) + (" …" if len(texts) > _SHOWN_STEPS else "")
