"""Where the test files are, which tests run here, and a count of those that do not, with the reason.

A test is left out in two ways only. It is *skipped* for one of the reasons in `SKIPS`, by its marker; any other skip
fails the run. It is *not run* where a package that it is marked for (`tensorflow`, `needs("package")`) is not
installed, which the environment of all packages refuses (`--all-installed`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.manifest import ENTRIES

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures" / "files"
CORPUS = Path(os.environ.get("CKPTTOOL_CORPUS") or ROOT.parent / "shared" / "corpus")
LEGACY_ENVS = Path(os.environ.get("CKPTTOOL_LEGACY_ENVS") or ROOT / ".legacy-envs")

SKIPS = {  # marker -> (reason, whether the test can run here)
    "corpus": ("corpus: no folder of published checkpoints (CKPTTOOL_CORPUS)", CORPUS.is_dir),
    "gpu": ("gpu: no NVIDIA device", Path("/dev/nvidiactl").exists),
    "old_python": ("old-python: no old environments (CKPTTOOL_LEGACY_ENVS; fixtures/make_all.py)", LEGACY_ENVS.is_dir),
}

_skipped: Counter[str] = Counter()
_not_run: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-installed", action="store_true", help="fail where a package that a test needs is missing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what cannot run here as skipped, and take out what needs a package that is not installed."""
    installed: dict[str, bool] = {}
    kept, dropped = [], []
    for item in items:
        for name, (reason, runs_here) in SKIPS.items():
            if item.get_closest_marker(name) is not None and not runs_here():
                item.add_marker(pytest.mark.skip(reason=reason))
        missing = [name for name in _packages(item) if not installed.setdefault(name, find_spec(name) is not None)]
        if missing and config.getoption("--all-installed"):
            item.add_marker(pytest.mark.skip(reason=f"not installed: {missing[0]}"))  # a skip that fails the run
            kept.append(item)
        elif missing:
            _not_run[missing[0]] += 1
            dropped.append(item)
        else:
            kept.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _packages(item: pytest.Item) -> Iterator[str]:
    if item.get_closest_marker("tensorflow") is not None:
        yield from ("tensorflow", "keras", "tf_keras")
    for marker in item.iter_markers("needs"):
        yield from marker.args


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _count_skip(report.longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _count_skip(report.longrepr)


def _count_skip(longrepr: Any) -> None:
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    _skipped[reason.removeprefix("Skipped: ")] += 1


def _forbidden() -> list[str]:
    allowed = {reason for reason, _ in SKIPS.values()}
    return [reason for reason in _skipped if reason not in allowed]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A skip for another reason fails the run; that no test has the markers asked for is no failure."""
    if hasattr(session.config, "workerinput"):
        return  # of pytest-xdist: its controller sees the reports too
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (session.config.option.markexpr or _not_run):
        session.exitstatus = pytest.ExitCode.OK
    if _forbidden() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a reason, so that a log shows how much was not tested."""
    write = terminalreporter.write_line
    counts = {reason.partition(":")[0]: _skipped[reason] for reason, _ in SKIPS.values()}
    write(f"skips: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    for name, count in sorted(_not_run.items()):
        write(f"not run: {count} that need {name}")
    for reason in _forbidden():
        write(f"skips: {_skipped[reason]} for a reason that is not allowed: {reason}", red=True)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def fixture_files() -> Path:
    """The folder of files that the old libraries wrote."""
    return FIXTURES


@pytest.fixture(scope="session")
def manifest() -> dict[str, Any]:
    """What the old libraries held, by file name: `files` of fixtures/MANIFEST.json."""
    return ENTRIES


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of published checkpoints; for tests marked `corpus`."""
    return CORPUS


@pytest.fixture(scope="session")
def legacy_envs() -> Path:
    """The folder of old Pythons with their libraries; for tests marked `old_python`."""
    return LEGACY_ENVS
