"""Legacy Keras HDF5: every fixture against what the library that wrote it held in memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec, WrittenBy
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnknownFormatError, UnsupportedError
from ckpttool.formats import _keras_h5_writing, keras_h5
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


def stated_version(path: Path) -> tuple[str, str]:
    with h5py.File(path) as file:
        return str(file.attrs["keras_version"]), str(file.attrs["backend"])


def test_what_states_no_version_is_not_written_as_a_file_of_keras_1(tmp_path: Path) -> None:
    """Every loader turns kernels of such a file: of transposed convolutions, of Bidirectional layers, of gates."""
    config, output = FILES / "tf-2.10-rnn-mirrored.json", tmp_path / "out.h5"
    ckpttool.unwrap(FILES / "tf-2.10-rnn-mirrored-weights", output, options=SourceOptions(config=config))
    assert stated_version(output) == ("2.10.0", "tensorflow")
    ckpttool.unwrap(FILES / "tf-2.10-towers-weights", tmp_path / "weights.h5")
    assert stated_version(tmp_path / "weights.h5") == ("2.15.0", "tensorflow")
    np.savez(tmp_path / "gates.npz", **{f"lstm/{each}": np.ones(1) for each in ("W_i", "U_i", "b_i")})  # type: ignore[arg-type]
    ckpttool.unwrap(tmp_path / "gates.npz", tmp_path / "gates.h5")
    with h5py.File(tmp_path / "gates.h5") as file:
        assert "keras_version" not in file.attrs


def test_a_configuration_in_another_checkpoint_has_the_version_of_that(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / "keras-2.2.4-rnn-template.h5", tmp_path / "arrays.npz")
    config = FILES / "keras-2.2.4-rnn-template.h5"
    ckpttool.unwrap(tmp_path / "arrays.npz", tmp_path / "again.h5", options=SourceOptions(config=config))
    assert stated_version(tmp_path / "again.h5") == ("2.2.4", "tensorflow")


def test_names_over_64_kb_are_cut_as_keras_cuts_them(tmp_path: Path) -> None:
    output = tmp_path / "base.h5"
    ckpttool.unwrap(FILES / "keras-2.2.4-long-names.h5", output)
    with h5py.File(output) as file:
        group = file["model_weights"]
        assert "layer_names" not in group.attrs or group.attrs["layer_names"].nbytes <= 64_512
    with h5py.File(FILES / "keras-2.2.4-long-names.h5") as file:
        wrapped = next(each for each in file["model_weights"].values() if "weight_names0" in each.attrs)
        stored = [name for number in range(9) for name in wrapped.attrs.get(f"weight_names{number}", [])]
    assert len(stored) > 2


def many_layers(count: int, length: int) -> Checkpoint:
    """A description of `count` weightless layers whose names have `length` characters."""
    return Checkpoint("keras-h5", "hdf5", "weights", tuple(Layer(f"{n:0{length}}") for n in range(count)))


class NoValues:
    """A reader that is never asked."""

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = 0) -> Any:
        raise AssertionError(spec)

    def extent(self, spec: TensorSpec) -> None:
        raise AssertionError(spec)


@pytest.mark.parametrize(("count", "length"), [(1, 3), (608, 106), (609, 106), (700, 106), (5000, 60), (100_000, 12)])
def test_layer_names_are_cut_into_pieces_that_fit(count: int, length: int, tmp_path: Path) -> None:
    """700 names of 106 bytes gave `layer_names0` (350) and `layer_names1` (350) in Keras 2.2.4."""
    if count > 10_000:
        count = 3_000  # each layer is a group; the pieces are what matters
    path = tmp_path / "names.h5"
    keras_h5.write(NoValues(), many_layers(count, length), path)  # type: ignore[arg-type]
    with h5py.File(path) as file:
        pieces = [file.attrs[each] for each in sorted(file.attrs) if each.startswith("layer_names")]
        assert all(piece.nbytes <= _keras_h5_writing.ATTRIBUTE_LIMIT_BYTES for piece in pieces)
        assert ("layer_names" in file.attrs) == (len(pieces) == 1)
    with open_checkpoint(path) as reader:
        assert [layer.name for layer in reader.describe().layers] == [f"{n:0{length}}" for n in range(count)]


def test_700_names_of_106_bytes_become_two_halves(tmp_path: Path) -> None:
    path = tmp_path / "names.h5"
    keras_h5.write(NoValues(), many_layers(700, 106), path)  # type: ignore[arg-type]
    with h5py.File(path) as file:
        assert {each: len(file.attrs[each]) for each in file.attrs} == {"layer_names0": 350, "layer_names1": 350}


def test_a_name_too_long_for_any_attribute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="too long"):
        keras_h5.write(NoValues(), many_layers(1, 70_000), tmp_path / "names.h5")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a//b", "..", "a/../b", ".", "", "a\0b"])
def test_a_layer_name_that_is_no_hdf5_path_is_refused(name: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint("keras-h5", "hdf5", "weights", (Layer(name),))
    with pytest.raises(UnsupportedError):
        keras_h5.write(NoValues(), checkpoint, tmp_path / "names.h5")  # type: ignore[arg-type]


def legacy(path: Path, layers: dict[str, dict[str, Any]], **attributes: Any) -> Path:
    """A weights-only file by hand: layer -> weight name -> values."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = attributes.pop("layer_names", np.array([each.encode() for each in layers]))
        for key, value in attributes.items():
            file.attrs[key] = value
        for layer, weights in layers.items():
            group = file.require_group(layer)
            group.attrs["weight_names"] = np.array([each.encode() for each in weights]) if weights else np.array([])
            for name, value in weights.items():
                group[name] = value
    return path


