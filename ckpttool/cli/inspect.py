"""`ckpttool inspect`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render
from .many import each_path

if TYPE_CHECKING:
    from ..inspecting import Inspection
    from ..source import SourceOptions


@click.command("inspect", cls=shared.JsonCommand, short_help="Say what a checkpoint is and list its layers.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--layer", metavar="PATTERN", help="Only layers that fit a name, a path from the end, or a glob.")
@click.option("--flat", "as_lines", is_flag=True, help="One line a tensor: path, shape, dtype, place; tab-separated.")
@click.option("--stats", is_flag=True, help="Minimum, maximum, mean, deviation, zeros, NaN and Inf of each tensor.")
@click.option("--optimizer", is_flag=True, help="List the optimizer's tensors too.")
@shared.json_opt
@shared.verbosity
@shared.source
def inspect(
    paths: tuple[str, ...], layer: str | None, as_lines: bool, stats: bool, optimizer: bool, json_form: str | None,
    quiet: bool, verbose: bool, options: SourceOptions,
) -> int:  # fmt: skip
    """Say what each PATH is and list the layers inside its wrapper; no value is read without --stats.

    Of a folder of Keras files each is answered. Of a wrapped model and its template, given together, values are
    compared: they may disagree.  Example: ckpttool inspect model.h5 --layer 'tower/*'
    """
    from ..beside import disagreement, expanded

    given, paths = paths, tuple(expanded(paths, options))
    apart = disagreement(given, options)

    def show(path: str) -> Inspection:
        found = ckpttool.inspect(
            path, layer=layer, stats=stats, optimizer=optimizer, options=options, on_progress=render.progress(quiet)
        )
        found = found if apart is None else replace(found, warnings=(*found.warnings, apart))
        if json_form is None and as_lines:
            render.flat(found, label=len(paths) > 1, quiet=quiet)
        elif json_form is None:
            render.inspection(found, verbose=verbose)
        return found

    return each_path(paths, show, json_form)
