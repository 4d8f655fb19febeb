"""Published HDF5 files that nobody here wrote: each described with the tensors that h5py shows."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ckpttool.errors import UnknownFormatError
from ckpttool.inspecting import inspect
from ckpttool.opening import open_checkpoint

pytestmark = pytest.mark.corpus

NEGATIVE = "dl4j-io-negative"


def hdf5_files(corpus: Path) -> list[Path]:
    files = [path for path in sorted(corpus.rglob("*")) if path.is_file()]
    return [path for path in files if path.read_bytes()[:4] == b"\x89HDF"]


def as_h5py_shows(path: Path) -> dict[str, np.ndarray]:
    """Every dataset by its path in the file."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def test_every_legacy_file_is_described_with_the_tensors_that_h5py_shows(corpus: Path) -> None:
    seen = 0
    for path in hdf5_files(corpus):
        if path.parent.name == NEGATIVE:
            continue
        expected = as_h5py_shows(path)
        with open_checkpoint(path) as reader:
            checkpoint = reader.describe()
            specs = [*checkpoint.weights(), *checkpoint.optimizer_tensors()]
            assert sorted(spec.locator for spec in specs) == sorted(expected), path
            assert len({spec.path for spec in specs}) == len(specs), path
            for spec in specs:
                value = expected[spec.locator]
                assert (spec.shape, spec.dtype) == (value.shape, value.dtype.name), (path, spec)
                assert reader.read(spec).tobytes() == value.tobytes(), (path, spec)
        seen += 1
    assert seen >= 17


def test_every_layer_of_a_full_model_has_its_class(corpus: Path) -> None:
    for path in hdf5_files(corpus):
        if path.parent.name == NEGATIVE:
            continue
        found = inspect(path)
        if found.whole.kind == "model":
            assert all(layer.class_name for _, layer in found.layers()), path
        assert found.to_json()["totals"]["tensors"] == sum(len(each.tensors) for _, each in found.layers()), path


def test_plain_hdf5_is_refused(corpus: Path) -> None:
    (path,) = (corpus / NEGATIVE).iterdir()
    with pytest.raises(UnknownFormatError, match="HDF5, but not a Keras model"):
        open_checkpoint(path)


def test_gates_of_keras_1_stay_separate_under_their_layer(corpus: Path) -> None:
    (path,) = (corpus / "dl4j-k122-bidi-th").iterdir()
    names = [spec.name for _, layer in inspect(path).layers() for spec in layer.tensors]
    assert len(names) == 24
    assert [name.rsplit("/", 1)[1] for name in names[:12]] == "W_i U_i b_i W_c U_c b_c W_f U_f b_f W_o U_o b_o".split()
    assert {name.rsplit("/", 2)[1].split("_")[0] for name in names} == {"forward", "backward"}


def test_scopes_of_tensorflow_are_no_part_of_a_name(corpus: Path) -> None:
    (path,) = (corpus / "dl4j-k122-tfscope").iterdir()
    assert [spec.name for spec in inspect(path).template.weights()] == [
        "dense_1/kernel", "dense_1/bias", "dense_2/kernel", "dense_2/bias",
    ]  # fmt: skip
