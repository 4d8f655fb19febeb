"""The written module: imported, run, copied, and given bad input."""

from __future__ import annotations

import ast
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckpttool.errors import (
    CorruptCheckpointError,
    OutputError,
    OutputExistsError,
    OutputIsInputError,
    UnsupportedError,
    UsageError,
)
from ckpttool.exports.dot_product_module import module_text, write_dot_product

KERNEL = (np.arange(24 * 7, dtype=np.float32).reshape(24, 7) % 31) - 15
VECTORS = (np.arange(5 * 7, dtype=np.float32).reshape(5, 7) % 11) - 5
SCORES = VECTORS.astype(np.float64) @ KERNEL.astype(np.float64).T
BEST = np.argsort(-SCORES, axis=1, kind="stable")[:, :3]

# Runs a file with nothing to import but the standard library and NumPy, and tells what was imported.
ISOLATED = """
import runpy, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [sys.argv.pop(1)]
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    print("imported", *sorted(names), file=sys.stderr)
"""


def write(path: Path, *blocks: np.ndarray, **options: Any) -> tuple[Path, Path]:
    """Write the module of a layer of 24 rows and 7 columns."""
    about: dict[str, Any] = {"layer": "tower/emb", "source": "m.h5", "shape": (24, 7), "dtype": "float32"}
    return write_dot_product(path, iter(blocks), **(about | options))


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Write emb.py and emb.npy; give the path of emb.py."""
    path = tmp_path / "emb.py"
    write_dot_product(
        path,
        iter([KERNEL[:10], KERNEL[10:]]),
        layer="tower/emb",
        source="m.h5",
        shape=(24, 7),
        dtype="float32",
    )
    return path


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", VECTORS)
    return tmp_path / "vectors.npy"


@pytest.fixture
def numpy_alone(tmp_path: Path) -> Path:
    """Give a folder that holds NumPy and no other package."""
    folder = tmp_path / "site"
    folder.mkdir()
    packages = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (folder / name).symlink_to(packages / name, target_is_directory=True)
    return folder


def run(module: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(module), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=module.parent, timeout=60)


def load(module: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the written module, as a user of it does."""
    monkeypatch.syspath_prepend(module.parent)
    monkeypatch.delitem(sys.modules, module.stem, raising=False)
    return __import__(module.stem)


def test_it_is_imported(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emb = load(module, monkeypatch)
    assert "KERNEL" not in vars(emb) and {"KERNEL", "dot_product"} <= set(dir(emb))
    assert (emb.LAYER, emb.SOURCE, emb.SHAPE, emb.DTYPE) == ("tower/emb", "m.h5", (24, 7), "float32")
    np.testing.assert_array_equal(emb.dot_product(VECTORS), SCORES)
    assert isinstance(emb.KERNEL, np.memmap) and not emb.KERNEL.flags.writeable
    indices, scores = emb.dot_product.top(VECTORS, 3)
    np.testing.assert_array_equal(indices, BEST)
    np.testing.assert_array_equal(scores, np.take_along_axis(SCORES, BEST, axis=1))
    assert emb.dot_product is emb.dot_product
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = emb.nothing
    with pytest.raises(ValueError, match=r"\(n, 7\).*\(n, 24\)"):
        emb.dot_product(VECTORS[0])


def test_it_runs_where_it_is_copied_with_numpy_alone(module: Path, vectors: Path, numpy_alone: Path) -> None:
    elsewhere = module.parent / "else where"
    elsewhere.mkdir()
    for path in (module, module.with_suffix(".npy"), vectors):
        shutil.move(path, elsewhere / path.name)
    command = [sys.executable, "-I", "-S", "-c", ISOLATED, numpy_alone, elsewhere / "emb.py"]
    arguments = [elsewhere / "vectors.npy", "-o", elsewhere / "scores.npy", "--top", "3"]
    done = subprocess.run([*map(str, command), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = done.stderr.splitlines()[-1].split()
    assert imported[0] == "imported" and "numpy" in imported
    assert not {"ckpttool", "h5py", "click", "rich", "ml_dtypes", "tensorflow", "keras"} & set(imported)
    scores, indices = (np.load(elsewhere / name) for name in ("scores.npy", "scores.indices.npy"))
    np.testing.assert_array_equal(indices, BEST)
    np.testing.assert_array_equal(scores, np.take_along_axis(SCORES, BEST, axis=1))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_all_scores_are_written(module: Path, tmp_path: Path, axis: str, normalize: bool) -> None:
    queries = VECTORS if axis == "rows" else KERNEL.T[:3].copy()
    keys = KERNEL if axis == "rows" else KERNEL.T
    np.save(tmp_path / "queries.npy", queries)
    options = ["--axis", axis, *(["--normalize"] if normalize else [])]
    done = run(module, "queries.npy", "-o", "all.npy", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    truth = queries.astype(np.float64) @ keys.T
    if normalize:
        truth /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    scores = np.load(tmp_path / "all.npy")
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, truth, rtol=1e-5, atol=1e-6)
    assert run(module, "queries.npy", "-o", "all.npz", *options).returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "all.npz")["scores"], scores)


def test_npz_holds_indices_and_scores(module: Path, vectors: Path, tmp_path: Path) -> None:
    assert run(module, vectors, "-o", "best.npz", "--top", 3).returncode == 0
    with np.load(tmp_path / "best.npz", allow_pickle=False) as archive:
        assert sorted(archive) == ["indices", "scores"]
        np.testing.assert_array_equal(archive["indices"], BEST)


def test_without_an_output_it_prints(module: Path, vectors: Path) -> None:
    done = run(module, vectors, "--top", 1)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [int(line[1]) for line in lines] == BEST[:, 0].tolist()
    assert [int(line[0]) for line in lines] == list(range(5))
    table = [[float(score) for score in line.split("\t")] for line in run(module, vectors).stdout.splitlines()]
    np.testing.assert_array_equal(table, SCORES)


def test_an_empty_batch_gives_an_empty_file(module: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", VECTORS[:0])
    assert run(module, "none.npy", "-o", "scores.npy").returncode == 0
    assert np.load(tmp_path / "scores.npy").shape == (0, 24)
    assert run(module, "none.npy", "-o", "top.npy", "--top", "2").returncode == 0
    assert np.load(tmp_path / "top.npy").shape == np.load(tmp_path / "top.indices.npy").shape == (0, 2)


def bad_inputs() -> Iterator[tuple[str, bytes, int, str]]:
    header = b"\x93NUMPY\x01\x00\x76\x00"
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 7), }"
    odd = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 7), }"
    yield "empty", b"", 3, "not a .npy file"
    yield "pickle", pickle.dumps([1]), 3, "not a .npy file"
    yield "zip", b"PK\x03\x04garbage", 3, "not a .npy file"
    yield "cut header", header + b"{'descr'", 3, "damaged"
    yield "huge", header + huge.ljust(117) + b"\n", 3, "damaged"
    yield "negative", header + odd.ljust(117) + b"\n", 3, "damaged"
    yield "code", header + b"__import__('os').abort()".ljust(117) + b"\n", 3, "damaged"


