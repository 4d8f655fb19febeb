"""`ckpttool inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render
from .many import each_path

if TYPE_CHECKING:
    from ..source import SourceOptions


@click.command("inspect", cls=shared.JsonCommand, short_help="Say what a checkpoint is and list its layers.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--layer", metavar="PATTERN", help="Only layers that fit a name, a path from the end, or a glob.")
@shared.json_opt
@shared.verbosity
@shared.source
def inspect(
    paths: tuple[str, ...], layer: str | None, json_form: str | None, quiet: bool, verbose: bool, options: SourceOptions
) -> int:
    """Say what each PATH is and list the layers inside its wrapper; no value is read.

    Example: ckpttool inspect model.h5 --layer 'tower/*'
    """

    def show(path: str) -> dict[str, object]:
        found = ckpttool.inspect(path, layer=layer, options=options)
        if json_form is None:
            render.inspection(found, verbose=verbose)
        return found.to_json() if json_form is not None else {}

    return each_path(paths, show, json_form)
