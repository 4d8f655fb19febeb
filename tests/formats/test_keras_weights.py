"""Keras 3 weights: `.weights.h5` and shards, read against what the libraries held, written for Keras to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ckpttool.checkpoint import Checkpoint, Layer, Role
from ckpttool.converting import unwrap
from ckpttool.embeddings import embedding_candidates
from ckpttool.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    UnknownFormatError,
    UnsafeCheckpointError,
    UnsupportedError,
    WeightsMismatchError,
)
from ckpttool.extracting import extract
from ckpttool.inspecting import inspect
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from .. import manifest
from ..manifest import FILES, Truth
from .contract import ReaderContract, WriterContract

SAMPLE = FILES / "keras-3.15-deep.weights.h5"
TITLED = [  # Keras since 3.6 notes the layers' names, so the file alone tells them all
    "keras-3.15-deep.weights.h5",
    "keras-3.15-many.weights.h5",
    "keras-3.15-sequential-bfloat16.weights.h5",
    "keras-3.15-sequential-trained.weights.h5",
    "keras-3.15-sequential-trained.weights.json",
    "keras-3.15-subclassed.weights.h5",
]
UNTITLED = ["keras-3.0.5-deep.weights.h5", "tf-2.15-many.weights.h5", "tf-2.15-slashes.weights.h5",
            "tf-2.12-deep.weights.h5"]  # fmt: skip


def found(path: Path, **options: Any) -> list[Truth]:
    with open_checkpoint(path, **options) as reader:
        return sorted(manifest.read(reader, reader.describe().weights()))


class TestReader(ReaderContract):
    format_name = "keras-weights"

    @pytest.fixture
    def sample(self) -> Path:
        return SAMPLE


class TestWriter(WriterContract):
    format_name = "keras-weights"

    @pytest.fixture
    def sample(self) -> Path:
        return FILES / "keras-3.15-deep.keras"

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        """By class and counter, as Keras's loader walks its own layers; the layer's name is the attribute."""
        read: dict[str, bytes] = {}

        def visit(group: h5py.Group, names: tuple[str, ...]) -> None:
            for key in group.get("layers", {}):
                child = group["layers"][key]
                name = (*names, child["vars"].attrs["name"])
                variables = {"batch_normalization": ["gamma", "beta", "moving_mean", "moving_variance"]}.get(
                    key, ["kernel", "bias"]
                )
                for number in child["vars"]:
                    read["/".join((*name, variables[int(number)]))] = child["vars"][number][()].tobytes()
                visit(child, name)

        with h5py.File(path, "r") as file:
            visit(file, ())
        return read


@pytest.mark.parametrize("name", TITLED)
def test_names_and_values_are_those_that_keras_held(name: str) -> None:
    assert found(FILES / name) == sorted(manifest.truth(name))


@pytest.mark.parametrize("name", TITLED)
def test_layers_come_in_the_order_of_the_model(name: str) -> None:
    with open_checkpoint(FILES / name) as reader:
        weighted = ["/".join(path) for path, layer in reader.describe().walk() if layer.tensors]
    assert weighted == [each["path"] for each in manifest.entry(name)["layers"] if each["weights"]
                        and any(t["path"].startswith(each["path"] + "/") and t["path"].count("/")
                                == each["path"].count("/") + 1 for t in manifest.entry(name)["tensors"])]  # fmt: skip


@pytest.mark.parametrize("name", UNTITLED)
def test_without_noted_names_values_are_right_and_the_names_said_to_be_unknown(name: str) -> None:
    values = sorted((each.shape, each.dtype, each.sha256) for each in found(FILES / name))
    assert values == sorted((each.shape, each.dtype, each.sha256) for each in manifest.truth(name))
    with open_checkpoint(FILES / name) as reader:
        assert "names-unknown" in [notice.code for notice in reader.describe().warnings]


@pytest.mark.parametrize("name", UNTITLED)
def test_a_given_configuration_gives_the_names(name: str, tmp_path: Path) -> None:
    assert found(FILES / name, config=manifest.template_json(name, tmp_path)) == sorted(manifest.truth(name))


def test_a_configuration_of_another_model_is_refused(tmp_path: Path) -> None:
    other = manifest.template_json("keras-3.15-many.weights.h5", tmp_path)
    with open_checkpoint(SAMPLE, config=other) as reader, pytest.raises(WeightsMismatchError):
        reader.describe()


def test_shards_are_one_model_and_one_shard_says_that_it_is_one() -> None:
    with open_checkpoint(FILES / "keras-3.15-sequential-trained.weights.json") as reader:
        whole = reader.describe()
    assert whole.container == "hdf5 shards"
    assert len(whole.optimizer_tensors()) == len(manifest.entry("keras-3.15-sequential-trained.keras")["optimizer"])
    with open_checkpoint(FILES / "keras-3.15-sequential-trained_00000.weights.h5") as reader:
        assert [notice.code for notice in reader.describe().warnings] == ["one-shard"]


def shards(folder: Path) -> Path:
    for path in FILES.glob("keras-3.15-sequential-trained*.weights.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder / "keras-3.15-sequential-trained.weights.json"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = shards(tmp_path)
    (tmp_path / "keras-3.15-sequential-trained_00001.weights.h5").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"_00001\.weights\.h5' is missing"):
        open_checkpoint(index)


@pytest.mark.parametrize("name", ["../x.weights.h5", "/etc/x.h5", "a/b.h5", "x.weights", "", 7, "a\0.h5"])
def test_a_shard_name_that_leads_elsewhere_is_refused(name: object, tmp_path: Path) -> None:
    index = tmp_path / "x.weights.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"/layers/dense/vars": name}}))
    with pytest.raises(UnsafeCheckpointError):
        open_checkpoint(index)


def test_shards_of_another_save_are_noticed(tmp_path: Path) -> None:
    index = shards(tmp_path)
    document = json.loads(index.read_text())
    document["weight_map"]["/layers/conv2d/vars"] = "keras-3.15-sequential-trained_00000.weights.h5"
    index.write_text(json.dumps(document))
    with pytest.raises(CorruptCheckpointError, match="another save"):
        open_checkpoint(index)


def test_other_json_is_no_shard_index(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": {"dense.kernel": "model-00001.safetensors"}}))
    with pytest.raises(UnknownFormatError, match="JSON text"):
        open_checkpoint(path)


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    legacy = tmp_path / "legacy.weights.h5"
    legacy.write_bytes((FILES / "keras-3.15-sequential-trained.h5").read_bytes())
    new = tmp_path / "new.h5"
    new.write_bytes(SAMPLE.read_bytes())
    assert inspect(legacy).whole.format == "keras-h5"
    assert inspect(new).whole.format == "keras-weights"


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized_integers_are_not_the_embedding(mode: str) -> None:
    path = FILES / ("keras-3.15-int8.keras" if mode == "int8" else "keras-3.15-int4.weights.h5")
    with open_checkpoint(path) as reader:
        described = reader.describe()
        assert "image_embedding/embeddings" in [spec.name for spec in described.weights() if spec.is_quantized]
        assert "quantized" in [notice.code for notice in described.warnings]
        assert embedding_candidates(described) == []
    layer = extract(path, "image_embedding")
    with pytest.raises(CheckpointError, match="quantized"):
        _ = layer.kernel
    assert layer["embeddings"].dtype == np.int8


def groups_file(path: Path, groups: dict[str, list[np.ndarray]], names: dict[str, str] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        for group, values in groups.items():
            held = file.create_group(f"{group}/vars")
            if names and group in names:
                held.attrs["name"] = names[group]
            for number, value in enumerate(values):
                held[str(number)] = value
    return path


def test_variables_are_sorted_as_numbers(tmp_path: Path) -> None:
    values = [np.full(2, number, np.float32) for number in range(12)]
    path = groups_file(tmp_path / "x.weights.h5", {"layers/own": values})
    with open_checkpoint(path) as reader:
        read = [reader.read(spec)[0] for spec in reader.describe().weights()]
    assert read == list(range(12))


def test_seeds_metrics_and_the_optimizer_are_no_weights(tmp_path: Path) -> None:
    two = [np.zeros((3, 4), np.float32), np.zeros(4, np.float32)]
    path = groups_file(
        tmp_path / "x.weights.h5",
        {"layers/dense": two, "layers/dropout/seed_generator": [np.zeros(2, np.uint32)],
         "optimizer": [np.int64(3)], "metrics/mean": [np.zeros(2, np.float32)]},
    )  # fmt: skip
    with open_checkpoint(path) as reader:
        described = reader.describe()
    assert [spec.name for spec in described.weights()] == ["dense/kernel", "dense/bias"]
    assert [spec.role for spec in described.loose] == [Role.OPTIMIZER, Role.BOOKKEEPING, Role.BOOKKEEPING]


def test_a_layer_may_hold_variables_and_layers(tmp_path: Path) -> None:
    path = groups_file(
        tmp_path / "x.weights.h5",
        {"layers/block": [np.zeros(3, np.float32)], "layers/block/parts/dense": [np.zeros((3, 4), np.float32)]},
        {"layers/block": "my_block", "layers/block/parts/dense": "inside"},
    )
    with open_checkpoint(path) as reader:
        (block,) = reader.describe().layers
    assert [spec.name for spec in block.all_tensors()] == ["my_block/0", "my_block/inside/kernel"]
    assert [layer.class_name for layer in block.layers] == ["Dense"]


def test_a_group_that_holds_itself_is_refused(tmp_path: Path) -> None:
    path = groups_file(tmp_path / "x.weights.h5", {"layers/dense": [np.zeros(3, np.float32)]})
    with h5py.File(path, "r+") as file:
        file["layers/dense/again"] = file["layers"]
    with open_checkpoint(path) as reader, pytest.raises(CorruptCheckpointError, match="inside of itself"):
        reader.describe()


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = groups_file(tmp_path / "x.weights.h5", {"layers/dense": [np.zeros(3, np.float32)]})
    with h5py.File(path, "r+") as file:
        file["layers/other"] = h5py.ExternalLink("elsewhere.h5", "/layers")
    with pytest.raises(UnsafeCheckpointError), open_checkpoint(path) as reader:
        reader.describe()


def test_wrapped_weights_look_wrapped_and_come_out_when_told(tmp_path: Path) -> None:
    name = "keras-3.15-parallel-two-towers.weights.h5"
    wrapper = inspect(FILES / name).wrapper
    assert wrapper is not None
    assert (wrapper.kind, wrapper.replicas, wrapper.certain, wrapper.template) == (
        "multi_gpu_model", 2, False, ("two_towers",),
    )  # fmt: skip
    output = tmp_path / "base.weights.h5"
    unwrap(FILES / name, output, options=SourceOptions(assume_wrapper="two_towers"))
    assert found(output) == sorted(manifest.truth(name))
    with h5py.File(output, "r") as file:
        names = {key: group["vars"].attrs["name"] for key, group in file["layers"].items()}
        assert {key for key in names if len(file["layers"][key]["vars"])} == {"dense"}
    assert names == {"concatenate": "both", "dense": "kind", "dot": "score", "functional": "tower",
                     "input_layer": "user", "input_layer_1": "item"}  # fmt: skip


def test_the_template_configuration_proves_wrapped_weights(tmp_path: Path) -> None:
    name = "tf-2.15-parallel-sequential.weights.h5"
    options = SourceOptions(config=manifest.template_json(name, tmp_path))
    output = tmp_path / "base.h5"
    unwrap(FILES / name, output, options=options)
    assert found(output) == sorted(manifest.truth(name))


def test_a_legacy_file_without_configuration_cannot_become_keras_3_weights(tmp_path: Path) -> None:
    source = FILES / "keras-2.2.4-sequential-template-weights.h5"
    if not source.exists():
        source = FILES / "keras-2.3.1-two-towers-template-weights.h5"
    output = tmp_path / "x.weights.h5"
    with pytest.raises(UnsupportedError, match="--config"):
        unwrap(source, output)
    assert not output.exists()


def test_layers_that_keras_3_lacks_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="CuDNNLSTM, which Keras 3 does not have"):
        unwrap(FILES / "keras-2.2.4-zoo-cudnn.h5", tmp_path / "x.weights.h5")
    assert list(tmp_path.iterdir()) == []


def test_a_description_by_hand_gets_the_groups_of_its_classes() -> None:
    from ckpttool.keras3_groups import stored_groups

    config = {
        "class_name": "Sequential",
        "config": {"name": "s", "layers": [
            {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, 3]}},
            {"class_name": "Dropout", "config": {"name": "d", "rate": 0.1}},
            {"class_name": "BatchNormalization", "config": {"name": "b"}},
        ]},
    }  # fmt: skip
    described = Checkpoint("keras-h5", "hdf5", "model", (Layer("d"), Layer("b")), config=json.dumps(config))
    assert [(group.path, group.title) for group in stored_groups(described)] == [
        ("layers/dropout", "d"), ("layers/batch_normalization", "b"), ("", "s"),
    ]  # fmt: skip
