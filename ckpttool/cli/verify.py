"""`ckpttool verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render

if TYPE_CHECKING:
    from ..source import SourceOptions


@click.command("verify", cls=shared.JsonCommand, short_help="Prove that one file is another, tensors and outputs.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--rtol", type=float, default=1e-4, show_default=True, help="Of an output's largest value, in float32.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first random inputs.")
@click.option("--no-predict", is_flag=True, help="Compare tensors only.")
@shared.replace_opt
@shared.custom_objects_opt
@shared.json_opt
@shared.verbosity
@shared.source
def verify(
    a: str, b: str, rtol: float, seed: int, no_predict: bool, replace: dict[str, str], custom_objects: str | None,
    json_form: str | None, quiet: bool, verbose: bool, options: SourceOptions,
) -> int:  # fmt: skip
    """Prove that B is A: every template tensor, bit for bit or through the stated transformation, and the outputs.

    Example: ckpttool verify old.h5 new.keras
    """
    found = ckpttool.verify(
        a, b, rtol=rtol, seed=seed, predict=not no_predict, replace=replace, custom_objects=custom_objects,
        options=options, on_progress=render.progress(quiet),
    )  # fmt: skip
    if json_form is not None:
        render.json_out([found.to_json()], json_form)
    else:
        render.verification(found)
    return 0 if found.verified else 1