DENSE = {"dense/kernel:0": np.arange(6.0, dtype="f4").reshape(2, 3), "dense/bias:0": np.arange(3.0, dtype="f4")}


@pytest.mark.parametrize(
    "form",
    [
        np.array([b"dense", b"empty"]),
        np.array(["dense", "empty"], dtype=h5py.string_dtype()),
        np.array(["dense", "empty"], dtype=h5py.string_dtype("ascii")),
        np.array([b"dense\0\0\0", b"empty"]),
    ],
)
def test_names_are_read_in_every_form_that_was_written(form: np.ndarray, tmp_path: Path) -> None:
    path = legacy(tmp_path / "w.h5", {"dense": DENSE, "empty": {}}, layer_names=form)
    with open_checkpoint(path) as reader:
        assert [layer.name for layer in reader.describe().layers] == ["dense", "empty"]
        assert [spec.name for spec in reader.describe().weights()] == ["dense/kernel", "dense/bias"]


def test_scalars_empty_axes_and_every_dtype_are_read(tmp_path: Path) -> None:
    values = {
        "many/a:0": np.float32(3.5), "many/b:0": np.zeros((0, 4), "f8"), "many/c:0": np.arange(3, dtype="i8"),
        "many/d:0": np.array([True, False]), "many/e:0": np.arange(3, dtype=">f4"),
        "many/f:0": np.arange(4, dtype="f2"),
        "many/g:0": np.array([1 + 2j], "c8"), "many/h:0": np.arange(5, dtype="u1"),
    }  # fmt: skip
    path = legacy(tmp_path / "w.h5", {"many": values})
    with open_checkpoint(path) as reader:
        for spec, (name, value) in zip(reader.describe().weights(), values.items(), strict=True):
            found = reader.read(spec)
            assert found.shape == value.shape, name
            assert found.dtype == value.dtype.newbyteorder("="), name
            assert np.array_equal(found, value), name


def test_a_chunked_and_compressed_file_is_read_and_written_plainly(tmp_path: Path) -> None:
    path = legacy(tmp_path / "w.h5", {"dense": {}})
    value = np.arange(6000.0, dtype="f4").reshape(60, 100)
    with h5py.File(path, "r+") as file:
        for name, options in {"gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True},
                              "lzf": {"compression": "lzf"}, "plain": {}}.items():  # fmt: skip
            file["dense"].create_dataset(f"dense/{name}:0", data=value, chunks=(7, 33), **options)
        del file["dense"].attrs["weight_names"]
        file["dense"].attrs["weight_names"] = np.array([b"dense/gzip:0", b"dense/lzf:0", b"dense/plain:0"])
    output = tmp_path / "out.h5"
    ckpttool.unwrap(path, output)
    with open_checkpoint(path) as reader:
        for spec in reader.describe().weights():
            assert np.array_equal(reader.read(spec), value)
            assert np.array_equal(np.concatenate(list(reader.iter_blocks(spec, 1000))), value.ravel())
            assert reader.extent(spec) is None
    with h5py.File(output) as file:
        assert all(np.array_equal(file[f"dense/dense/{each}:0"], value) for each in ("gzip", "lzf", "plain"))


