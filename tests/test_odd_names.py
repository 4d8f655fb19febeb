"""Names and numbers that no library writes: a conversion keeps them, or says in one line what holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ckpttool.checkpoint import WrittenBy, whole_number
from ckpttool.converting import convert
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnsupportedError, UsageError
from ckpttool.inspecting import inspect
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint

from .formats.test_npz import member, npy
from .tensorflow_files import write_bundle

LONG = "9" * 5_000  # digits: Python reads 4,300
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def legacy(path: Path, layers: dict[str, list[str]], version: str = "2.2.4") -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [os.fsencode(name) for name in layers]
        file.attrs["keras_version"] = version
        for name, weights in layers.items():
            group = file.create_group(os.fsencode(name))
            group.attrs["weight_names"] = [os.fsencode(each) for each in weights]
            for place, each in enumerate(weights):
                group[os.fsencode(each)] = VALUES + place
    return path


def grouped(path: Path, datasets: list[str], **titles: Any) -> Path:
    """A `.weights.h5`; titles by group below `layers`."""
    with h5py.File(path, "w") as file:
        for place, name in enumerate(datasets):
            file[name] = VALUES + place
        for group, title in titles.items():
            file[f"layers/{group}/vars"].attrs.create("name", title, dtype=h5py.string_dtype())
    return path


def values(path: Path) -> dict[str, list[float]]:
    with open_checkpoint(path) as reader:
        checkpoint = reader.describe()
        return {spec.name: reader.read(spec).ravel().tolist() for spec in checkpoint.weights()}


def kept(path: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        output = path.with_name(f"{path.name}-out{suffix}")
        convert(path, output)
        assert sorted(values(output).values()) == sorted(values(path).values())


def test_numbers_of_thousands_of_digits_are_names(tmp_path: Path) -> None:
    assert (whole_number("12"), whole_number("9" * 18), whole_number(LONG), whole_number("x")) == (
        12,
        10**18 - 1,
        None,
        None,
    )
    assert WrittenBy(keras=LONG).keras_major is None
    assert WrittenBy(keras="2.2.4-tf").keras_numbers == (2, 2, 4)
    kept(
        legacy(tmp_path / "a.h5", {f"dense_{LONG}": ["kernel:0"], LONG: ["kernel:0"]}, LONG),
        ".h5",
        ".safetensors",
        ".npz",
    )
    kept(legacy(tmp_path / "b.h5", {"a": [f"a/kernel_{LONG}:0", f"kernel:{LONG}"]}, f"3.{LONG}"), ".h5", ".npz")
    datasets = [f"layers/dense/vars/{name}" for name in ("0", LONG)] + [
        f"optimizer/vars/{name}" for name in ("0", LONG)
    ]
    kept(grouped(tmp_path / "c.weights.h5", datasets), ".weights.h5", ".safetensors", ".h5")
    kept(grouped(tmp_path / "d.weights.h5", [f"layers/dense_{LONG}/vars/0", f"layers/{LONG}/vars/0"]), ".weights.h5")


@pytest.mark.parametrize(
    "name", [f"dense/kernel/replica_{LONG}", f"dense/part_{LONG}", f"d_{LONG}/k_{LONG}", f"x-{LONG}/k"]
)
def test_so_they_are_in_tensorflows_checkpoints(name: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"dense/kernel": ((2, 3), VALUES.tobytes()), name: ((2, 3), VALUES.tobytes())})
    kept(tmp_path / "m", ".npz", ".safetensors", ".h5")


def test_no_limit_has_thousands_of_digits() -> None:
    with pytest.raises(UsageError, match="whole number"):
        Limits().override([f"max_depth={LONG}"])


def test_a_state_file_with_a_digit_that_is_not_octal(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m8", {"dense/kernel": ((2, 3), VALUES.tobytes())})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "m\\8"\n')
    assert inspect(tmp_path).whole.layers


@pytest.mark.parametrize("shape", ["(2 3,)", "(2L3, 1)"])
def test_a_shape_of_numbers_that_are_none(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    with pytest.raises(CorruptCheckpointError, match="not NumPy's"):
        inspect(member("a/kernel.npy", npy(header, bytes(24)), tmp_path / "x.npz"))


def test_a_layer_called_as_the_group_of_all_weights(tmp_path: Path) -> None:
    """Keras looks for `layer_names` first too (keras/src/legacy/saving/legacy_h5_format.py, Keras 3.15)."""
    path = legacy(tmp_path / "a.h5", {"model_weights": ["kernel:0"], "dense": ["kernel:0"]})
    assert list(values(path)) == ["model_weights/kernel", "dense/kernel"]
    kept(path, ".h5", ".npz")


@pytest.mark.parametrize(
    ("title", "suffix", "words"),
    [
        ("..", ".h5", "'..' cannot be a path in HDF5; write '.safetensors'"),
        ("..", ".npz", "may not stand in an archive; write '.safetensors'"),
        ("a\\b", ".npz", "may not stand in an archive; write '.safetensors'"),
        (b"\xff", ".weights.h5", "is no text of UTF-8, as Keras 3 needs it; write '.h5'"),
        (b"\xff", ".safetensors", "is no text of UTF-8; write '.h5'"),
        (b"\xff", ".npz", "is no text of UTF-8; write '.h5'"),
        ("x" * 65_000, ".h5", "too long for HDF5; write '.safetensors'"),
        ("\U0001f600" * 16_384, ".npz", "too long for an archive; write '.safetensors'"),
    ],
)
def test_names_that_a_container_cannot_hold(title: str | bytes, suffix: str, words: str, tmp_path: Path) -> None:
    path = grouped(tmp_path / "x.weights.h5", ["layers/dense/vars/0"], dense=title)
    with pytest.raises(UnsupportedError) as caught:
        convert(path, tmp_path / f"out{suffix}")
    assert words in str(caught.value)
    other = words.rpartition("write '")[2].strip("'")
    convert(path, tmp_path / f"other{other}")
    assert not (tmp_path / f"out{suffix}").exists()


@pytest.mark.parametrize(
    "title", ["a/b", "\u00fc", "u\u0308", "a\nb", "vars", "layers", "", " ", "\u202e", "x" * 16_000]
)
def test_names_that_every_container_holds(title: str, tmp_path: Path) -> None:
    path = grouped(tmp_path / "x.weights.h5", ["layers/dense/vars/0", "layers/dense_1/vars/0"], dense=title)
    kept(path, ".weights.h5", ".safetensors", ".npz", ".h5")


@pytest.mark.parametrize("place", ["m.json", "pipe.h5"])
def test_pipes_beside_a_file_are_not_opened(place: str, tmp_path: Path) -> None:
    path = legacy(tmp_path / "m.h5", {"dense": ["kernel:0"]})
    os.mkfifo(tmp_path / place)
    assert inspect(path).whole.layers
    with pytest.raises(CheckpointError):
        inspect(tmp_path / place)
