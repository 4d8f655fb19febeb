"""`ckpttool formats`."""

from __future__ import annotations

import click

import ckpttool

from . import options as shared
from . import render


@click.command("formats", cls=shared.JsonCommand, short_help="List what can be read and written.")
@shared.json_opt
@shared.verbosity
def formats(json_form: str | None, quiet: bool, verbose: bool) -> int:
    """List the formats: read, written by which suffix, known by which signs, and what is installed for each.

    Example: ckpttool formats
    """
    found = ckpttool.list_formats()
    if json_form is not None:
        render.json_out([each.to_json() for each in found], json_form, many=True)
    else:
        render.format_table(found)
    return 0
