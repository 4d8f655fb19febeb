"""Names of a configuration for layers that a TensorFlow checkpoint stores by position or by name alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckpttool
from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec
from ckpttool.errors import AmbiguousLayerError, LayerNotFoundError, UnprovenWrapperError, WeightsMismatchError
from ckpttool.keras_config import parse_config
from ckpttool.source import SourceOptions, open_source
from ckpttool.tf_assignment import assign

from .formats.test_tf_checkpoint import opened
from .manifest import FILES, entry, names, read, template_json, truth

WITH_JSON = names(
    lambda name, each: "stored" in each and each["tensors"] and (each["template"] or {}).get("json") is not None
)
NAMELESS = [
    name
    for name in names(lambda name, each: "object-based" in each["tags"] and "mirrored" in each["tags"])
    if name.startswith(("tf-1.15", "tf-2.2", "tf-2.3"))
]


@pytest.mark.parametrize("name", WITH_JSON)
def test_with_the_templates_json_everything_has_its_name(name: str, tmp_path: Path) -> None:
    """Objects, names alone, exports, wrapped models: the template's names, order, shapes and bits."""
    options = SourceOptions(config=template_json(name, tmp_path))
    with open_source(opened(name), options) as source:
        assert read(source.reader, source.template.weights()) == truth(name)
        layers = [("/".join(path), layer.class_name) for path, layer in source.template.walk()]
        assert layers == [(each["path"], each["class_name"]) for each in entry(name)["layers"]]


@pytest.mark.parametrize("name", NAMELESS)
def test_what_was_named_by_its_place_is_said(name: str, tmp_path: Path) -> None:
    found = ckpttool.inspect(opened(name), options=SourceOptions(config=template_json(name, tmp_path)))
    notice = next(each for each in found.warnings if each.code == "names-inferred")
    assert "layer_with_weights-0 = " in notice.message


@pytest.mark.parametrize("name", NAMELESS)
def test_without_it_the_candidates_are_listed_and_none_is_guessed(name: str) -> None:
    with pytest.raises((LayerNotFoundError, AmbiguousLayerError)) as caught:
        ckpttool.extract(opened(name), "image_embedding")
    assert caught.value.code == 2
    assert "layer_with_weights-0 (" in caught.value.message
    for each in entry(name)["tensors"]:
        if each["path"].endswith("image_embedding/kernel"):
            assert "×".join(map(str, each["shape"])) in caught.value.message


@pytest.mark.parametrize(
    "name", names(lambda name, each: "wrapped" in each["tags"] and name.endswith("-weights.index"))
)
def test_a_wrapper_stored_by_place_is_likely_and_proven_by_a_configuration(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnprovenWrapperError, match="--assume-wrapper layer_with_weights-0"):
        ckpttool.unwrap(opened(name), tmp_path / "x.h5")
    taken = ckpttool.unwrap(
        opened(name), tmp_path / "taken.npz", options=SourceOptions(assume_wrapper="layer_with_weights-0")
    )
    assert taken.tensors == len(truth(name))
    report = ckpttool.unwrap(
        opened(name), tmp_path / "x.h5", options=SourceOptions(config=template_json(name, tmp_path))
    )
    assert (report.kind, report.tensors) == ("model", len(truth(name)))
    wrapper = FILES / name.replace("-weights.index", "-wrapper.json")
    if wrapper.exists():
        found = ckpttool.inspect(opened(name), options=SourceOptions(config=wrapper)).wrapper
        assert found is not None
        assert (found.certain, found.replicas) == (True, entry(name)["wrapper"]["replicas"])


def test_nothing_tells_a_wrapped_model_in_a_tf1_saver() -> None:
    found = ckpttool.inspect(FILES / "tf-1.15-multi-gpu-towers-saver")
    assert found.wrapper is None
    assert "image_embedding" in [path[-1] for path, _ in found.layers()]


def spec(path: str, *axes: int) -> TensorSpec:
    return TensorSpec(tuple(path.split("/")), axes, "float32", locator=path)


def dense(name: str, rows: int, units: int) -> Layer:
    return Layer(name, tensors=(spec(f"{name}/kernel", rows, units), spec(f"{name}/bias", units)))


def checkpoint(*layers: Layer, layout: str = "object-based") -> Checkpoint:
    return Checkpoint("tf-checkpoint", "tensor-bundle", "checkpoint", layers, metadata=(("layout", layout),))


def sequential(*names_and_units: tuple[str, int], input_layer: bool = False) -> str:
    layers = [{"class_name": "Dense", "config": {"name": name, "units": units}} for name, units in names_and_units]
    if input_layer:
        layers.insert(0, {"class_name": "InputLayer", "config": {"name": "in"}})
    return json.dumps({"class_name": "Sequential", "config": {"name": "s", "layers": layers}})


def named(stored: Checkpoint, config: str) -> list[tuple[str, str]]:
    found = assign(stored, parse_config(config), path="f")
    return [(each.name, each.locator) for each in found.weights()]


def test_names_come_before_places() -> None:
    stored = checkpoint(dense("b", 4, 4), dense("a", 4, 4))
    assert named(stored, sequential(("a", 4), ("b", 4)))[0] == ("a/kernel", "a/kernel")


def test_places_count_with_and_without_the_input_layer() -> None:
    weighted = (dense("layer_with_weights-0", 3, 4), dense("layer_with_weights-1", 4, 5))
    for layers in (weighted, (Layer("layer-0"), *weighted)):
        found = named(checkpoint(*layers), sequential(("x", 4), ("y", 5), input_layer=True))
        assert [name for name, _ in found] == ["x/kernel", "x/bias", "y/kernel", "y/bias"]


def test_the_order_of_names_is_no_order_of_layers() -> None:
    """A TF1 checkpoint lists variables by the alphabet: layers of equal shapes must not change places."""
    stored = checkpoint(dense("a", 4, 4), dense("b", 4, 4), layout="name-based")
    with pytest.raises(WeightsMismatchError):
        named(stored, sequential(("second", 4), ("first", 4)))


@pytest.mark.parametrize(
    "config", [sequential(("x", 4)), sequential(("x", 4), ("y", 6)), sequential(("x", 4), ("y", 5), ("z", 2))]
)
def test_a_configuration_of_another_model_is_refused(config: str) -> None:
    with pytest.raises(WeightsMismatchError, match="does not fit"):
        named(checkpoint(dense("layer-0", 3, 4), dense("layer-1", 4, 5)), config)


def test_several_roots_take_the_configuration_that_fits_one() -> None:
    stored = checkpoint(
        Layer("generator", layers=(dense("layer_with_weights-0", 3, 4),)),
        Layer("critic", layers=(dense("layer_with_weights-0", 3, 7),)),
    )
    found = assign(stored, parse_config(sequential(("out", 7))))
    assert [layer.name for layer in found.layers] == ["generator", "s"]
    assert found.config_of == ("s",)


def test_a_shared_layer_that_is_stored_once_has_both_names() -> None:
    checkpoint_ = "keras-3.15-objects-two-models"
    with open_source(FILES / checkpoint_, SourceOptions()) as source:
        assert [layer.name for layer in source.whole.layers] == ["critic", "generator"]
