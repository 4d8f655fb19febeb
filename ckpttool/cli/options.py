"""Options that several commands share, each once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Any], Any]


class JsonCommand(click.Command):
    """A command whose `--json` may stand alone or as `--json=lines`, and never takes the next word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        fixed = ["--json=document" if word == "--json" else word for word in args[:end]]
        return super().parse_args(ctx, fixed + args[end:])


json_opt: Decorator = click.option(
    "--json", "json_form", type=click.Choice(["document", "lines"]), metavar="",
    help="Machine-readable result on stdout; --json=lines gives one object a line.",
)  # fmt: skip
overwrite_opt: Decorator = click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
report_opt: Decorator = click.option(
    "--report", metavar="FILE", help="Write a JSON map from each stored tensor to each written one, with checksums."
)
theano_opt: Decorator = click.option(
    "--theano", is_flag=True, help="Turn convolution kernels that Theano trained into those of TensorFlow."
)
dtype_opt: Decorator = click.option(
    "--dtype", type=click.Choice(["float16", "bfloat16", "float32"]), help="Another type for all floating weights."
)


def _replacements(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in value:
        layer, _, target = each.partition("=")
        if not layer or ":" not in target:
            raise click.BadParameter(f"takes LAYER=module:callable, not '{each}'")
        found[layer] = target
    return found


replace_opt: Decorator = click.option(
    "--replace", metavar="LAYER=module:callable", multiple=True, callback=_replacements,
    help="Your own code for one layer: called with its stored config, it returns a Keras 3 layer.",
)  # fmt: skip
custom_objects_opt: Decorator = click.option(
    "--custom-objects", metavar="FILE.py", help="Your own Python file with the model's classes; it is imported."
)
path_arg: Decorator = click.argument("path", metavar="PATH")


def verbosity(command: Any) -> Any:
    """`-q` and `-v`."""
    command = click.option("-q", "--quiet", is_flag=True, help="Results and errors only.")(command)
    return click.option("-v", "--verbose", is_flag=True, help="Say more about what was found.")(command)


def source(command: Any) -> Any:
    """The source options; the command receives them as one `SourceOptions` in `options`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        format_name: str | None,
        config: str | None,
        assume_wrapper: str | None,
        no_wrapper: bool,
        limit: tuple[str, ...],
        step: int | None,
        replica: int | None,
        ema: bool,
        no_checksum: bool,
        theano: bool = False,
        **kwargs: Any,
    ) -> Any:
        from ..limits import Limits  # here, so that --help loads nothing of the library
        from ..source import SourceOptions

        if assume_wrapper is not None and no_wrapper:
            raise click.UsageError("--assume-wrapper and --no-wrapper contradict each other")
        chosen = SourceOptions(
            format_name, config, assume_wrapper, no_wrapper, Limits().override(limit), theano=theano,
            step=step, replica=replica, ema=ema, checksums=not no_checksum,
        )  # fmt: skip
        return command(*args, options=chosen, **kwargs)

    for decorate in (
        click.option("--limit", metavar="NAME=VALUE", multiple=True, help="Change a bound that files must stay in."),
        click.option("--no-checksum", is_flag=True, help="Do not verify the checksums of values."),
        click.option("--ema", is_flag=True, help="The moving averages of the weights in place of the weights."),
        click.option("--replica", type=click.IntRange(0), metavar="N", help="Whose copies, where replicas have them."),
        click.option("--step", type=click.IntRange(0), metavar="N", help="Which checkpoint of a folder; or version."),
        click.option("--no-wrapper", is_flag=True, help="Take the file as it is, without looking for a wrapper."),
        click.option("--assume-wrapper", metavar="LAYER", help="The layer that is the template, where unproven."),
        click.option("--config", metavar="FILE", help="Model JSON, or a checkpoint that holds one: names and nesting."),
        click.option("--format", "format_name", metavar="NAME", help="The format, where several fit."),
    ):
        wrapped = decorate(wrapped)
    return wrapped
