"""`ckpttool unwrap`: options, names, receipt, report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import h5py
import pytest

import ckpttool
from ckpttool.cli.main import run

from ..manifest import FILES, entry, truth

WRAPPED = FILES / "keras-2.2.4-sequential.h5"
WEIGHTS = FILES / "keras-2.0.9-two-towers-weights.h5"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_path_is_the_only_line_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED)]) == 0
    out, err = capsys.readouterr()
    assert out == "keras-2.2.4-sequential-single.h5\n"
    assert err.splitlines()[0] == "4 of 4 tensors, 343 parameters, 1.3 kB; 2 replicas removed"
    assert "ckpttool migrate" in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["keras-2.2.4-sequential-single.h5"]


@pytest.mark.parametrize(("name", "output"), [("model.weights.h5", "model-single.h5"), ("a.b", "a-single.h5"),
                                              (".h5", ".h5-single.h5"), ("plain", "plain-single.h5")])  # fmt: skip
def test_the_default_name(name: str, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(WRAPPED.read_bytes())
    assert run(["unwrap", name]) == 0
    assert capsys.readouterr().out == f"{output}\n"


def test_the_default_name_has_the_suffix_of_the_format_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for to, suffix in (("npz", "npz"), ("safetensors", "safetensors"), ("keras-weights", "weights.h5")):
        assert run(["unwrap", str(WRAPPED), "--to", to]) == 0
        assert capsys.readouterr().out == f"keras-2.2.4-sequential-single.{suffix}\n"


def test_without_looking_for_a_wrapper_none_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WEIGHTS), "--no-wrapper", "-o", "whole.h5"]) == 0
    err = capsys.readouterr().err
    assert "(--no-wrapper): written as it is" in err
    assert "no data-parallel wrapper found" not in err


def test_quiet_says_the_path_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), "-q", "-o", "base.h5"]) == 0
    assert capsys.readouterr() == ("base.h5\n", "")


def test_the_optimizer_is_left_out_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(FILES / "keras-2.3.1-rnn-trained.h5"), "-o", "base.h5"]) == 0
    assert "8 replicas removed; optimizer state left out" in capsys.readouterr().err
    with h5py.File("base.h5") as file:
        assert set(file) == {"model_weights"}
        assert "training_config" not in file.attrs


def test_a_file_without_a_wrapper_is_written_clean_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(FILES / "keras-2.2.4-sequential-template.h5"), "-o", "base.h5"]) == 0
    assert "no data-parallel wrapper found: written as it is" in capsys.readouterr().err


def test_weights_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), "--weights-only", "-o", "w.h5"]) == 0
    with h5py.File("w.h5") as file:
        assert file.attrs["layer_names"].tolist() == [b"hidden", b"dropout", b"image_embedding"]
        assert "model_config" not in file.attrs
        assert file["hidden"].attrs["weight_names"].tolist() == [b"hidden/kernel:0", b"hidden/bias:0"]


def test_an_unproven_wrapper_gives_the_command_that_takes_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["unwrap", str(WEIGHTS), "-o", "base.h5"]) == 2
    line = capsys.readouterr().err
    assert line == (
        f"ckpttool: {WEIGHTS}: looks like multi_gpu_model over 2 (group 'two_towers' holds all 10 tensors, "
        f"4 empty lambda groups); to take it out: ckpttool unwrap {WEIGHTS} --assume-wrapper two_towers -o base.h5\n"
    )
    assert not list(tmp_path.iterdir())
    assert run(line.rstrip().rpartition("ckpttool ")[2].split()) == 0
    assert (tmp_path / "base.h5").exists()


def test_a_configuration_proves_the_wrapper_and_gives_a_full_model(capsys: pytest.CaptureFixture[str]) -> None:
    config = FILES / "keras-2.0.9-two-towers-template.json"
    assert run(["unwrap", str(WEIGHTS), "--config", str(config), "-o", "base.h5"]) == 0
    assert "2 replicas removed" in capsys.readouterr().err
    with h5py.File("base.h5") as file:
        assert json.loads(file.attrs["model_config"])["config"] == json.loads(config.read_text("utf-8"))["config"]


def test_no_wrapper_writes_the_file_as_it_is() -> None:
    assert run(["unwrap", str(WEIGHTS), "--no-wrapper", "-o", "all.h5"]) == 0
    with h5py.File("all.h5") as file, h5py.File(WEIGHTS) as source:
        assert file.attrs["layer_names"].tolist() == source.attrs["layer_names"].tolist()
        group, other = file["two_towers"], source["two_towers"]
        assert len(group.attrs["weight_names"]) == len(other.attrs["weight_names"])
        for name, stored in zip(group.attrs["weight_names"], other.attrs["weight_names"], strict=True):
            assert (group[name.decode()][()] == other[stored.decode()][()]).all()


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), "--dry-run", "-o", "base.h5", "--report", "r.json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("would write: base.h5: 4 of 4 tensors")
    assert not list(tmp_path.iterdir())
    (tmp_path / "base.h5").write_text("mine", "utf-8")
    assert run(["unwrap", str(WRAPPED), "--dry-run", "-o", "base.h5"]) == 2


def test_the_report_maps_each_tensor_with_its_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), "-o", "base.h5", "--report", "r.json"]) == 0
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert report["receipt"] == capsys.readouterr().err.splitlines()[0]
    assert report["source_sha256"] == hashlib.sha256(WRAPPED.read_bytes()).hexdigest()
    assert report["source_sha256"] == entry(WRAPPED.name)["sha256"]
    assert [(each["written_as"], tuple(each["shape"]), each["dtype"], each["sha256"]) for each in report["map"]] == [
        (each.path, each.shape, each.dtype, each.sha256) for each in truth(WRAPPED.name)
    ]
    assert report["map"][0]["stored_as"] == "model_weights/sequential_1/hidden/kernel:0"
    assert report["wrapper"]["replicas"] == 2


def test_json_is_the_report_without_the_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), "-o", "base.h5", "--json"]) == 0
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["output"], found["format"], found["kind"]) == (1, "base.h5", "keras-h5", "model")
    assert (found["tensors"], found["of_tensors"], found["parameters"], found["bytes"]) == (4, 4, 343, 1372)


@pytest.mark.parametrize("arguments", [("-o", "x.zip"), ("--to", "nonsense"), ("-o", "base")])
def test_outputs_of_no_format(arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", str(WRAPPED), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_to_names_the_format_where_the_suffix_does_not(tmp_path: Path) -> None:
    assert run(["unwrap", str(WRAPPED), "--to", "keras-h5", "-o", "base"]) == 0
    assert (tmp_path / "base").read_bytes()[:4] == b"\x89HDF"


def test_the_function_and_the_command_give_the_same_file(tmp_path: Path) -> None:
    assert run(["unwrap", str(WRAPPED), "-o", "a.h5"]) == 0
    ckpttool.unwrap(WRAPPED, tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_progress_is_told_to_the_caller(tmp_path: Path) -> None:
    seen = []
    ckpttool.unwrap(WRAPPED, tmp_path / "base.h5", on_progress=seen.append)
    assert [step.path for step in seen] == [each.path for each in truth(WRAPPED.name)]
    assert seen[-1].done_bytes == seen[-1].total_bytes == 1372


def test_an_existing_report_is_told_by_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text("mine", "utf-8")
    assert run(["unwrap", str(WRAPPED), "-o", "base.h5", "--report", "r.json"]) == 2
    assert capsys.readouterr().err == "ckpttool: r.json: exists; choose another name with --report, or --overwrite\n"
    assert not (tmp_path / "base.h5").exists()
