"""What the command line does when its streams close, when it is interrupted, and when it is misunderstood."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WRAPPED = "fixtures/files/keras-2.2.4-sequential.h5"


def _start(*arguments: str, command: str = 'exec "$@"') -> subprocess.Popen[str]:
    words = ["sh", "-c", command, "sh", sys.executable, "-m", "ckpttool", *arguments]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ckpttool(*arguments: str, command: str = 'exec "$@"') -> tuple[int, str, str]:
    with _start(*arguments, command=command) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--help",), 0), (("inspect", WRAPPED), 0), (("inspect", WRAPPED, "no-such-file"), 2), (("--version",), 0)],
    ids=["help", "inspect", "inspect a missing file too", "version"],
)
@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_went_away_leaves_the_code_of_the_answer(
    arguments: tuple[str, ...], code: int, buffering: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "ckpttool", *arguments], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": buffering}, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == code
    assert done.stderr.count("\n") == (code != 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_from_the_start_change_no_code(closed: str) -> None:
    assert _ckpttool("inspect", WRAPPED, command=f'exec "$@" {closed}')[0] == 0
    code, out, err = _ckpttool("inspect", "no-such-file", command=f'exec "$@" {closed}')
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_a_full_disk_behind_stdout_is_one_line() -> None:
    code, _, err = _ckpttool("inspect", WRAPPED, command='exec "$@" >/dev/full')
    assert code == 3
    assert err == "ckpttool: standard output: cannot be written: No space left on device\n"


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    with _start("inspect", *[WRAPPED] * 5000) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is at work
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_no_arguments_show_the_help_as_an_error() -> None:
    code, out, err = _ckpttool()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ckpttool")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspekt", "x"), "'inspekt' is neither a command nor a file; did you mean 'inspect'?"),
        (("help",), "'help' is neither a command nor a file; did you mean '--help'?"),
        (("--json", WRAPPED), "'--json' stands before a command; options follow it: ckpttool inspect FILE --json"),
        (("inspect",), "Missing argument 'PATH...'; see 'ckpttool inspect --help'"),
        (("unwrap", "a", "b"), "Got unexpected extra argument (b): one PATH is taken, and the output's name "
         "stands after -o; see 'ckpttool unwrap --help'"),
        (("formats", "b"), "Got unexpected extra argument (b); see 'ckpttool formats --help'"),
        (("https://example.com/m.h5",),
         "https://example.com/m.h5: a URL, and only local files are read; download it first"),
    ],
    ids=["command misspelt", "help without dashes", "option first", "no path", "a path too many", "a word more", "URL"],
)  # fmt: skip
def test_wrong_use_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    assert _ckpttool(*arguments) == (2, "", f"ckpttool: {message}\n")


@pytest.mark.parametrize(
    "arguments", [(WRAPPED, "--json"), ("inspect", "--json", WRAPPED), ("inspect", WRAPPED, "--json")]
)
def test_json_stands_before_or_after_the_path(arguments: tuple[str, ...]) -> None:
    code, out, err = _ckpttool(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith('{\n "schema": 1,\n')
