"""Nothing in a file is run, unpickled or imported, and no file outside of it is opened.

Twice: the sources hold no call that could, and files made to be run are read under an audit hook (audited.py). What
the HDF5 library opens itself raises no audit event, so the folder that such a file points to is watched by inotify.
"""

from __future__ import annotations

import ast
import base64
import ctypes
import json
import marshal
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ckpttool"
MODULES = sorted(PACKAGE.rglob("*.py"))

RUNS_CODE = {
    "marshal", "pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "runpy", "code", "codeop", "imp", "pty",
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.execve", "os.execvp",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "importlib.reload", "importlib.util.spec_from_file_location",
    "importlib.util.module_from_spec", "importlib.machinery.SourceFileLoader", "types.FunctionType", "types.CodeType",
}  # fmt: skip
TABLES = {"__init__.py", "registry.py", "cli/main.py"}  # they import by name, from tables of their own
USERS = {"migration/fresh.py", "migration/user_code.py"}  # import what the user named with --replace, never a file

CAUGHT = 99
NAMED_MODULE = "named_by_the_file"


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_can_run_code_from_a_file(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert not RUNS_CODE & {alias.name.partition(".")[0] for alias in node.names}, f"line {node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in RUNS_CODE or node.level, f"line {node.lineno}"
        elif isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in CALLS, f"line {node.lineno}: {ast.unparse(node)}"
            assert not any(_unsafe(keyword) for keyword in node.keywords), f"line {node.lineno}: {ast.unparse(node)}"


def _unsafe(keyword: ast.keyword) -> bool:
    """Whether it lets NumPy unpickle, or Keras unmarshal a Lambda."""
    bad: dict[str | None, object] = {"allow_pickle": False, "safe_mode": True}
    if keyword.arg not in bad:
        return False
    return not (isinstance(keyword.value, ast.Constant) and keyword.value.value is bad[keyword.arg])


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_own_tables_are_imported_by_name(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if _name(path) in USERS:
                continue
            assert _name(path) in TABLES, f"line {node.lineno}: {ast.unparse(node)}"
            assert _from_a_table(node.args[0]), f"line {node.lineno}: {ast.unparse(node)}"


def _from_a_table(argument: ast.expr) -> bool:
    if isinstance(argument, ast.Subscript):  # FORMATS[name]
        return isinstance(argument.value, ast.Name) and argument.value.id.isupper()
    if isinstance(argument, ast.JoinedStr):  # f"ckpttool.{place}"
        first = argument.values[0]
        return isinstance(first, ast.Constant) and str(first.value).startswith("ckpttool.")
    return False


class Places:
    """The folders of one test: the input's, the output's, and two that must stay untouched."""

    def __init__(self, base: Path) -> None:
        self.input, self.output = base / "input", base / "output"
        self.elsewhere, self.modules = base / "elsewhere", base / "modules"
        for folder in (self.input, self.output, self.elsewhere, self.modules):
            folder.mkdir()
        self.marker = base / "output" / "was-run"
        (self.modules / f"{NAMED_MODULE}.py").write_text(f"open({str(self.marker)!r}, 'w').close()\n", "utf-8")
        with h5py.File(self.elsewhere / "secret.h5", "w") as file:
            file["hidden/kernel:0"] = np.full((6, 24), 41, np.float32)
        (self.elsewhere / "secret.bin").write_bytes(bytes(6 * 24 * 4))
        self.source = self.input / "model.h5"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@contextmanager
def _untouched(folder: Path) -> Iterator[None]:
    """Fail when anything in the folder was opened meanwhile, by whatever library (Linux's inotify)."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    assert watcher >= 0, os.strerror(ctypes.get_errno())
    try:
        assert libc.inotify_add_watch(watcher, os.fsencode(folder), 0x20) >= 0  # IN_OPEN
        yield
        try:
            events = os.read(watcher, 65536)
        except BlockingIOError:
            events = b""
        opened = []
        while events:
            length = struct.unpack_from("iIII", events)[3]
            opened.append(events[16 : 16 + length].rstrip(b"\0").decode())
            events = events[16 + length :]
        assert not [name for name in opened if name], f"opened: {opened}"
    finally:
        os.close(watcher)


def _run(places: Places, *arguments: str) -> subprocess.CompletedProcess[str]:
    job = {
        "arguments": [word.format(source=places.source, output=places.output) for word in arguments],
        "folders": [str(places.input)],
        "outputs": [str(places.output)],
        "modules": [NAMED_MODULE],
    }
    paths = os.pathsep.join([str(ROOT), str(places.modules)])
    with _untouched(places.elsewhere):
        done = subprocess.run(
            [sys.executable, "tests/audited.py", json.dumps(job)], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode != CAUGHT, done.stderr
    assert "Traceback" not in done.stderr
    assert not places.marker.exists()
    assert [each.name for each in places.input.iterdir()] == ["model.h5"]
    return done


COMMANDS = [
    ("inspect", "{source}"),
    ("inspect", "{source}", "--json"),
    ("unwrap", "{source}", "-o", "{output}/base.h5", "--report", "{output}/report.json"),
    ("extract", "{source}", "--layer", "image_embedding"),
    ("extract", "{source}", "--layer", "image_embedding", "-o", "{output}/arrays"),
    ("extract", "{source}", "--layer", "image_embedding", "--dot-product", "{output}/scores.py"),
]
every_command = pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: " ".join((words[0], *words[2::2])))


def _bytecode(places: Places) -> str:
    """A function's code, as Keras 2 stores that of a Lambda, that makes the marker file when it is called."""
    code = compile(f"open({str(places.marker)!r}, 'w').close()", "<lambda>", "exec")
    return base64.encodebytes(marshal.dumps(code)).decode()


def _arm(value: Any, payload: str) -> Any:
    """A configuration whose Lambdas hold the payload, and where every object names the module."""
    if isinstance(value, list):
        return [_arm(each, payload) for each in value]
    if not isinstance(value, dict):
        return value
    armed = {key: _arm(each, payload) for key, each in value.items()}
    if armed.get("class_name") == "Lambda":
        armed["config"] |= {"function": [payload, None, None], "module": NAMED_MODULE, "function_type": "lambda"}
    if "class_name" in armed:
        armed |= {"module": NAMED_MODULE, "registered_name": f"{NAMED_MODULE}>{armed['class_name']}"}
    if "activation" in armed:
        armed["activation"] = {"class_name": "function", "config": "run", "module": NAMED_MODULE}
    return armed


def _lambda_in_the_template(config: dict[str, Any]) -> None:
    """Put a Lambda, of the wrapper's kind, before the template's last layer."""
    layers = config["config"]["layers"]
    template = next(layer for layer in layers if layer["class_name"] == "Sequential")
    slices = next(layer for layer in layers if layer["class_name"] == "Lambda")
    template["config"]["layers"].insert(1, json.loads(json.dumps(slices)) | {"inbound_nodes": []})


@every_command
def test_bytecode_and_module_names_in_a_configuration_are_never_run(
    arguments: tuple[str, ...], places: Places, fixture_files: Path
) -> None:
    shutil.copy(fixture_files / "keras-2.2.4-sequential.h5", places.source)
    with h5py.File(places.source, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        _lambda_in_the_template(config)
        file.attrs["model_config"] = json.dumps(_arm(config, _bytecode(places))).encode()
        file.attrs["training_config"] = json.dumps(
            {"loss": {"module": NAMED_MODULE, "class_name": "run"}, "optimizer_config": {"class_name": "Adam"}}
        ).encode()
    done = _run(places, *arguments)
    assert done.returncode == 0, done.stderr


class Bomb:
    """Makes the marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (os.mkdir, (self.marker,))


def _pickle_in_an_unread_attribute(file: h5py.File, payload: bytes) -> None:
    file["model_weights"].attrs["note"] = np.void(payload)


def _pickle_as_configuration(file: h5py.File, payload: bytes) -> None:
    file.attrs["model_config"] = np.void(payload)


def _pickle_as_training_configuration(file: h5py.File, payload: bytes) -> None:
    file.attrs["training_config"] = np.void(payload)


def _pickle_as_weight_names(file: h5py.File, payload: bytes) -> None:
    file["model_weights/sequential_1"].attrs["weight_names"] = np.array([np.void(payload)])


def _pickle_as_tensor(file: h5py.File, payload: bytes) -> None:
    group = file["model_weights/sequential_1"]
    name = group.attrs["weight_names"][0]
    del group[name]
    group[name] = np.void(payload)


@pytest.mark.parametrize(
    "put",
    [
        _pickle_in_an_unread_attribute, _pickle_as_configuration, _pickle_as_training_configuration,
        _pickle_as_weight_names, _pickle_as_tensor,
    ],
)  # fmt: skip
@every_command
def test_a_pickle_in_a_file_is_never_loaded(
    arguments: tuple[str, ...], put: Callable[[h5py.File, bytes], None], places: Places, fixture_files: Path
) -> None:
    shutil.copy(fixture_files / "keras-2.2.4-sequential.h5", places.source)
    with h5py.File(places.source, "r+") as file:
        put(file, pickle.dumps(Bomb(places.marker)))
    done = _run(places, *arguments)
    assert done.returncode in (0, 3), done.stderr
    assert done.returncode == 0 or done.stderr.count("\n") == 1


@every_command
def test_a_pickle_in_place_of_a_file_is_never_loaded(arguments: tuple[str, ...], places: Places) -> None:
    places.source.write_bytes(pickle.dumps(Bomb(places.marker)))
    done = _run(places, *arguments)
    assert done.returncode == 3
    assert "pickle" in done.stdout + done.stderr


def _external_link(file: h5py.File, places: Places) -> None:
    del file["model_weights/sequential_1"]
    file["model_weights/sequential_1"] = h5py.ExternalLink(str(places.elsewhere / "secret.h5"), "hidden")


def _external_link_to_a_tensor(file: h5py.File, places: Places) -> None:
    group = file["model_weights/sequential_1"]
    name = group.attrs["weight_names"][0].decode()
    del group[name]
    group[name] = h5py.ExternalLink(str(places.elsewhere / "secret.h5"), "hidden/kernel:0")


def _external_storage(file: h5py.File, places: Places) -> None:
    group = file["model_weights/sequential_1"]
    name = group.attrs["weight_names"][0].decode()
    del group[name]
    outside = [(str(places.elsewhere / "secret.bin"), 0, 6 * 24 * 4)]
    group.create_dataset(name, (6, 24), np.float32, external=outside)


def _virtual_dataset(file: h5py.File, places: Places) -> None:
    group = file["model_weights/sequential_1"]
    name = group.attrs["weight_names"][0].decode()
    del group[name]
    layout = h5py.VirtualLayout((6, 24), np.float32)
    layout[:] = h5py.VirtualSource(str(places.elsewhere / "secret.h5"), "hidden/kernel:0", (6, 24))
    group.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("point", [_external_link, _external_link_to_a_tensor, _external_storage, _virtual_dataset])
@every_command
def test_a_file_elsewhere_is_never_opened(
    arguments: tuple[str, ...], point: Callable[[h5py.File, Places], None], places: Places, fixture_files: Path
) -> None:
    shutil.copy(fixture_files / "keras-2.2.4-sequential.h5", places.source)
    with h5py.File(places.source, "r+") as file:
        point(file, places)
    done = _run(places, *arguments)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(places.output.iterdir())


def test_the_watch_notices_a_file_that_hdf5_opens(places: Places) -> None:
    with pytest.raises(AssertionError, match=r"secret\.h5"), _untouched(places.elsewhere):
        h5py.File(places.elsewhere / "secret.h5", "r").close()


def test_the_hook_notices_code_that_runs(places: Places) -> None:
    places.source.write_bytes(pickle.dumps(Bomb(places.marker)))
    for code in (
        "import pickle; pickle.load(open(sys.argv[1], 'rb'))",
        "import marshal; marshal.loads(marshal.dumps(1))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        f"import {NAMED_MODULE}",
        "open('/etc/hostname').read()",
    ):
        hooked = f"import sys; sys.path[:0] = ['tests', {str(places.modules)!r}]; import audited; "
        hooked += f"audited.watch([{str(places.input)!r}], [{str(places.output)!r}], [{NAMED_MODULE!r}]); {code}"
        done = subprocess.run(
            [sys.executable, "-c", hooked, str(places.source)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == CAUGHT, f"{code}: {done.stderr}"
