"""Configurations of three generations as one form, and those that no Keras wrote."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

import ckpttool
from ckpttool.errors import CheckpointError, ConfigError, LimitExceededError
from ckpttool.keras_config import ModelConfig, TensorRef, parse_config
from ckpttool.keras_variables import expected_variables
from ckpttool.limits import Limits
from ckpttool.opening import read_config

from .manifest import ENTRIES, FILES, legacy_hdf5
from .written import dense, entry, model

CONFIGS = sorted(name for name, each in ENTRIES.items() if each["kind"] == "config" and "keras-1" not in each["tags"])


def of_file(name: str) -> Any:
    with h5py.File(FILES / name) as file:
        return json.loads(file.attrs["model_config"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.needs("yaml")) if each.endswith(".yaml") else each for each in CONFIGS],
)
def test_to_json_of_the_old_libraries_is_read(name: str) -> None:
    config = read_config(FILES / name)
    listed = ENTRIES[name]["template"]
    if "wrapped" not in ENTRIES[name]["tags"]:
        assert config.class_name == listed["class_name"]
        assert len(config.output_names()) == len(listed["outputs"])


def test_a_checkpoint_gives_its_configuration() -> None:
    name = "keras-2.2.4-rnn-template.h5"
    assert json.loads(read_config(FILES / name).json())["config"] == of_file(name)["config"]


def test_json_within_json_is_read() -> None:
    text = json.dumps(model("m", dense("d")))
    assert parse_config(json.dumps(text)).layers[0].name == "d"
    assert parse_config(json.dumps({"model_config": json.loads(text)})).layers[0].name == "d"


LISTED = {"class_name": "Dense", "config": {"name": "d"}}


@pytest.mark.parametrize("config", [[LISTED], {"name": "s", "layers": [LISTED]}])
def test_a_sequential_is_a_list_or_an_object(config: Any) -> None:
    found = parse_config(json.dumps({"class_name": "Sequential", "config": config}))
    assert [layer.name for layer in found.layers] == ["d"]
    assert found.name == ("s" if isinstance(config, dict) else None)
    assert not found.functional


def graph(first_call: int) -> ModelConfig:
    inner = {"class_name": "Model", "name": "inner", "config": {
        "name": "inner", "layers": [entry("InputLayer", "x"), dense("d")], "input_layers": [["x", 0, 0]],
        "output_layers": [["d", 0, 0]]}, "inbound_nodes": [[["a", 0, 0, {}]], [["b", 0, 0, {}]]]}  # fmt: skip
    inner["config"]["layers"][1]["inbound_nodes"] = [[["x", 0, 0, {}]]]
    join = entry("Concatenate", "join", axis=-1)
    join["inbound_nodes"] = [[["inner", first_call, 0, {}], ["inner", first_call + 1, 0, {}]]]
    config = {"name": "m", "layers": [entry("InputLayer", "a"), entry("InputLayer", "b"), inner, join],
              "input_layers": [["a", 0, 0], ["b", 0, 0]], "output_layers": [["join", 0, 0]]}  # fmt: skip
    return parse_config(json.dumps({"class_name": "Model", "config": config}))


@pytest.mark.parametrize("first_call", [0, 1])
def test_calls_of_nested_models_are_counted_from_zero(first_call: int) -> None:
    """Up to tf.keras 2.15 call 0 of a nested model is its own construction, which is in no list."""
    join = graph(first_call).layer("join")
    assert join is not None
    assert join.nodes[0].inputs == (TensorRef("inner", 0, 0), TensorRef("inner", 1, 0))


def test_a_call_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="missing call of 'inner'"):
        graph(2)


@pytest.mark.parametrize(
    "node",
    [
        [["a", 0, 0, {}]],
        [["a", 0, 0]],  # Keras 1
        ["a", 0, 0, {}],  # op layers of TF 2.4 and later: one node, flat
        {"args": [{"class_name": "__keras_tensor__", "config": {"keras_history": ["a", 0, 0]}}], "kwargs": {}},
    ],
)
def test_a_node_has_four_forms(node: Any) -> None:
    layer = dense("d")
    layer["inbound_nodes"] = [node]
    config = {
        "layers": [entry("InputLayer", "a"), layer],
        "input_layers": [["a", 0, 0]],
        "output_layers": [["d", 0, 0]],
    }
    found = parse_config(json.dumps({"class_name": "Model", "config": config})).layer("d")
    assert found is not None
    assert found.nodes[0].inputs == (TensorRef("a", 0, 0),)


def nested(levels: int) -> str:
    text = json.dumps(model("m", dense("d")))
    inside = json.loads(text)
    for level in range(levels):
        inside = model(f"m{level}", inside)
    return json.dumps(inside)


def wrapped(levels: int, class_name: str, key: str) -> str:
    inside: Any = {"class_name": "Dense", "config": {"name": "d", "units": 3}}
    for _ in range(levels):
        inside = {"class_name": class_name, "config": {"name": "w", key: inside}}
    return json.dumps(model("m", {**inside, "name": "w", "inbound_nodes": []}))


class TestRefused:
    @pytest.mark.parametrize("text", ["", "{", "null", "3", "[]", "{}", '"x"', '{"class_name": 3}', "\x00", "NaN",
                                      '{"class_name": "Dense", "config": {}}', '{"class_name": "Model"}',
                                      '{"class_name": "Model", "config": {"layers": [3]}}',
                                      '{"class_name": "Model", "config": {"layers": [{"class_name": []}]}}',
                                      ])  # fmt: skip
    def test_what_is_no_model(self, text: str) -> None:
        with pytest.raises(ConfigError):
            parse_config(text)

    def test_a_layer_named_twice(self) -> None:
        with pytest.raises(ConfigError, match="names a layer twice"):
            parse_config(json.dumps(model("m", dense("d"), dense("d"))))

    @pytest.mark.parametrize("levels", [65, 200, 5000])
    def test_models_nested_too_deep(self, levels: int) -> None:
        with pytest.raises(LimitExceededError, match="deep"):
            parse_config(nested(levels) if levels < 300 else "[" * levels + "]" * levels)

    @pytest.mark.parametrize(("class_name", "key"), [("TimeDistributed", "layer"), ("RNN", "cell"),
                                                     ("Bidirectional", "layer"), ("Mine", "anything")])  # fmt: skip
    @pytest.mark.parametrize("levels", [100, 130, 159, 200, 240])
    def test_layers_nested_too_deep_are_an_error_and_no_recursion(self, class_name: str, key: str, levels: int) -> None:
        try:
            config = parse_config(wrapped(levels, class_name, key))
            for _, layer in config.walk():
                expected_variables(layer)
        except LimitExceededError:
            return

    def test_sixty_models_deep_is_allowed(self) -> None:
        assert sum(1 for _ in parse_config(nested(60)).walk()) == 61

    def test_more_layers_and_calls_than_the_limits(self) -> None:
        text = json.dumps(model("m", *(dense(f"d{n}") for n in range(20))))
        with pytest.raises(LimitExceededError, match="more than 10 layers"):
            parse_config(text, Limits(max_layers=10))
        layer = dense("d")
        layer["inbound_nodes"] = [[]] * 20
        with pytest.raises(LimitExceededError, match="more than 10 calls"):
            parse_config(json.dumps(model("m", layer)), Limits(max_nodes=10))
        with pytest.raises(LimitExceededError, match="characters"):
            parse_config(text, Limits(max_config_bytes=100))


STRANGE = [None, True, 0, -1, 2**70, 1.5, float("nan"), "", "x", [], {}, [[]], [1, 2, 3], {"a": 1}, ["x", 0, 0],
           [["x", 0, 0, {}]], {"class_name": "Dense", "config": {}}, "a\0b", "\ud800"]  # fmt: skip


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    stack = [document]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            stack.append(holder[key])


@pytest.mark.parametrize("name", legacy_hdf5("model")[::3])
def test_a_configuration_that_no_keras_wrote_is_an_error_and_never_a_traceback(name: str, tmp_path: Path) -> None:
    """Values of other types in random places: read, written, or refused with an error of ours."""
    rng = random.Random(name)
    path = tmp_path / "model.h5"
    for _ in range(12):
        path.write_bytes((FILES / name).read_bytes())
        config = of_file(name)
        for _ in range(rng.choice([1, 1, 2])):
            holder, key = rng.choice(list(places(config)) or [({}, "x")])
            holder[key] = rng.choice(STRANGE)
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = json.dumps(config).encode()
        try:
            ckpttool.inspect(path).to_json()
            ckpttool.unwrap(path, tmp_path / "out.h5", overwrite=True)
        except CheckpointError:
            continue