def test_layers_named_a_and_a_slash_b_are_kept_apart(tmp_path: Path) -> None:
    one, two = {"blk/kernel:0": np.float32([[1, 2]])}, {"blk/a/kernel:0": np.float32([[3, 4]])}
    path = legacy(tmp_path / "w.h5", {"blk": one, "blk/a": two})
    output = tmp_path / "out.h5"
    ckpttool.unwrap(path, output)
    for each in (path, output):
        with open_checkpoint(each) as reader:
            assert [(layer.name, len(layer.tensors)) for layer in reader.describe().layers] == [
                ("blk", 1),
                ("blk/a", 1),
            ]
            assert [reader.read(spec).tolist() for spec in reader.describe().weights()] == [[[1, 2]], [[3, 4]]]


def test_the_order_is_that_of_the_lists_and_not_of_the_alphabet(tmp_path: Path) -> None:
    layers = {name: {f"{name}/w{n}:0": np.float32([n]) for n in (2, 0, 1)} for name in ("z", "a", "m")}
    path = legacy(tmp_path / "w.h5", layers)
    with open_checkpoint(path) as reader:
        assert [spec.name for spec in reader.describe().weights()] == [
            f"{layer}/w{n}" for layer in "zam" for n in (2, 0, 1)
        ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file["dense"].attrs.__delitem__("weight_names"), "no 'weight_names'"),
        (lambda file: file["dense"].__delitem__("dense/bias:0"), "does not hold it"),
        (lambda file: file.__delitem__("dense"), "no such group"),
        (lambda file: file["dense"].attrs.modify("weight_names", np.array([b"dense/kernel:0"] * 2)), "twice"),
        (lambda file: file.attrs.__setitem__("layer_names", np.array([b"dense", b"dense"])), "twice"),
        (lambda file: file.attrs.__setitem__("layer_names", np.arange(3)), "not a list of names"),
        (lambda file: file.attrs.__setitem__("layer_names", np.array([[b"dense"]])), "not a list of names"),
        (lambda file: file["dense"].attrs.__setitem__("weight_names", np.array([b"dense"])), "does not hold it"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    path = legacy(tmp_path / "w.h5", {"dense": DENSE})
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(CorruptCheckpointError, match=words):
        ckpttool.inspect(path)


def test_any_other_hdf5_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros(3)
        file["labels"] = np.zeros(3)
        file.attrs["made_by"] = "someone"
    with pytest.raises(UnknownFormatError, match=r"not a Keras model; it holds images, labels; attributes made_by"):
        ckpttool.inspect(path)


def test_an_empty_hdf5_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.h5"
    h5py.File(path, "w").close()
    with pytest.raises(UnknownFormatError, match="no groups"):
        ckpttool.inspect(path)


def test_a_user_block_does_not_hide_the_file(tmp_path: Path) -> None:
    plain = (FILES / "keras-2.2.4-sequential-weights.h5").read_bytes()
    path = tmp_path / "block.h5"
    with (
        h5py.File(path, "w", userblock_size=1024) as file,
        h5py.File(FILES / "keras-2.2.4-sequential-weights.h5") as old,
    ):
        for key in old:
            old.copy(key, file)
        for key, value in old.attrs.items():
            file.attrs[key] = value
    assert path.read_bytes()[:8] != plain[:8]
    with open_checkpoint(path) as reader:
        values = read(reader, reader.describe().weights())
    assert [each.sha256 for each in values] == [each.sha256 for each in truth("keras-2.2.4-sequential-weights.h5")]


def test_a_model_without_weights_is_described_and_not_written(tmp_path: Path) -> None:
    path = legacy(tmp_path / "w.h5", {"input_1": {}, "flatten_1": {}})
    found = ckpttool.inspect(path)
    assert [notice.code for notice in found.warnings] == ["no-weights"]
    with pytest.raises(CheckpointError):
        ckpttool.unwrap(path, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_an_attribute_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = legacy(tmp_path / "w.h5", {"dense": DENSE}, keras_version=np.arange(3))
    with pytest.raises(CorruptCheckpointError, match="not text"):
        ckpttool.inspect(path)


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
