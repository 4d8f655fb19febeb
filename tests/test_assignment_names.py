"""Which stored tensor is which where names are equal, layers are shared, or classes are the user's own."""

from __future__ import annotations

from typing import Any

import pytest

from ckpttool.assignment import assign
from ckpttool.errors import AmbiguousWeightsError, WeightsMismatchError

from .test_assignment import GAMMA_BETA, NEW
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


def towers(**flags: Any) -> dict[str, Any]:
    """Two towers made by one function: equal names, equal shapes."""
    return model("outer", *(model(name, dense("fc1"), dense("fc2"), **flags.get(name, {})) for name in ("a", "b")))


def tower_names(*order: str) -> list[str]:
    return [path for tower in order for layer in ("fc1", "fc2") for path in names(f"outer/{tower}/{layer}")]


class TestTwoTowersOfEqualNames:
    FIRST = (*kernel_and_bias("fc1"), *kernel_and_bias("fc2"))
    SECOND = (*kernel_and_bias("fc1_1"), *kernel_and_bias("fc2_1"))

    def test_numbers_that_rise_along_the_model_are_followed_and_it_is_said(self) -> None:
        checkpoint = stored(group("outer", *self.FIRST, *self.SECOND))
        assert assigned(checkpoint, parsed(towers())) == tower_names("a", "b")
        assert [notice.code for notice in assign(checkpoint, parsed(towers())).warnings] == ["order-assumed"]

    def test_numbers_that_fall_may_be_a_frozen_tower_or_towers_made_in_reverse(self) -> None:
        with pytest.raises(AmbiguousWeightsError, match="2 ways"):
            assign(stored(group("outer", *self.SECOND, *self.FIRST)), parsed(towers()))

    def test_of_two_freezings_the_one_along_which_numbers_rise(self) -> None:
        """Keras 2.2.4: a layer behind the towers, of another shape, shows that one of the two is frozen."""
        config = model("outer", *towers()["config"]["layers"], dense("head", 3))
        head = kernel_and_bias("head", 8, 3)
        checkpoint = stored(group("outer", *self.SECOND, *head, *self.FIRST))
        assert assigned(checkpoint, parsed(config)) == [*tower_names("b"), *names("outer/head"), *tower_names("a")]
        notices = assign(checkpoint, parsed(config)).warnings
        assert [notice.code for notice in notices] == ["order-assumed"]
        assert "1 of them frozen" in notices[0].message
        checkpoint = stored(group("outer", *self.FIRST, *head, *self.SECOND))
        assert assigned(checkpoint, parsed(config)) == [*tower_names("a"), *names("outer/head"), *tower_names("b")]

    def test_equal_scopes_say_nothing(self) -> None:
        with pytest.raises(AmbiguousWeightsError, match="2 ways"):
            assign(stored(group("outer", *self.FIRST, *self.FIRST)), parsed(towers()))

    @pytest.mark.parametrize("version", [NEW, "2.4.0", "2.15.0"])
    def test_where_freezing_marks_layers_there_is_one_order(self, version: str) -> None:
        for tensors in ((*self.FIRST, *self.FIRST), (*self.FIRST, *self.SECOND), (*self.SECOND, *self.FIRST)):
            found = assigned(stored(group("outer", *tensors), keras=version), parsed(towers()))
            assert found == tower_names("a", "b")

    def test_a_frozen_tower_that_says_so(self) -> None:
        config = model(
            "outer",
            model("a", dense("fc1", trainable=False), dense("fc2", trainable=False)),
            model("b", dense("fc1"), dense("fc2")),
        )
        found = assigned(stored(group("outer", *self.FIRST, *self.SECOND), keras=NEW), parsed(config))
        assert found == tower_names("b", "a")

    def test_normalizations_tell_the_orders_apart(self) -> None:
        """With the first tower frozen its moving statistics follow its own gamma and beta, which shows."""
        config = parsed(model("outer", model("a", bn("bn")), model("b", bn("bn"))))
        frozen = (*vectors("bn_1", *GAMMA_BETA), *vectors("bn", *GAMMA_BETA, *MOVING), *vectors("bn_1", *MOVING))
        found = assigned(stored(group("outer", *frozen)), config)
        assert found[:2] == names("outer/b/bn", *GAMMA_BETA)
        assert found[2:6] == names("outer/a/bn", *GAMMA_BETA, *MOVING)

    def test_different_scopes_may_not_be_exchanged_by_a_guessed_freezing(self) -> None:
        config = parsed(model("outer", model("a", dense("x")), model("b", dense("dense_2"))))
        tensors = (*kernel_and_bias("dense_1"), *kernel_and_bias("dense_2"))  # dense_1 was renamed to x
        found = assigned(stored(group("outer", *tensors)), config)
        assert found == [*names("outer/a/x"), *names("outer/b/dense_2")]

    def test_a_frozen_tower_shows_by_unique_names(self) -> None:
        config = parsed(model("outer", model("a", dense("left")), model("b", dense("right"))))
        tensors = (*kernel_and_bias("right"), *kernel_and_bias("left"))
        assert assigned(stored(group("outer", *tensors)), config) == [*names("outer/b/right"), *names("outer/a/left")]

    def test_a_frozen_tower_that_left_no_trace_and_has_no_names(self) -> None:
        config = parsed(model("outer", model("a", dense("left")), model("b", dense("right"))))
        blind = [(f"param_{n}", shape) for n, shape in enumerate(((4, 4), (4,), (4, 4), (4,)))]
        with pytest.raises(AmbiguousWeightsError):
            assign(stored(group("outer", *blind)), config)


