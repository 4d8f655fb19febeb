"""Wrappers by their shape, on graphs written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckpttool.keras_config import parse_config
from ckpttool.wrappers._shape import find_shape


def node(*refs: tuple[str, int, int]) -> list[Any]:
    return [[*ref, {}] for ref in refs]


def layer(class_name: str, name: str, *nodes: list[Any], **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "name": name, "config": {"name": name, **config}, "inbound_nodes": list(nodes)}


def body(name: str = "body", calls: int = 2, width: int | None = 6, units: int = 4) -> dict[str, Any]:
    inner = [
        layer("InputLayer", f"{name}_in", batch_input_shape=[None, width]),
        layer("Dense", f"{name}_dense", node((f"{name}_in", 0, 0)), units=units, activation="linear"),
    ]
    config = {"name": name, "layers": inner, "input_layers": [[f"{name}_in", 0, 0]],
              "output_layers": [[f"{name}_dense", 0, 0]]}  # fmt: skip
    nodes = [node((f"slice_{call}", 0, 0)) for call in range(calls)]
    return {"class_name": "Model", "name": name, "config": config, "inbound_nodes": nodes}


def a_slice(call: int, source: str = "x", **config: Any) -> dict[str, Any]:
    return layer("Lambda", f"slice_{call}", node((source, 0, 0)), function=["4wE=", None, None], **config)


def merge(*refs: tuple[str, int, int], class_name: str = "Concatenate", axis: int = 0) -> dict[str, Any]:
    return layer(class_name, "joined", node(*refs), axis=axis)


def graph(*layers: dict[str, Any], outputs: str = "joined", width: int | None = 6) -> str:
    config = {"name": "whole", "layers": [layer("InputLayer", "x", batch_input_shape=[None, width]), *layers],
              "input_layers": [["x", 0, 0]], "output_layers": [[outputs, 0, 0]]}  # fmt: skip
    return json.dumps({"class_name": "Model", "config": config})


def sliced(arguments: list[dict[str, Any]], *, inner: int | None = 6, outer: int | None = 6, **more: Any) -> Any:
    slices = [a_slice(call, arguments=each) for call, each in enumerate(arguments)]
    count = len(arguments)
    joined = merge(*[("body", call + 1, 0) for call in range(count)], **more)
    return find_shape(parse_config(graph(*slices, body(calls=count, width=inner), joined, width=outer)))


@pytest.mark.parametrize(
    "arguments",
    [
        [{"i": 0, "parts": 2}, {"i": 1, "parts": 2}],
        [{"idx": 0, "parts": 3}, {"idx": 1, "parts": 3}, {"idx": 2, "parts": 3}],
        [{"n_gpus": 2, "part": 0}, {"n_gpus": 2, "part": 1}],
        [{"ngpus": 2, "part": 0, "dev": "/gpu:0"}, {"ngpus": 2, "part": 1, "dev": "/gpu:1"}],
        [{"n": 0, "parts": 2}, {"n": 1, "parts": 2}],
        [{"i": 0, "n": 2}, {"i": 1, "n": 2}],
        [{"gpu_id": 0, "num_gpus": 2}, {"gpu_id": 1, "num_gpus": 2}],
    ],
)
def test_numbers_of_a_slice_prove_it(arguments: list[dict[str, Any]]) -> None:
    found = sliced(arguments)
    assert found is not None and found.proven
    assert found.bodies == ("body",) and found.replicas == len(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [{"i": 0, "parts": 3}, {"i": 1, "parts": 3}],  # two of three parts
        [{"i": 1, "parts": 2}, {"i": 0, "parts": 2}],  # in another order
        [{"i": 0, "parts": 2}, {"i": 0, "parts": 2}],
        [{"start": 0, "size": 2}, {"start": 1, "size": 2}],  # a crop's names
        [{"k": 0}, {"k": 1}],  # which view, of how many is not said
        [{}, {}],
    ],
)
def test_other_numbers_prove_nothing(arguments: list[dict[str, Any]]) -> None:
    found = sliced(arguments)
    assert found is not None and not found.proven


def test_a_crop_has_another_shape_than_its_source() -> None:
    assert sliced([{"i": 0, "parts": 2}, {"i": 1, "parts": 2}], inner=3) is None
    slices = [a_slice(call, arguments={"i": call, "parts": 2}, output_shape=[3]) for call in range(2)]
    text = graph(*slices, body(width=None), merge(("body", 1, 0), ("body", 2, 0)))
    assert find_shape(parse_config(text)) is None


def test_unknown_shapes_need_the_names_of_a_published_wrapper() -> None:
    parts = [{"i": 0, "n": 2}, {"i": 1, "n": 2}]
    assert not sliced(parts, inner=None, outer=None).proven
    published = [{"idx": 0, "parts": 2}, {"idx": 1, "parts": 2}]
    assert sliced(published, inner=None, outer=None).proven


@pytest.mark.parametrize(("class_name", "axis"), [("Concatenate", -1), ("Concatenate", 1), ("Add", 0), ("Maximum", 0)])
def test_outputs_joined_otherwise_are_no_wrapper(class_name: str, axis: int) -> None:
    assert sliced([{"i": 0, "parts": 2}, {"i": 1, "parts": 2}], class_name=class_name, axis=axis) is None


def test_an_average_alone_is_not_proven() -> None:
    assert not sliced([{"i": 0, "parts": 2}, {"i": 1, "parts": 2}], class_name="Average").proven
    assert sliced([{}, {}], class_name="Average") is None


@pytest.mark.parametrize(
    ("defaults", "closure", "proven"),
    [
        ([0, 2], None, True),
        (None, [1, 2], True),  # late-bound: the last index in each slice
        (None, [[1, 2]], True),
        (None, [2], False),
        ([0], None, False),
        (None, [5, 6], False),
        (None, None, False),
    ],
)
def test_numbers_beside_the_bytecode(defaults: Any, closure: Any, proven: bool) -> None:
    own = [defaults, [1, 2] if defaults else None]
    slices = [
        layer("Lambda", f"slice_{call}", node(("x", 0, 0)), function=["4wE=", own[call] if defaults else None, closure])
        for call in range(2)
    ]
    text = graph(*slices, body(), merge(("body", 1, 0), ("body", 2, 0)))
    found = find_shape(parse_config(text))
    assert found is not None and found.proven is proven


def test_models_of_another_structure_are_no_replicas() -> None:
    slices = [a_slice(call, arguments={"i": call, "parts": 2}) for call in range(2)]
    first, second = body("one", 1), body("two", 1, units=5)
    second["inbound_nodes"] = [node(("slice_1", 0, 0))]
    text = graph(*slices, first, second, merge(("one", 1, 0), ("two", 1, 0)))
    assert find_shape(parse_config(text)) is None


def test_models_of_one_structure_are_replicas() -> None:
    slices = [a_slice(call, arguments={"i": call, "parts": 2}) for call in range(2)]
    first, second = body("one", 1), body("two", 1)
    second["inbound_nodes"] = [node(("slice_1", 0, 0))]
    found = find_shape(parse_config(graph(*slices, first, second, merge(("one", 1, 0), ("two", 1, 0)))))
    assert found is not None and found.proven and found.bodies == ("one", "two")


def test_one_tensor_given_to_every_call_is_no_slice() -> None:
    text = graph(a_slice(0, arguments={"i": 0, "parts": 2}), body(calls=1), merge(("body", 1, 0), ("body", 2, 0)))
    document = json.loads(text)
    document["config"]["layers"][2]["inbound_nodes"] = [node(("slice_0", 0, 0)), node(("slice_0", 0, 0))]
    assert find_shape(parse_config(json.dumps(document))) is None


def op(name: str, function: str, raw: list[Any]) -> dict[str, Any]:
    return {"class_name": "TFOpLambda", "name": name, "config": {"name": name, "function": function},
            "inbound_nodes": [raw]}  # fmt: skip


def by_ops(*bounds: tuple[Any, Any], step: Any = None, divisor: int = 2) -> Any:
    """`size = shape(x)[0] // divisor; x[a * size:b * size]` for each pair, as tf.keras 2.4 writes it."""
    layers = [
        op("shape", "compat.v1.shape", ["x", 0, 0, {"name": None}]),
        op("rows", "__operators__.getitem", ["shape", 0, 0, {"slice_spec": 0}]),
        op("size", "compat.v1.floor_div", ["rows", 0, 0, {"y": divisor, "name": None}]),
    ]
    for call, (start, stop) in enumerate(bounds):
        layers += [
            op(f"start_{call}", "math.multiply", ["_CONSTANT_VALUE", -1, start, {"y": ["size", 0, 0]}]),
            op(f"stop_{call}", "math.multiply", ["_CONSTANT_VALUE", -1, stop, {"y": ["size", 0, 0]}]),
        ]
        spec = {"start": [f"start_{call}", 0, 0], "stop": [f"stop_{call}", 0, 0], "step": step}
        layers.append(op(f"slice_{call}", "__operators__.getitem", ["x", 0, 0, {"slice_spec": spec}]))
    count = len(bounds)
    text = graph(*layers, body(calls=count), merge(*[("body", call + 1, 0) for call in range(count)]))
    return find_shape(parse_config(text))


def test_bounds_of_op_layers_are_computed() -> None:
    assert by_ops((0, 1), (1, 2)).proven
    assert by_ops((0, 1), (1, 2), (2, 3), divisor=3).proven
    assert by_ops((0, 1), (1, 3)).proven  # beyond the end is the end


@pytest.mark.parametrize("bounds", [((0, 1), (0, 1)), ((1, 2), (0, 1)), ((0, 2), (1, 2))])
def test_other_bounds_are_no_parts_of_the_batch(bounds: tuple[tuple[int, int], ...]) -> None:
    assert by_ops(*bounds) is None


def test_a_divisor_that_is_not_the_number_of_calls_is_no_wrapper() -> None:
    assert by_ops((0, 1), (1, 2), divisor=3) is None


def test_an_operation_that_is_not_known_proves_nothing() -> None:
    found = by_ops((0, 1), (1, 2), step=2)
    assert found is not None and not found.proven


@pytest.mark.parametrize("parts", [0, -1, 10**9, 2.5, "2", None, [1, 1], True])
def test_odd_numbers_of_parts_do_no_harm(parts: Any) -> None:
    layers = [op(f"slice_{call}", "split", ["x", 0, call, {"num_or_size_splits": parts}]) for call in range(2)]
    for call, each in enumerate(layers):
        each["inbound_nodes"] = [["x", 0, 0, {"num_or_size_splits": parts}]]
        each["name"] = each["config"]["name"] = f"slice_{call}"
    text = graph(*layers, body(), merge(("body", 1, 0), ("body", 2, 0)))
    document = json.loads(text)
    document["config"]["layers"][3]["inbound_nodes"] = [node(("slice_0", 0, 0)), node(("slice_1", 0, 1))]
    found = find_shape(parse_config(json.dumps(document)))
    assert found is None or not found.proven
