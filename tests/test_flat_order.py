"""The order of a nested model's list: trainable weights first, by the flags that are known and those that are not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ckpttool.flat_order import MAX_GUESSED_FLAGS, default_order, orders

from .written import bn, dense, model, parsed


def paths(order: Any) -> list[str]:
    return ["/".join((*slot.layer, *slot.variable.path)) for slot in order]


def layers(order: Any) -> list[str]:
    return list(dict.fromkeys(slot.layer[-1] for slot in order))


def test_the_default_goes_by_the_flags_of_the_configuration() -> None:
    config = parsed(model("m", bn("a"), dense("b", trainable=False), bn("c")))
    assert paths(default_order(config)) == [
        "m/a/gamma", "m/a/beta", "m/c/gamma", "m/c/beta", "m/a/moving_mean", "m/a/moving_variance",
        "m/b/kernel", "m/b/bias", "m/c/moving_mean", "m/c/moving_variance",
    ]  # fmt: skip


def test_a_model_that_says_it_is_frozen_has_no_trainable_weights() -> None:
    frozen = model("one", dense("a"), trainable=False)
    config = parsed(model("m", frozen, dense("b")))
    assert layers(default_order(config)) == ["b", "a"]


@pytest.mark.parametrize("marks", [False, True])
def test_the_likeliest_order_comes_first_and_each_once(marks: bool) -> None:
    config = parsed(model("m", model("one", dense("a")), model("two", dense("b"))))
    found = list(orders(config, freezing_marks_layers=marks))
    assert layers(found[0]) == ["a", "b"]
    assert len(found) == len({tuple(paths(order)) for order in found})
    assert len(found) == (1 if marks else 2)
    assert list(orders(config, freezing_marks_layers=marks).values()) == ([0] if marks else [0, 1])


def test_mixed_flags_inside_a_model_leave_its_own_open() -> None:
    config = parsed(model("m", model("one", dense("a"), dense("b", trainable=False)), dense("c")))
    assert len(list(orders(config, freezing_marks_layers=True))) > 1


def test_many_models_do_not_make_orders_without_end() -> None:
    count = MAX_GUESSED_FLAGS + 30
    config = parsed(model("m", *(model(f"n{n}", dense(f"d{n}")) for n in range(count))))
    started = time.monotonic()
    assert len(list(orders(config, freezing_marks_layers=False))) <= count + 3
    assert time.monotonic() - started < 5


def test_six_models_of_many_layers_are_ordered_in_time() -> None:
    inside = [model(f"n{n}", *(dense(f"d{n}_{k}") for k in range(150))) for n in range(6)]
    started = time.monotonic()
    found = list(orders(parsed(model("m", *inside)), freezing_marks_layers=False))
    assert len(found) <= 2**7
    assert time.monotonic() - started < 10
