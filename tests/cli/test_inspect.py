"""`ckpttool inspect`: the JSON literally, the text where people rely on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckpttool.cli.main import run

from ..manifest import FILES, entry, legacy_hdf5, truth

WRAPPED = "keras-2.2.4-sequential.h5"
TOWERS = "keras-2.3.1-two-towers.h5"
WEIGHTS = "keras-2.0.9-two-towers-weights.h5"


@pytest.fixture(autouse=True)
def in_the_folder_of_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, *arguments, "--json"))
    return found


def tensor(path: str, *shape: int, stored_as: str) -> dict[str, Any]:
    size = 1
    for length in shape:
        size *= length
    return {"path": path, "shape": list(shape), "dtype": "float32", "parameters": size, "bytes": 4 * size,
            "stored_as": stored_as}  # fmt: skip


def test_the_json_of_a_wrapped_model(capsys: pytest.CaptureFixture[str]) -> None:
    place = "model_weights/sequential_1"
    wanted = {
        "schema": 1, "path": WRAPPED, "format": "keras-h5", "container": "hdf5", "kind": "model",
        "written_by": {"keras": "2.2.4", "tensorflow": None, "backend": "tensorflow"}, "compiled": False,
        "wrapper": {
            "kind": "multi_gpu_model", "replicas": 2, "template": "sequential_1", "certain": True,
            "evidence": [
                "'sequential_1' (Sequential) is called 2 times and is the only layer with weights",
                "2 Lambda slices with arguments i = 0…1, parts = 2",
                "1 Concatenate on axis 0",
            ],
            "depth": 1,
        },
        "layers": [
            {"path": "hidden", "name": "hidden", "class_name": "Dense", "trainable": True, "calls": 1, "tensors": [
                tensor("hidden/kernel", 6, 24, stored_as=f"{place}/hidden/kernel:0"),
                tensor("hidden/bias", 24, stored_as=f"{place}/hidden/bias:0"),
            ]},
            {"path": "dropout", "name": "dropout", "class_name": "Dropout", "trainable": True, "calls": 1,
             "tensors": []},
            {"path": "image_embedding", "name": "image_embedding", "class_name": "Dense", "trainable": True,
             "calls": 1, "tensors": [
                tensor("image_embedding/kernel", 24, 7, stored_as=f"{place}/image_embedding/kernel:0"),
                tensor("image_embedding/bias", 7, stored_as=f"{place}/image_embedding/bias:0"),
             ]},
        ],
        "optimizer": None, "embeddings": ["image_embedding"],
        "totals": {"layers": 3, "tensors": 4, "parameters": 343, "bytes": 1372}, "warnings": [],
        "next": "ckpttool migrate keras-2.2.4-sequential.h5 -o keras-2.2.4-sequential.keras",
    }  # fmt: skip
    found = as_json(capsys, WRAPPED)
    assert {key: found[key] for key in wanted} == wanted
    assert list(found)[: len(wanted)] == list(wanted)


def test_the_json_of_unproven_weights(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, WEIGHTS)
    assert found["kind"] == "weights"
    assert found["wrapper"]["certain"] is False
    assert found["wrapper"]["replicas"] == 2
    assert [warning["code"] for warning in found["warnings"]] == ["wrapper-not-proven"]
    assert found["warnings"][0]["path"] == "two_towers"
    assert found["next"] == (
        f"ckpttool unwrap {WEIGHTS} --assume-wrapper two_towers -o keras-2.0.9-two-towers-weights-single.h5"
    )


def test_the_json_of_a_trained_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "keras-2.3.1-rnn-trained.h5")
    assert found["compiled"] is True
    assert found["optimizer"]["tensors"] == len(entry("keras-2.3.1-rnn-trained.h5")["optimizer"])
    assert found["optimizer"]["class_name"] == "Adam"


@pytest.mark.parametrize("name", legacy_hdf5("model"))
def test_the_json_of_every_model_is_the_manifest_s(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, name)
    tensors = [each for layer in found["layers"] for each in layer["tensors"]]
    assert [tuple(each["shape"]) for each in tensors] == [each.shape for each in truth(name)]
    assert found["totals"]["tensors"] == len(tensors)
    assert found["totals"]["parameters"] == sum(each["parameters"] for each in tensors)
    assert found["written_by"]["backend"] in ("tensorflow", "theano")


def test_the_layers_are_flat_in_model_order_with_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, TOWERS)
    assert [layer["path"] for layer in found["layers"]] == [each["path"] for each in entry(TOWERS)["layers"]]
    assert {layer["path"]: layer["calls"] for layer in found["layers"]}["tower"] == 2


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("image_embedding", ["tower/image_embedding"]),
        ("tower/image_embedding", ["tower/image_embedding"]),
        ("*/tower_*", ["tower/tower_hidden", "tower/tower_bn"]),
        ("/kind", ["kind"]),
        ("/image_embedding", []),
        ("tower", ["tower"]),
        ("no such layer", []),
    ],
)
def test_a_pattern_chooses_layers_and_leaves_the_totals(
    pattern: str, paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_json(capsys, TOWERS, "--layer", pattern)
    assert [layer["path"] for layer in found["layers"]] == paths
    assert found["totals"] == as_json(capsys, TOWERS)["totals"]


def test_the_text_shows_the_template_and_not_the_lambdas(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, TOWERS).splitlines()
    assert lines[0] == f"{TOWERS}: full model, keras-h5, written by Keras 2.3.1 on tensorflow"
    assert lines[1] == "wrapper: multi_gpu_model, 3 replicas, template 'two_towers'"
    assert "    image_embedding  Dense  kernel 8×5, bias 5  float32" in lines
    assert not any(line.strip().startswith("lambda") for line in lines)
    assert "10 layers, 10 tensors, 166 parameters, 664 B" in lines
    assert "embeddings: tower/image_embedding" in lines
    assert any(line.startswith("for tf_keras and the old Keras: ckpttool unwrap ") for line in lines)


def test_changed_defaults_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "keras-2.2.4-rnn.h5")
    changed = [warning for warning in found["warnings"] if warning["code"] == "defaults-changed"]
    assert {warning["path"] for warning in changed} >= {"gru"}
    assert any("reset_after is False here, True by default in Keras 3" in warning["message"] for warning in changed)
    assert not [w for w in as_json(capsys, "keras-3.15-plain-rnn.h5")["warnings"] if w["code"] == "defaults-changed"]


def test_no_wrapper_shows_the_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, WRAPPED, "--no-wrapper")
    assert found["wrapper"] is None
    assert found["layers"][0]["class_name"] == "InputLayer"
    assert "sequential_1/image_embedding" in [layer["path"] for layer in found["layers"]]


def test_a_configuration_proves_the_wrapper(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "keras-2.0.9-deep-weights.h5", "--config", "keras-2.0.9-deep-template.json")
    assert found["wrapper"]["certain"] is True
    assert found["wrapper"]["replicas"] == 8
    assert [layer["path"] for layer in found["layers"]] == [
        each["path"] for each in entry("keras-2.0.9-deep-weights.h5")["layers"]
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "nonsense"), "unknown format 'nonsense'; formats are keras-h5"),
        (("--limit", "nonsense=1"), "unknown limit 'nonsense'"),
        (("--limit", "max_depth=0"), "takes a whole number above zero"),
        (("--limit", "max_depth"), "takes a whole number above zero"),
        (("--limit", "max_layers=1"), "lists 5 layers"),
        (("--config", "nowhere.json"), "no such file"),
        (("--config", "keras-2.2.4-sequential.reference.npz"), "holds no model configuration"),
        (("--config", "../README.md"), "not a known checkpoint"),
        (("--config", "keras-2.2.4-sequential-weights.h5"), "holds no model configuration"),
        (("--assume-wrapper", "x", "--no-wrapper"), "contradict each other"),
        (("--assume-wrapper", "nothing"), "no layer 'nothing' with weights"),
        (("--json=xml",), "xml"),
        (("--nonsense",), "No such option"),
    ],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", WRAPPED, *arguments]) in (2, 3)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_a_configuration_of_another_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "keras-2.0.9-deep-weights.h5", "--config", "keras-2.0.9-sequential-template.json"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("tf-2.15-shared.keras", "ckpttool migrate tf-2.15-shared.keras -o tf-2.15-shared-keras3.keras"),
        ("tf-2.15-parallel-lookup.keras",
         "ckpttool unwrap tf-2.15-parallel-lookup.keras -o tf-2.15-parallel-lookup-single.h5"),
        ("keras-1.2.2-make-parallel.h5",
         "ckpttool unwrap keras-1.2.2-make-parallel.h5 -o keras-1.2.2-make-parallel-single.h5"),
        ("keras-1.2.2-dense.h5", "ckpttool extract keras-1.2.2-dense.h5 --layer image_embedding -o embedding.npy"),
    ],
)  # fmt: skip
def test_the_next_command_is_one_that_works(name: str, proposed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not one whose output is the input, and no migration of Keras 1 or of text, for which there are no rules."""
    assert as_json(capsys, name)["next"] == proposed


def test_variables_of_one_name_are_told_apart_and_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "keras-3.15-lookup.keras").splitlines()
    assert "  terms  TextVectorization  idf_weights 8, _lookup_layer/idf_weights 8  float32" in lines
    assert any(line.startswith("asset files: words/vocabulary.txt (39 B), ") and line.endswith(" and 3 more")
               for line in lines)  # fmt: skip
    found = shown(capsys, "keras-2.2.4-zoo-bidirectional.h5", "--layer", "mode_sum")
    assert "  mode_sum  Bidirectional  forward_lstm_2/kernel 3×8, " in found
    assert "backward_lstm_2/kernel 3×8, " in found
    assert "\n1 layer, 1 tensor, 12 parameters, 48 B\n" in shown(capsys, "keras-3.15-objects-steps")
