"""SavedModels: configuration, names and signatures from wherever each version keeps them; what is missing is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnsupportedError, UsageError
from ckpttool.opening import open_checkpoint
from ckpttool.reading import ReadOptions
from ckpttool.source import SourceOptions, open_source

from ..manifest import FILES, entry, names, read, truth
from ..tensorflow_files import message, number, shape
from .test_tf_checkpoint import described, opened, paths

KERAS = names(
    lambda name, each: (
        each["kind"] == "savedmodel" and each["template"] is not None and "export" not in each["tags"]
        and "bare" not in name and "expanded" not in each["tags"]
    )
)  # fmt: skip
WITHOUT_JSON = names(lambda name, each: each["kind"] == "savedmodel" and each["tensors"] and name not in KERAS)


@pytest.mark.parametrize("name", KERAS)
def test_the_template_is_what_the_library_held(name: str) -> None:
    """Names, nesting, shapes and values of the template, inside the wrapper where there is one."""
    with open_source(opened(name), SourceOptions()) as source:
        assert source.whole.format == "saved-model"
        assert source.template.config is not None
        assert read(source.reader, source.template.weights()) == truth(name)
        wrapper = entry(name)["wrapper"]
        if wrapper is None:
            assert source.wrapper is None
        else:
            assert source.wrapper is not None
            assert source.wrapper.certain
            assert (source.wrapper.replicas, source.wrapper.template_name) == (wrapper["replicas"], wrapper["template"])
        layers = {"/".join(path): layer.class_name for path, layer in source.template.walk()}
        assert {each["path"]: each["class_name"] for each in entry(name)["layers"]}.items() <= layers.items()


@pytest.mark.parametrize("name", KERAS)
def test_unwrap_writes_the_full_model(name: str, tmp_path: Path) -> None:
    report = ckpttool.unwrap(opened(name), tmp_path / "full.h5")
    assert report.kind == "model"
    with open_checkpoint(tmp_path / "full.h5") as reader:
        written = reader.describe()
        assert [t.sha256 for t in read(reader, written.weights())] == [t.sha256 for t in truth(name)]
        assert json.loads(written.config or "")["class_name"] in ("Model", "Functional", "Sequential")


@pytest.mark.parametrize("name", WITHOUT_JSON)
def test_without_configuration_the_weights_have_the_best_names(name: str, tmp_path: Path) -> None:
    checkpoint = described(opened(name))
    wanted = {(each.path.split("/")[-2:][0], each.path.split("/")[-1]) for each in truth(name) if "/" in each.path}
    assert {(spec.path[-2], spec.path[-1]) for spec in checkpoint.weights() if len(spec.path) > 1} == wanted
    report = ckpttool.unwrap(opened(name), tmp_path / "w.safetensors")
    assert report.tensors == len(truth(name))


@pytest.mark.parametrize("name", names(lambda name, each: "export" in each["tags"]))
def test_an_exported_weight_is_listed_once_and_that_is_said(name: str) -> None:
    checkpoint = described(opened(name))
    count = len(truth(name))
    assert len(list(checkpoint.weights())) == count
    assert all(spec.locator.startswith("variables/") for spec in checkpoint.weights())
    notice = next(each for each in checkpoint.warnings if each.code == "stored-twice")
    assert f"{count} weights" in notice.message


def test_signatures_have_their_inputs_and_outputs() -> None:
    found = ckpttool.inspect(FILES / "tf-2.2-towers-mirrored-untrained-saved-model").to_json()
    (signature,) = found["signatures"]
    assert signature["name"] == "serving_default"
    assert [(each["name"], each["dtype"], each["shape"]) for each in signature["inputs"]] == [
        ("ids", "int32", [None, 4]),
        ("image", "float32", [None, 6]),
    ]
    assert [each["shape"] for each in signature["outputs"]] == [[None, 3]]
    assert found["written_by"] == {"keras": "2.3.0-tf", "tensorflow": "2.2.3", "backend": "tensorflow"}
    assert "signatures" not in ckpttool.inspect(FILES / "tf-2.2-towers-checkpoint").to_json()


class TestWaysIn:
    @pytest.mark.parametrize("inside", ["", "saved_model.pb", "variables"])
    def test_the_folder_its_file_and_its_variables(self, inside: str) -> None:
        checkpoint = described(FILES / "tf-2.2-sequential-saved-model" / inside)
        assert (checkpoint.format, checkpoint.config is not None) == ("saved-model", True)

    def test_the_index_alone_is_a_checkpoint(self) -> None:
        checkpoint = described(FILES / "tf-2.2-sequential-saved-model" / "variables" / "variables.index")
        assert (checkpoint.format, checkpoint.config) == ("tf-checkpoint", None)
        assert "image_embedding/kernel" in paths(checkpoint)

    def test_numbered_versions(self, tmp_path: Path) -> None:
        for version in ("1", "00000123", "9"):
            shutil.copytree(FILES / "tf-2.2-sequential-saved-model", tmp_path / version)
        (tmp_path / "9" / "variables" / "variables.index").unlink()
        checkpoint = described(tmp_path)
        assert checkpoint.layers
        assert next(each for each in checkpoint.warnings if each.code == "several-checkpoints").message.endswith(
            "1, 9, 123"
        )
        with open_checkpoint(tmp_path, read=ReadOptions(step=9)) as reader:
            assert [each.code for each in reader.describe().warnings][-1] == "no-variables"
        with pytest.raises(UsageError, match="no version 7"):
            open_checkpoint(tmp_path, read=ReadOptions(step=7))

    def test_without_its_file_the_variables_are_read(self, tmp_path: Path) -> None:
        shutil.copytree(FILES / "tf-2.2-sequential-saved-model" / "variables", tmp_path / "variables")
        checkpoint = described(tmp_path)
        assert "image_embedding/kernel" in paths(checkpoint)
        assert [each.code for each in checkpoint.warnings] == ["no-saved-model"]

    def test_a_model_without_variables(self) -> None:
        checkpoint = described(FILES / "keras-3.15-objects-modules-no-variables")
        assert not list(checkpoint.weights())
        with pytest.raises(CheckpointError, match="holds no weights"):
            ckpttool.unwrap(FILES / "keras-3.15-objects-modules-no-variables", "never.h5", dry_run=True)

    def test_the_text_form_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "saved_model.pbtxt").write_text("saved_model_schema_version: 1\n")
        with pytest.raises(UnsupportedError, match="text form"):
            open_checkpoint(tmp_path)

    def test_it_gives_its_configuration_to_others(self) -> None:
        model, weights = "tf-2.2-towers-mirrored-untrained-saved-model", "tf-2.2-towers-mirrored-weights"
        layer = ckpttool.extract(FILES / weights, "image_embedding", options=SourceOptions(config=FILES / model))
        assert layer.name == "tower/image_embedding"


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        shutil.copytree(FILES / "tf-2.10-sequential-saved-model", tmp_path / "m")
        return tmp_path / "m"

    @pytest.mark.parametrize("length", [0, 1, 100, 5000, -1])
    def test_a_cut_file_is_an_error_with_its_name(self, folder: Path, length: int) -> None:
        file = folder / "saved_model.pb"
        file.write_bytes(file.read_bytes()[:length])
        with pytest.raises(CorruptCheckpointError, match=r"saved_model\.pb"):
            described(folder)

    def test_lost_or_cut_metadata(self, folder: Path) -> None:
        file = folder / "keras_metadata.pb"
        file.write_bytes(file.read_bytes()[:-7])
        with pytest.raises(CorruptCheckpointError, match=r"keras_metadata\.pb"):
            described(folder)
        file.unlink()
        checkpoint = described(folder)
        assert checkpoint.config is None
        assert "image_embedding/kernel" in paths(checkpoint)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[1]",
            "{",
            '{"model_config": 3}',
            "[" * 100_000,
            '{"model_config": {"class_name": 1}}',
            '{"model_config": {"class_name": "Own", "config": {}}}',
            '{"model_config": {"class_name": "Own", "config": 1}}',
        ],
    )
    def test_metadata_that_is_no_configuration_is_left_alone(self, folder: Path, text: str) -> None:
        (folder / "keras_metadata.pb").write_bytes(message(1, message(5, text.encode())))
        checkpoint = described(folder)
        assert checkpoint.config is None
        assert len(list(checkpoint.weights())) == 6

    def test_a_configuration_that_does_not_fit_is_left_out_with_a_warning(self, folder: Path) -> None:
        config = {"class_name": "Sequential", "config": {"name": "s", "layers": [
            {"class_name": "Dense", "config": {"name": "other", "units": 3}}]}}  # fmt: skip
        (folder / "keras_metadata.pb").write_bytes(
            message(1, message(5, json.dumps({"model_config": config}).encode()))
        )
        checkpoint = described(folder)
        assert checkpoint.config is None
        assert "configuration-unmatched" in [each.code for each in checkpoint.warnings]
        assert len(list(checkpoint.weights())) == 6

    def test_objects_in_circles_end(self, folder: Path) -> None:
        circle = message(
            1, message(1, number(1, 0), message(2, b"loop")), message(1, number(1, 99), message(2, b"gone"))
        )
        (folder / "saved_model.pb").write_bytes(number(1, 1) + message(2, message(7, circle)))
        (folder / "keras_metadata.pb").unlink()
        assert "image_embedding/kernel" in paths(described(folder))

    def test_odd_signatures(self, folder: Path) -> None:
        info = message(2, number(2, 101), message(3, message(2, number(1, -1))))
        odd = message(5, message(1, b"s\x1b[31m"), message(2, message(1, message(1, b"x"), info), message(2, b"")))
        (folder / "saved_model.pb").write_bytes(message(2, odd, message(5, b"")))
        (folder / "keras_metadata.pb").unlink()
        signatures = [json.loads(text) for key, text in described(folder).metadata if key.startswith("signature:")]
        assert {"name": "x", "dtype": "float32", "shape": [None]} in [each for s in signatures for each in s["inputs"]]
        assert shape() == b""
