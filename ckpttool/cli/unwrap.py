"""`ckpttool unwrap`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render

if TYPE_CHECKING:
    from ..source import SourceOptions


@click.command("unwrap", cls=shared.JsonCommand, short_help="Write the single-GPU model out of a multi-GPU file.")
@shared.path_arg
@click.option(
    "-o", "--output", metavar="OUT", help="The new file; by default <stem>-single here, with a suffix that fits."
)
@click.option("--to", metavar="FORMAT", help="The output's format, where its suffix does not say it.")
@click.option("--weights-only", is_flag=True, help="Leave the configuration out.")
@shared.dtype_opt
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@shared.theano_opt
@shared.report_opt
@shared.overwrite_opt
@shared.json_opt
@shared.verbosity
@shared.source
def unwrap(
    path: str, output: str | None, to: str | None, weights_only: bool, dtype: str | None, dry_run: bool,
    report: str | None, overwrite: bool, json_form: str | None, quiet: bool, verbose: bool, options: SourceOptions,
) -> int:  # fmt: skip
    """Write the single-GPU template of PATH: the full model where PATH holds its configuration, else the weights.

    Example: ckpttool unwrap parallel.h5 -o base.h5
    """
    result = ckpttool.unwrap(
        path, output, to=to, weights_only=weights_only, dtype=dtype, report=report, dry_run=dry_run,
        overwrite=overwrite, options=options, on_progress=render.progress(quiet),
    )  # fmt: skip
    if json_form is not None:
        render.json_out([result.to_json()], json_form)
    else:
        render.receipt(result, quiet=quiet)
    return 0
