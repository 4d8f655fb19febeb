"""TensorFlow checkpoints on the command line: prefixes, their options, exit codes, and what is imported for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckpttool.cli.main import run

from ..manifest import FILES

Captured = pytest.CaptureFixture[str]


def ckpttool(capsys: Captured, *arguments: str | os.PathLike[str]) -> tuple[int, str, str]:
    code = run([os.fspath(each) for each in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in FILES.glob("tf-2.10-towers-checkpoint.*"):
        shutil.copy(file, tmp_path / file.name.replace("tf-2.10-towers-checkpoint", "run-7"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_prefix_in_place_of_a_command_is_inspected(folder: Path, capsys: Captured) -> None:
    code, out, err = ckpttool(capsys, "run-7")
    assert (code, err) == (0, "")
    assert out.startswith("run-7: checkpoint, tf-checkpoint, written by an unnamed TensorFlow\n")
    assert "    image_embedding  kernel 6×5, bias 5  float32\n" in out
    assert "optimizer: unnamed, 19 tensors" in out


def test_json_shows_the_key_of_each_tensor(folder: Path, capsys: Captured) -> None:
    _, out, _ = ckpttool(capsys, "inspect", "--json", "run-7")
    document = json.loads(out)
    stored = {each["path"]: each["stored_as"] for layer in document["layers"] for each in layer["tensors"]}
    key = "model/layer_with_weights-1/layer_with_weights-1/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert stored["layer_with_weights-1/image_embedding/kernel"] == key
    assert (document["format"], document["kind"], document["container"]) == (
        "tf-checkpoint",
        "checkpoint",
        "tensor-bundle",
    )
    others = [each["stored_as"] for each in document["bookkeeping"]]
    assert others == ["_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    _, out, _ = ckpttool(capsys, "inspect", "--flat", "run-7")
    assert f"layer_with_weights-1/image_embedding/kernel\t6×5\tfloat32\t{key}\n" in out


def test_unwrap_without_output_writes_safetensors_named_after_the_prefix(folder: Path, capsys: Captured) -> None:
    for name in ("run-7", "run-7.index", "run-7.data-00000-of-00001"):
        code, out, _ = ckpttool(capsys, "unwrap", "--overwrite", name)
        assert (code, out) == (0, "run-7-single.safetensors\n")


@pytest.mark.parametrize("output", ["run-7.index", "run-7.data-00000-of-00001"])
def test_no_file_of_the_source_is_an_output(folder: Path, capsys: Captured, output: str) -> None:
    before = Path(output).read_bytes()
    code, out, err = ckpttool(capsys, "unwrap", "run-7", "--to", "npz", "-o", output, "--overwrite")
    assert (code, out) == (2, "")
    assert "the output is the input" in err
    assert Path(output).read_bytes() == before


def test_a_damaged_value_is_code_3_with_its_name_and_is_read_when_told(folder: Path, capsys: Captured) -> None:
    data = Path("run-7.data-00000-of-00001")
    whole = bytearray(data.read_bytes())
    values = np.load(_array(folder, capsys))
    place = whole.index(values.tobytes())
    whole[place] ^= 1
    data.write_bytes(whole)
    command = ("extract", "run-7", "--layer", "image_embedding", "--tensor", "kernel", "-o", "x.npy")
    code, out, err = ckpttool(capsys, *command)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "image_embedding/kernel" in err
    assert "--no-checksum" in err
    assert not Path("x.npy").exists()
    code, out, _ = ckpttool(capsys, *command, "--no-checksum")
    assert (code, out) == (0, "x.npy\n")
    assert (np.load("x.npy") != values).sum() == 1


def _array(folder: Path, capsys: Captured) -> Path:
    ckpttool(capsys, "extract", "run-7", "--layer", "image_embedding", "--tensor", "kernel", "-o", "whole.npy")
    return folder / "whole.npy"


@pytest.mark.parametrize("at", [0, 100, -1, -20, -60])
def test_a_changed_byte_of_the_index_is_one_line_and_code_3(folder: Path, capsys: Captured, at: int) -> None:
    index = Path("run-7.index")
    whole = bytearray(index.read_bytes())
    whole[at] ^= 16
    index.write_bytes(whole)
    code, out, err = ckpttool(capsys, "inspect", "run-7")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("ckpttool: run-7")


def test_steps_of_a_folder(capsys: Captured) -> None:
    steps = FILES / "keras-3.15-objects-steps"
    code, out, _ = ckpttool(capsys, "inspect", steps)
    assert (code, "read 'ckpt-10'" in out) == (0, True)
    code, out, _ = ckpttool(capsys, "extract", steps, "--layer", "table", "--step", "5")
    assert code == 0
    code, _, err = ckpttool(capsys, "inspect", steps, "--step", "6")
    assert (code, "it holds 1, 5, 10" in err) == (2, True)
    code, _, err = ckpttool(capsys, "inspect", steps, "--step", "six")
    assert code == 2


def test_offered_commands_keep_the_options(capsys: Captured) -> None:
    steps = FILES / "keras-3.15-objects-steps"
    _, out, _ = ckpttool(capsys, "inspect", steps, "--step", "5", "--no-checksum")
    assert "--step 5 --no-checksum" in out.splitlines()[-1]


def test_a_packed_folder_has_to_be_unpacked(folder: Path, capsys: Captured) -> None:
    shutil.make_archive("packed", "gztar", root_dir=folder, base_dir="run-7.index")
    code, _, err = ckpttool(capsys, "inspect", "packed.tar.gz")
    assert code == 3
    assert "unpack it first" in err


LISTING = """
import sys
from ckpttool.cli.main import run
code = run(sys.argv[1:])
heavy = {"numpy", "h5py", "tensorflow", "keras", "google.protobuf", "ml_dtypes", "crc32c", "rich"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(
    "name", ["tf-2.10-towers-checkpoint", "tf-1.15-names", "tf-1.15-v1", "keras-3.15-towers-mirrored-export"]
)
def test_a_listing_imports_neither_numpy_nor_h5py_nor_tensorflow(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTING, "inspect", "--json", str(FILES / name)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_extracting_numbers_imports_no_numpy(tmp_path: Path) -> None:
    arguments = ["extract", str(FILES / "tf-2.10-towers-checkpoint"), "--layer", "score", "-o", str(tmp_path / "x.npy")]
    done = subprocess.run([sys.executable, "-c", LISTING, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "x.npy").shape == (5, 3)
