"""`ckpttool migrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render

if TYPE_CHECKING:
    from ..source import SourceOptions


@click.command("migrate", cls=shared.JsonCommand, short_help="Make a Keras 3 model of a legacy one, and prove it.")
@click.argument("source", metavar="SRC")
@click.option("-o", "--output", metavar="DEST", required=True, help="The new .keras file, or .h5 for tf_keras.")
@click.option("--to", type=click.Choice(["keras", "tf-keras"]), help="The target, where the suffix does not say it.")
@shared.replace_opt
@shared.custom_objects_opt
@click.option("--no-verify", is_flag=True, help="Write the output without the proof that it computes the same.")
@click.option("--dry-run", is_flag=True, help="Print the plan; build and write nothing.")
@shared.report_opt
@shared.overwrite_opt
@shared.json_opt
@shared.verbosity
@shared.source
def migrate(
    source: str, output: str, to: str | None, replace: dict[str, str], custom_objects: str | None, no_verify: bool,
    dry_run: bool, report: str | None, overwrite: bool, json_form: str | None, quiet: bool, verbose: bool,
    options: SourceOptions,
) -> int:  # fmt: skip
    """Rebuild the model of SRC with Keras 3's own layers, so that stock Keras loads it in safe mode, and prove it.

    Example: ckpttool migrate old.h5 -o new.keras
    """
    done = ckpttool.migrate(
        source, output, to=to, replace_layers=replace, custom_objects=custom_objects, verify=not no_verify,
        report=report, dry_run=dry_run, overwrite=overwrite, options=options, on_progress=render.progress(quiet),
    )  # fmt: skip
    if json_form is not None:
        render.json_out([done.to_json()], json_form)
    else:
        render.migration(done, quiet=quiet, verbose=verbose)
    return 0 if dry_run or no_verify or done.verified else 1
