"""`multi_gpu_model`: what is one, what is not, and what only looks like one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from ckpttool.checkpoint import Checkpoint, Layer, TensorSpec
from ckpttool.errors import AmbiguousLayerError, LayerNotFoundError, UnprovenWrapperError
from ckpttool.opening import open_checkpoint
from ckpttool.wrappers.multi_gpu_model import detect
from ckpttool.wrapping import look_inside, require_proof, unwrap

from ..manifest import FILES, tagged

Config = dict[str, Any]


def node(*references: tuple[str, int, int]) -> list[list[Any]]:
    return [[*reference, {}] for reference in references]


def entry(class_name: str, name: str, *nodes: list[list[Any]], **config: Any) -> Config:
    return {"class_name": class_name, "name": name, "config": {"name": name, **config}, "inbound_nodes": list(nodes)}


def template(name: str = "base", inputs: int = 1, outputs: int = 1, class_name: str = "Model") -> Config:
    xs = [entry("InputLayer", f"x{n}", batch_input_shape=[None, 4]) for n in range(inputs)]
    ys = [entry("Dense", f"y{n}", node((f"x{n % inputs}", 0, 0)), units=3) for n in range(outputs)]
    config = {"name": name, "layers": xs + ys, "input_layers": [[f"x{n}", 0, 0] for n in range(inputs)],
              "output_layers": [[f"y{n}", 0, 0] for n in range(outputs)]}  # fmt: skip
    return {"class_name": class_name, "name": name, "config": config, "inbound_nodes": []}


def wrapped(
    replicas: int = 2, inputs: int = 1, outputs: int = 1, base: Config | None = None, first_call: int = 1
) -> Config:
    """As Keras 2.2.4 stores it: inputs, lambdas replica by replica, the template, one merge an output."""
    base = copy.deepcopy(base or template(inputs=inputs, outputs=outputs))
    name = base["name"]
    layers = [entry("InputLayer", f"x{n}", batch_input_shape=[None, 4]) for n in range(inputs)]
    number = 0
    for replica in range(replicas):
        references = []
        for place in range(inputs):
            number += 1
            layers.append(
                entry("Lambda", f"lambda_{number}", node((f"x{place}", 0, 0)), function=["4wEA", None, None],
                      arguments={"i": replica, "parts": replicas})
            )  # fmt: skip
            references.append((f"lambda_{number}", 0, 0))
        base["inbound_nodes"].append(node(*references))
    layers.append(base)
    for place in range(outputs):
        calls = [(name, first_call + replica, place) for replica in range(replicas)]
        layers.append(entry("Concatenate", f"y{place}", node(*calls), axis=0))
    return {"class_name": "Model", "config": {
        "name": "model_1", "layers": layers, "input_layers": [[f"x{n}", 0, 0] for n in range(inputs)],
        "output_layers": [[f"y{n}", 0, 0] for n in range(outputs)]}}  # fmt: skip


def checkpoint(config: Config, name: str = "base") -> Checkpoint:
    kernel = TensorSpec((name, "y0", "kernel"), (4, 3), "float32", locator="k")
    inside = Layer(name, "Model", layers=(Layer("y0", "Dense", (kernel,)),))
    layers = tuple(
        inside if each["name"] == name else Layer(each["name"], each["class_name"])
        for each in config["config"]["layers"]
    )
    return Checkpoint("keras-h5", "hdf5", "model", layers, config=json.dumps(config))


def layers_of(config: Config) -> dict[str, Config]:
    return {each["name"]: each for each in config["config"]["layers"]}


@pytest.mark.parametrize("replicas", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 4)])
def test_every_shape_of_wrapper_is_proven(replicas: int, inputs: int, outputs: int) -> None:
    evidence = detect(checkpoint(wrapped(replicas, inputs, outputs)))
    assert evidence is not None
    assert (evidence.replicas, evidence.template, evidence.certain) == (replicas, ("base",), True)
    assert len(evidence.reasons) == 3


@pytest.mark.parametrize("class_name", ["Model", "Functional", "Sequential"])
def test_every_class_of_template(class_name: str) -> None:
    base = template(class_name=class_name)
    if class_name == "Sequential":
        base["config"] = base["config"]["layers"][1:]  # the bare list of Keras up to 2.1
    evidence = detect(checkpoint(wrapped(base=base)))
    assert evidence is not None
    assert evidence.certain


def test_calls_counted_from_zero_as_keras_3_counts() -> None:
    evidence = detect(checkpoint(wrapped(first_call=0)))
    assert evidence is not None


@pytest.mark.parametrize("names", ["concatenate_1", "score", "lambda", "x0_1", "base_1"])
def test_the_merge_s_name_does_not_matter(names: str) -> None:
    config = wrapped()
    layers_of(config)["y0"]["config"]["name"] = names
    layers_of(config)["y0"]["name"] = names
    config["config"]["output_layers"] = [[names, 0, 0]]
    assert detect(checkpoint(config)) is not None


def _swap_slices(config: Config) -> None:
    lambdas = layers_of(config)
    lambdas["lambda_1"]["config"]["arguments"]["i"], lambdas["lambda_2"]["config"]["arguments"]["i"] = 1, 0


def _head(config: Config) -> None:
    config["config"]["layers"].append(entry("Dense", "head", node(("y0", 0, 0)), units=2))
    config["config"]["output_layers"] = [["head", 0, 0]]


def _other_input(config: Config) -> None:
    config["config"]["layers"].insert(1, entry("InputLayer", "other", batch_input_shape=[None, 4]))
    config["config"]["input_layers"].append(["other", 0, 0])
    layers_of(config)["lambda_2"]["inbound_nodes"] = [node(("other", 0, 0))]


def _second_template(config: Config) -> None:
    config["config"]["layers"].append(template("again"))


def _one_call_left_out(config: Config) -> None:
    layers_of(config)["y0"]["inbound_nodes"] = [node(("base", 1, 0), ("base", 1, 0))]


def _calls_reversed(config: Config) -> None:
    layers_of(config)["y0"]["inbound_nodes"] = [node(("base", 2, 0), ("base", 1, 0))]


def _unsliced(config: Config) -> None:
    layers_of(config)["base"]["inbound_nodes"][1] = node(("x0", 0, 0))


def _one_slice_for_all(config: Config) -> None:
    layers_of(config)["base"]["inbound_nodes"][1] = node(("lambda_1", 0, 0))


def _spare_lambda(config: Config) -> None:
    config["config"]["layers"].insert(
        2, entry("Lambda", "mine", node(("x0", 0, 0)), arguments={"i": 0, "parts": 2})
    )  # fmt: skip


def _set(layer: str, **config: Any) -> Callable[[Config], None]:
    def change(whole: Config) -> None:
        layers_of(whole)[layer]["config"].update(config)

    return change


def _output_not_joined(config: Config) -> None:
    config["config"]["output_layers"] = [["base", 1, 0]]


def _sliced_twice(config: Config) -> None:
    layers_of(config)["lambda_2"]["inbound_nodes"] = [node(("lambda_1", 0, 0))]


LOOK_ALIKES = {
    "features are joined, not the batch": _set("y0", axis=-1),
    "joined on axis 1": _set("y0", axis=1),
    "no axis given": _set("y0", axis=None),
    "slices without arguments": _set("lambda_1", arguments={}),
    "slices with other arguments": _set("lambda_1", arguments={"idx": 0, "parts": 2}),
    "another number of parts": _set("lambda_1", arguments={"i": 0, "parts": 3}),
    "arguments that are no numbers": _set("lambda_1", arguments=[["i", 0]]),
    "slices in another order than the calls": _swap_slices,
    "a head on the wrapper": _head,
    "two inputs, one a replica": _other_input,
    "another model beside the template": _second_template,
    "one call joined twice": _one_call_left_out,
    "calls joined in reverse": _calls_reversed,
    "a call on the whole batch": _unsliced,
    "one slice for both calls": _one_slice_for_all,
    "a Lambda that feeds nothing": _spare_lambda,
    "an output that is not joined": _output_not_joined,
    "a slice of a slice": _sliced_twice,
}


@pytest.mark.parametrize("change", LOOK_ALIKES)
def test_a_look_alike_is_not_taken_apart(change: str) -> None:
    config = wrapped()
    LOOK_ALIKES[change](config)
    evidence = detect(checkpoint(config))
    assert evidence is None or not evidence.certain


def test_one_call_is_no_wrapper() -> None:
    assert detect(checkpoint(wrapped(1))) is None


def test_a_siamese_model_is_no_wrapper() -> None:
    config = wrapped()
    for name in ("a", "b"):
        config["config"]["layers"].insert(0, entry("InputLayer", name, batch_input_shape=[None, 4]))
    base = layers_of(config)["base"]
    base["inbound_nodes"] = [node(("a", 0, 0)), node(("b", 0, 0))]
    layers_of(config)["y0"]["config"]["axis"] = -1
    assert detect(checkpoint(config)) is None


def test_test_time_augmentation_without_arguments_is_never_certain() -> None:
    """Flips joined on the batch axis: without reading code they cannot be told from slices."""
    config = wrapped(3)
    for name, layer in layers_of(config).items():
        if name.startswith("lambda"):
            layer["config"]["arguments"] = {}
    evidence = detect(checkpoint(config))
    assert evidence is None or not evidence.certain


@pytest.mark.parametrize("name", tagged("look-alike"))
def test_look_alikes_of_the_old_libraries(name: str) -> None:
    with open_checkpoint(FILES / name) as reader:
        evidence = detect(reader.describe())
    assert evidence is None or not evidence.certain


@pytest.mark.parametrize("name", tagged("wrapped", "full", without=["keras-1"]))
def test_wrapped_models_of_the_old_libraries(name: str) -> None:
    with open_checkpoint(FILES / name) as reader:
        evidence = detect(reader.describe())
    assert evidence is not None
    assert evidence.certain


class TestUnwrapping:
    def test_the_template_keeps_its_own_names_outputs_and_one_call(self) -> None:
        whole = checkpoint(wrapped(3))
        evidence = detect(whole)
        assert evidence is not None
        lifted = unwrap(whole, evidence)
        assert [layer.name for layer in lifted.layers] == ["y0"]
        assert [spec.name for spec in lifted.weights()] == ["y0/kernel"]
        assert lifted.config is not None
        config = json.loads(lifted.config)["config"]
        assert config["name"] == "base"
        assert config["output_layers"] == [["y0", 0, 0]]
        assert "lambda" not in lifted.config.lower()

    def test_the_merge_layer_of_the_same_name_is_gone(self) -> None:
        lifted, _ = look_inside(checkpoint(wrapped()))
        assert [(layer.name, layer.class_name) for layer in lifted.layers] == [("y0", "Dense")]

    def test_a_wrapper_of_a_wrapper(self) -> None:
        inner = wrapped(2)
        inner["name"] = inner["config"]["name"] = "parallel"
        inner["inbound_nodes"] = []
        outer = wrapped(3, base=inner)
        base = checkpoint(wrapped(2)).layers
        whole = Checkpoint(
            "keras-h5", "hdf5", "model", (Layer("parallel", "Model", layers=base),), config=json.dumps(outer)
        )
        whole = Checkpoint(
            "keras-h5", "hdf5", "model",
            tuple(
                Layer("parallel", "Model", layers=base) if each["name"] == "parallel" else Layer(each["name"])
                for each in outer["config"]["layers"]
            ),
            config=json.dumps(outer),
        )  # fmt: skip
        _, evidence = look_inside(whole)
        assert evidence is not None
        assert (evidence.depth, evidence.replicas, evidence.template) == (2, 6, ("parallel", "base"))


def weights_only(*names: str, inside: bool = True, holder: str = "base") -> Checkpoint:
    kernel = TensorSpec((holder, "y0", "kernel"), (4, 3), "float32", locator="k")
    full = Layer(holder, layers=(Layer("y0", tensors=(kernel,)),)) if inside else Layer(holder, tensors=(kernel,))
    return Checkpoint("keras-h5", "hdf5", "weights", tuple(full if name == holder else Layer(name) for name in names))


class TestWeightsOnly:
    @pytest.mark.parametrize(
        ("names", "replicas"),
        [
            (("x", "lambda_1", "lambda_2", "base", "concatenate_1"), 2),
            (("x", "lambda", "lambda_1", "lambda_2", "base", "y0"), 3),
            (("a", "b", "lambda_1", "lambda_2", "lambda_3", "lambda_4", "base", "y0", "y1"), 2),
        ],
    )
    def test_groups_that_look_like_a_wrapper_are_evidence_and_no_proof(
        self, names: tuple[str, ...], replicas: int
    ) -> None:
        evidence = detect(weights_only(*names))
        assert evidence is not None
        assert (evidence.replicas, evidence.certain, evidence.template) == (replicas, False, ("base",))
        with pytest.raises(UnprovenWrapperError) as caught:
            require_proof(evidence, "w.h5", "unwrap", "base.h5")
        assert caught.value.code == 2
        assert str(caught.value).endswith("to take it out: ckpttool unwrap w.h5 --assume-wrapper base -o base.h5")

    @pytest.mark.parametrize(
        "names",
        [
            ("x", "base", "y0"),
            ("x", "lambda_1", "base", "y0"),
            ("x", "lambda_1", "base", "lambda_2", "y0"),
            ("lambda_1", "lambda_2", "base", "y0"),
            ("x", "lambda_1", "lambda_2", "base"),
            ("a", "b", "lambda_1", "lambda_2", "lambda_3", "base", "y0"),
        ],
    )
    def test_other_groups_are_no_evidence(self, names: tuple[str, ...]) -> None:
        assert detect(weights_only(*names)) is None

    def test_a_model_of_one_layer_is_no_wrapper(self) -> None:
        assert detect(weights_only("x", "lambda_1", "lambda_2", "base", "y0", inside=False)) is None

    def test_weights_in_two_groups_are_no_wrapper(self) -> None:
        found = weights_only("x", "lambda_1", "lambda_2", "base", "y0")
        other = Layer("head", tensors=(TensorSpec(("head", "kernel"), (3, 3), "float32"),))
        assert detect(Checkpoint("keras-h5", "hdf5", "weights", (*found.layers, other))) is None


class TestAssumed:
    def test_it_is_taken_as_given(self) -> None:
        whole = weights_only("x", "lambda_1", "lambda_2", "base", "y0")
        lifted, evidence = look_inside(whole, assume="base")
        assert evidence is not None
        assert evidence.certain and evidence.replicas == 2 and "--assume-wrapper" in evidence.reasons[-1]
        assert [spec.name for spec in lifted.weights()] == ["y0/kernel"]

    def test_a_layer_that_does_not_exist(self) -> None:
        with pytest.raises(LayerNotFoundError, match="layers that hold others: base"):
            look_inside(weights_only("x", "base"), assume="other")

    def test_a_layer_without_weights(self) -> None:
        with pytest.raises(LayerNotFoundError):
            look_inside(weights_only("x", "base"), assume="x")

    def test_two_layers_of_that_name(self) -> None:
        inner = weights_only("x", "base").layers
        whole = Checkpoint("keras-h5", "hdf5", "weights", (Layer("a", layers=inner), Layer("b", layers=inner)))
        with pytest.raises(AmbiguousLayerError, match="a/base, b/base"):
            look_inside(whole, assume="base")

    def test_never(self) -> None:
        whole = checkpoint(wrapped())
        assert look_inside(whole, never=True) == (whole, None)
