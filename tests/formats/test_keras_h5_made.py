"""Legacy Keras HDF5 made by hand: long lists of names, every form and type, files that contradict themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnknownFormatError, UnsupportedError
from ckpttool.formats import _keras_h5_writing, keras_h5
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from ..manifest import FILES, read, truth


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
