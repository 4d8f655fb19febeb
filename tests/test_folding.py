"""Copies of replicas folded into one value, and moving averages in place of weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import ckpttool
from ckpttool.checkpoint import Role
from ckpttool.errors import CorruptCheckpointError, UsageError
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions, open_source

from .formats.test_tf_checkpoint import digest, opened
from .manifest import FILES, entry, names, read, truth
from .tensorflow_files import node, variable, write_bundle

COPIES = ["tf-1.15-copies-equal.index", "tf-1.15-copies-different.index", "tf-1.15-copies-missing.index"]


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_a_mirrored_wrapper_and_the_template_has_each_variable_once(name: str) -> None:
    with open_source(opened(name), SourceOptions()) as source:
        assert source.wrapper is not None
        assert (source.wrapper.kind, source.wrapper.replicas, source.wrapper.certain) == ("mirrored", 3, True)
        found = {each.path: each for each in read(source.reader, source.template.weights())}
        assert found == {each.path: each for each in truth(name)}
        assert not [spec for spec in source.template.loose if "replica" in (spec.slot or "")]


def test_equal_copies_are_folded_without_a_word(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "tf-1.15-copies-equal", tmp_path / "x.safetensors")
    assert not report.warnings
    assert report.sentence().startswith("4 of 4 tensors")
    assert "copies of 3 replicas folded into one" in report.sentence()


def test_different_copies_are_told_with_the_largest_difference(tmp_path: Path) -> None:
    report = ckpttool.unwrap(FILES / "tf-1.15-copies-different", tmp_path / "x.h5")
    (notice,) = report.warnings
    assert notice.code == "replicas-differ"
    assert notice.path == "norm/moving_mean"
    assert "norm/moving_mean by up to 0.00195312 (replica 2)" in notice.message
    assert "1 of 4 variables" in notice.message


@pytest.mark.parametrize("replica", [0, 1, 2])
def test_a_replica_is_chosen(replica: int) -> None:
    options = SourceOptions(replica=replica)
    with open_source(FILES / "tf-1.15-copies-different", options) as source:
        spec = next(spec for spec in source.template.weights() if spec.path[-1] == "moving_mean")
        values = source.reader.read(spec)
        joined = np.concatenate(list(source.reader.iter_blocks(spec, 8)))
    with open_source(FILES / "tf-1.15-copies-different", SourceOptions(no_wrapper=True)) as source:
        primary = source.reader.read(spec)
    assert np.array_equal(values, joined)
    assert np.allclose(values - primary, replica / 1024, atol=1e-7)


def test_a_replica_that_is_not_there() -> None:
    with (
        pytest.raises(UsageError, match="no copies of replica 3: it holds 0 to 2"),
        open_source(FILES / "tf-1.15-copies-equal", SourceOptions(replica=3)),
    ):
        pass
    with (
        pytest.raises(UsageError, match="hidden/bias: there is no copy of replica 2"),
        open_source(FILES / "tf-1.15-copies-missing", SourceOptions(replica=2)),
    ):
        pass
    with (
        pytest.raises(UsageError, match="one value for each variable"),
        open_source(FILES / "tf-2.2-towers-checkpoint", SourceOptions(replica=1)),
    ):
        pass


def test_a_missing_copy_is_told() -> None:
    wrapper = ckpttool.inspect(FILES / "tf-1.15-copies-missing").wrapper
    assert wrapper is not None
    assert "hidden/bias (replica_2)" in wrapper.reasons[1]


def test_a_users_own_layer_called_replica_1_is_a_layer() -> None:
    name = "tf-1.15-copies-own-layer.index"
    with open_source(opened(name), SourceOptions()) as source:
        assert source.wrapper is None
        assert {each.path for each in read(source.reader, source.template.weights())} == {t.path for t in truth(name)}


MIRRORED = names(lambda name, each: "mirrored" in each["tags"] and "synthetic" not in each["tags"])


@pytest.mark.parametrize("name", MIRRORED)
def test_a_file_without_traces_says_nothing_of_mirroring(name: str) -> None:
    path = opened(name) if "opens" in entry(name) else FILES / name
    if name.endswith(".json"):
        return
    found = ckpttool.inspect(path)
    assert found.wrapper is None
    slots_only = any("/replica_" in each["key"] for each in entry(name).get("stored", ()))
    assert ("replica-copies" in [each.code for each in found.warnings]) == slots_only
    assert "mirror" not in json.dumps(found.to_json()).replace(str(path), "").lower() or "mirrored" in str(path)


def test_slot_copies_are_a_warning_and_no_weights() -> None:
    found = ckpttool.inspect(FILES / "tf-1.15-sequential-mirrored-saver")
    assert found.wrapper is None
    assert "8 optimizer slots" in next(each for each in found.warnings if each.code == "replica-copies").message
    assert not [spec for spec in found.template.weights() if "replica" in spec.name]


class TestObjects:
    def bundle(self, tmp_path: Path, second: bytes) -> Path:
        """A variable whose node has a child `replica_1`."""
        first = struct.pack("<2f", 1, 2)
        graph = (
            node({"dense": 1})
            + node({"kernel": 2})
            + node({"replica_1": 3}, ("VARIABLE_VALUE", "", "k"))
            + variable("k1")
        )
        write_bundle(tmp_path / "m", {"k": ((2,), first), "k1": ((2,), second)}, graph)
        return tmp_path / "m"

    def test_copies_in_an_object_graph(self, tmp_path: Path) -> None:
        path = self.bundle(tmp_path, struct.pack("<2f", 1, 2.5))
        report = ckpttool.unwrap(path, tmp_path / "x.npz")
        assert [each.code for each in report.warnings] == ["replicas-differ"]
        assert "by up to 0.5 (replica 1)" in report.warnings[0].message
        assert np.load(tmp_path / "x.npz")["dense/kernel"].tolist() == [1, 2]
        ckpttool.unwrap(path, tmp_path / "y.npz", options=SourceOptions(replica=1))
        assert np.load(tmp_path / "y.npz")["dense/kernel"].tolist() == [1, 2.5]

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_differences_that_are_no_numbers(self, tmp_path: Path, value: float) -> None:
        report = ckpttool.unwrap(self.bundle(tmp_path, struct.pack("<2f", 1, value)), tmp_path / "x.h5")
        assert [each.code for each in report.warnings] == ["replicas-differ"]

    def test_a_damaged_copy_is_an_error_and_nothing_is_written(self, tmp_path: Path) -> None:
        path = self.bundle(tmp_path, struct.pack("<2f", 1, 2))
        data = tmp_path / "m.data-00000-of-00001"
        whole = bytearray(data.read_bytes())
        place = whole.rindex(struct.pack("<2f", 1, 2))  # of two that are equal the second
        whole[place] ^= 1
        data.write_bytes(whole)
        with pytest.raises(CorruptCheckpointError, match="k1"):
            ckpttool.unwrap(path, tmp_path / "x.h5")
        assert not (tmp_path / "x.h5").exists()


@pytest.mark.parametrize("name", names(lambda name, each: each.get("averages")))
def test_moving_averages_take_the_place_of_the_weights(name: str) -> None:
    with open_source(opened(name), SourceOptions(ema=True)) as source:
        found = {spec.name: digest(source.reader.read(spec)) for spec in source.template.weights()}
        assert entry(name)["averages"].items() <= found.items()
        assert "moving-averages" in [each.code for each in source.whole.warnings]
    with open_source(opened(name), SourceOptions()) as source:
        plain = {spec.name: digest(source.reader.read(spec)) for spec in source.template.weights()}
        assert plain.keys() == found.keys()
        assert not set(plain.values()) & set(entry(name)["averages"].values())


def test_averages_that_are_not_there() -> None:
    with (
        pytest.raises(UsageError, match="no moving averages"),
        open_source(FILES / "tf-2.2-towers-checkpoint", SourceOptions(ema=True)),
    ):
        pass


def test_slots_know_their_variables() -> None:
    with open_checkpoint(FILES / "tf-1.15-names") as reader:
        slots = {spec.locator: spec for spec in reader.describe().loose}
    adam = slots["tower/hidden/kernel/Adam_1"]
    assert (adam.role, adam.slot, adam.slot_of) == (Role.OPTIMIZER, "Adam_1", ("tower", "hidden", "kernel"))
    assert slots["global_step"].role is Role.BOOKKEEPING
    assert slots["beta1_power"].role is Role.OPTIMIZER
    assert "a/b" not in slots
