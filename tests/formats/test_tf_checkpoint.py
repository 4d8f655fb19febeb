"""V2 checkpoints: what TensorFlow's reader gave when they were made, every way in, damage, and hostile indexes."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpttool.checkpoint import Checkpoint, Role
from ckpttool.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ReaderClosedError,
    UnknownFormatError,
    UsageError,
)
from ckpttool.formats._tf_layer_names import Part, Variable, layers
from ckpttool.formats._tf_objects import Hint
from ckpttool.opening import open_checkpoint
from ckpttool.reading import ReadOptions

from ..manifest import FILES, entry, names, tagged
from ..tensorflow_files import node, variable, write_bundle

NOT_READ = ("variant", "resource", "qint", "quint", "int4", "uint4")


def stored(*formats: str) -> list[str]:
    """Files of the manifest that TensorFlow's reader was asked about, of these kinds."""
    return names(lambda name, each: "stored" in each and each["kind"] in formats)


def digest(values: np.ndarray) -> str:
    if values.dtype == object:
        texts = values.reshape(-1).tolist()
        return hashlib.sha256(b"".join(struct.pack("<I", len(text)) + text for text in texts)).hexdigest()
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def opened(name: str) -> Path:
    """What a user would open."""
    return FILES / entry(name)["opens"]


def read_all(path: Path, **options: Any) -> dict[str, tuple[tuple[int, ...], str, str | None]]:
    """Shape, dtype and checksum of every stored tensor, by its key."""
    found = {}
    with open_checkpoint(path, read=ReadOptions(**options)) as reader:
        described = reader.describe()
        for spec in (*described.weights(), *described.loose):
            readable = not spec.dtype.startswith(NOT_READ)
            found[spec.locator] = (spec.shape, spec.dtype, digest(reader.read(spec)) if readable else None)
    return found


def described(path: Path) -> Checkpoint:
    with open_checkpoint(path) as reader:
        return reader.describe()


def paths(checkpoint: Checkpoint) -> list[str]:
    return [spec.name for spec in checkpoint.weights()]


@pytest.mark.parametrize("name", stored("checkpoint", "savedmodel"))
def test_names_shapes_types_and_values_are_those_of_tensorflow(name: str) -> None:
    found = read_all(opened(name))
    parts = [locator.partition(" … ") for locator in found if " … " in locator]
    for each in entry(name)["stored"]:
        key = each["key"]
        if any(key.startswith(first.rpartition("_")[0]) for first, _, _ in parts):
            continue  # a part of a joined variable
        got = found[key]
        assert list(got[0]) == each["shape"], key
        assert got[1] == each["dtype"] or got[1].startswith(f"{each['dtype']}("), key
        if got[2] is not None and each["sha256"] is not None:
            assert got[2] == each["sha256"], key


@pytest.mark.parametrize("name", names(lambda name, each: "whole" in each))
def test_parts_make_up_the_whole(name: str) -> None:
    with open_checkpoint(opened(name)) as reader:
        by_name = {spec.name: spec for spec in reader.describe().weights()}
        for each in entry(name)["whole"]:
            spec = by_name[each["path"]]
            assert list(spec.shape) == each["shape"]
            assert digest(reader.read(spec)) == each["sha256"]
            blocks = list(reader.iter_blocks(spec, 64))
            assert all(block.nbytes <= 64 for block in blocks)
            assert np.concatenate(blocks).tobytes() == reader.read(spec).tobytes()


NAMED = names(
    lambda name, each: (
        "stored" in each and "synthetic" not in each["tags"] and "wrapped" not in each["tags"]
        and any("image_embedding/" in tensor["path"] for tensor in each["tensors"])
    )
)  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_image_embedding_is_found_by_name_where_the_file_holds_it(name: str) -> None:
    """In mirrored models of TF 1.14 to 2.4 the file holds places only, and none is passed off as a name."""
    wanted = {
        t["path"].rpartition("/")[2]: t["sha256"] for t in entry(name)["tensors"] if "image_embedding/" in t["path"]
    }
    nameless = "mirrored" in entry(name)["tags"] and "object-based" in entry(name)["tags"] and name.startswith(
        ("tf-1.15", "tf-2.2", "tf-2.3")
    )  # fmt: skip
    with open_checkpoint(opened(name)) as reader:
        found = [
            {spec.path[-1]: digest(reader.read(spec)) for spec in layer.tensors}
            for path, layer in reader.describe().walk()
            if path[-1] == "image_embedding" and layer.tensors
        ]
    assert found == ([] if nameless else [wanted])


