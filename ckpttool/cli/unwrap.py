"""`ckpttool unwrap`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import ckpttool

from . import options as shared
from . import render
from .many import each_path, one_path

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
@click.option("--keep-optimizer", is_flag=True, help="Carry the optimizer's state over, within one format.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@shared.theano_opt
@shared.report_opt
@shared.overwrite_opt
@shared.json_opt
@shared.verbosity
@shared.source
def unwrap(
    path: str, output: str | None, to: str | None, weights_only: bool, dtype: str | None, keep_optimizer: bool,
    dry_run: bool,
    report: str | None, overwrite: bool, json_form: str | None, quiet: bool, verbose: bool, options: SourceOptions,
) -> int:  # fmt: skip
    """Write the single-GPU template of PATH: the full model where PATH holds its configuration, else the weights.

    Of a folder of Keras files each is unwrapped into the folder OUT, under its own name.

    Example: ckpttool unwrap parallel.h5 -o base.h5
    """
    from ..beside import family, family_outputs

    members = family(path, options)
    if members and report is not None:
        raise click.UsageError("--report takes the map of one file, and a folder holds several")
    outputs: dict[str, Any] = {path: output}

    def show(each: str) -> dict[str, Any]:
        result = ckpttool.unwrap(
            each, outputs[each], to=to, weights_only=weights_only, dtype=dtype, keep_optimizer=keep_optimizer,
            report=report, dry_run=dry_run, overwrite=overwrite, options=options, on_progress=render.progress(quiet),
        )  # fmt: skip
        if json_form is None:
            render.receipt(result, quiet=quiet)
        return result.to_json()

    if not members:
        return one_path(path, show, json_form)
    with family_outputs(members, output, to) as made:
        outputs.update(made)
        return each_path(list(made), show, json_form, apart=False)
