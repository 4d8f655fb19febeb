"""Each rule on a layer written by hand, without keras: what is kept, renamed, dropped, and what stops."""

from __future__ import annotations

from typing import Any

import pytest
from planned import plan_layer, plan_of

from ckpttool.migration.plan import KerasObject, LayerPlan, LayerSpec
from ckpttool.migration.planning import NotMigratedError, Replacements
from ckpttool.migration.rules import RULES

SCALE = "scale(factor=1.2)"
ZEROS_1_15 = {"class_name": "Zeros", "config": {"dtype": "float32"}}


def described(layer: LayerPlan) -> dict[str, str]:
    return {weight.variable: weight.describe() for weight in layer.weights}


def test_dense_keeps_its_arguments_and_its_weights() -> None:
    layer = plan_layer(
        "Dense",
        {"units": 3, "activation": "relu", "use_bias": True, "trainable": False, "dtype": "float32",
         "kernel_initializer": {"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg",
                                                                            "distribution": "uniform", "seed": None}},
         "bias_initializer": ZEROS_1_15, "kernel_regularizer": {"class_name": "L1L2", "config": {"l1": 0.0, "l2": 0.1}},
         "kernel_constraint": {"class_name": "MaxNorm", "config": {"max_value": 2, "axis": 0}}},
        {"kernel": (4, 3), "bias": (3,)},
    )  # fmt: skip
    assert layer.spec.class_name == "Dense"
    assert layer.spec.arguments["units"] == 3
    assert layer.spec.arguments["trainable"] is False
    assert layer.spec.arguments["bias_initializer"] == KerasObject("initializers", "Zeros", {})
    assert layer.spec.arguments["kernel_regularizer"] == KerasObject("regularizers", "L1L2", {"l1": 0.0, "l2": 0.1})
    assert layer.spec.arguments["kernel_constraint"].config == {"max_value": 2, "axis": 0}
    assert described(layer) == {"kernel": "as stored", "bias": "as stored"}


