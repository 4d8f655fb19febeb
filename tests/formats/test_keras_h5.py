"""Legacy Keras HDF5: every fixture against what the library that wrote it held in memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import h5py
import pytest

import ckpttool
from ckpttool.checkpoint import WrittenBy
from ckpttool.errors import CorruptCheckpointError
from ckpttool.keras_config import parse_config
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions, open_source

from .. import manifest
from ..manifest import FILES, KERAS3_NAMES, Truth, entry, legacy_hdf5, read, template_json, truth
from .contract import ReaderContract, WriterContract

MODELS = [name for name in legacy_hdf5("model") if name != "keras-2.0.9-zoo-cells.h5"]
WEIGHTS = legacy_hdf5("weights")
BROKEN = legacy_hdf5("broken")
# Names of a MultiHeadAttention's parts are the attributes of its own layers, which the manifest's scopes leave out.
SCOPELESS = ("MultiHeadAttention",)


class TestReader(ReaderContract):
    format_name = "keras-h5"

    @pytest.fixture(params=["keras-2.2.4-sequential.h5", "tf-2.2-rnn-template-weights.h5"])
    def sample(self, request: pytest.FixtureRequest) -> Path:
        return FILES / str(request.param)


class TestWriter(WriterContract):
    format_name = "keras-h5"

    @pytest.fixture(params=["keras-2.3.1-deep-gpu-merge-template.h5", "keras-2.2.4-rnn-template.h5"])
    def sample(self, request: pytest.FixtureRequest) -> Path:
        return FILES / str(request.param)

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        """Layer by layer in `layer_names`, weight by weight in `weight_names`, as `load_weights_from_hdf5_group`."""
        found: dict[str, bytes] = {}
        with h5py.File(path) as file:
            group = file["model_weights"]
            for layer in group.attrs["layer_names"]:
                for name in group[layer.decode()].attrs["weight_names"]:
                    scope = name.decode().removesuffix(":0")
                    nested = "" if scope.split("/")[0] == layer.decode() else f"{layer.decode()}/"
                    found[nested + scope] = group[layer.decode()][name.decode()][()].tobytes()
        return found


def as_listed(values: list[Truth], name: str) -> list[Truth]:
    """Paths as the manifest lists them, where the two differ by agreement."""
    listed = {each.path for each in truth(name)}
    renamed = []
    for each in values:
        path = each.path
        head, _, last = path.rpartition("/")
        if path not in listed and f"{head}/{KERAS3_NAMES.get(last, last)}" in listed:
            path = f"{head}/{KERAS3_NAMES[last]}"
        if path not in listed and "/" in head and f"{head.rpartition('/')[0]}/{last}" in listed:
            path = f"{head.rpartition('/')[0]}/{last}"
        renamed.append(Truth(path, each.shape, each.dtype, each.sha256))
    return renamed


@pytest.mark.parametrize("name", MODELS)
def test_a_full_model_gives_the_template_bit_for_bit(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        values = read(source.reader, source.template.weights())
    assert as_listed(values, name) == truth(name)


@pytest.mark.parametrize("name", MODELS)
def test_a_full_model_has_the_template_s_layers(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        found = [("/".join(path), layer.class_name) for path, layer in source.template.walk()]
    listed = [(each["path"], each["class_name"]) for each in entry(name)["layers"]]
    inputs = [each for each in found if each not in listed]
    assert [each for each in found if each in listed] == listed
    assert all(class_name == "InputLayer" for _, class_name in inputs)  # a Sequential's own, which Keras hides


@pytest.mark.parametrize("name", MODELS)
def test_a_full_model_has_the_template_s_configuration(name: str) -> None:
    wanted = entry(name)["template"]
    with open_source(FILES / name, SourceOptions()) as source:
        assert source.template.config is not None
        config = parse_config(source.template.config)
    assert config.class_name == wanted["class_name"]
    if config.functional:
        assert list(config.input_names()) == wanted["inputs"]
        # Keras numbers the names of outputs that one layer gives: `gru`, `gru_1`
        assert all(b.startswith(a) for a, b in zip(config.output_names(), wanted["outputs"], strict=True))
    if wanted["json"] is None:
        return
    stored = json.loads(source.template.config)["config"]
    if entry(name)["environment"] in ("tf-2.15", "keras-3.15"):  # their `to_json` has another form than their files
        assert [each["class_name"] for each in stored["layers"]] == [
            each["class_name"] for each in wanted["json"]["config"]["layers"]
        ]
    else:
        assert stored == wanted["json"]["config"]


@pytest.mark.parametrize("name", MODELS)
def test_a_full_model_has_its_wrapper(name: str) -> None:
    wanted = entry(name)["wrapper"]
    with open_source(FILES / name, SourceOptions()) as source:
        found = source.wrapper
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert (found.kind, found.replicas, found.template_name, found.certain, found.depth) == (
            "multi_gpu_model", wanted["replicas"], wanted["template"], True, 1,
        )  # fmt: skip


def test_cells_that_keras_2_0_describes_by_name_alone_keep_their_stored_names() -> None:
    """Its cells have no `get_config`: neither units nor biases are in the file, and it cannot load it itself."""
    name = "keras-2.0.9-zoo-cells.h5"
    with open_source(FILES / name, SourceOptions()) as source:
        values = read(source.reader, source.template.weights())
    assert [each.sha256 for each in values] == [each.sha256 for each in truth(name)]
    assert [each.path for each in values[:3]] == ["single/kernel", "single/recurrent_kernel", "single/bias"]


@pytest.mark.parametrize("name", [each for each in WEIGHTS if entry(each)["template"]["json"]])
def test_weights_with_the_template_s_configuration_are_the_template(name: str, tmp_path: Path) -> None:
    options = SourceOptions(config=template_json(name, tmp_path))
    with open_source(FILES / name, options) as source:
        assert as_listed(read(source.reader, source.template.weights()), name) == truth(name)
        wanted = entry(name)["wrapper"]
        if wanted is None:
            assert source.wrapper is None
        else:
            assert source.wrapper is not None
            assert source.wrapper.certain
            assert (source.wrapper.replicas, source.wrapper.template_name) == (wanted["replicas"], wanted["template"])


@pytest.mark.parametrize("name", [each for each in WEIGHTS if entry(each).get("config")])
def test_weights_with_the_configuration_beside_them_are_the_template(name: str) -> None:
    with open_source(FILES / name, SourceOptions(config=FILES / entry(name)["config"])) as source:
        assert as_listed(read(source.reader, source.template.weights()), name) == truth(name)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_alone_keep_every_bit_and_every_stored_name(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        values = read(source.reader, source.template.weights())
        wrapper = source.wrapper
    assert sorted(each.sha256 for each in values) == sorted(each.sha256 for each in truth(name))
    wanted = entry(name)["wrapper"]
    if wanted is not None:
        assert wrapper is not None
        assert (wrapper.replicas, wrapper.template_name, wrapper.certain) == (
            wanted["replicas"], wanted["template"], False,
        )  # fmt: skip
    elif "look-alike" not in entry(name)["tags"]:
        assert wrapper is None


@pytest.mark.parametrize("name", [each for each in WEIGHTS if "look-alike" in entry(each)["tags"]])
def test_weights_of_a_look_alike_are_never_a_proven_wrapper(name: str) -> None:
    with open_source(FILES / name, SourceOptions()) as source:
        assert source.wrapper is None or not source.wrapper.certain


@pytest.mark.parametrize("name", [each for each in MODELS + WEIGHTS if any(
    "image_embedding" in t["path"] for t in entry(each)["tensors"])])  # fmt: skip
def test_the_image_embedding_is_found_in_every_file(name: str) -> None:
    wanted = [
        each for each in truth(name)
        if each.path.split("/")[-2].startswith("image_embedding") and each.path.endswith(("/kernel", "/embeddings"))
    ]  # fmt: skip
    layer = ckpttool.extract(FILES / name, "image_embedding")
    assert hashlib.sha256(layer.kernel.tobytes()).hexdigest() in [each.sha256 for each in wanted]


@pytest.mark.parametrize("name", BROKEN)
def test_a_half_written_file_says_so(name: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"half-written|save failed half-way"):
        ckpttool.inspect(FILES / name)


@pytest.mark.parametrize("name", MODELS)
def test_the_unwrapped_file_is_the_template(name: str, tmp_path: Path) -> None:
    output = tmp_path / "base.h5"
    report = ckpttool.unwrap(FILES / name, output)
    assert report.tensors == report.of_tensors == len(truth(name))
    with open_source(output, SourceOptions()) as source:
        assert source.wrapper is None
        assert as_listed(read(source.reader, source.template.weights()), name) == truth(name)
        assert not source.whole.optimizer_tensors()
    again = tmp_path / "again.h5"
    ckpttool.unwrap(output, again)
    assert again.read_bytes() == output.read_bytes()


@pytest.mark.parametrize("name", [each for each in MODELS if entry(each)["wrapper"]])
def test_the_unwrapped_file_has_the_layout_of_the_old_libraries(name: str, tmp_path: Path) -> None:
    output = tmp_path / "base.h5"
    ckpttool.unwrap(FILES / name, output)
    with h5py.File(output) as file:
        assert set(file) == {"model_weights"}
        assert_text_is_ascii_bytes(file)
        group = file["model_weights"]
        layers = names_of(group, "layer_names")
        assert set(group) == {each.split("/")[0] for each in layers}
        for layer in layers:
            for weight in names_of(group[layer], "weight_names"):
                dataset = group[layer][weight]
                assert dataset.chunks is None and dataset.compression is None
                assert weight.endswith(":0")
        config = json.loads(file.attrs["model_config"])
    listed = [each["name"] if "name" in each else each["config"]["name"] for each in config_layers(config)]
    assert [each for each in listed if each in layers] == layers


def config_layers(config: dict[str, Any]) -> list[dict[str, Any]]:
    inner = config["config"]
    layers: list[dict[str, Any]] = inner if isinstance(inner, list) else inner["layers"]
    return layers


def names_of(group: h5py.Group, attribute: str) -> list[str]:
    if attribute in group.attrs:
        return [each.decode() for each in group.attrs[attribute] if isinstance(each, bytes)]
    parts: list[str] = []
    while f"{attribute}{len(parts) and 1}" in group.attrs and not parts:
        number = 0
        while f"{attribute}{number}" in group.attrs:
            parts += [each.decode() for each in group.attrs[f"{attribute}{number}"]]
            number += 1
    return parts


def assert_text_is_ascii_bytes(file: h5py.File) -> None:
    """Keras up to 2.3 and tf.keras up to 2.4 call `decode` on what h5py 2.10 gives: bytes for ASCII, str for UTF-8."""
    seen = []

    def check(name: str, holder: h5py.Group) -> None:
        for attribute in holder.attrs:
            kind = holder.attrs.get_id(attribute).get_type()
            if kind.get_class() == h5py.h5t.STRING:
                seen.append(attribute)
                assert kind.get_cset() == h5py.h5t.CSET_ASCII, (name, attribute)
            else:
                assert attribute.startswith("weight_names") and holder.attrs[attribute].shape == (0,), (name, attribute)

    check("/", file)
    file.visititems(lambda name, holder: check(name, holder) if isinstance(holder, h5py.Group) else None)
    assert {"model_config", "keras_version", "backend"} <= set(seen)


def test_a_sequential_s_input_layer_is_in_no_list_as_keras_hides_it(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / "keras-2.2.4-sequential.h5", tmp_path / "base.h5")
    with h5py.File(tmp_path / "base.h5") as file:
        assert json.loads(file.attrs["model_config"])["config"]["layers"][0]["class_name"] == "InputLayer"
        assert file["model_weights"].attrs["layer_names"].tolist() == [b"hidden", b"dropout", b"image_embedding"]


def test_equal_inputs_give_equal_files_whenever_they_are_written(tmp_path: Path) -> None:
    """HDF5 puts the time into each dataset's header where it is not told otherwise."""
    ckpttool.unwrap(FILES / "keras-2.2.4-sequential.h5", tmp_path / "base.h5")
    with h5py.File(tmp_path / "base.h5") as file:
        datasets: list[h5py.Dataset] = []
        file.visititems(lambda name, each: datasets.append(each) if isinstance(each, h5py.Dataset) else None)
        assert len(datasets) == 4
        assert [h5py.h5o.get_info(each.id).ctime for each in datasets] == [0] * 4


def test_versions_are_carried_along(tmp_path: Path) -> None:
    with open_checkpoint(FILES / "keras-2.2.4-sequential.h5") as reader:
        assert reader.describe().written_by == WrittenBy("2.2.4", None, "tensorflow")
    ckpttool.unwrap(FILES / "keras-2.2.4-sequential.h5", tmp_path / "base.h5")
    with h5py.File(tmp_path / "base.h5") as file:
        assert file.attrs["keras_version"] == "2.2.4"
        assert file["model_weights"].attrs["backend"] == "tensorflow"


def test_the_manifest_is_there() -> None:
    assert len(MODELS) > 60 and len(WEIGHTS) > 20 and len(BROKEN) >= 3
    assert manifest.FIXTURES.is_dir()
