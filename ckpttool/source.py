"""The options that every command takes about its source, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Checkpoint
from .errors import CheckpointError
from .limits import Limits
from .opening import open_checkpoint
from .reading import Reader
from .wrapping import Evidence, look_inside


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read a source; the defaults fit almost every file."""

    format_name: str | None = None  # where several formats fit
    config: str | os.PathLike[str] | None = None  # a file with the model's configuration
    assume_wrapper: str | None = None  # the layer that is the template
    no_wrapper: bool = False  # take the file as it is
    limits: Limits = Limits()
    theano: bool = False  # turn convolution kernels that Theano trained
    keep_layout: bool = False  # with theano: leave the axes in the order that the configuration asks for

    def words(self) -> tuple[str, ...]:
        """These options as words of a command line, for a command that is offered to the user."""
        given: list[str] = []
        for option, value in (
            ("--format", self.format_name),
            ("--config", self.config),
            ("--assume-wrapper", self.assume_wrapper),
        ):
            if value is not None:
                given += [option, os.fspath(value)]
        return (*given, *(["--no-wrapper"] if self.no_wrapper else []), *(["--theano"] if self.theano else []))


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source: its reader, the whole, and the template inside the wrapper."""

    path: Path
    reader: Reader
    whole: Checkpoint
    template: Checkpoint
    wrapper: Evidence | None


@contextmanager
def open_source(path: str | os.PathLike[str], options: SourceOptions) -> Iterator[Source]:
    """Open a checkpoint and look inside its wrapper; errors inside the block carry the path.

    Raises
    ------
    CheckpointError : see `open_checkpoint`; or the assumed wrapper does not exist
    """
    with open_checkpoint(path, format_name=options.format_name, config=options.config, limits=options.limits) as reader:
        try:
            whole = reader.describe()
            if options.theano:
                from .theano import turns
                from .views import TurnedKernels

                reader = TurnedKernels(reader, whole, turns(whole, keep_layout=options.keep_layout, path=path))
                whole = reader.describe()
            template, wrapper = look_inside(whole, assume=options.assume_wrapper, never=options.no_wrapper)
            yield Source(Path(path), reader, whole, template, wrapper)
        except CheckpointError as error:
            if error.path is None:
                error.path = str(path)
            raise
