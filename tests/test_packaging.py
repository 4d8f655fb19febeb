"""The distribution: its metadata and bounds, what a built wheel holds, and the interpreter that `make` finds."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import ckpttool

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", "utf-8")
    return parser


def _requirements(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _names(requirements: list[str]) -> set[str]:
    return {_canonical(found[0]) for line in requirements if (found := NAME.match(line))}


BOUNDS = _requirements((ROOT / "constraints.txt").read_text("utf-8"))


def test_every_bound_is_an_upper_one() -> None:
    for line in BOUNDS:
        assert re.fullmatch(r"[A-Za-z0-9._-]+<[0-9.]+", line), line
    assert len(_names(BOUNDS)) == len(BOUNDS)


def test_every_dependency_and_extra_has_a_bound() -> None:
    setup = _setup()
    asked = _requirements(setup["options"]["install_requires"])
    for extra in setup["options.extras_require"].values():
        asked += _requirements(extra)
    assert _names(asked) <= _names(BOUNDS)


def test_everything_that_the_dependencies_bring_along_has_a_bound() -> None:
    setup = _setup()
    waiting = _names(_requirements(setup["options"]["install_requires"])) | {"pytest"}
    for extra in setup["options.extras_require"].values():
        waiting |= _names(_requirements(extra))
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        brought = [line for line in found.requires or [] if "extra ==" not in line]
        waiting |= {each for each in _names(brought) if each not in seen and _is_installed(each)}
    assert seen <= _names(BOUNDS)


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # for another system or another Python
    return True


def test_installed_versions_are_inside_the_bounds() -> None:
    bounds = dict(line.split("<") for line in BOUNDS)
    installed = {name: metadata.version(name) for name in bounds if _is_installed(name)}
    assert not [f"{name} {found}" for name, found in installed.items() if _version(found) >= _version(bounds[name])]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def test_the_core_needs_five_packages() -> None:
    asked = _names(_requirements(_setup()["options"]["install_requires"]))
    assert asked == {"numpy", "h5py", "click", "rich", "ml-dtypes"}


def test_the_version_is_one_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", ckpttool.__version__)
    assert _setup()["metadata"]["version"] == "attr: ckpttool.__version__"


@pytest.mark.needs("setuptools", "ruff")  # all of "dev": an older venv has an older setuptools
def test_a_wheel_holds_the_package_its_licence_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "ckpttool", source / "ckpttool", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"ckpttool-{ckpttool.__version__}.dist-info"
        about = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ckpttool").rglob("*.py")}
    assert {name for name in names if not name.startswith(info)} == modules | {"ckpttool/py.typed"}
    assert any(name.startswith(info) and name.endswith("/LICENSE") for name in names)
    assert re.search(r"^License(-Expression)?: Apache-2\.0$", about, re.M)
    assert "Requires-Python: >=3.11" in about
    assert "ckpttool = ckpttool.cli.main:main" in entry_points


def _shim(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    (folder / name).chmod(0o755)


def _find(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ROOT / ".ci" / "find-python"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_takes_the_first_python_that_really_starts(tmp_path: Path) -> None:
    _shim(tmp_path, "python3", "echo 'pyenv: not installed' >&2; exit 127")
    _shim(tmp_path, "python3.13", "exit 1")
    _shim(tmp_path, "python3.12", f'exec "{sys.executable}" "$@"')
    assert _find(tmp_path).stdout == "python3.12\n"


def test_make_says_what_to_install_where_venv_is_missing(tmp_path: Path) -> None:
    _shim(tmp_path, "python3", f'case "$2" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"')
    found = _find(tmp_path)
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == "make: python3 has no venv module; install it: apt-get install python3-venv\n"


def test_make_says_what_to_install_where_no_python_fits(tmp_path: Path) -> None:
    found = _find(tmp_path)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "apt-get install python3 python3-venv" in found.stderr


def test_no_path_of_a_machine_is_in_what_is_installed_with() -> None:
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt", "Makefile", ".ci/run", ".ci/find-python"):
        text = (ROOT / name).read_text("utf-8")
        assert not re.search(r"--(extra-)?index-url|--find-links|OPENBLAS|/root/|/opt/|/home/", text), name


def test_what_make_calls_can_be_started() -> None:
    assert all(os.access(ROOT / ".ci" / name, os.X_OK) for name in ("run", "find-python"))


FAKE_MAKE = """
echo "called: $*"
echo "skips: 2 corpus, 0 gpu, 1 old-python"
echo "SKIPPED [2] tests/test_a.py:3: corpus: no folder of published checkpoints"
echo "===== 5 passed, 3 skipped in 1.00s ====="
exit ${FAKE_CODE:-0}
"""


@pytest.fixture
def fake_machine(tmp_path: Path) -> Path:
    """A folder to search programs in: a Python without venv until apt-get was called, and a make that only prints."""
    fits = f'[ -e "{tmp_path}/installed" ] || case "$2" in *ensurepip*) exit 1;; esac'
    _shim(tmp_path, "python3", f'{fits}; exec "{sys.executable}" "$@"')
    _shim(tmp_path, "apt-get", f'echo "apt-get $*"; touch "{tmp_path}/installed"')
    _shim(tmp_path, "make", FAKE_MAKE)
    for name in ("bash", "sh", "env", "dirname", "mktemp", "tee", "rm", "grep", "touch"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def _ci(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(folder), **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("code", [0, 2])
def test_ci_calls_both_goals_and_closes_with_the_summaries(fake_machine: Path, code: int) -> None:
    (fake_machine / "installed").touch()
    done = _ci(fake_machine, FAKE_CODE=str(code))
    assert done.returncode == code
    assert done.stdout.startswith("called: test test-all\n")
    assert [line.partition(" ")[0] for line in done.stdout.partition("\nsummary (exit code ")[2].splitlines()[1:]] == [
        "skips:",
        "SKIPPED",
        "=====",
    ]


def test_ci_installs_what_is_missing_or_says_it(fake_machine: Path) -> None:
    done = _ci(fake_machine)
    if os.geteuid() == 0:
        assert done.returncode == 0, done.stderr
        assert "apt-get install -y -qq --no-install-recommends python3 python3-venv\n" in done.stdout
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "run: missing on this machine; as root: apt-get install python3 python3-venv\n"
