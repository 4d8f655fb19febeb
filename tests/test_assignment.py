"""Which stored tensor is which: the traps of flattened nested models, on descriptions written by hand.

The stored lists are those that eleven models in sixteen versions of Keras gave; equal shapes everywhere, so that a
wrong answer would not show by itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckpttool.assignment import assign, freezing_marks_layers
from ckpttool.checkpoint import Layer
from ckpttool.errors import AmbiguousWeightsError, CheckpointError, WeightsMismatchError

from .written import (
    MOVING,
    assigned,
    bn,
    dense,
    embedding,
    entry,
    group,
    kernel_and_bias,
    model,
    names,
    parsed,
    stored,
    vectors,
)

OLD, NEW = "2.2.4", "2.2.4-tf"  # Keras 2.2.4; TF 1.14 and 1.15, which mark the layers of a frozen model

GAMMA_BETA = ("gamma", "beta")
BNA, DA, BNB = vectors("bna", *GAMMA_BETA), kernel_and_bias("da"), vectors("bnb", *GAMMA_BETA)
BNA_MOVING, BNB_MOVING = vectors("bna", *MOVING), vectors("bnb", *MOVING)


def inner(*, bna: bool = True, da: bool = True, bnb: bool = True, **config: Any) -> dict[str, Any]:
    layers = bn("bna", trainable=bna), dense("da", trainable=da), bn("bnb", trainable=bnb)
    return model("inner", *layers, **config)


ALL_TRAINABLE = (*BNA, *DA, *BNB, *BNA_MOVING, *BNB_MOVING)

# case -> (inner model, stored list, versions)
FROZEN = {
    "all trainable": (inner(), ALL_TRAINABLE, (OLD, NEW, "2.4.0", "2.15.0", "3.15.1", None)),
    "the dense frozen": (
        inner(da=False), (*BNA, *BNB, *BNA_MOVING, *DA, *BNB_MOVING), (OLD, NEW, "2.4.0", "3.15.1", None),
    ),
    "a normalization frozen": (
        inner(bna=False), (*DA, *BNB, *BNA, *BNA_MOVING, *BNB_MOVING), (OLD, NEW, "2.4.0", "3.15.1", None),
    ),
    "the model frozen, which left no trace": (inner(), ALL_TRAINABLE, (OLD, "2.1.6-tf", None)),
    "the model frozen, which marked its layers": (
        inner(bna=False, da=False, bnb=False), (*BNA, *BNA_MOVING, *DA, *BNB, *BNB_MOVING), (NEW, "2.4.0", "3.15.1"),
    ),
    "the model frozen, and said so itself": (
        inner(bna=False, da=False, bnb=False, trainable=False), (*BNA, *BNA_MOVING, *DA, *BNB, *BNB_MOVING),
        ("2.15.0", "3.15.1"),
    ),
    "one layer unfrozen again": (
        inner(bna=False, da=True, bnb=False), (*DA, *BNA, *BNA_MOVING, *BNB, *BNB_MOVING), (NEW, "2.4.0"),
    ),
}  # fmt: skip
FROZEN_CASES = [(case, version) for case, (_, _, versions) in FROZEN.items() for version in versions]


@pytest.mark.parametrize(("case", "version"), FROZEN_CASES)
def test_a_nested_model_is_put_back_however_it_was_frozen(case: str, version: str | None) -> None:
    config, tensors, _ = FROZEN[case]
    found = assigned(stored(group("inner", *tensors), keras=version), parsed(config))
    assert found == [f"inner/{name.removesuffix(':0')}" for name, _ in tensors]


@pytest.mark.parametrize(("case", "version"), FROZEN_CASES)
def test_without_usable_names_the_order_decides_where_it_is_the_only_one(case: str, version: str | None) -> None:
    """Keras 1 on Theano and layers renamed after creation leave `param_0`; shapes here fit every other order too."""
    config, tensors, _ = FROZEN[case]
    blind = [(f"param_{place}", shape) for place, (_, shape) in enumerate(tensors)]
    try:
        found = assigned(stored(group("inner", *blind), keras=version), parsed(config))
    except AmbiguousWeightsError:
        return  # several orders fit by shape: refused, never guessed
    assert found == [f"inner/{name.removesuffix(':0')}" for name, _ in tensors]


def test_two_levels_are_put_back() -> None:
    config = model("mid", bn("bnm"), inner(), dense("dm"))
    tensors = (
        *vectors("bnm", *GAMMA_BETA), *BNA, *DA, *BNB, *kernel_and_bias("dm"),
        *vectors("bnm", *MOVING), *BNA_MOVING, *BNB_MOVING,
    )  # fmt: skip
    found = assigned(stored(group("mid", *tensors)), parsed(config))
    outer = ("bnm", "dm")
    assert found == [
        f"mid/{name.removesuffix(':0')}" if name.split("/")[0] in outer else f"mid/inner/{name.removesuffix(':0')}"
        for name, _ in tensors
    ]


def two(first: str = "one", second: str = "two", **flags: Any) -> dict[str, Any]:
    """A model of two layers that nothing but their names tells apart."""
    return model(
        "inner", dense(first, trainable=flags.get(first, True)), dense(second, trainable=flags.get(second, True))
    )


class TestNamesAgainstOrder:
    def test_names_and_order_agree(self) -> None:
        tensors = (*kernel_and_bias("one"), *kernel_and_bias("two"))
        assert assigned(stored(group("inner", *tensors)), parsed(two())) == [*names("inner/one"), *names("inner/two")]

    def test_swapped_names_are_refused(self) -> None:
        """Two layers renamed to each other's names, or stored under a configuration of other flags: nothing decides."""
        tensors = (*kernel_and_bias("two"), *kernel_and_bias("one"))
        with pytest.raises(AmbiguousWeightsError, match="say different things"):
            assign(stored(group("inner", *tensors)), parsed(two()))

    def test_swapped_names_are_right_where_the_first_is_frozen(self) -> None:
        tensors = (*kernel_and_bias("two"), *kernel_and_bias("one"))
        found = assigned(stored(group("inner", *tensors)), parsed(two(one=False)))
        assert found == [*names("inner/two"), *names("inner/one")]

    def test_a_cycle_of_three_names_is_refused(self) -> None:
        config = model("inner", dense("one"), dense("two"), dense("three"))
        tensors = (*kernel_and_bias("two"), *kernel_and_bias("three"), *kernel_and_bias("one"))
        with pytest.raises(AmbiguousWeightsError):
            assign(stored(group("inner", *tensors)), parsed(config))

    def test_a_kernel_under_another_layer_s_name_is_refused(self) -> None:
        tensors = (("two/kernel:0", (4, 4)), ("one/bias:0", (4,)), ("one/kernel:0", (4, 4)), ("two/bias:0", (4,)))
        with pytest.raises(CheckpointError):
            assign(stored(group("inner", *tensors)), parsed(two()))

    def test_a_swap_that_shapes_rule_out_follows_neither_blindly(self) -> None:
        config = model("inner", dense("one", 4), dense("two", 5))
        tensors = (*kernel_and_bias("two", 3, 4), *kernel_and_bias("one", 4, 5))
        with pytest.raises(AmbiguousWeightsError, match="names such as"):
            assign(stored(group("inner", *tensors)), parsed(config))

    def test_one_layer_renamed_after_it_was_made_goes_by_order_and_is_reported(self) -> None:
        tensors = (*kernel_and_bias("dense_3"), *kernel_and_bias("two"))
        checkpoint = stored(group("inner", *tensors))
        assert assigned(checkpoint, parsed(two())) == [*names("inner/one"), *names("inner/two")]
        notices = assign(checkpoint, parsed(two())).warnings
        assert [(notice.code, notice.path) for notice in notices] == [("names-inferred", "inner")]
        assert "2 of 4 stored names, such as 'dense_3/kernel'" in notices[0].message

    def test_names_that_fit_are_not_reported(self) -> None:
        tensors = (*kernel_and_bias("one_1"), *kernel_and_bias("two"))
        assert assign(stored(group("inner", *tensors)), parsed(two())).warnings == ()

    def test_order_by_names_alone_where_no_flag_explains_it(self) -> None:
        """The flags in the configuration are not those of the file, and shapes fit one reading only."""
        config = model("inner", dense("one", 4), dense("two", 5))
        tensors = (*kernel_and_bias("two", 4, 5), *kernel_and_bias("one", 3, 4))
        found = assigned(stored(group("inner", *tensors)), parsed(config))
        assert found == [*names("inner/two"), *names("inner/one")]

    @pytest.mark.parametrize("swapped", [False, True])
    def test_bidirectional_halves_are_never_exchanged(self, swapped: bool) -> None:
        lstm = {"class_name": "LSTM", "config": {"name": "lstm", "units": 2}}
        config = model("inner", entry("Bidirectional", "bi", layer=lstm, trainable=True))
        variables = [("kernel:0", (3, 8)), ("recurrent_kernel:0", (2, 8)), ("bias:0", (8,))]
        halves = ["backward_lstm", "forward_lstm"] if swapped else ["forward_lstm", "backward_lstm"]
        tensors = [(f"bi/{half}/{name}", shape) for half in halves for name, shape in variables]
        try:
            found = assigned(stored(group("inner", *tensors)), parsed(config))
        except AmbiguousWeightsError:
            assert swapped
        else:
            assert found == [f"inner/bi/{half}/{name[:-2]}" for half in halves for name, _ in variables]


