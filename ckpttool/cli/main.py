"""The `ckpttool` command: finds subcommands, and turns every error into one line and its exit code."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import NoReturn

import click

from .. import __version__
from ..errors import CheckpointError

COMMANDS = {
    "convert": "ckpttool.cli.convert",
    "extract": "ckpttool.cli.extract",
    "formats": "ckpttool.cli.formats",
    "inspect": "ckpttool.cli.inspect",
    "migrate": "ckpttool.cli.migrate",
    "unwrap": "ckpttool.cli.unwrap",
    "verify": "ckpttool.cli.verify",
}

EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 2, 70, 130


class CommandGroup(click.Group):
    """Subcommands by the table above; a path in place of a command means `inspect`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS:
            if os.path.lexists(word) or os.path.lexists(f"{word}.index") or "://" in word:
                args = ["inspect", *args]
            else:
                raise click.UsageError(f"'{word}' is neither a command nor a file{_suggest(word)}")
        return super().resolve_command(ctx, args)


def _suggest(word: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, [*sorted(COMMANDS), "--help", "--version"], 1, 0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; commands are {', '.join(sorted(COMMANDS))}"


@click.command(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done or yes, 1 no, 2 wrong use, 3 the file or the output, 70 a bug, 130 interrupted.",
)
@click.version_option(__version__, prog_name="ckpttool")
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Take the single-device model out of old Keras and TensorFlow checkpoints.

    A file in place of a command is inspected: ckpttool model.h5

    Example: ckpttool unwrap parallel.h5 -o base.h5
    """
    if ctx.invoked_subcommand is not None:
        return 0
    click.echo(ctx.get_help(), err=True)
    return EXIT_USAGE


def run(args: list[str] | None = None) -> int:
    """Run a command line and return its exit code; nothing but a bug's traceback goes past it."""
    from .render import discard_output, flush, one_line, replace_closed_streams

    replace_closed_streams()
    try:
        result = cli.main(args, prog_name="ckpttool", standalone_mode=False)
        flush()
        return result if isinstance(result, int) else 0
    except SystemExit:  # click's answer to a closed stdout while it prints a help text
        discard_output()
        return 0
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        print(f"ckpttool: {one_line(_usage(error))}", file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(f"ckpttool: {one_line(str(error))}", file=sys.stderr)
        return error.code
    except Exception:  # a bug of ours, not of a file: its traceback is what we need to mend it
        import traceback

        traceback.print_exc()
        return EXIT_BUG


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command line, and where to read how it goes."""
    message = error.format_message().removesuffix(".")
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    if isinstance(error, click.NoSuchOption) and isinstance(error.ctx.command, CommandGroup):
        return f"'{error.option_name}' stands before a command; options follow it: ckpttool inspect FILE --json"
    writes = any(each.name == "output" for each in error.ctx.command.params)
    if writes and message.startswith("Got unexpected extra argument"):
        message += ": one PATH is taken, and the output's name stands after -o"
    return f"{message}; see '{error.ctx.command_path} --help'"


def main() -> NoReturn:
    """The entry point of the console script."""
    gc.set_threshold(100_000)  # a listing makes as many objects and no cycles: a fifth of its time went into the search
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts a thread a core at import: 0.05 s
    sys.exit(run())
