"""`convert`: the same content in another container, wrapper and optimizer state kept."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.cli.main import run
from ckpttool.opening import open_checkpoint

from ..manifest import FILES, names, read

TRAINED = "keras-2.3.1-rnn-trained.h5"
UNPROVEN = "keras-2.2.4-two-towers-gpu-merge-weights.h5"
HDF5 = names(lambda name, each: name.endswith(".h5") and each["kind"] in ("model", "weights") and bool(each["tensors"])
             and "like-a-path" not in each["tags"] and b"layer_names" in (FILES / name).read_bytes())  # fmt: skip


CASES = [(name, [".h5", ".npz", ".safetensors"][number % 3]) for number, name in enumerate(HDF5)]


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_every_tensor_arrives_bit_for_bit(name: str, suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"out{suffix}"
    assert run(["convert", str(FILES / name), "-o", str(output), "--no-wrapper", "-q"]) == 0
    with open_checkpoint(FILES / name) as old, open_checkpoint(output) as new:
        before, after = old.describe(), new.describe()
        wanted = read(old, [*before.weights(), *before.optimizer_tensors()])
        found = read(new, [*after.weights(), *after.optimizer_tensors()])
    if suffix == ".npz":  # whose bfloat16 is float32
        wanted = [each for each in wanted if each.dtype != "bfloat16"]
        found = [each for each in found if each in wanted]
    assert sorted(found) == sorted(wanted)


def test_a_legacy_file_stays_the_same_file_but_for_its_bytes(tmp_path: Path) -> None:
    ckpttool.convert(FILES / TRAINED, tmp_path / "again.h5")

    def content(path: Path) -> tuple[dict[str, object], dict[str, object]]:
        values: dict[str, object] = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: values.update({name: item[()].tobytes()}) if hasattr(item, "dtype") else None
            )
            attributes: dict[str, object] = {key: str(np.asarray(value).item()) for key, value in file.attrs.items()}
            for group in ("model_weights", "optimizer_weights"):
                for key, value in file[group].attrs.items():
                    attributes[f"{group}/{key}"] = np.asarray(value).astype(str).tolist()
        return values, attributes

    values, attributes = content(FILES / TRAINED)
    again, again_attributes = content(tmp_path / "again.h5")
    optimizer = {name for name in values if name.startswith("optimizer_weights/")}
    assert optimizer and {name: again[name] for name in optimizer} == {name: values[name] for name in optimizer}
    assert sorted(map(str, again.values())) == sorted(map(str, values.values()))
    for document in (attributes, again_attributes):
        for key in ("model_config", "training_config"):
            document[key] = json.loads(str(document[key]).removeprefix("b'").removesuffix("'"))
        for key in ("keras_version", "backend"):
            document[key] = str(document[key]).removeprefix("b'").removesuffix("'")
    assert again_attributes == attributes


def test_the_wrapper_is_kept_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(FILES / TRAINED), "-o", str(tmp_path / "again.h5")]) == 0
    answer = capsys.readouterr()
    assert answer.out == f"{tmp_path / 'again.h5'}\n"
    assert "the wrapper is kept: multi_gpu_model over 8; 'ckpttool unwrap' takes it out" in answer.err
    assert "replicas removed" not in answer.err and "left out" not in answer.err
    before, after = ckpttool.inspect(FILES / TRAINED), ckpttool.inspect(tmp_path / "again.h5")
    assert after.wrapper == before.wrapper and after.optimizer() == before.optimizer()
    assert after.whole.config == before.whole.config


def test_weights_only_leaves_configuration_and_optimizer_out(tmp_path: Path) -> None:
    report = ckpttool.convert(FILES / TRAINED, tmp_path / "w.h5", weights_only=True)
    assert report.kind == "weights" and report.optimizer_left_out
    assert "optimizer state left out" in report.sentence()
    with h5py.File(tmp_path / "w.h5") as file:
        assert "model_config" not in file.attrs and "optimizer_weights" not in file and "layer_names" in file.attrs


def test_what_the_format_cannot_hold_is_said(tmp_path: Path) -> None:
    report = ckpttool.convert(FILES / TRAINED, tmp_path / "x.npz")
    assert "the configuration is left out: npz holds tensors only" in report.notes


def test_an_unproven_wrapper_is_refused_with_the_line_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(FILES / UNPROVEN), "-o", str(tmp_path / "x.h5")]) == 2
    assert "ckpttool convert" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert run(["convert", str(FILES / UNPROVEN), "--no-wrapper", "-o", str(tmp_path / "x.h5")]) == 0
    assert run(["convert", str(FILES / UNPROVEN), "--assume-wrapper", "two_towers", "-o", str(tmp_path / "y.h5")]) == 0


def test_dry_run_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, report = tmp_path / "x.safetensors", tmp_path / "report.json"
    assert run(["convert", str(FILES / TRAINED), "-o", str(output), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True and not list(tmp_path.iterdir())
    assert run(["convert", str(FILES / TRAINED), "-o", str(output), "--report", str(report)]) == 0
    listed = json.loads(report.read_text("utf-8"))["map"]
    with open_checkpoint(output) as reader:
        assert [(each["written_as"], each["sha256"]) for each in listed] == [
            (each.path, each.sha256) for each in read(reader, reader.describe().weights())
        ]


def test_an_output_is_needed_and_an_unknown_suffix_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(FILES / TRAINED)]) == 2
    assert run(["convert", str(FILES / TRAINED), "-o", "x.what"]) == 2
    assert "its suffix names no format" in capsys.readouterr().err


def test_a_wrapper_that_keras_3_cannot_hold_is_taken_out_by_the_shown_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = str(FILES / "keras-2.3.1-two-towers.h5")
    assert run(["convert", source, "-o", "new.keras"]) == 3
    assert capsys.readouterr().err == (
        f"ckpttool: {source}: Keras 3 cannot hold its wrapper (multi_gpu_model), whose layers hold Python code; "
        f"to take it out: ckpttool unwrap {source} -o new.keras\n"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [("keras-1.2.2-dense.h5", "a file of Keras 1, whose layers have no rules yet; 'ckpttool unwrap' writes '.h5' for "
      "Keras 1, and '.npz' or '.safetensors' of the weights alone\n"),
     ("keras-2.2.4-same-shapes-frozen-template.h5", None)],
)  # fmt: skip
def test_no_command_is_proposed_that_would_refuse_the_file(
    name: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if told is not None:
        assert run(["convert", str(FILES / name), "-o", "new.keras"]) == 3
        assert capsys.readouterr().err.endswith(f": {told}")
    assert run(["unwrap", str(FILES / name), "-o", "new.h5"]) == 0
    assert ("ckpttool migrate" in capsys.readouterr().err) == (told is None)