class TestSuffixes:
    """TensorFlow makes scopes unique: a second model in one process, or `cpu_relocation`."""

    @pytest.mark.parametrize(
        ("layers", "scopes"),
        [
            (("emb", "emb_2"), ("emb_1", "emb_2_1")),
            (("conv", "conv_1"), ("conv_1", "conv_1_1")),  # the first scope is the second layer's name
            (("conv", "conv_1"), ("conv_2", "conv_1_1")),
            (("conv_1", "conv_2"), ("conv_3", "conv_4")),
            (("conv_1", "conv_2"), ("conv_2", "conv_3")),
            (("IMAGE", "image"), ("IMAGE", "image_1")),  # unique ignoring case
            (("image", "IMAGE"), ("image", "IMAGE_1")),
        ],
    )
    def test_scopes_with_a_suffix_follow_the_order(self, layers: tuple[str, str], scopes: tuple[str, str]) -> None:
        tensors = (*kernel_and_bias(scopes[0]), *kernel_and_bias(scopes[1]))
        found = assigned(stored(group("inner", *tensors)), parsed(two(*layers)))
        assert found == [*names(f"inner/{layers[0]}"), *names(f"inner/{layers[1]}")]

    @pytest.mark.parametrize("scopes", [("dense_2", "dense_1", "dense_9"), ("dense_5", "dense_4", "dense_6")])
    def test_numbers_that_do_not_rise_with_those_of_the_layers(self, scopes: tuple[str, ...]) -> None:
        config = parsed(model("inner", dense("dense_1"), dense("dense_2"), dense("dense_3")))
        tensors = [pair for scope in scopes for pair in kernel_and_bias(scope)]
        with pytest.raises(AmbiguousWeightsError):
            assign(stored(group("inner", *tensors)), config)

    def test_only_one_suffix_is_stripped(self) -> None:
        config = parsed(model("inner", dense("conv1d_1"), dense("conv1d_2"), dense("conv1d_1_1")))
        tensors = [pair for name in ("conv1d_1", "conv1d_2", "conv1d_1_1") for pair in kernel_and_bias(name)]
        found = assigned(stored(group("inner", *tensors)), config)
        assert found == [f"inner/{name[:-2]}" for name, _ in tensors]

    def test_a_name_that_keras_wrote_as_the_text_of_bytes(self) -> None:
        """Keras 2.3.1, where a layer is shared: `b'image_embedding/kernel:0'_2`."""
        config = parsed(model("outer", model("tower", dense("image_embedding")), dense("image_embedding")))
        tensors = (
            *kernel_and_bias("image_embedding"),
            ("b'image_embedding/kernel:0'_2", (4, 4)),
            ("b'image_embedding/bias:0'_2", (4,)),
        )
        found = assigned(stored(group("outer", *tensors), keras="2.3.1"), config)
        assert found == [*names("outer/tower/image_embedding"), *names("outer/image_embedding")]

    @pytest.mark.parametrize("scope", ["lstm", "lstm/lstm_cell", "lstm/lstm_cell_3", "lstm_1/lstm_cell", "lstm_2"])
    def test_the_cell_s_scope_is_no_part_of_the_path(self, scope: str) -> None:
        lstm = entry("LSTM", "lstm", units=2, trainable=True)
        shapes = {"kernel": (3, 8), "recurrent_kernel": (2, 8), "bias": (8,)}
        tensors = [(f"{scope}/{name}:0", shape) for name, shape in shapes.items()]
        assert assigned(stored(group("inner", *tensors)), parsed(model("inner", lstm))) == [
            f"inner/lstm/{name}" for name in shapes
        ]


