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
from .opening import NamedReader, open_checkpoint
from .reading import Reader, ReadOptions
from .transforms import has_copies
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
    step: int | None = None  # which checkpoint of a folder, or version of a SavedModel; None is the newest
    replica: int | None = None  # whose copies to take where replicas' copies are stored; None is the primary's
    ema: bool = False  # the moving averages of the weights in place of the weights
    checksums: bool = True  # verify the checksums of values, where the format has them

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
        for option, number in (("--step", self.step), ("--replica", self.replica)):
            if number is not None:
                given += [option, str(number)]
        flags = {
            "--no-wrapper": self.no_wrapper,
            "--theano": self.theano,
            "--ema": self.ema,
            "--no-checksum": not self.checksums,
        }
        return (*given, *(flag for flag, is_given in flags.items() if is_given))

    def reading(self) -> ReadOptions:
        """The part of these options that formats take."""
        return ReadOptions(self.step, self.replica, self.ema, self.checksums)


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source: its reader, the whole, and the template inside the wrapper."""

    path: Path
    reader: Reader
    whole: Checkpoint
    template: Checkpoint
    wrapper: Evidence | None
    opened: NamedReader  # the reader without the views around it

    def files(self) -> list[Path]:
        """Every file that the source consists of, and the path as given: none may be an output."""
        return [self.path, *self.opened.files()]


def _folded(reader: Reader, wrapper: Evidence | None, path: object) -> Reader:
    """The reader, or one that compares the replicas of a wrapper whose bodies are stored one by one."""
    if wrapper is None or not wrapper.twins or wrapper.assumed:
        return reader
    from .replicas import EqualReplicas

    return EqualReplicas(reader, {spec.locator: others for spec, others in wrapper.twins}, path)


@contextmanager
def open_source(path: str | os.PathLike[str], options: SourceOptions) -> Iterator[Source]:
    """Open a checkpoint and look inside its wrapper; errors inside the block carry the path.

    Raises
    ------
    CheckpointError : see `open_checkpoint`; or the assumed wrapper does not exist
    """
    with open_checkpoint(
        path, format_name=options.format_name, config=options.config, limits=options.limits, read=options.reading()
    ) as opened:
        reader: Reader = opened
        try:
            whole = reader.describe()
            if options.theano:
                from .theano import turns
                from .views import TurnedKernels

                reader = TurnedKernels(reader, whole, turns(whole, keep_layout=options.keep_layout, path=path))
                whole = reader.describe()
            if options.ema or options.replica is not None or has_copies(whole):
                from .folding import FoldedReplicas, with_averages

                whole = with_averages(whole) if options.ema else whole
                reader = FoldedReplicas(reader, whole, options.replica)
            template, wrapper = look_inside(whole, assume=options.assume_wrapper, never=options.no_wrapper)
            yield Source(Path(path), _folded(reader, wrapper, path), whole, template, wrapper, opened)
        except CheckpointError as error:
            if error.path is None:
                error.path = str(path)
            raise
