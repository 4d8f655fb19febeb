"""`ckpttool extract`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ckpttool

from . import options as shared
from . import render

if TYPE_CHECKING:
    from ..source import SourceOptions


@click.command("extract", cls=shared.JsonCommand, short_help="Take one layer out as arrays, or as a function.")
@shared.path_arg
@click.option("--layer", metavar="NAME", help="Name, path from the end, or glob; by default the only embedding.")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="A '.npy' or '.csv' for one tensor; '.npz', '.safetensors', '.h5' or a new folder for all.",
)
@click.option("--tensor", metavar="NAME", help="Which variable of the layer: kernel, bias, …")
@click.option("--transpose", is_flag=True, help="Reverse the axes of what is written.")
@click.option(
    "--dot-product",
    metavar="FILE",
    help="Write a function that scores vectors: '.py' (NumPy only), '.onnx', '.keras', or a SavedModel's folder.",
)
@shared.theano_opt
@shared.overwrite_opt
@shared.json_opt
@shared.verbosity
@shared.source
def extract(
    path: str, layer: str | None, output: str | None, tensor: str | None, transpose: bool, dot_product: str | None,
    overwrite: bool, json_form: str | None, quiet: bool, verbose: bool, options: SourceOptions,
) -> int:  # fmt: skip
    """Take one layer of PATH out; without -o and --dot-product print its tensors and statistics.

    Example: ckpttool extract model.h5 --layer image_embedding -o kernel.npy
    """
    shown = output is None and dot_product is None
    found = ckpttool.extract(
        path, layer, output, tensor=tensor, transpose=transpose, dot_product=dot_product, with_statistics=shown,
        overwrite=overwrite, options=options, on_progress=render.progress(quiet),
    )  # fmt: skip
    if json_form is not None:
        render.json_out([found.to_json()], json_form)
    else:
        render.extracted(found, quiet=quiet)
    return 0