@pytest.mark.parametrize(("content", "code", "words"), [pytest.param(*c, id=i) for i, *c in bad_inputs()])
def test_bad_vectors_are_one_line(module: Path, content: bytes, code: int, words: str) -> None:
    module.with_name("bad.npy").write_bytes(content)
    done = run(module, "bad.npy", "-o", "scores.npy")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and done.stderr.startswith("emb.py: bad.npy: ") and done.stderr.count("\n") == 1
    assert not module.with_name("scores.npy").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (VECTORS[0], "vectors has shape (7,)"),
        (VECTORS.T, "takes (n, 7)"),
        (np.float32(3), "vectors has shape ()"),
        (VECTORS.astype(complex), "vectors has dtype complex128"),
        (np.zeros((2, 7), ml_dtypes.bfloat16), "without ml_dtypes"),
    ],
)
def test_vectors_that_do_not_fit_are_one_line(module: Path, array: np.ndarray, words: str) -> None:
    np.save(module.with_name("bad.npy"), array)
    for options in (["-o", "scores.npy"], [], ["--top", "2", "-o", "scores.npz"]):
        done = run(module, "bad.npy", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr and done.stderr.count("\n") == 1
    assert sorted(path.suffix for path in module.parent.iterdir()) == [".npy", ".npy", ".py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: VECTORS.npy"),
        (["missing.npy"], "missing.npy: no such file"),
        (["vectors.npy", "--top", "25"], "k is 25; the kernel has 24 rows"),
        (["vectors.npy", "--top", "x"], "invalid int value"),
        (["vectors.npy", "--axis", "both"], "invalid choice"),
        (["vectors.npy", "--nonsense"], "--nonsense"),
        (["vectors.npy", "-o", "scores.csv"], "ends in .npy or .npz"),
        (["vectors.npy", "-o", "nowhere/scores.npy"], "there is no folder nowhere"),
        (["vectors.npy", "-o", "vectors.npy", "--overwrite"], "the output is an input"),
        (["vectors.npy", "-o", "emb.npy", "--overwrite"], "the output is an input"),
        (["vectors.npy", "-o", "taken.npy"], "exists; give another name, or --overwrite"),
        (["vectors.npy", "-o", "other.npy", "--top", "2"], "other.indices.npy: exists"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    module: Path, vectors: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    for name in ("taken.npy", "other.indices.npy"):
        (tmp_path / name).write_bytes(b"mine")
    done = run(module, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and done.stderr.startswith("emb.py: ") and done.stderr.count("\n") == 1
    assert all((tmp_path / name).read_bytes() == b"mine" for name in ("taken.npy", "other.indices.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "emb.npy"), KERNEL)


def test_overwrite_replaces(module: Path, vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.npy").write_bytes(b"old")
    assert run(module, vectors, "-o", "scores.npy", "--overwrite").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), SCORES)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("wrong", ["missing", "another"])
def test_a_kernel_that_is_missing_or_another_is_said(module: Path, vectors: Path, wrong: str) -> None:
    kernel = module.with_suffix(".npy")
    kernel.unlink()
    if wrong == "another":
        np.save(kernel, KERNEL[:5])
    done = run(module, vectors, "--top", "1")
    assert done.returncode == (2 if wrong == "missing" else 3)
    assert ("belongs beside emb.py" if wrong == "missing" else "not (24, 7)") in done.stderr
    assert done.stderr.count("\n") == 1
    assert run(module, "--help").returncode == 0


def test_a_closed_output_ends_quietly(module: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.ones((5000, 7), np.float32))
    command = [sys.executable, str(module), "many.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_names_from_a_file_are_never_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a\"\"\"\nraise SystemExit(1)\n'''{shape}\\"
    source = "\udcff %(prog)s.h5"
    write(tmp_path / "odd.py", KERNEL, layer=name, source=source)
    odd = load(tmp_path / "odd.py", monkeypatch)
    names = (odd.LAYER, odd.SOURCE)
    assert names == (name, source)
    assert run(tmp_path / "odd.py", "--help").returncode == 0
    assert (tmp_path / "odd.py").read_bytes().isascii()


def test_the_text_imports_numpy_and_the_standard_library_alone() -> None:
    tree = ast.parse(module_text(layer="a", source="b", shape=(1, 2), dtype="float32"), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy"}
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert "main" in functions and "dot_product" not in functions


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float32", "<f4"),
        (">f4", "<f4"),
        ("float64", "<f8"),
        ("float16", "<f2"),
        ("int8", "|i1"),
        ("bfloat16", "<f4"),
        ("float8_e4m3fn", "<f4"),
    ],
)
def test_kernels_are_written_exactly(tmp_path: Path, dtype: str, stored: str) -> None:
    small = dtype in ("bfloat16", "float8_e4m3fn")
    kernel = KERNEL.astype(getattr(ml_dtypes, dtype) if small else dtype)
    module, path = write(tmp_path / "emb.py", *kernel.reshape(-1, 12), dtype=kernel.dtype)
    assert (module, path) == (tmp_path / "emb.py", tmp_path / "emb.npy")
    written = np.load(path, allow_pickle=False)
    assert written.dtype.str == stored and written.flags.c_contiguous
    np.testing.assert_array_equal(written, kernel.astype(np.float64))


def test_existing_files_are_refused_unless_asked(module: Path) -> None:
    before = {path.name: path.read_bytes() for path in module.parent.iterdir()}
    for gone in (None, module, module.with_suffix(".npy")):
        if gone is not None:
            gone.unlink()
        with pytest.raises(OutputExistsError):
            write(module, KERNEL + 1)
        if gone is not None:
            assert not gone.exists()
            gone.write_bytes(before[gone.name])
    assert {path.name: path.read_bytes() for path in module.parent.iterdir()} == before
    with pytest.raises(OutputIsInputError):
        write(module, KERNEL, overwrite=True, inputs=[module.with_suffix(".npy")])
    write(module, KERNEL + 1, overwrite=True)
    np.testing.assert_array_equal(np.load(module.with_suffix(".npy")), KERNEL + 1)


@pytest.mark.parametrize("blocks", [[KERNEL[:5]], [KERNEL, KERNEL[:1]], []])
def test_blocks_that_do_not_fit_leave_nothing(tmp_path: Path, blocks: list[np.ndarray]) -> None:
    with pytest.raises(CorruptCheckpointError, match="168 values"):
        write(tmp_path / "emb.py", *blocks)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "error"),
    [
        ("emb.txt", (24, 7), "float32", UsageError),
        ("numpy.py", (24, 7), "float32", UsageError),
        ("random.py", (24, 7), "float32", UsageError),
        ("emb.py", (24, 7, 1), "float32", UsageError),
        ("emb.py", (24, 7), "complex64", UnsupportedError),
        ("emb.py", (24, 7), "bool", UnsupportedError),
        ("emb.py", (24, 7), "string", UnsupportedError),
    ],
)
def test_what_cannot_be_a_module_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], dtype: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(tmp_path / name, KERNEL, shape=shape, dtype=dtype)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_leaves_both_as_they_were(module: Path) -> None:
    module.unlink()
    module.mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        write(module, KERNEL + 1, overwrite=True)
    np.testing.assert_array_equal(np.load(module.with_suffix(".npy")), KERNEL)


def test_a_file_that_cannot_be_written_is_one_line(module: Path, vectors: Path) -> None:
    done = run(module, vectors, "-o", "x" * 300 + ".npy")  # a name too long for the file system
    assert done.returncode == 3 and done.stderr.count("\n") == 1
