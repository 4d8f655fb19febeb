"""Outputs appear whole or not at all: written beside their place under a temporary name, then put in place."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import CheckpointError, OutputError, OutputExistsError, OutputIsInputError, UsageError

OUTPUT_OPTIONS = ("-o", "--report")  # of commands that write two files, in this order
_TEMPORARY = re.compile(r"\..+\.ckpttool-\d+-[0-9a-f]+\.tmp")


def check_output(path: Path, *, overwrite: bool, inputs: Sequence[Path], option: str = "-o") -> None:
    """Refuse an output that exists or is an input, before any work is done; `option` is the one that named it.

    Raises
    ------
    OutputIsInputError : the output is one of the inputs, by whatever name
    OutputExistsError : it exists and `overwrite` is False
    OutputError : its folder does not exist
    """
    for source in inputs:
        if _same(path, source):
            raise OutputIsInputError(f"the output is the input; choose another name with {option}", path=path)
    if os.path.lexists(path) and not overwrite:
        raise OutputExistsError(f"exists; choose another name with {option}, or --overwrite", path=path)
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder '{path.parent}' to write it in", path=path)


def check_distinct(outputs: Sequence[Path]) -> None:
    """Refuse two outputs of one run at one place, before any work is done.

    Raises
    ------
    UsageError : two of them are the same
    """
    for number, path in enumerate(outputs):
        if any(_same(path, other) for other in outputs[:number]):
            raise UsageError("two outputs would be written here; give them different names", path=path)


def _same(path: Path, source: Path) -> bool:
    with suppress(OSError):
        if os.path.samefile(path, source):
            return True
    return os.path.realpath(path) == os.path.realpath(source)


@contextmanager
def output_file(path: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a temporary sibling to write; put it in place when the block ends well, remove it when not.

    Raises
    ------
    OutputIsInputError, OutputExistsError, OutputError : see `check_output`; also when writing fails
    """
    check_output(path, overwrite=overwrite, inputs=inputs)
    sweep(path.parent)
    temporary: Path | None = None
    lock = -1
    try:
        temporary, lock = _locked_file(path)
        yield temporary
        if path.is_dir():
            raise OutputError("is a folder; give a file's name", path=path)
        _put_in_place(temporary, path, overwrite)
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
            os.close(lock)


@contextmanager
def output_folder(path: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """The same for a folder of files; an existing folder is replaced only with `overwrite`.

    Raises
    ------
    OutputIsInputError, OutputExistsError, OutputError : see `check_output`; also when writing fails
    """
    check_output(path, overwrite=overwrite, inputs=inputs)
    if overwrite and os.path.lexists(path) and not path.is_dir():
        raise OutputError("is a file; give another name for the folder", path=path)
    sweep(path.parent)
    temporary = _temporary(path)
    lock = -1
    try:
        temporary.mkdir()
        lock = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        _lock(lock)
        yield temporary
        if os.path.lexists(path):
            aside = _temporary(path)
            path.rename(aside)
            temporary.rename(path)
            _remove_tree(aside)
        else:
            temporary.rename(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        _remove_tree(temporary)
        if lock >= 0:
            os.close(lock)


def _remove_tree(path: Path) -> None:
    """Remove a folder, as far as that goes; shutil brings compressors with it, which most runs never need."""
    if path.is_dir():
        import shutil

        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside an output, for a library that insists on names of its own; removed at the end."""
    folder = _temporary(path)
    lock = -1
    try:
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY)
        _lock(lock)
        yield folder
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        _remove_tree(folder)
        if lock >= 0:
            os.close(lock)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.ckpttool-{os.getpid()}-{os.urandom(4).hex()}.tmp")


def _locked_file(path: Path) -> tuple[Path, int]:
    """A new temporary sibling and the descriptor that holds its lock: nobody takes it for a left-over meanwhile."""
    while True:
        temporary = _temporary(path)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _lock(descriptor)
        if _is_at(descriptor, temporary):
            return temporary, descriptor
        os.close(descriptor)  # swept between its making and its locking


def _lock(descriptor: int) -> bool:
    """Take the lock; False where another process has it, or the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False


def sweep(folder: Path) -> None:
    """Remove what killed runs left in a folder: temporary outputs that no process holds a lock on.

    A library that insists on a suffix writes to `<temporary>.<suffix>` beside it, which goes with it.
    """
    try:
        names = [name for name in os.listdir(folder) if _TEMPORARY.fullmatch(name)]
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if _lock(descriptor) and _is_at(descriptor, path):
                    _remove(path)
                    for other in os.listdir(folder):
                        if other.startswith(f"{name}."):
                            _remove(folder / other)
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _remove_tree(path)
    else:
        path.unlink()


def _put_in_place(temporary: Path, path: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)  # fails where the name was taken meanwhile, which a rename would not
    except FileExistsError:
        raise OutputExistsError("exists; choose another name with -o, or --overwrite", path=path) from None
    except OSError:
        os.replace(temporary, path)  # a file system without links
