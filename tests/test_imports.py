"""Which module may import what, read from the sources; and what a fresh interpreter has loaded after each command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ckpttool"
MODULES = sorted(PACKAGE.rglob("*.py"))

TERMINAL = {"click", "rich"}
FRAMEWORKS = {"keras", "tensorflow", "tf_keras", "torch", "jax"}
WITH_FRAMEWORKS = ("frameworks.py", "live.py", "layers/", "migration/build.py", "migration/fresh.py", "predicting.py")
DOT_PRODUCT = {"exports/dot_product.py", "exports/dot_product_program.py"}  # their text is copied to other machines
HEAVY = {"numpy", "h5py", "rich", "ml_dtypes", *FRAMEWORKS}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (top-level package, whether the import runs with the module itself) of each absolute import."""
    yield from _within(ast.parse(path.read_text("utf-8")), at_import=True)


def _within(node: ast.AST, *, at_import: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name.partition(".")[0], at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module is not None:
            yield child.module.partition(".")[0], at_import
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _within(ast.Module(child.orelse, []), at_import=at_import)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _within(child, at_import=at_import and not inside)


@pytest.mark.parametrize("path", [each for each in MODULES if not _name(each).startswith("cli/")], ids=_name)
def test_nothing_below_the_command_line_imports_click_or_rich(path: Path) -> None:
    if _name(path) != "__main__.py":
        assert not TERMINAL & {package for package, _ in _imports(path)}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_the_modules_for_live_models_import_a_framework_and_only_when_asked(path: Path) -> None:
    found = [(package, at_import) for package, at_import in _imports(path) if package in FRAMEWORKS]
    if found:
        assert _name(path).startswith(WITH_FRAMEWORKS)
    assert not any(at_import for _, at_import in found)


@pytest.mark.parametrize("path", [PACKAGE / name for name in sorted(DOT_PRODUCT)], ids=_name)
def test_the_dot_product_imports_numpy_and_the_standard_library_alone(path: Path) -> None:
    assert {package for package, _ in _imports(path)} <= {"numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", [each for each in MODULES if not _name(each).startswith("cli/")], ids=_name)
def test_the_library_neither_prints_nor_sets_up_logging(path: Path) -> None:
    if _name(path) in DOT_PRODUCT:
        return  # a written module is a program too
    tree = ast.parse(path.read_text("utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {"print", "logging.basicConfig", "sys.stdout.write", "sys.stderr.write"} & called


def test_the_package_offers_what_it_lists_and_at_most_25_names() -> None:
    import ckpttool

    assert len(ckpttool.__all__) <= 25
    assert ckpttool.__all__ == sorted(ckpttool.__all__)
    assert set(ckpttool.__all__) == set(ckpttool._PLACES)
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    for name in ckpttool.__all__:
        assert name not in modules, f"ckpttool.{name} would be a function and a module"
        assert getattr(ckpttool, name) is not None


def _loaded(code: str, *arguments: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after `code`, by their names in sys.modules."""
    code += "\nimport json, sys\nprint('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


RUN = "import sys\nfrom ckpttool.cli.main import run\nassert run(sys.argv[1:]) == 0"


def test_importing_the_package_loads_none_of_its_dependencies() -> None:
    assert not (HEAVY | TERMINAL) & _loaded("import ckpttool")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("inspect", "--help"), ("unwrap", "--help")], ids=" ".join
)
def test_help_and_version_load_no_numpy_h5py_or_rich(arguments: tuple[str, ...]) -> None:
    assert not HEAVY & _loaded(RUN, *arguments)


def test_no_command_is_loaded_for_the_version() -> None:
    names = "[name[13:] for name in sys.modules if name.startswith('ckpttool.cli.')]"
    assert "click" in _loaded(f"{RUN}\nassert set({names}) <= {{'main', 'render'}}, {names}", "--version")


WRAPPED = "keras-2.2.4-sequential.h5"


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "{source}"),
        ("inspect", "{source}", "--json"),
        ("unwrap", "{source}", "-o", "{folder}/base.h5", "--report", "{folder}/report.json"),
        ("extract", "{source}", "--layer", "image_embedding"),
        ("extract", "{source}", "--layer", "image_embedding", "-o", "{folder}/kernel.npy"),
        ("extract", "{source}", "--dot-product", "{folder}/scores.py"),
    ],
    ids=lambda words: " ".join(words).replace("{folder}/", "").replace("{source}", "FILE"),
)
def test_the_commands_load_neither_tensorflow_nor_keras(
    arguments: tuple[str, ...], fixture_files: Path, tmp_path: Path
) -> None:
    words = [word.format(source=fixture_files / WRAPPED, folder=tmp_path) for word in arguments]
    assert not FRAMEWORKS & _loaded(RUN, *words)
