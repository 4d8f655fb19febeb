"""safetensors: read what the library of that name writes, write what it reads, refuse what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, Role, TensorSpec
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnsupportedError, WeightsMismatchError
from ckpttool.formats import safetensors as ours
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

from ..manifest import FILES, names, read, template_json, truth
from .contract import ReaderContract, WriterContract, everything

library = pytest.mark.needs("safetensors")
DTYPES = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
]
TRAINED = "keras-2.3.1-rnn-trained.h5"


def file_of(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def plain(shape: list[int], first: int, last: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@library
class TestReader(ReaderContract):
    format_name = "safetensors"

    @pytest.fixture
    def sample(self, tmp_path: Path) -> Path:
        from safetensors.numpy import save_file

        random = np.random.default_rng(0)
        tensors = {
            "tower/image_embedding/kernel": random.standard_normal((24, 7)).astype(np.float32),
            "tower/image_embedding/bias": random.standard_normal(7).astype(np.float32),
            "hidden/kernel": random.standard_normal((6, 24)).astype(np.float16),
        }
        path = tmp_path / "sample.safetensors"
        save_file(tensors, path, metadata={"format": "np"})
        return path


@library
class TestWriter(WriterContract):
    format_name = "safetensors"

    @pytest.fixture(params=["keras-2.3.1-deep-gpu-merge-template.h5", "keras-3.15-plain-sequential-bfloat16.h5"])
    def sample(self, request: pytest.FixtureRequest) -> Path:
        return FILES / str(request.param)

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        from safetensors import safe_open

        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118  not a dict

    def test_a_round_trip_keeps_every_bit(self, sample: Path, tmp_path: Path) -> None:
        written = self.write(sample, tmp_path / "written.safetensors")
        _, values = everything(tmp_path / "written.safetensors")
        with open_checkpoint(sample) as reader:
            assert values[: len(list(written.weights()))] == read(reader, written.weights())

    def test_progress_ends_at_the_total(self, sample: Path, tmp_path: Path) -> None:
        seen: list[Any] = []
        with open_checkpoint(sample) as reader:
            checkpoint = reader.describe()
            ours.write(reader, checkpoint, tmp_path / "written.safetensors", on_progress=seen.append)
        total = sum(spec.nbytes for spec in [*checkpoint.weights(), *checkpoint.optimizer_tensors()])
        assert seen[-1].done_bytes == seen[-1].total_bytes == total


@library
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_every_type_of_the_library_is_read(dtype: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    values = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    save_file({"layer/kernel": values}, tmp_path / "x.safetensors")
    with open_checkpoint(tmp_path / "x.safetensors") as reader:
        (spec,) = reader.describe().weights()
        assert (spec.name, spec.shape, spec.dtype) == ("layer/kernel", (3, 4), dtype)
        assert reader.read(spec).tobytes() == values.tobytes()


class Arrays:
    """A reader of arrays by locator."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = 0) -> Any:
        if self.arrays[spec.locator].size:
            yield self.arrays[spec.locator].reshape(-1)

    def extent(self, spec: TensorSpec) -> None:
        return None


def described(arrays: dict[str, np.ndarray], format_name: str = "test") -> Checkpoint:
    specs = [TensorSpec(tuple(name.split("/")), a.shape, a.dtype.name, locator=name) for name, a in arrays.items()]
    layers = tuple(Layer(spec.path[0], tensors=(spec,)) for spec in specs)
    return Checkpoint(format_name, "test", "weights", layers)


@library
def test_what_is_written_is_aligned_in_model_order_and_of_every_type(tmp_path: Path) -> None:
    from safetensors import safe_open

    arrays: dict[str, np.ndarray] = {"a/odd": np.arange(3, dtype=np.int8)}
    arrays |= {f"{dtype}/kernel": np.arange(5).astype(dtype) for dtype in DTYPES}
    arrays |= {"scalar/x": np.float32(3.5).reshape(()), "empty/x": np.zeros((0, 4), np.float32)}
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        arrays[f"{name}/kernel"] = np.arange(5).astype(getattr(ml_dtypes, name))
    path = tmp_path / "x.safetensors"
    checkpoint = described(arrays)
    ours.write(Arrays(arrays), checkpoint, path)  # type: ignore[arg-type]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert list(header)[1:] == list(arrays)
    for name, array in arrays.items():
        offset = 8 + length + header[name]["data_offsets"][0]
        assert offset % array.itemsize == 0, name
        assert data[offset : offset + array.nbytes] == array.tobytes(), name
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(arrays)
        assert file.get_tensor("int64/kernel").tolist() == [0, 1, 2, 3, 4]
        assert file.get_tensor("scalar/x").shape == ()