class TestShapes:
    @pytest.mark.parametrize(
        ("layer", "tensors"),
        [
            (dense("x", 5), kernel_and_bias("x", 4, 4)),
            (dense("x", 4), (("x/kernel:0", (4, 4)),)),
            (dense("x", 4, use_bias=False), kernel_and_bias("x", 4, 4)),
            (dense("x", 4), (("x/kernel:0", (3, 4, 4)), ("x/bias:0", (4,)))),
            (dense("x", 4), (("x/bias:0", (4, 4)), ("x/kernel:0", (4,)))),
            (embedding("x", 7, 4), (("x/embeddings:0", (4, 7)),)),
            (bn("x"), (*vectors("x", "gamma", "beta", "moving_mean"), ("x/moving_variance:0", (5,)))),
            (entry("LSTM", "x", units=2),
             (("x/kernel:0", (3, 6)), ("x/recurrent_kernel:0", (2, 6)), ("x/bias:0", (6,)))),
            (entry("GRU", "x", units=2, reset_after=True),
             (("x/kernel:0", (3, 6)), ("x/recurrent_kernel:0", (2, 6)), ("x/bias:0", (6,)))),
            (entry("Conv2D", "x", filters=3, kernel_size=[3, 3]), (("x/kernel:0", (3, 3, 3, 2)), ("x/bias:0", (3,)))),
            (entry("Flatten", "x"), kernel_and_bias("x")),
        ],
    )  # fmt: skip
    def test_weights_that_the_layer_cannot_have(self, layer: dict[str, Any], tensors: Any) -> None:
        for checkpoint, config in (
            (stored(group("x", *tensors)), parsed(layer)),
            (stored(group("inner", *tensors)), parsed(model("inner", layer))),
        ):
            with pytest.raises(WeightsMismatchError):
                assign(checkpoint, config)

    @pytest.mark.parametrize("order", [("beta", "gamma", *MOVING), ("gamma", "beta", *MOVING[::-1])])
    def test_variables_in_another_order_are_not_taken_by_position(self, order: tuple[str, ...]) -> None:
        """In its own group Keras reads by position, which the names contradict; in a flat list names may decide."""
        with pytest.raises(WeightsMismatchError):
            assign(stored(group("x", *vectors("x", *order))), parsed(bn("x")))
        found = assigned(stored(group("inner", *vectors("x", *order))), parsed(model("inner", bn("x"))))
        assert found == names("inner/x", *order)

    def test_halves_of_a_bidirectional_in_another_order(self) -> None:
        lstm = {"class_name": "SimpleRNN", "config": {"name": "rnn", "units": 2}}
        variables = [("kernel:0", (3, 2)), ("recurrent_kernel:0", (2, 2)), ("bias:0", (2,))]
        tensors = [(f"bi/{half}_rnn/{name}", shape) for half in ("backward", "forward") for name, shape in variables]
        with pytest.raises(WeightsMismatchError):
            assign(stored(group("bi", *tensors)), parsed(entry("Bidirectional", "bi", layer=lstm)))

    def test_the_message_shows_both_sides(self) -> None:
        with pytest.raises(WeightsMismatchError) as caught:
            assign(stored(group("x", *kernel_and_bias("x", 4, 4))), parsed(dense("x", 5)), path="w.h5")
        assert str(caught.value) == (
            "w.h5: x (Dense): its configuration asks for kernel (?, 5), bias (5); "
            "stored: x/kernel:0 (4, 4), x/bias:0 (4)"
        )

    def test_a_layer_that_is_not_stored(self) -> None:
        with pytest.raises(WeightsMismatchError, match="'y' that is not stored"):
            assign(stored(group("x", *kernel_and_bias("x"))), parsed(dense("x"), dense("y")))

    def test_a_layer_with_weights_that_is_not_in_the_configuration(self) -> None:
        checkpoint = stored(group("x", *kernel_and_bias("x")), group("y", *kernel_and_bias("y")))
        with pytest.raises(WeightsMismatchError, match="'y' holds weights"):
            assign(checkpoint, parsed(dense("x")))

    def test_a_weightless_layer_that_is_not_in_the_configuration_is_reported(self) -> None:
        checkpoint = stored(group("x", *kernel_and_bias("x")), group("y"))
        assert [notice.code for notice in assign(checkpoint, parsed(dense("x"))).warnings] == ["unmatched-layer"]