@pytest.mark.parametrize("name", tagged("object-based", suffix=".index"))
def test_optimizer_state_and_counters_are_no_weights(name: str) -> None:
    for spec in described(opened(name)).weights():
        assert not {"m", "v", "momentum", "save_counter", "iter", "total", "count"} & set(spec.path), spec


class TestWaysIn:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for file in FILES.glob("keras-3.15-sequential-checkpoint-checkpoint.*"):
            shutil.copy(file, tmp_path / file.name.replace("keras-3.15-sequential-checkpoint-checkpoint", "m.ckpt-7"))
        return tmp_path

    @pytest.mark.parametrize("name", ["m.ckpt-7", "m.ckpt-7.index", "m.ckpt-7.data-00000-of-00001", "."])
    def test_all_names_of_a_checkpoint_lead_to_it(self, folder: Path, name: str) -> None:
        assert "image_embedding/kernel" in paths(described(folder / name))

    @pytest.mark.parametrize("name", ["run [1]", "a*b", "what?", "größe ☃", "-x", "{a,b}", "x\\y"])
    def test_folder_names_are_no_patterns(self, folder: Path, name: str, tmp_path: Path) -> None:
        odd = tmp_path / name
        odd.mkdir()
        for file in folder.glob("m.ckpt-7.*"):
            shutil.copy(file, odd)
        for path in (odd, odd / "m.ckpt-7", odd / "m.ckpt-7.index"):
            assert "image_embedding/kernel" in paths(described(path))
        for file in list(odd.iterdir()):
            file.rename(odd / file.name.replace("m.ckpt-7", name.replace("/", "")))
        assert read_all(odd / name)

    def test_the_meta_file_leads_to_the_checkpoint(self) -> None:
        checkpoint = described(FILES / "tf-1.15-names.meta")
        assert "tower/image_embedding/kernel" in paths(checkpoint)
        assert checkpoint.written_by.tensorflow == "1.15.5"

    def test_an_empty_prefix_is_the_index_alone(self) -> None:
        folder = FILES / "tf-1.15-empty-prefix"
        assert paths(described(folder / ".index")) == paths(described(folder)) == ["hidden/kernel", "hidden/second"]

    def test_a_state_file_of_another_machine_leads_to_its_neighbour(self) -> None:
        folder = FILES / "tf-1.15-estimator-mirrored"
        assert b"/home/somebody" in (folder / "checkpoint").read_bytes()
        for path in (folder, folder / "checkpoint"):
            assert "image_embedding/kernel" in paths(described(path))

    def test_a_state_file_never_leads_outside(self, folder: Path, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        for text in ("../m.ckpt-7", str(folder / "m.ckpt-7"), "x/../../m.ckpt-7"):
            (inner / "checkpoint").write_text(f'model_checkpoint_path: "{text}"\n')
            with pytest.raises(CheckpointNotFoundError, match=r"there is no 'm\.ckpt-7\.index' beside it"):
                described(inner)

    @pytest.mark.parametrize("text", ["", "model_checkpoint_path: \n", 'all_model_checkpoint_paths: "a"\n'])
    def test_a_state_file_that_names_nothing(self, folder: Path, text: str) -> None:
        (folder / "state").write_text(text or "\n")
        with pytest.raises((CorruptCheckpointError, UnknownFormatError)):
            described(folder / "state")

    def test_quoted_names_are_unescaped(self, folder: Path) -> None:
        for file in folder.glob("m.ckpt-7.*"):
            file.rename(folder / file.name.replace("m.ckpt-7", 'gr\xf6\xdfe "1"-3'))
        (folder / "checkpoint").write_bytes(b'model_checkpoint_path: "gr\\303\\266\\303\\237e \\"1\\"-3"\n')
        assert "image_embedding/kernel" in paths(described(folder / "checkpoint"))

    def test_the_newest_step_is_read_and_the_others_are_told(self) -> None:
        folder = FILES / "keras-3.15-objects-steps"
        newest = described(folder)
        notice = next(each for each in newest.warnings if each.code == "several-checkpoints")
        assert "1, 5, 10" in notice.message
        with open_checkpoint(folder) as reader:
            values = {10: digest(reader.read(next(newest.weights())))}
        for step in (1, 5, 10):
            with open_checkpoint(folder, read=ReadOptions(step=step)) as reader:
                values[step] = digest(reader.read(next(reader.describe().weights())))
                assert not any(each.code == "several-checkpoints" for each in reader.describe().warnings)
        assert len(set(values.values())) == 3
        assert values[10] == entry("keras-3.15-objects-steps/checkpoint")["tensors"][0]["sha256"]
        with pytest.raises(UsageError, match="no checkpoint of step 7; it holds 1, 5, 10"):
            open_checkpoint(folder, read=ReadOptions(step=7))

    def test_steps_on_disk_that_the_state_does_not_list_can_be_read(self, tmp_path: Path) -> None:
        """TensorFlow takes a folder `run [1]` for a pattern and never deletes old steps there."""
        folder = tmp_path / "run [1]"
        shutil.copytree(FILES / "keras-3.15-objects-steps", folder)
        (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-10"\nall_model_checkpoint_paths: "ckpt-10"\n')
        with open_checkpoint(folder, read=ReadOptions(step=1)) as reader:
            assert reader.describe().layers

    def test_several_checkpoints_without_order_are_a_question(self, folder: Path) -> None:
        for file in list(folder.glob("m.ckpt-7.*")):
            shutil.copy(file, folder / file.name.replace("m.ckpt-7", "other"))
        with pytest.raises(UsageError, match=r"several checkpoints: m\.ckpt-7, other"):
            described(folder)

    def test_what_is_not_there(self, folder: Path) -> None:
        with pytest.raises(CheckpointNotFoundError):
            described(folder / "m.ckpt")
        (folder / "m.ckpt-7.index").unlink()
        with pytest.raises(CheckpointNotFoundError):
            described(folder / "m.ckpt-7")

    def test_a_closed_reader_refuses(self, folder: Path) -> None:
        with open_checkpoint(folder) as reader:
            spec = next(reader.describe().weights())
        for refused in (reader.describe, lambda: reader.read(spec), lambda: list(reader.iter_blocks(spec)),
                        lambda: reader.extent(spec)):  # fmt: skip
            with pytest.raises(ReaderClosedError):
                refused()


class TestNames:
    def test_start_corrections_of_moving_averages_are_no_weights(self, tmp_path: Path) -> None:
        """As Keras 2.2.4 on TF 1.14 saves a trained BatchNormalization that was called three times."""
        values, scalar = ((4,), bytes(16)), ((), bytes(4))
        tensors = {"norm/moving_mean": values, "norm/gamma": values, "alone/biased": values}
        for number in ("", "_1", "_2"):
            tensors |= {f"norm/moving_mean/biased{number}": values, f"norm/moving_mean/local_step{number}": scalar}
        tensors |= {"norm/norm/moving_mean/biased": values, "norm/moving_mean/other": values}
        write_bundle(tmp_path / "m", tensors)
        checkpoint = described(tmp_path / "m")
        assert set(paths(checkpoint)) == {
            "norm/moving_mean", "norm/gamma", "alone/biased", "norm/moving_mean/other"
        }  # fmt: skip
        assert {(each.role, each.slot_of) for each in checkpoint.loose} == {
            (Role.BOOKKEEPING, ("norm", "moving_mean"))
        }  # fmt: skip


class TestObjectGraphs:
    def checkpoint(self, tmp_path: Path, graph: bytes, *keys: str, ends: str = "") -> Checkpoint:
        write_bundle(tmp_path / "g", {key: ((2,), bytes([place] * 8)) for place, key in enumerate(keys, 1)}, graph)
        return described(tmp_path / "g")

    def test_cycles_end(self, tmp_path: Path) -> None:
        graph = (
            node({"root": 0, "net": 1})
            + node({"up": 0, "self": 1, "dense": 2})
            + node({"kernel": 3, "net": 1})
            + variable("k")
        )
        assert paths(self.checkpoint(tmp_path, graph, "k")) == ["dense/kernel"]

    def test_a_long_chain_of_objects_is_placed_by_its_names(self, tmp_path: Path) -> None:
        chain = b"".join(node({"next": place + 1}) for place in range(3000)) + node({"w": 3001}) + variable("deep/w")
        checkpoint = self.checkpoint(tmp_path, chain, "deep/w")
        assert [spec.locator for spec in checkpoint.weights()] == ["deep/w"]

    def test_a_shared_layer_is_listed_once(self, tmp_path: Path) -> None:
        graph = node({"first": 1, "second": 1}) + node({"kernel": 2, "bias": 3}) + variable("k") + variable("b")
        assert paths(self.checkpoint(tmp_path, graph, "k", "b")) == ["first/kernel", "first/bias"]

    def test_what_only_an_optimizer_reaches_is_its_own(self, tmp_path: Path) -> None:
        graph = (
            node({"net": 1, "opt": 3, "save_counter": 6}) + node({"kernel": 2}) + variable("net/kernel")
            + node({"iter": 4, "learning_rate": 5}, slots=[(2, "m", 7)]) + variable("opt/iter") + variable("opt/lr")
            + variable("save_counter") + variable("opt/m")
        )  # fmt: skip
        checkpoint = self.checkpoint(tmp_path, graph, "net/kernel", "opt/iter", "opt/lr", "save_counter", "opt/m")
        assert paths(checkpoint) == ["net/kernel"]
        roles = {spec.locator: (spec.role, spec.slot, spec.slot_of) for spec in checkpoint.loose}
        assert roles["opt/m"] == (Role.OPTIMIZER, "m", ("net", "kernel"))
        assert roles["opt/iter"] == (Role.OPTIMIZER, None, None)
        assert roles["save_counter"] == (Role.BOOKKEEPING, None, None)

    def test_a_models_own_variable_does_not_hide_its_scope(self, tmp_path: Path) -> None:
        """As tf_keras 2.21 saves a subclassed model with a list of layers and a weight of its own."""
        graph = (
            node({"blocks": 1, "extra": 2, "top": 3}) + node({"0": 4, "1": 5}) + variable("extra", "extra")
            + node({"kernel": 6}) + node({"kernel": 7}) + node({"kernel": 8})
            + variable("k3", "sub/dense/kernel") + variable("k4", "sub/b0/kernel") + variable("k5", "sub/b1/kernel")
        )  # fmt: skip
        checkpoint = self.checkpoint(tmp_path, graph, "extra", "k3", "k4", "k5")
        assert paths(checkpoint) == ["extra", "blocks/b0/kernel", "blocks/b1/kernel", "top/kernel"]

    def test_a_model_of_one_layer_in_keras_3(self, tmp_path: Path) -> None:
        """The model's name stands in front of the only layer's; in Keras 2 it may be the layer's own."""
        for local, wanted in (("_kernel", "d/kernel"), ("kernel", "net/d/kernel")):
            graph = (
                node({"model": 1}) + node({"_functional": 2}) + node({"_operations": 3}) + node({"0": 4, "1": 5})
                + node({}) + node({local: 6}) + variable("k", "net/d/kernel")
            )  # fmt: skip
            assert paths(self.checkpoint(tmp_path, graph, "k")) == [wanted]

    def test_equal_variables_of_one_name_in_one_list_are_two(self, tmp_path: Path) -> None:
        """Two biases of zeros, as Keras 3.15 exports a subclassed model: all variables of it have the same names."""
        graph = (
            node({"variables": 1, "_all_variables": 2})
            + node({"0": 3, "1": 4, "2": 5}) + node({"0": 6, "1": 7, "2": 8})
            + b"".join(variable(f"variables/{place}", "net/bias") for place in range(3))
            + b"".join(variable(f"_all_variables/{place}", "net/bias") for place in range(3))
        )  # fmt: skip
        values = {f"{where}/{place}": ((2,), bytes(8)) for where in ("variables", "_all_variables") for place in (0, 1)}
        values |= {"variables/2": ((2,), bytes([1] * 8)), "_all_variables/2": ((2,), bytes([1] * 8))}
        write_bundle(tmp_path / "g", values, graph)
        checkpoint = described(tmp_path / "g")
        assert paths(checkpoint) == ["variables/0", "variables/1", "variables/2"]
        copies = {each.locator: each.slot_of for each in checkpoint.loose if each.slot == "copy"}
        assert copies == {f"_all_variables/{place}": ("variables", str(place)) for place in range(3)}

    @pytest.mark.parametrize(
        ("local", "told", "wanted"),
        [
            ("image_embedding", "dense_3", "image_embedding"),
            ("image_embedding", "own", "own"),
            ("layer_with_weights-0", "dense_3", "dense_3"),
            ("image_embedding", None, "image_embedding"),
        ],
    )
    def test_an_attribute_names_a_layer_whose_name_keras_made_up(
        self, local: str, told: str | None, wanted: str
    ) -> None:
        layer = Part(local, Hint(told, "Dense"), variables=[Variable("kernel", "dense_3/kernel", (2,), "float32", "k")])
        other = Part("other", variables=[Variable("kernel", "z/kernel", (2,), "float32", "z")])
        found = [each.name for each in layers(Part("", parts=[layer, other]))]
        assert found == [wanted, "z"]

    def test_states_of_random_generators_are_no_weights(self, tmp_path: Path) -> None:
        graph = node({"g": 1, "w": 2}) + node({"_state_var": 3}) + variable("w") + variable("g", "StateVar")
        checkpoint = self.checkpoint(tmp_path, graph, "w", "g")
        assert paths(checkpoint) == ["w"]
        assert [each.role for each in checkpoint.loose if each.locator == "g"] == [Role.BOOKKEEPING]

    def test_averages_that_a_module_holds_are_those_of_its_weights(self, tmp_path: Path) -> None:
        graph = (
            node({"net": 1}) + node({"w": 2, "avg": 3, "own": 4}) + variable("w", "w")
            + variable("avg", "w/ExponentialMovingAverage") + variable("own", "other/ExponentialMovingAverage")
        )  # fmt: skip
        checkpoint = self.checkpoint(tmp_path, graph, "avg", "own", "w")
        assert sorted(paths(checkpoint)) == ["net/own", "net/w"]
        average = next(each for each in checkpoint.loose if each.locator == "avg")
        assert (average.role, average.slot, average.slot_of) == (
            Role.OPTIMIZER, "ExponentialMovingAverage", ("net", "w")
        )  # fmt: skip
        from ckpttool.folding import with_averages

        assert [each.locator for each in with_averages(checkpoint).weights() if each.name == "net/w"] == ["avg"]

    def test_keras_3_weights_under_the_optimizers_key_are_weights(self) -> None:
        checkpoint = described(FILES / "keras-3.15-towers-checkpoint-checkpoint")
        spec = next(spec for spec in checkpoint.weights() if spec.name.endswith("image_embedding/kernel"))
        assert spec.locator.startswith("optimizer/_trainable_variables/")
        assert len(checkpoint.optimizer_tensors()) == 16

    def test_a_damaged_graph_names_the_index(self, tmp_path: Path) -> None:
        with pytest.raises(CorruptCheckpointError, match=r"g\.index.*node that it does not have"):
            self.checkpoint(tmp_path, node({"a": 5}), "k")

    def test_an_attribute_of_no_stored_key_is_left_alone(self, tmp_path: Path) -> None:
        graph = node({"a": 1, "b": 2}) + variable("gone") + variable("k")
        assert paths(self.checkpoint(tmp_path, graph, "k")) == ["b"]


@pytest.mark.parametrize("name", names(lambda name, each: "files" in each))
def test_every_file_of_a_fixture_is_the_one_that_was_made(name: str) -> None:
    for file, checksum in entry(name)["files"].items():
        assert hashlib.sha256((FILES / file).read_bytes()).hexdigest() == checksum, file
