"""What stored weight names tell, in the forms of every writer."""

from __future__ import annotations

import pytest

from ckpttool import weight_names


@pytest.mark.parametrize(
    ("stored", "cleaned"),
    [
        ("dense/kernel:0", "dense/kernel"),
        ("dense/kernel", "dense/kernel"),  # Keras 3
        ("b'image_embedding/kernel:0'_2", "image_embedding/kernel"),  # Keras 2.3.1, a shared layer
        ("b'dense/kernel:0'", "b'dense/kernel:0'"),
        ("a:0/b:12", "a:0/b"),
        ("param_0", "param_0"),
    ],
)
def test_cleaned(stored: str, cleaned: str) -> None:
    assert weight_names.clean(stored.split("/")) == tuple(cleaned.split("/"))


@pytest.mark.parametrize(
    ("stored", "variable"),
    [
        ("dense/kernel", "kernel"),
        ("two/kernel_1", "kernel"),
        ("bn/moving_variance", "moving_variance"),
        ("dense_1_W", "kernel"),  # Keras 1
        ("dense_1_b_1", "bias"),
        ("bn_running_std", "moving_variance"),
        ("param_3", None),
        ("layer/w", None),
    ],
)
def test_variables(stored: str, variable: str | None) -> None:
    assert weight_names.variable(stored.split("/")) == variable


@pytest.mark.parametrize(
    ("stored", "layer", "exactly", "loosely"),
    [
        ("dense/kernel", "dense", 0, 0),
        ("s/dense/kernel", "dense", 1, 1),
        ("emb_1/embeddings", "emb", None, 0),
        ("emb/embeddings", "emb_1", None, 0),
        ("conv1d_2/kernel", "conv1d_1", None, 0),
        ("conv1d_1_1/kernel", "conv1d_1", None, 0),
        ("conv1d_1_1/kernel", "conv1d", None, None),  # one suffix, not two
        ("IMAGE_2/kernel", "image", None, None),  # TensorFlow keeps the case of a layer's name
        ("IMAGE_2/kernel", "IMAGE", None, 0),
        ("block/dense/kernel", "block/dense", 0, 0),
        ("block/dense_1/kernel", "block/dense", None, 0),
        ("block_1/dense/kernel", "block/dense", None, None),
        ("kernel", "kernel", None, None),  # the variable itself is no scope
        ("dense_W", "dense", 0, 0),
        ("densely_W", "dense", None, None),
    ],
)
def test_where_a_layer_s_name_stands(stored: str, layer: str, exactly: int | None, loosely: int | None) -> None:
    parts, name = stored.split("/"), layer.split("/")
    assert weight_names.matches(parts, name, loosely=False) == exactly
    assert weight_names.matches(parts, name, loosely=True) == loosely


@pytest.mark.parametrize(
    ("stored", "layer", "rest"),
    [
        ("lstm/lstm_cell/kernel", "lstm", "kernel"),
        ("lstm/lstm_cell_7/kernel", "lstm", "kernel"),
        ("bi/forward_lstm/lstm_cell_1/kernel", "bi", "forward_lstm/kernel"),
        ("emb_1/embeddings", "emb", "embeddings"),
        ("other/kernel", "dense", "other/kernel"),
        ("dense_1_W", "dense_1", "kernel"),
    ],
)
def test_what_follows_the_layer_s_scope(stored: str, layer: str, rest: str) -> None:
    assert weight_names.inside(stored.split("/"), layer.split("/")) == tuple(rest.split("/"))


@pytest.mark.parametrize(
    ("scopes", "count"),
    [
        (["fc", "fc_1", "fc_2"], 0),
        (["fc_1", "fc"], 1),
        (["fc_1", "other", "fc"], 1),
        (["a_2", "b_1", "a_3", "b_2"], 0),
        (["Fc_1", "fc"], 1),  # scopes are numbered together, whatever their case
        ([], 0),
    ],
)
def test_numbers_that_fall(scopes: list[str], count: int) -> None:
    assert weight_names.inversions(scopes) == count


@pytest.mark.parametrize(
    ("stored", "expected", "agrees"),
    [
        ("bi/forward_lstm/kernel", "forward_lstm/kernel", True),
        ("bi/backward_lstm/kernel", "forward_lstm/kernel", False),
        ("bi/forward_lstm_3/kernel", "forward_lstm/kernel", True),
        ("bi/lstm/kernel", "forward_lstm/kernel", True),
        ("forward_x/kernel", "kernel", True),
    ],
)
def test_directions_of_a_bidirectional(stored: str, expected: str, agrees: bool) -> None:
    assert weight_names.direction_agrees(stored.split("/"), expected.split("/")) is agrees
