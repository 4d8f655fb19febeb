"""Every error that ckpttool raises about a file, a request or an output.

All derive from `CheckpointError`; each class also derives from the builtin that a Python user would catch, and names
the exit code that the command line gives for it.
"""

from __future__ import annotations

from typing import ClassVar


class CheckpointError(Exception):
    """Whatever is wrong with a checkpoint, a request about it, or an output.

    Parameters
    ----------
    message : what is wrong and what to do, on one line, without the path
    path : the file or folder it is about; shown in front of the message
    """

    code: ClassVar[int] = 3

    def __init__(self, message: str, *, path: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)

    def __str__(self) -> str:
        return self.message if self.path is None else f"{self.path}: {self.message}"


class UsageError(CheckpointError, ValueError):
    """Wrong or incomplete use: the request itself cannot be carried out."""

    code = 2


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no such file, folder or checkpoint prefix."""

    code = 2


class OutputExistsError(CheckpointError, FileExistsError):
    """The output exists and overwriting was not asked for."""

    code = 2


class OutputIsInputError(CheckpointError, ValueError):
    """The output is the input; inputs are never edited."""

    code = 2


class UnprovenWrapperError(CheckpointError, ValueError):
    """The file looks wrapped, but does not prove it; the message holds the command that says so."""

    code = 2


class LayerNotFoundError(CheckpointError, LookupError):
    """No layer with weights fits the name."""

    code = 2


class AmbiguousLayerError(CheckpointError, LookupError):
    """Several layers fit the name; the message lists their paths."""

    code = 2


class AmbiguousFormatError(CheckpointError, ValueError):
    """Several formats recognise the file; `--format` chooses."""

    code = 2


class MissingDependencyError(CheckpointError, ImportError):
    """An optional package is needed for this; the message names the extra."""

    code = 2


class UnknownFormatError(CheckpointError, ValueError):
    """No format recognises the content; the message says what the file does hold."""


class CorruptCheckpointError(CheckpointError, ValueError):
    """The file is truncated, damaged or contradicts itself."""


class UnsafeCheckpointError(CheckpointError, ValueError):
    """The file reaches outside of itself (external link, external storage, virtual dataset, odd names)."""


class LimitExceededError(CheckpointError, ValueError):
    """The file exceeds a bound.

    Parameters
    ----------
    message : what there is too much of
    path : the file it is about
    limit : the field of `Limits` that bounds it, for the message; None for a bound that nobody can change
    """

    def __init__(self, message: str, *, path: object = None, limit: str | None = None) -> None:
        hint = "" if limit is None else f"; if you trust the file, raise it with --limit {limit}=N"
        super().__init__(message + hint, path=path)


class UnsupportedError(CheckpointError, ValueError):
    """Understood, but not something ckpttool can read or write (a filter, a data type)."""


class UnreadableError(CheckpointError, OSError):
    """The operating system refuses to give the file: in use, no permission, an I/O error."""


class ConfigError(CheckpointError, ValueError):
    """A model configuration is not valid JSON, or not one of Keras."""


class WeightsMismatchError(CheckpointError, ValueError):
    """The stored weights fit no layer of the configuration."""


class AmbiguousWeightsError(CheckpointError, ValueError):
    """The stored weights fit several layers, and nothing in the file decides."""


class ReplicasDifferError(CheckpointError, ValueError):
    """Models that should be copies of one hold different values, so that none of them is the template."""


class OutputError(CheckpointError, OSError):
    """The output could not be written; nothing is left behind."""


class EmptyResultError(CheckpointError, ValueError):
    """Nothing to write: no tensor was selected. Zero is an error, never a silent success."""


class ReaderClosedError(CheckpointError, ValueError):
    """A reader was used after it was closed."""
