"""The `ckpttool` command: finds subcommands, and turns every error into one line and its exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import CheckpointError

COMMANDS = {
    "extract": "ckpttool.cli.extract",
    "inspect": "ckpttool.cli.inspect",
    "unwrap": "ckpttool.cli.unwrap",
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
            if os.path.lexists(word):
                args = ["inspect", *args]
            else:
                raise click.UsageError(f"'{word}' is neither a command nor a file{_suggest(word)}")
        return super().resolve_command(ctx, args)


def _suggest(word: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, sorted(COMMANDS), 1, 0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; commands are {', '.join(sorted(COMMANDS))}"


@click.command(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done or yes, 1 no, 2 wrong use, 3 the file or the output, 70 a bug, 130 interrupted.",
)
@click.version_option(__version__, prog_name="ckpttool")
def cli() -> None:
    """Take the single-device model out of old Keras and TensorFlow checkpoints.

    Example: ckpttool unwrap parallel.h5 -o base.h5
    """


def run(args: list[str] | None = None) -> int:
    """Run a command line and return its exit code; nothing but a bug's traceback goes past it."""
    from .render import one_line

    code = 0
    try:
        result: Any = cli.main(args, prog_name="ckpttool", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        return _quiet(code)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        print(f"ckpttool: {one_line(error.format_message())}", file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(f"ckpttool: {one_line(str(error))}", file=sys.stderr)
        return error.code
    except Exception:  # a bug of ours, not of a file: its traceback is what we need to mend it
        traceback.print_exc()
        return EXIT_BUG
    return code


def _quiet(code: int) -> int:
    """The reader of our output went away: stop writing, and let Python's shutdown find nothing to flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def main() -> NoReturn:
    """The entry point of the console script."""
    sys.exit(run())
