"""What lies beside a checkpoint: folders of epochs, a run's template, a configuration, weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ckpttool.cli.main import run

from ..manifest import FILES, names, truth
from ..wrappers.test_data_parallel import template_of

EPOCHS = names(lambda name, each: "family" in each["tags"] and name.endswith(".hdf5"))
PREFIX = "own-keras-2.2.4-family-"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`run` with three epochs and a file that is no checkpoint."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "run"
    made.mkdir()
    for name in EPOCHS:
        shutil.copy(FILES / name, made / name.removeprefix(PREFIX))
    (made / "log.csv").write_text("epoch,loss\n")
    return made


def test_inspect_answers_each_file_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(folder / EPOCHS[0].removeprefix(PREFIX), folder / "weights.10-0.20.hdf5")
    assert run(["inspect", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    epochs = [f"run/{name.removeprefix(PREFIX)}" for name in EPOCHS]
    assert [each["path"] for each in found] == [*epochs, "run/weights.10-0.20.hdf5"]
    assert {each["wrapper"]["template"] for each in found} == {"encoder"}


def test_unwrap_writes_each_file_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["unwrap", "run", "-o", "base", "--config", str(FILES / f"{PREFIX[:-1]}.json")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [Path("base", name.removeprefix(PREFIX)) for name in EPOCHS]
    for path, name in zip(written, EPOCHS, strict=True):
        assert sorted(template_of(path)[0]) == sorted(truth(name))


def test_unwrap_of_a_folder_answers_each_file_and_gives_the_highest_code(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["unwrap", "run", "-o", "base"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert not (tmp_path / "base").exists()
    second = folder / EPOCHS[1].removeprefix(PREFIX)
    second.write_bytes(second.read_bytes()[:9000])
    assert run(["inspect", "run"]) == 0  # what is cut short is no longer known as Keras's
    assert run(["unwrap", "run", str(second), "-o", "base"]) == 2


@pytest.mark.parametrize("words", [[], ["-o", "run/log.csv"], ["-o", "base", "--report", "r.json"]])
def test_unwrap_of_a_folder_needs_a_folder(words: list[str], folder: Path, tmp_path: Path) -> None:
    assert run(["unwrap", "run", *words]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_is_not_written_into_itself(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run(["unwrap", "run", "-o", "run", "--assume-wrapper", "encoder", "--overwrite"]) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_without_keras_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("x")
    assert run(["inspect", str(tmp_path)]) == 3
    assert run(["unwrap", str(tmp_path), "-o", str(tmp_path / "o.h5")]) == 3
    assert "a folder that holds no known checkpoint" in capsys.readouterr().err


def test_a_wrapper_and_its_untrained_template_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    wrapper, template = (str(FILES / f"own-keras-2.2.4-run-{part}.h5") for part in ("wrapper", "template"))
    assert run(["inspect", wrapper, template, "--json"]) == 0
    for each in json.loads(capsys.readouterr().out):
        found = {notice["code"]: notice["message"] for notice in each["warnings"]}["files-disagree"]
        assert found.startswith(f"{wrapper} holds the same template as {template} with other values: 8 of 8 tensors")
        assert "cpu_relocation" in found
    assert run(["inspect", template, wrapper]) == 0
    assert "8 of 8 tensors differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    "pair",
    [
        ("keras-2.2.4-sequential.h5", "keras-2.2.4-sequential-template.h5"),  # the same values
        ("keras-2.2.4-sequential.h5", "keras-2.2.4-rnn-template.h5"),  # another template
        ("own-keras-2.2.4-run-wrapper.h5", "own-keras-2.2.4-run-wrapper.h5"),
    ],
)
def test_other_pairs_do_not_disagree(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", *(str(FILES / name) for name in pair), "--json"]) == 0
    assert "files-disagree" not in capsys.readouterr().out


def test_a_configuration_beside_is_offered_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / EPOCHS[0], "w.h5")
    shutil.copy(FILES / f"{PREFIX[:-1]}.json", "w.json")
    assert run(["unwrap", "w.h5"]) == 2
    line = capsys.readouterr().err
    assert "'w.json' beside it may prove it (--config w.json); to take it out: ckpttool unwrap w.h5" in line
    assert run(["inspect", "w.h5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["wrapper"]["certain"] is False
    assert "config-beside" in [each["code"] for each in document["warnings"]]
    assert run(["unwrap", "w.h5", "--config", "w.json"]) == 0


@pytest.mark.needs("yaml")
def test_a_configuration_in_yaml_proves_a_wrapper(tmp_path: Path) -> None:
    weights = FILES / "own-keras-2.2.4-to-multi-gpu-weights.h5"
    tensors, wrapper = template_of(weights, config=str(FILES / "own-keras-2.2.4-to-multi-gpu-wrapper.yaml"))
    assert wrapper is not None and wrapper.certain and wrapper.replicas == 3
    assert sorted(tensors) == sorted(truth(weights.name))


def test_a_model_without_weights_points_at_the_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / "own-tf-1.15-empty.h5", "model.h5")
    assert run(["unwrap", "model.h5"]) == 3
    assert "nothing to write\n" in capsys.readouterr().err
    shutil.copy(FILES / "keras-2.2.4-sequential-weights.h5", "model_weights.h5")
    assert run(["unwrap", "model.h5"]) == 3
    assert "beside it model_weights.h5 does" in capsys.readouterr().err
    assert run(["inspect", "model.h5"]) == 0
    assert "the model holds no weights; beside it model_weights.h5 does" in capsys.readouterr().out