class TestSharedLayers:
    def config(self) -> Any:
        shared = embedding("items", 7, 4)
        return parsed(model("outer", model("left", shared, dense("l")), model("right", shared, dense("r"))))

    def test_a_shared_layer_stored_once_is_in_both_models(self) -> None:
        items = ("items/embeddings:0", (7, 4))
        tensors = (items, *kernel_and_bias("l"), *kernel_and_bias("r"))
        named = assign(stored(group("outer", *tensors), keras="2.4.0"), self.config())
        found = {spec.name: spec.locator for spec in named.weights()}
        assert found["outer/left/items/embeddings"] == found["outer/right/items/embeddings"] == "outer:0"
        assert len(found) == 6

    def test_a_shared_layer_stored_twice_is_two_tensors(self) -> None:
        items = ("items/embeddings:0", (7, 4))
        again = ("b'items/embeddings:0'_2", (7, 4))
        tensors = (items, *kernel_and_bias("l"), again, *kernel_and_bias("r"))
        found = assigned(stored(group("outer", *tensors), keras="2.3.1"), self.config())
        assert found[0] == "outer/left/items/embeddings"
        assert found[3] == "outer/right/items/embeddings"

    def test_equal_layers_are_not_shared_where_a_tensor_is_missing_for_another_reason(self) -> None:
        tensors = (("items/embeddings:0", (7, 4)), *kernel_and_bias("l"), ("r/kernel:0", (4, 4)))
        with pytest.raises(WeightsMismatchError):
            assign(stored(group("outer", *tensors), keras="2.4.0"), self.config())


class TestUnknownClasses:
    """Layers of the user's own: only names tell, so they must tell all."""

    def test_names_that_tell_all(self) -> None:
        config = parsed(model("inner", entry("Scale", "scale"), dense("one"), dense("two")))
        tensors = (("scale/factor:0", (4,)), *kernel_and_bias("one"), *kernel_and_bias("two"))
        found = assigned(stored(group("inner", *tensors)), config)
        assert found == ["inner/scale/factor", *names("inner/one"), *names("inner/two")]

    def test_frozen_layers_stand_last_and_are_found_by_name(self) -> None:
        config = parsed(model("inner", entry("Scale", "scale"), dense("one"), dense("two")))
        tensors = (*kernel_and_bias("two"), *kernel_and_bias("one"), ("scale/factor:0", (4,)))
        found = assigned(stored(group("inner", *tensors)), config)
        assert found == [*names("inner/two"), *names("inner/one"), "inner/scale/factor"]

    def test_a_name_that_no_layer_has(self) -> None:
        config = parsed(model("inner", entry("Scale", "scale"), dense("one")))
        tensors = (("scale/factor:0", (4,)), *kernel_and_bias("other"))
        with pytest.raises(AmbiguousWeightsError, match="no layer has"):
            assign(stored(group("inner", *tensors)), config)

    def test_a_name_that_several_layers_may_have(self) -> None:
        config = parsed(model("inner", entry("Scale", "conv"), entry("Scale", "conv_1")))
        with pytest.raises(AmbiguousWeightsError, match="several layers have"):
            assign(stored(group("inner", ("conv_3/factor:0", (4,)))), config)

    def test_two_scopes_that_look_like_one_layer(self) -> None:
        """In a process that had a `conv` before, `conv` is stored as `conv_1`, and `conv_1` as `conv_1_1`."""
        config = parsed(model("inner", entry("Scale", "conv"), entry("Shift", "conv_1")))
        tensors = (("conv_1/factor:0", (4,)), ("conv_1_1/offset:0", (4,)))
        with pytest.raises(AmbiguousWeightsError, match="both look like layer 'conv_1'"):
            assign(stored(group("inner", *tensors)), config)

    def test_a_layer_inside_of_a_layer_is_the_outer_one_s(self) -> None:
        config = parsed(model("inner", entry("Block", "block"), dense("dense")))
        tensors = (*kernel_and_bias("block/dense"), *kernel_and_bias("dense"))
        found = assigned(stored(group("inner", *tensors)), config)
        assert found == ["inner/block/dense/kernel", "inner/block/dense/bias", *names("inner/dense")]

    def test_known_layers_must_have_what_they_need(self) -> None:
        config = parsed(model("inner", entry("Scale", "scale"), dense("one"), dense("two")))
        tensors = (("scale/factor:0", (4,)), *kernel_and_bias("one"), ("two/kernel:0", (4, 4)))
        with pytest.raises(WeightsMismatchError, match="two"):
            assign(stored(group("inner", *tensors)), config)

    def test_attention_of_the_user_is_not_keras_s(self) -> None:
        """Before TF 1.14 there was no `Attention`: every file with that class has one of its user's."""
        user = entry("Attention", "attention", step_dim=10, trainable=True)
        tensors = (("attention/attention_W:0", (4,)), ("attention/attention_b:0", (10,)))
        assert assigned(stored(group("attention", *tensors)), parsed(user)) == [
            "attention/attention_W", "attention/attention_b",
        ]  # fmt: skip
        nested = assigned(stored(group("inner", *tensors)), parsed(model("inner", user)))
        assert nested == ["inner/attention/attention_W", "inner/attention/attention_b"]

    def test_an_unknown_class_in_a_group_of_its_own_keeps_its_names(self) -> None:
        tensors = (("caps/W:0", (4, 4)), ("caps/routing/b:0", (4,)))
        found = assigned(stored(group("caps", *tensors)), parsed(entry("Capsule", "caps")))
        assert found == ["caps/W", "caps/routing/b"]
