"""Bad input and bad outputs: each its own clear line, the promised code, and nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ckpttool.cli.main import run

from ..manifest import FILES

ROOT = Path(__file__).resolve().parent.parent.parent
WRAPPED = FILES / "keras-2.2.4-sequential.h5"
WEIGHTS = FILES / "keras-2.2.4-sequential-weights.h5"

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("x", "utf-8")


def _files(path: Path) -> None:
    path.mkdir()
    for number in range(6):
        (path / f"f{number}.h5").write_text("x", "utf-8")


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros(3)


def _bytes(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(data)

    return make


BAD: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "empty": (_empty, 3, "the file is empty"),
    "git-lfs pointer": (_bytes(LFS), 3, "a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'"),
    "HTML page": (_bytes(b"\n<!DOCTYPE html><html><body>Sign in</body>"), 3, "an HTML page, not the file"),
    "HTML without a doctype": (_bytes(b"<HTML><head>"), 3, "an HTML page"),
    "truncated": (_bytes(WRAPPED.read_bytes()[:9000]), 3, "truncated: the file is shorter than its header says"),
    "only the magic": (_bytes(b"\x89HDF\r\n\x1a\n"), 3, "HDF5"),
    "no checkpoint": (_bytes(b"hello, world"), 3, "not a known checkpoint; it begins with bytes 68 65 6c 6c"),
    "other HDF5": (_hdf5, 3, "HDF5, but not a Keras model; it holds images"),
    "a folder of something else": (_directory, 3, "a folder that holds no known checkpoint; it holds notes.txt"),
    "a folder of files": (_files, 3, "a folder, not one checkpoint; give the path of a file in it; it holds f0.h5"),
    "pickle": (_bytes(b"\x80\x04\x95\x00"), 3, "a Python pickle, which ckpttool never loads"),
    "gzip": (_bytes(b"\x1f\x8b\x08\x00" + bytes(100)), 3, "gzip-compressed; unpack it first"),
    "half-written": (_bytes((FILES / "keras-2.1.6-cnn-half-written.h5").read_bytes()), 3, "half-written"),
    "missing": (lambda path: None, 2, "no such file or folder"),
    "below a file": (lambda path: None, 2, "no such file"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def listing(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def one_line(err: str) -> str:
    """The only line on stderr."""
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err
    return err.rstrip("\n")


COMMANDS = {
    "inspect": ["inspect"],
    "unwrap": ["unwrap", "-o", "out.h5", "--report", "report.json"],
    "extract": ["extract", "--layer", "image_embedding", "-o", "kernel.npy"],
    "path alone": [],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_its_code(
    kind: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, code, words = BAD[kind]
    path = folder / ("model/x.h5" if kind == "below a file" else "model.h5")
    if kind == "below a file":
        path.parent.write_text("x", "utf-8")
    make(path)
    if command == "path alone" and not os.path.lexists(path):
        return  # a first word that is no path is taken for a command
    before = listing(folder)
    first, *rest = COMMANDS[command] or [str(path)]
    assert run([first, *([str(path)] if COMMANDS[command] else []), *rest]) == code
    out, err = capsys.readouterr()
    assert out == ""
    line = one_line(err)
    assert line.startswith(f"ckpttool: {path}: ")
    assert words in line
    assert listing(folder) == before


@pytest.mark.parametrize("kind", [kind for kind in BAD if kind != "below a file"])
def test_bad_input_is_an_object_in_json(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, code, words = BAD[kind]
    make(folder / "model.h5")
    assert run(["inspect", "model.h5", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["path"] == "model.h5"
    assert found["error"]["code"] == code
    assert found["error"]["type"].endswith("Error")
    assert words in found["error"]["message"]


@pytest.mark.parametrize("suffix", [".txt", ".pb", "", ".keras", ".npz", ".h5.bak"])
def test_a_wrong_suffix_with_the_right_content_opens(
    suffix: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / f"model{suffix}"
    path.write_bytes(WRAPPED.read_bytes())
    assert run(["inspect", str(path)]) == 0
    assert "multi_gpu_model" in capsys.readouterr().out
    assert run(["unwrap", str(path), "-q"]) == 0
    assert (folder / capsys.readouterr().out.strip()).exists()


def test_several_paths_are_all_answered_and_the_highest_code_wins(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "page.h5").write_text("<html>", "utf-8")
    assert run(["inspect", "missing.h5", str(WRAPPED), "page.h5", str(WEIGHTS)]) == 3
    out, err = capsys.readouterr()
    assert out.count("keras-h5") == 2
    assert [line.split(": ")[1] for line in err.splitlines()] == ["missing.h5", "page.h5"]
    assert run(["inspect", str(WRAPPED), "missing.h5"]) == 2


def test_several_paths_in_json_are_a_list_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "missing.h5", str(WRAPPED), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [each.get("error", {}).get("code") for each in found] == [2, None]
    assert run(["inspect", "missing.h5", str(WRAPPED), "--json=lines"]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == found


NAMES = [
    "*.h5",
    "[ab].h5",
    "model?.h5",
    "-x.h5",
    "--help",
    "ünïcodé 模型.h5",
    "a b'c\"d.h5",
    "new\nline.h5",
    "~",
    "$HOME",
    "%s",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_name(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No glob, no option where `--` stands before it, no home folder; shown on one line."""
    (folder / name).write_bytes(WRAPPED.read_bytes())
    (folder / "ax.h5").write_text("<html>", "utf-8")
    assert run(["inspect", "--json", "--", name]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == name
    assert run(["unwrap", "-o", "out.h5", "--", name]) == 0
    assert run(["unwrap", "-o", "out.h5", "--", name]) == 2
    assert run(["inspect", "--", name]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    next_command = next(line for line in out.splitlines() if line.startswith("for tf_keras"))
    assert "ckpttool unwrap" in next_command


def test_a_dash_is_never_a_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "-"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_file_in_use_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "model.h5"
    path.write_bytes(WRAPPED.read_bytes())
    hold = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        writer.stdout.readline()
        for command in (["inspect", str(path)], ["unwrap", str(path), "-o", "out.h5"]):
            assert run(command) == 3
            assert "in use" in one_line(capsys.readouterr().err)
        writer.stdin.close()
    assert run(["inspect", str(path)]) == 0


def test_an_unreadable_file_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "model.h5"
    path.write_bytes(WRAPPED.read_bytes())
    real = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert run(["inspect", str(path)]) == 3
    assert one_line(capsys.readouterr().err) == f"ckpttool: {path}: cannot be read: Permission denied"


def test_a_broken_link_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "link.h5").symlink_to("nowhere.h5")
    assert run(["link.h5"]) == 2
    assert "no such file" in one_line(capsys.readouterr().err)


def test_a_loop_of_links_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert run(["a"]) == 3
    one_line(capsys.readouterr().err)


def test_a_pipe_is_neither_file_nor_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    assert run(["inspect", "pipe"]) == 3
    assert "neither a file nor a folder" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("path", ["a\0b.h5", "x" * 300 + ".h5"])
def test_a_path_that_no_file_can_have(path: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", path]) in (2, 3)
    one_line(capsys.readouterr().err)


class TestOutputs:
    def test_an_output_that_exists(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "out.h5").write_text("mine", "utf-8")
        assert run(["unwrap", str(WRAPPED), "-o", "out.h5"]) == 2
        assert one_line(capsys.readouterr().err) == (
            "ckpttool: out.h5: exists; choose another name with -o, or --overwrite"
        )
        assert (folder / "out.h5").read_text("utf-8") == "mine"
        assert run(["unwrap", str(WRAPPED), "-o", "out.h5", "--overwrite"]) == 0
        assert (folder / "out.h5").read_bytes()[:4] == b"\x89HDF"

    def test_a_default_output_that_exists(self, folder: Path) -> None:
        (folder / "keras-2.2.4-sequential-single.h5").write_text("mine", "utf-8")
        assert run(["unwrap", str(WRAPPED)]) == 2

    @pytest.mark.parametrize("how", ["same", "relative", "absolute", "symlink", "hard link", "through a linked folder"])
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_an_output_that_is_the_input(
        self, how: str, overwrite: bool, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = folder / "model.h5"
        source.write_bytes(WRAPPED.read_bytes())
        (folder / "sub").mkdir()
        (folder / "linked").symlink_to(folder)
        other = {
            "same": "model.h5", "relative": "sub/../model.h5", "absolute": str(source), "symlink": "link.h5",
            "hard link": "hard.h5", "through a linked folder": "linked/model.h5",
        }[how]  # fmt: skip
        if how == "symlink":
            (folder / other).symlink_to("model.h5")
        if how == "hard link":
            os.link(source, folder / other)
        assert run(["unwrap", "model.h5", "-o", other, *(["--overwrite"] if overwrite else [])]) == 2
        assert "the output is the input" in one_line(capsys.readouterr().err)
        assert source.read_bytes() == WRAPPED.read_bytes()

    def test_a_report_that_is_the_input(self, folder: Path) -> None:
        source = folder / "model.h5"
        source.write_bytes(WRAPPED.read_bytes())
        assert run(["unwrap", "model.h5", "-o", "o.h5", "--report", "model.h5", "--overwrite"]) == 2
        assert source.read_bytes() == WRAPPED.read_bytes()
        assert not (folder / "o.h5").exists()

    def test_an_output_that_is_the_given_configuration(self, folder: Path) -> None:
        config = folder / "config.h5"
        config.write_bytes(WRAPPED.read_bytes())
        assert run(["unwrap", str(WEIGHTS), "--config", "config.h5", "-o", "config.h5", "--overwrite"]) == 2
        assert config.read_bytes() == WRAPPED.read_bytes()

    def test_a_folder_that_does_not_exist(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["unwrap", str(WRAPPED), "-o", "nowhere/out.h5"]) == 3
        assert "there is no folder 'nowhere'" in one_line(capsys.readouterr().err)
        assert not list(folder.iterdir())

    @pytest.mark.parametrize("place", ["/proc/out.h5", "/sys/out.h5"])
    def test_a_folder_that_takes_no_files(self, place: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["unwrap", str(WRAPPED), "-o", place]) == 3
        assert one_line(capsys.readouterr().err).startswith(f"ckpttool: {place}: cannot be written: ")

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_folder_in_place_of_the_output(self, overwrite: bool, folder: Path) -> None:
        (folder / "out.h5").mkdir()
        (folder / "out.h5" / "kept").write_text("x", "utf-8")
        code = run(["unwrap", str(WRAPPED), "-o", "out.h5", *(["--overwrite"] if overwrite else [])])
        assert code == (3 if overwrite else 2)
        assert listing(folder).keys() == {"out.h5", "out.h5/kept"}

    def test_a_suffix_that_names_no_format(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["unwrap", str(WRAPPED), "-o", "out.doc"]) == 2
        assert "its suffix names no format" in one_line(capsys.readouterr().err)

    def test_an_interrupt_while_writing_leaves_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*arguments: Any, **options: Any) -> int:
            raise KeyboardInterrupt

        import ckpttool.copying

        monkeypatch.setattr(ckpttool.copying, "_copy_extent", interrupt)
        assert run(["unwrap", str(WRAPPED), "-o", "out.h5"]) == 130
        assert not list(folder.iterdir())

    @pytest.mark.parametrize("limit", [100, 3000, 9000, 14000])
    @pytest.mark.parametrize(
        "command",
        [["unwrap", "-o", "out.h5"], ["unwrap", "-o", "out.h5", "--report", "r.json"], ["extract", "-o", "all"]],
        ids=["unwrap", "unwrap with report", "extract"],
    )
    def test_a_full_disk_leaves_nothing(self, limit: int, command: list[str], folder: Path) -> None:
        """No file of the process may be longer than `limit` bytes: writing ends as on a full disk."""
        code = (
            "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            "from ckpttool.cli.main import run; sys.exit(run(sys.argv[1:]))"
        )
        first, *rest = command
        done = subprocess.run(
            [sys.executable, "-c", code, first, str(WRAPPED), *rest], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            assert limit > 600
            return
        assert done.returncode == 3, done.stderr
        assert "cannot be written" in one_line(done.stderr)
        assert not list(folder.iterdir())


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import ckpttool.inspecting

    def fail(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(ckpttool.inspecting, "open_source", fail)
    assert run(["inspect", str(WRAPPED)]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "limit", ["max_objects", "max_layers", "max_name_bytes", "max_config_bytes", "max_tensor_bytes"]
)
def test_an_exceeded_limit_is_named_with_its_option(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(FILES / "keras-2.2.4-sequential.h5"), "--limit", f"{limit}=1"]) == 3
    assert f"--limit {limit}=N" in capsys.readouterr().err


def test_a_step_of_what_has_no_steps_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(FILES / "keras-2.2.4-sequential.h5"), "--step", "4"]) == 2
    assert "--step" in capsys.readouterr().err