@pytest.mark.parametrize(
    ("class_name", "config", "shapes", "scaled"),
    [
        ("Dense", {"units": 3}, {"kernel": (4, 3), "bias": (3,)}, {"kernel", "bias"}),
        ("Dense", {"units": 3, "use_bias": False}, {"kernel": (4, 3)}, {"kernel"}),
        ("Conv2D", {"filters": 3, "kernel_size": [2, 2]}, {"kernel": (2, 2, 4, 3), "bias": (3,)}, {"kernel", "bias"}),
        ("Conv2DTranspose", {"filters": 3, "kernel_size": [2, 2]}, {"kernel": (2, 2, 3, 4), "bias": (3,)},
         {"kernel", "bias"}),
        ("DepthwiseConv2D", {"kernel_size": [2, 2]}, {"depthwise_kernel": (2, 2, 4, 1), "bias": (4,)},
         {"kernel", "bias"}),
        ("SeparableConv2D", {"filters": 3, "kernel_size": [2, 2]},
         {"depthwise_kernel": (2, 2, 4, 1), "pointwise_kernel": (1, 1, 4, 3), "bias": (3,)},
         {"pointwise_kernel", "bias"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_hard_sigmoid_over_a_sum_scales_what_makes_the_sum(
    class_name: str, config: dict[str, Any], shapes: dict[str, Any], scaled: set[str]
) -> None:
    layer = plan_layer(class_name, {**config, "activation": "hard_sigmoid"}, shapes)
    assert {name for name, how in described(layer).items() if how == SCALE} == scaled
    assert layer.spec.arguments["activation"] == "hard_sigmoid"


def test_hard_sigmoid_of_keras_3_is_left_alone() -> None:
    layer = plan_layer("Dense", {"units": 3, "activation": "hard_sigmoid",
                                 "dtype": {"class_name": "DTypePolicy", "config": {"name": "float32"}}},
                       {"kernel": (4, 3), "bias": (3,)}, keras="3.5.0")  # fmt: skip
    assert set(described(layer).values()) == {"as stored"}


def test_a_hard_sigmoid_layer_gets_a_rescaling_in_front() -> None:
    layer = plan_layer("Activation", {"activation": "hard_sigmoid"})
    assert [spec.class_name for spec in layer.before] == ["Rescaling"]
    assert layer.before[0].arguments["scale"] == 1.2
    assert plan_layer("Activation", {"activation": "sigmoid"}).before == ()


@pytest.mark.parametrize(
    ("class_name", "config", "gates", "of"),
    [
        ("LSTM", {}, "(0, 1, 3)", 4),
        ("LSTM", {"recurrent_activation": "sigmoid"}, None, 4),
        ("GRU", {}, "(0, 1)", 3),
        ("GRU", {"activation": "hard_sigmoid"}, "(0, 1, 2)", 3),
        ("GRU", {"activation": "hard_sigmoid", "recurrent_activation": "sigmoid"}, "(2,)", 3),
        ("SimpleRNN", {"activation": "hard_sigmoid"}, "(0,)", 1),
        ("SimpleRNN", {}, None, 1),
    ],
)
def test_only_the_gates_of_a_hard_sigmoid_are_scaled(
    class_name: str, config: dict[str, Any], gates: str | None, of: int
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"kernel": (4, of * 2), "recurrent_kernel": (2, of * 2), "bias": (of * 2,)}
    layer = plan_layer(class_name, {"units": 2, **config}, shapes, input_shape=(None, 5, 4))
    expected = "as stored" if gates is None else f"scale_gates(factor=1.2, gates={gates}, of={of})"
    assert set(described(layer).values()) == {expected}


def test_an_lstm_that_applies_hard_sigmoid_to_its_state_gets_it_as_a_layer() -> None:
    shapes = {"kernel": (4, 8), "recurrent_kernel": (2, 8), "bias": (8,)}
    layer = plan_layer("LSTM", {"units": 2, "activation": "hard_sigmoid"}, shapes, input_shape=(None, 5, 4))
    activation = layer.spec.arguments["activation"]
    assert activation.class_name == "Pipeline"
    assert [spec.class_name for spec in activation.arguments["layers"]] == ["Rescaling", "Activation"]
    assert "2" not in described(layer)["kernel"].partition("gates=")[2].partition(")")[0]  # not the candidate's


@pytest.mark.parametrize(
    ("config", "expected"), [({}, False), ({"reset_after": True}, True), ({"reset_after": None}, False)]
)
def test_a_gru_that_does_not_say_reset_after_means_false(config: dict[str, Any], expected: bool) -> None:
    layer = plan_layer("GRU", {"units": 2, **config}, input_shape=(None, 5, 4))
    assert layer.spec.arguments["reset_after"] is expected


def test_time_major_and_implementation() -> None:
    layer = plan_layer("LSTM", {"units": 2, "time_major": False, "implementation": 2}, input_shape=(None, 5, 4))
    assert not {"time_major", "implementation"} & set(layer.spec.arguments)
    with pytest.raises(NotMigratedError, match="time_major=True has no counterpart"):
        plan_of("LSTM", {"units": 2, "time_major": True}, input_shape=(None, 5, 4))


def test_cudnn_layers_become_plain_ones() -> None:
    shapes = {"kernel": (4, 6), "recurrent_kernel": (2, 6), "bias": (12,)}
    layer = plan_layer("CuDNNGRU", {"units": 2, "return_sequences": True}, shapes, input_shape=(None, 5, 4))
    assert layer.spec.class_name == "GRU"
    assert layer.spec.arguments["reset_after"] is True
    assert layer.spec.arguments["recurrent_activation"] == "sigmoid"
    assert described(layer)["bias"] == "cudnn_bias(gates=3)"


def test_both_directions_are_transformed_under_their_names() -> None:
    entry = {"class_name": "LSTM", "config": {"name": "lstm_7", "units": 2}}
    shapes: dict[str, tuple[int, ...]] = {
        f"{way}_lstm_7/{variable}": shape
        for way in ("forward", "backward")
        for variable, shape in {"kernel": (4, 8), "recurrent_kernel": (2, 8), "bias": (8,)}.items()
    }
    layer = plan_layer("Bidirectional", {"layer": entry, "merge_mode": "sum"}, shapes, input_shape=(None, 5, 4))
    assert len(layer.weights) == 6
    assert all(weight.transformations for weight in layer.weights)
    assert layer.spec.arguments["layer"].arguments["name"] == "lstm_7"


def test_a_bidirectional_that_begins_backwards_keeps_both_ways() -> None:
    entry = {"class_name": "LSTM", "config": {"name": "lstm", "units": 2, "go_backwards": True}}
    layer = plan_layer("Bidirectional", {"layer": entry}, input_shape=(None, 5, 4))
    assert layer.spec.arguments["backward_layer"].arguments["go_backwards"] is False


@pytest.mark.parametrize(
    ("class_name", "config", "becomes", "expected"),
    [
        ("LeakyReLU", {"alpha": 0.2}, "LeakyReLU", {"negative_slope": 0.2}),
        ("LeakyReLU", {}, "LeakyReLU", {"negative_slope": 0.3}),
        ("ThresholdedReLU", {"theta": 0.5}, "ReLU", {"threshold": 0.5}),
        ("ReLU", {"max_value": 6.0, "negative_slope": 0.1, "threshold": 0.2}, "ReLU",
         {"max_value": 6.0, "negative_slope": 0.1, "threshold": 0.2}),
        ("Activation", {"activation": "swish"}, "Activation", {"activation": "silu"}),
        ("Flatten", {}, "Flatten", {"data_format": "channels_last"}),
        ("Embedding", {"input_dim": 9, "output_dim": 2, "input_length": 4, "mask_zero": True}, "Embedding",
         {"input_dim": 9, "output_dim": 2, "mask_zero": True}),
        ("BatchNormalization", {"axis": [1], "fused": True, "renorm": False}, "BatchNormalization", {"axis": 1}),
        ("LayerNormalization", {"axis": [1], "epsilon": 0.1}, "LayerNormalization", {"axis": 1, "epsilon": 0.1}),
        ("SpatialDropout1D", {"rate": 0.2, "trainable": True, "noise_shape": None, "seed": None}, "SpatialDropout1D",
         {"rate": 0.2, "seed": None}),
        ("Conv2DTranspose", {"filters": 2, "kernel_size": [2, 2], "groups": 1}, "Conv2DTranspose",
         {"filters": 2, "kernel_size": [2, 2]}),
        ("SeparableConv2D", {"filters": 2, "kernel_size": [2, 2], "groups": 1, "kernel_regularizer": None},
         "SeparableConv2D", {"filters": 2, "kernel_size": [2, 2]}),
    ],
)  # fmt: skip
def test_arguments_are_renamed_or_dropped(
    class_name: str, config: dict[str, Any], becomes: str, expected: dict[str, Any]
) -> None:
    layer = plan_layer(class_name, config, keras="2.4.0")
    assert layer.spec.class_name == becomes
    found = {key: value for key, value in layer.spec.arguments.items() if key not in ("dtype", "activation")}
    assert found == {key: value for key, value in expected.items() if key != "activation"}
    assert layer.spec.arguments.get("activation", "linear") == expected.get("activation", "linear")


def test_causal_attention_becomes_a_call_argument() -> None:
    layer = plan_layer("Attention", {"causal": True, "use_scale": False}, input_shape=(None, 5, 4),
                       inbound=[[["x", 0, 0, {}], ["x", 0, 0, {}]]], keras="2.4.0")  # fmt: skip
    assert layer.calls[0].keywords == {"use_causal_mask": True}


@pytest.mark.parametrize(
    ("class_name", "config", "reason"),
    [
        ("BatchNormalization", {"renorm": True}, "renorm=True"),
        ("BatchNormalization", {"virtual_batch_size": 4}, "virtual_batch_size=4"),
        ("BatchNormalization", {"axis": [1, 2]}, "several axes"),
        ("Conv2DTranspose", {"filters": 2, "kernel_size": [2, 2], "groups": 2}, "groups=2"),
        ("LocallyConnected1D", {"filters": 2}, "no counterpart"),
        ("Dense", {"units": 2, "activation": "my_own"}, "activation 'my_own' is not Keras's own"),
        ("Dense", {"units": 2, "kernel_regularizer": {"class_name": "Mine", "config": {}}}, "regularizer 'Mine'"),
        ("Dense", {"units": 2, "kernel_initializer": "my_init"}, "initializer 'my_init'"),
        ("Dense", {"units": 2, "surprise": 1}, "does not know surprise=1"),
        ("Dense", {"units": 2, "dtype": "posit16"}, "dtype policy 'posit16'"),
        ("Lambda", {"function": ["4wMAAA==", None, None]}, "Python bytecode, which is never run"),
        ("MyLayer", {}, "'MyLayer' is not one of Keras's own"),
        ("TFOpLambda", {"function": "io.write_file"}, "io.write_file"),
    ],
)
def test_what_has_no_exact_counterpart_stops_with_its_reason(
    class_name: str, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotMigratedError) as caught:
        plan_of(class_name, config)
    assert reason in str(caught.value)
    assert [need.layer for need in caught.value.needs] == ["layer"]
    assert caught.value.code == 1


def test_the_message_has_the_options_to_paste() -> None:
    with pytest.raises(NotMigratedError, match=r"--replace layer=MODULE:CALLABLE"):
        plan_of("Lambda", {})
    with pytest.raises(NotMigratedError, match=r"or --custom-objects FILE.py"):
        plan_of("MyLayer", {})


def test_a_named_replacement_is_planned_and_not_imported() -> None:
    plan = plan_of("Lambda", {}, replacements=Replacements({"layer": "no.such.module:make"}))
    assert plan.custom == ("layer",)
    assert plan.model.layers[1].spec.user is not None


def test_a_replacement_for_no_layer_is_refused() -> None:
    with pytest.raises(NotMigratedError, match="no layer is called so"):
        plan_of("Dense", {"units": 2}, replacements=Replacements({"other": "a:b"}))


def test_custom_names_serve_classes_and_activations() -> None:
    own = Replacements(custom=frozenset({"MyLayer", "my_own"}))
    assert plan_of("MyLayer", {}, replacements=own).custom == ("layer",)
    activation = plan_of("Dense", {"units": 2, "activation": "my_own"}, replacements=own).model.layers[1].spec
    assert isinstance(activation.arguments["activation"], LayerSpec)
    regular = {"class_name": "MyLayer", "config": {"strength": 2}}
    dense = plan_of("Dense", {"units": 2, "kernel_regularizer": regular}, replacements=own).model.layers[1].spec
    assert dense.arguments["kernel_regularizer"].user is not None


def test_kernels_of_theano_are_turned_around() -> None:
    shapes = {"kernel": (2, 2, 4, 3), "bias": (3,)}
    layer = plan_layer("Conv2D", {"filters": 3, "kernel_size": [2, 2], "activation": "hard_sigmoid"}, shapes,
                       backend="theano")  # fmt: skip
    assert described(layer) == {"kernel": f"flip_spatial, then {SCALE}", "bias": SCALE}
    with pytest.raises(NotMigratedError, match="Theano"):
        plan_of("DepthwiseConv2D", {"kernel_size": [2, 2]}, backend="theano")


def test_a_layer_without_a_dtype_takes_that_of_its_tensors() -> None:
    layer = plan_layer("Dense", {"units": 3}, {"kernel": (4, 3)}, dtype="float16")
    assert layer.spec.arguments["dtype"] == "float16"
    mixed = {"class_name": "Policy", "config": {"name": "mixed_float16"}}
    assert plan_layer("Dense", {"units": 3, "dtype": mixed}).spec.arguments["dtype"] == "mixed_float16"


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_names_its_source_and_what_it_does(name: str) -> None:
    rule = RULES[name]
    assert "(" in rule.source
    assert rule.does
    assert name in rule.classes


@pytest.mark.parametrize(("version", "stops"), [("2.2.4", True), ("2.3.1", True), ("2.2.4-tf", True), ("2.4.0", False)])
def test_bilinear_upsampling_of_old_writers_stops(version: str, stops: bool) -> None:
    config = {"size": [2, 2], "interpolation": "bilinear"}
    if stops:
        with pytest.raises(NotMigratedError, match="corners of pixels"):
            plan_of("UpSampling2D", config, keras=version)
    else:
        assert plan_layer("UpSampling2D", config, keras=version).spec.arguments["interpolation"] == "bilinear"
    assert plan_layer("UpSampling2D", {"size": [2, 2]}, keras=version).spec.class_name == "UpSampling2D"


def test_an_epsilon_that_tensorflow_raised_is_said() -> None:
    assert "took 1.001e-05 at least" in plan_layer("BatchNormalization", {"epsilon": 1e-7}).notes[0]
    assert plan_layer("BatchNormalization", {"epsilon": 1e-3}).notes == ()


def test_a_name_that_standalone_keras_did_not_have_is_somebodys_own() -> None:
    config = {"use_scale": True, "dropout": 0.0}
    with pytest.raises(NotMigratedError, match="somebody's own"):
        plan_of("Attention", config, keras="2.3.1")
    with pytest.raises(NotMigratedError, match="without use_scale it is not Keras's own Attention"):
        plan_of("Attention", {}, keras="2.4.0")
    own = Replacements(custom=frozenset({"Attention"}))
    assert plan_of("Attention", config, keras="2.3.1", replacements=own).custom == ("layer",)