class TestGivenConfiguration:
    """`--config`: the configuration of the whole, of the template, or of the same model under other names."""

    def test_the_template_of_a_wrapped_file(self) -> None:
        groups = [Layer("input_1"), Layer("lambda_1"), Layer("lambda_2"),
                  group("sequential_1", *kernel_and_bias("one"), *kernel_and_bias("two")), Layer("two")]  # fmt: skip
        named = assign(
            stored(*groups), parsed(dense("one"), dense("three", 4)) if False else parsed(dense("one"), dense("twice"))
        )
        assert named.config_of == ("sequential_1",)
        assert [spec.name for spec in named.weights()] == [
            *names("sequential_1/one"), *names("sequential_1/twice"),
        ]  # fmt: skip
        assert [notice.code for notice in named.warnings] == ["names-inferred"]

    def test_one_layer_under_another_name_is_no_wrapper(self) -> None:
        """A plain file of one layer and the configuration of the same model made in another process."""
        checkpoint = stored(Layer("input_1"), group("dense_5", *kernel_and_bias("dense_5")))
        named = assign(checkpoint, parsed(entry("InputLayer", "input_1"), dense("dense_1")))
        assert named.config_of == ()
        assert [spec.name for spec in named.weights()] == names("dense_1")
        assert [notice.code for notice in named.warnings] == ["names-inferred"]

    def test_other_names_go_by_position_and_are_reported(self) -> None:
        checkpoint = stored(
            group("dense_7", *kernel_and_bias("dense_7", 3, 4)), group("dense_8", *kernel_and_bias("dense_8"))
        )
        named = assign(checkpoint, parsed(dense("dense_1"), dense("dense_2")))
        assert [spec.name for spec in named.weights()] == [*names("dense_1"), *names("dense_2")]
        assert [notice.code for notice in named.warnings] == ["names-inferred"]

    def test_other_names_and_another_number_of_layers(self) -> None:
        checkpoint = stored(
            group("dense_7", *kernel_and_bias("dense_7")), group("dense_8", *kernel_and_bias("dense_8"))
        )
        with pytest.raises(WeightsMismatchError, match="1 layers with weights, the file 2"):
            assign(checkpoint, parsed(dense("dense_1")))

    def test_some_of_the_names(self) -> None:
        checkpoint = stored(group("one", *kernel_and_bias("one")), group("dense_8", *kernel_and_bias("dense_8")))
        with pytest.raises(WeightsMismatchError):
            assign(checkpoint, parsed(dense("one"), dense("two")))

    def test_other_flags_never_exchange_layers(self) -> None:
        tensors = (*kernel_and_bias("one"), *kernel_and_bias("two"))
        with pytest.raises(AmbiguousWeightsError):
            assign(stored(group("inner", *tensors)), parsed(two(one=False)))

    def test_other_flags_where_shapes_tell(self) -> None:
        config = model("inner", dense("one", 4, trainable=False), dense("two", 5))
        tensors = (*kernel_and_bias("one", 3, 4), *kernel_and_bias("two", 4, 5))
        found = assigned(stored(group("inner", *tensors)), parsed(config))
        assert found == [*names("inner/one"), *names("inner/two")]