@library
def test_the_metadata_says_what_wrote_it_and_from_what(tmp_path: Path) -> None:
    from safetensors import safe_open

    source = FILES / TRAINED
    ckpttool.unwrap(source, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {
            "format": "ckpttool", "version": ckpttool.__version__, "source": TRAINED,
            "source_bytes": str(source.stat().st_size),
        }  # fmt: skip


WRAPPED = names(lambda name, each: name.endswith(".h5") and each["kind"] == "model" and each["wrapper"] is not None
                and each["wrapper"]["kind"] == "multi_gpu_model" and "like-a-path" not in each["tags"])  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_an_unwrapped_file_holds_the_template_bit_for_bit_in_order(name: str, tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / name, tmp_path / "x.safetensors")
    _, values = everything(tmp_path / "x.safetensors")
    assert values == truth(name)


def test_a_configuration_gives_classes_and_layers_without_weights(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / TRAINED, tmp_path / "x.safetensors")
    config = template_json(TRAINED, tmp_path)
    ckpttool.unwrap(tmp_path / "x.safetensors", tmp_path / "again.h5", options=SourceOptions(config=config))
    ckpttool.unwrap(FILES / TRAINED, tmp_path / "direct.h5")
    again, direct = ckpttool.inspect(tmp_path / "again.h5"), ckpttool.inspect(tmp_path / "direct.h5")
    assert [(path, layer.class_name) for path, layer in again.layers()] == [
        (path, layer.class_name) for path, layer in direct.layers()
    ]
    assert everything(tmp_path / "again.h5")[1] == everything(tmp_path / "direct.h5")[1]


def test_a_configuration_of_another_model_is_refused(tmp_path: Path) -> None:
    ckpttool.unwrap(FILES / TRAINED, tmp_path / "x.safetensors")
    config = template_json("keras-2.3.1-two-towers.h5", tmp_path)
    with pytest.raises(WeightsMismatchError), open_checkpoint(tmp_path / "x.safetensors", config=config) as reader:
        reader.describe()


def test_optimizer_state_keeps_its_role(tmp_path: Path) -> None:
    ckpttool.convert(FILES / TRAINED, tmp_path / "x.safetensors")
    with open_checkpoint(FILES / TRAINED) as old, open_checkpoint(tmp_path / "x.safetensors") as new:
        slots = old.describe().optimizer_tensors()
        assert slots and {spec.role for spec in new.describe().optimizer_tensors()} == {Role.OPTIMIZER}
        assert read(old, slots) == read(new, new.describe().optimizer_tensors())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_of({"a": plain([2], 0, 8)}, b"1234567"), "truncated"),
        (file_of({"a": plain([2], 0, 8)}, b"123456789"), "its tensors end at byte"),
        (file_of({"a": plain([2], 0, 8), "b": plain([2], 4, 12)}, b"x" * 12), "overlap or leave holes"),
        (file_of({"a": plain([2], 0, 8), "b": plain([2], 12, 20)}, b"x" * 20), "overlap or leave holes"),
        (file_of({"a": plain([3], 0, 8)}, b"x" * 8), "has 8 bytes for shape"),
        (file_of({"a": plain([-2, -1], 0, 8)}, b"x" * 8), "is not one"),
        (file_of({"a": plain([2], 8, 0)}, b"x" * 8), "bytes for shape"),
        (file_of({"a": {"dtype": "F32", "shape": [2]}}, b"x" * 8), "incomplete"),
        (file_of({"a": plain([True], 0, 4)}, b"x" * 4), "is not one"),
        (file_of(b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": 1}'), "twice"),
        (file_of(b'{"a": nonsense}'), "not JSON"),
        (file_of(b"{" * 50_000), "not JSON"),
        (file_of({"__metadata__": {"format": 1}}), "metadata"),
        ((2**40).to_bytes(8, "little") + b"{}", "begins with bytes"),
        ((10**7).to_bytes(8, "little") + b"{}" + b" " * 100, "longer than the file"),
        (file_of({"a": plain([2**40], 0, 2**42)}, b"x" * 8), "truncated"),
    ],
)
def test_a_contradicting_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        everything(path)
    assert caught.value.code == 3


def test_an_unknown_type_is_listed_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"layer/x": plain([4], 0, 2, "F4")}, b"xx"))
    with open_checkpoint(path) as reader:
        (spec,) = reader.describe().weights()
        assert (spec.dtype, spec.shape) == ("f4", (4,))
        with pytest.raises(UnsupportedError, match="f4"):
            reader.read(spec)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x/kernel": np.zeros(2, np.complex128)}, "complex128"),
        ({"__metadata__": np.zeros(2, np.float32)}, "of that name"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ours.write(Arrays(arrays), described(arrays), tmp_path / "x.safetensors")  # type: ignore[arg-type]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    spec = TensorSpec(("x", "kernel"), (2,), "float32", locator="x")
    checkpoint = Checkpoint("test", "test", "weights", (Layer("x", tensors=(spec, spec)),))
    with pytest.raises(UnsupportedError, match="two tensors are called 'x/kernel'"):
        ours.write(Arrays({"x": np.zeros(2, np.float32)}), checkpoint, tmp_path / "x.safetensors")  # type: ignore[arg-type]


def test_a_name_without_layer_is_a_tensor_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"scale": plain([], 0, 4)}, b"\0\0\x80?"))
    found = ckpttool.inspect(path)
    assert [spec.name for _, layer in found.layers() for spec in layer.tensors] == ["scale"]
    assert found.to_json()["totals"]["tensors"] == 1


def test_corrupt_is_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"a": plain([2], 0, 8)}, b""))
    with pytest.raises(CorruptCheckpointError):
        open_checkpoint(path)
