"""`inspect --flat`, `--stats`, `--optimizer`, and JSON that is written as it comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.cli.main import run

from ..manifest import FILES, truth

TRAINED = "keras-2.3.1-rnn-trained.h5"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_flat_is_one_line_a_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("\t") for line in printed(capsys, str(FILES / TRAINED), "--flat").splitlines()]
    assert [line[0] for line in lines] == [each.path for each in truth(TRAINED)]
    assert [line[1] for line in lines] == ["×".join(map(str, each.shape)) for each in truth(TRAINED)]
    with h5py.File(FILES / TRAINED) as file:
        assert all(file[line[3]].dtype == line[2] for line in lines)


def test_flat_of_several_files_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(FILES / TRAINED), str(FILES / TRAINED), "--flat", "--layer", "gru")
    blocks = text.split("\n\n")
    assert len(blocks) == 2 and all(f"{TRAINED}: full model" in block for block in blocks)
    assert all(block.count("gru/") >= 3 for block in blocks)


def test_statistics_stand_behind_each_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    for line in printed(capsys, str(FILES / TRAINED), "--flat", "--stats", "--optimizer").splitlines():
        _, _, _, place, low, high, mean, std, zeros, nan, inf = line.split("\t")
        with h5py.File(FILES / TRAINED) as file:
            values = file[place][()].astype(np.float64)
        assert np.allclose(
            [float(low), float(high), float(mean), float(std)],
            [values.min(), values.max(), values.mean(), values.std()], rtol=2e-5, atol=1e-9 * np.abs(values).max(),
        )  # fmt: skip
        assert (int(zeros), int(nan), int(inf)) == (np.count_nonzero(values == 0), 0, 0)


def test_json_has_statistics_and_optimizer_state_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(printed(capsys, str(FILES / TRAINED), "--json"))
    assert plain["optimizer"] == {"class_name": "Adam", "tensors": 37}
    assert all("stats" not in tensor for layer in plain["layers"] for tensor in layer["tensors"])
    full = json.loads(printed(capsys, str(FILES / TRAINED), "--json", "--stats", "--optimizer"))
    assert len(full["optimizer"]["state"]) == 37
    first = full["optimizer"]["state"][0]
    assert (first["stored_as"], first["shape"], first["dtype"]) == (
        "optimizer_weights/Adam/iterations:0", [], "int64",
    )  # fmt: skip
    assert first["stats"]["min"] == first["stats"]["max"] == 1
    assert all(set(tensor["stats"]) == {"min", "max", "mean", "std", "zeros", "nan", "inf"}
               for layer in full["layers"] for tensor in layer["tensors"])  # fmt: skip


@pytest.mark.parametrize("name", [TRAINED, "keras-2.0.9-two-towers-weights.h5", "keras-2.1.6-zoo-model-first.h5"])
@pytest.mark.parametrize("arguments", [(), ("--stats",), ("--optimizer", "--layer", "*embed*"), ("--layer", "none")])
def test_the_json_text_is_the_document_of_the_library(
    name: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "stats": "--stats" in arguments, "optimizer": "--optimizer" in arguments,
        "layer": arguments[-1] if "--layer" in arguments else None,
    }  # fmt: skip
    wanted = ckpttool.inspect(FILES / name, **options).to_json()
    assert json.loads(printed(capsys, str(FILES / name), "--json", *arguments)) == wanted
    line = printed(capsys, str(FILES / name), "--json=lines", *arguments)
    assert json.loads(line) == wanted and line.count("\n") == 1


def test_json_of_several_files_is_a_list_with_errors_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--json", str(FILES / TRAINED), "nowhere.h5", str(FILES / TRAINED)]) == 2
    answer = capsys.readouterr()
    found = json.loads(answer.out)
    assert [each.get("format") for each in found] == ["keras-h5", None, "keras-h5"]
    assert found[1]["error"]["type"] == "CheckpointNotFoundError" and "nowhere.h5" in answer.err


def many(path: Path, layers: int) -> Path:
    """A weights-only file of many layers with two tensors each."""
    with h5py.File(path, "w") as file:
        names = np.array([f"d{number}".encode() for number in range(layers)])
        for number, piece in enumerate(np.array_split(names, 2)):
            file.attrs[f"layer_names{number}"] = piece
        for name in names:
            group = file.create_group(name)
            group.attrs["weight_names"] = np.array([name + b"/kernel:0", name + b"/bias:0"])
            group[name + b"/kernel:0"], group[name + b"/bias:0"] = np.zeros((2, 2), "f4"), np.zeros(2, "f4")
    return path


@pytest.mark.parametrize("layers", [99, 100, 101, 250])
def test_a_long_listing_is_whole(layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(many(tmp_path / "many.h5", layers))
    document = json.loads(printed(capsys, path, "--json"))
    assert [each["name"] for each in document["layers"]] == [f"d{number}" for number in range(layers)]
    assert document["totals"]["tensors"] == 2 * layers
    assert printed(capsys, path, "--flat").count("\n") == 2 * layers


def test_json_comes_in_pieces(tmp_path: Path) -> None:
    found = ckpttool.inspect(many(tmp_path / "many.h5", 1000))
    pieces = list(found.json_chunks(one_line=False))
    assert len(pieces) > 10 and max(map(len, pieces)) < 60_000
    assert json.loads("".join(pieces)) == found.to_json()


def test_the_model_s_own_variables_are_listed(tmp_path: Path) -> None:
    path = many(tmp_path / "x.h5", 4)
    with h5py.File(path, "a") as file:
        group = file.create_group("top_level_model_weights")
        group.attrs["weight_names"] = np.array([b"scale:0"])
        group["scale:0"] = np.float32(3)
    found = ckpttool.inspect(path).to_json()
    assert found["layers"][-1]["tensors"][0]["path"] == "top_level_model_weights/scale:0"
    assert found["totals"]["tensors"] == 9
    ckpttool.convert(path, tmp_path / "again.h5")
    with h5py.File(tmp_path / "again.h5") as file:
        assert file["top_level_model_weights/scale:0"][()] == 3


def test_foreign_groups_and_attributes_are_named(tmp_path: Path) -> None:
    path = many(tmp_path / "x.h5", 4)
    with h5py.File(path, "a") as file:
        file.create_group("notes")
        file.attrs["author"] = "someone"
    (notice,) = [each for each in ckpttool.inspect(path).warnings if each.code == "foreign-content"]
    assert notice.message == "beside the model the file holds notes and attributes author; left out"
