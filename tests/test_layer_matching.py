"""Which layer of one model is which of another, on layers written by hand; no Keras."""

from __future__ import annotations

import numpy as np
import pytest

from ckpttool.errors import WeightsMismatchError
from ckpttool.layer_matching import Leaf, match_layers


def _leaf(path: str, *shapes: tuple[int, ...], labels: str = "kernel bias", dtype: str = "float32") -> Leaf:
    leaf = Leaf(tuple(path.split("/")), "Dense")
    for label, shape in zip(labels.split(), shapes, strict=False):
        leaf.add(label, shape, dtype, lambda: np.zeros(0))
    return leaf


def _dense(*paths: str) -> list[Leaf]:
    return [_leaf(path, (4, 4), (4,)) for path in paths]


def _found(source: list[Leaf], target: list[Leaf], *, partial: bool = False) -> dict[str, str]:
    matching = match_layers(source, target, partial=partial)
    return {match.source.name: match.target.name for match in matching.matches}


def test_equal_names_match_whatever_the_order() -> None:
    assert _found(_dense("a", "b"), _dense("b", "a")) == {"a": "a", "b": "b"}


def test_a_layer_matches_by_its_name_alone_where_that_is_unique() -> None:
    assert _found(_dense("tower/a", "b"), _dense("a", "body/b")) == {"tower/a": "a", "b": "body/b"}


def test_numbers_of_keras_are_ranks_so_that_overlapping_ones_do_not_shift_the_layers() -> None:
    source, target = _dense("dense_1", "dense_2", "dense_3"), _dense("dense", "dense_1", "dense_2")
    assert _found(source, target) == {"dense_1": "dense", "dense_2": "dense_1", "dense_3": "dense_2"}
    assert match_layers(source, target).by == "numbered name"


def test_numbers_beside_given_names_and_inside_of_numbered_models_are_ranks_too() -> None:
    source, target = (
        _dense("model_1/dense_7", "model_1/head", "dense_9"),
        _dense("dense", "model/head", "model/dense_1"),
    )
    assert _found(source, target) == {
        "model_1/dense_7": "model/dense_1",
        "model_1/head": "model/head",
        "dense_9": "dense",
    }


def test_numbers_in_names_that_somebody_gave_are_not_ranks() -> None:
    with pytest.raises(WeightsMismatchError, match=r"1 of 2 layers of the target fit.*only in the source: block_3"):
        match_layers(_dense("block_2", "block_3"), _dense("block_1", "block_2"))


def test_order_decides_where_no_name_is_known() -> None:
    source, target = _dense("first", "second"), _dense("one", "two")
    assert _found(source, target) == {"first": "one", "second": "two"}
    assert match_layers(source, target).by == "order"


def test_order_does_not_decide_against_a_name() -> None:
    with pytest.raises(WeightsMismatchError):
        match_layers(_dense("a", "b"), _dense("b", "c"))


def test_shapes_have_to_be_equal() -> None:
    with pytest.raises(
        WeightsMismatchError, match=r"no layer .*source: a \(4×5, 5\); only in the target: a \(5×4, 4\)"
    ):
        match_layers([_leaf("a", (4, 5), (5,))], [_leaf("a", (5, 4), (4,))])


def test_integers_do_not_match_floats() -> None:
    with pytest.raises(WeightsMismatchError):
        match_layers([_leaf("a", (4,), dtype="int32")], [_leaf("a", (4,))])


def test_some_of_the_layers_are_an_error_that_says_which_and_how_to_take_them() -> None:
    source, target = _dense("a", "b", "old"), _dense("a", "b", "new", "newer")
    message = "2 of 4 layers of the target fit, .*in the source: old .*target: new .*, newer .*; partial=True"
    with pytest.raises(WeightsMismatchError, match=message):
        match_layers(source, target)
    matching = match_layers(source, target, partial=True)
    assert [leaf.name for leaf in matching.left_in_source] == ["old"]
    assert [leaf.name for leaf in matching.left_in_target] == ["new", "newer"]


def test_some_of_the_numbered_layers_are_taken_only_where_their_number_is_equal() -> None:
    assert _found(_dense("a", "dense_1", "dense_2"), _dense("a", "dense"), partial=True) == {"a": "a"}
    assert _found(_dense("a", "old", "dense_4"), _dense("a", "dense"), partial=True) == {"a": "a", "dense_4": "dense"}


def test_nothing_is_an_error_also_when_some_would_do() -> None:
    with pytest.raises(WeightsMismatchError):
        match_layers(_dense("a"), [_leaf("b", (3, 3), (3,))], partial=True)
    with pytest.raises(WeightsMismatchError):
        match_layers([], _dense("a"), partial=True)


def test_tensors_of_a_layer_match_by_name_and_where_names_differ_in_order() -> None:
    by_name = match_layers(
        [_leaf("a", (4,), (4,), labels="beta gamma")], [_leaf("a", (4,), (4,), labels="gamma beta")]
    ).matches[0]
    assert [(source.label, target.label) for source, target in by_name.pairs()] == [
        ("gamma", "gamma"),
        ("beta", "beta"),
    ]
    in_order = match_layers([_leaf("a", (4, 4), (4,), labels="W b")], _dense("a")).matches[0]
    assert [(source.label, target.label) for source, target in in_order.pairs()] == [("W", "kernel"), ("b", "bias")]