class TestWithoutConfiguration:
    def test_scopes_of_other_layers_become_layers(self) -> None:
        tensors = (*BNA, *DA, *BNA_MOVING)
        named = assign(stored(group("inner", *tensors)), None)
        assert [layer.name for layer in named.layers[0].layers] == ["bna", "da"]
        assert [spec.name for spec in named.layers[0].layers[0].tensors] == names("inner/bna", *GAMMA_BETA, *MOVING)

    def test_equal_names_are_numbered_and_none_is_lost(self) -> None:
        tensors = (("x/w:0", (1,)), ("x/w", (1,)))
        assert assigned(stored(group("x", *tensors)), None) == ["x/w", "x/w_1"]

    def test_a_suffix_of_the_group_s_own_name_is_no_layer(self) -> None:
        assert assigned(stored(group("emb", ("emb_1/embeddings:0", (7, 4)))), None) == ["emb/embeddings"]

    def test_a_layer_called_like_its_model_but_for_the_number(self) -> None:
        tensors = (("head/kernel:0", (4, 4)), ("emb_3/kernel:0", (4, 4)))
        assert assigned(stored(group("emb_1", *tensors)), None) == ["emb_1/head/kernel", "emb_1/emb_3/kernel"]


@pytest.mark.parametrize(
    ("version", "marks"),
    [("2.2.4", False), ("2.3.1", False), ("2.1.6-tf", False), ("2.2.4-tf", True), ("2.3.0-tf", True), ("2.4.0", True),
     ("2.15.0", True), ("3.15.1", True), (None, False), ("", False), ("x.y", False)],
)  # fmt: skip
def test_which_writers_mark_the_layers_of_a_frozen_model(version: str | None, marks: bool) -> None:
    assert freezing_marks_layers(stored(keras=version)) is marks
