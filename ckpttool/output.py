"""Outputs appear whole or not at all: written beside their place under a temporary name, then put in place."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import CheckpointError, OutputError, OutputExistsError, OutputIsInputError, UsageError


def check_output(path: Path, *, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Refuse an output that exists or is an input, before any work is done.

    Raises
    ------
    OutputIsInputError : the output is one of the inputs, by whatever name
    OutputExistsError : it exists and `overwrite` is False
    OutputError : its folder does not exist
    """
    for source in inputs:
        if _same(path, source):
            raise OutputIsInputError("the output is the input; choose another name with -o", path=path)
    if os.path.lexists(path) and not overwrite:
        raise OutputExistsError("exists; choose another name with -o, or --overwrite", path=path)
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
    temporary = _temporary(path)
    try:
        yield temporary
        if path.is_dir():
            raise OutputError("is a folder; give a file's name", path=path)
        _put_in_place(temporary, path, overwrite)
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


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
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        if os.path.lexists(path):
            aside = _temporary(path)
            path.rename(aside)
            temporary.rename(path)
            shutil.rmtree(aside)
        else:
            temporary.rename(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside an output, for a library that insists on names of its own; removed at the end."""
    folder = _temporary(path)
    try:
        folder.mkdir()
        yield folder
    except CheckpointError:
        raise
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.ckpttool-{os.getpid()}-{secrets.token_hex(4)}.tmp")


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
