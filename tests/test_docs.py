"""README's blocks are run, in order and in one folder, and what they show is compared; every command is described.

* `console`: a line `$ COMMAND` is run by bash, the lines after it are what it prints (stdout and stderr), `...` stands
  for anything. A comment `# exit 2` names an exit code other than 0.
* `python`: run, with the names of the blocks before.
* `text` and all others: not run.
* `<!-- file: NAME = FIXTURE -->` puts a fixture into the folder under that name.
* `<!-- needs: tensorflow -->` before a block: it is run only where that is installed.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import ckpttool
from ckpttool.cli.main import COMMANDS, cli
from ckpttool.registry import FORMATS, OUTPUT_SUFFIXES, WRAPPERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
FENCE = re.compile(r"(?P<needs><!-- needs: (?P<what>[\w ]+) -->\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
FILE = re.compile(r"<!-- file: (\S+) = (\S+) -->")
EXIT = re.compile(r"# exit (\d+)$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its kind, its text, the line it begins on, and the package that it needs."""

    kind: str
    body: str
    line: int
    needs: str | None


def _blocks() -> Iterator[Block]:
    for match in FENCE.finditer(README):
        line = README.count("\n", 0, match.start("body")) + 1
        yield Block(match["kind"], match["body"], line, match["what"])


@dataclass(frozen=True)
class Step:
    """One command of a console block, and what is printed after it."""

    command: str
    shown: str
    code: int


def _steps(body: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        found = EXIT.search(command)
        yield Step(command, shown, int(found[1]) if found else 0)


class Shell:
    """A folder with the named fixtures, and `ckpttool` and `python` on PATH."""

    def __init__(self, folder: Path, fixtures: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for name, arguments in {"ckpttool": " -m ckpttool", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', "utf-8")
            (programs / name).chmod(0o755)
        for name, fixture in FILE.findall(README):
            (self.folder / name).write_bytes((fixtures / fixture).read_bytes())
        self.environment = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip

    def console(self, step: Step) -> tuple[int, str]:
        """Run a line in bash; give its exit code and what it printed, stdout and stderr as they came."""
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def python(self, source: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the folder."""
        return subprocess.run(
            [sys.executable, "-c", source], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip


def _run(shell: Shell, installed: str) -> None:
    """Run the blocks that need nothing or what is installed: the console ones, then the python ones as one program."""
    program = []
    for block in _blocks():
        if block.needs is not None and block.needs not in installed:
            continue
        if block.kind == "console":
            for step in _steps(block.body):
                code, shown = shell.console(step)
                assert code == step.code, f"README.md:{block.line}: {step.command}: exit {code}\n{shown}"
                same = doctest.OutputChecker().check_output(step.shown, shown, doctest.ELLIPSIS)
                assert same, f"README.md:{block.line}: {step.command}: prints\n{shown}"
        elif block.kind == "python":
            program.append("\n" * (block.line - 1 - "".join(program).count("\n")) + block.body)
    done = shell.python("".join(program))
    assert done.returncode == 0, f"README.md: {done.stderr}"


def test_the_blocks_of_readme_do_what_they_show(tmp_path: Path, fixture_files: Path) -> None:
    _run(Shell(tmp_path, fixture_files), installed="")


@pytest.mark.tensorflow
def test_the_blocks_of_readme_with_tensorflow(tmp_path: Path, fixture_files: Path) -> None:
    _run(Shell(tmp_path, fixture_files), installed="tensorflow")


def test_a_block_with_another_output_is_noticed() -> None:
    step = next(_steps("$ echo two  # exit 0\none\n"))
    assert (step.command, step.shown, step.code) == ("echo two  # exit 0", "one\n", 0)
    assert not doctest.OutputChecker().check_output(step.shown, "two\n", doctest.ELLIPSIS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_section_with_its_function_and_its_options(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)^##", README, re.M | re.S)
    assert section is not None, f"README.md has no section '### {name}'"
    assert f"`ckpttool {name}" in section[1]
    if name in ckpttool.__all__:
        assert f"`ckpttool.{name}(" in section[1]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help is not None
    assert "Example: ckpttool " in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert any(option in README for option in parameter.opts), f"{name}: {parameter.opts} is not described"


def test_every_format_suffix_and_wrapper_has_a_row() -> None:
    rows = "".join(re.findall(r"^\|.*\n", README, re.M))
    for name in (*FORMATS, *OUTPUT_SUFFIXES, *WRAPPERS):
        assert f"`{name}`" in rows, name


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name
)
def test_what_a_page_points_to_exists(page: Path, fixture_files: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`(?:fixtures/files/)?((?:keras|tf)-\d[\w.-]+\.(?:h5|json|keras|npz))`", text):
        assert (fixture_files / name).exists(), name
    for name in re.findall(r"`((?:ckpttool|tests|fixtures|docs)/[\w/.-]+)`", text):
        assert (ROOT / name).exists(), name


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0] == "Unreleased"
