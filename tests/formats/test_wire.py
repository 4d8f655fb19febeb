"""The protocol buffer wire format: bounds, and the object graph's fast paths beside its slow ones, fuzzed."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from ckpttool.errors import CheckpointError, CorruptCheckpointError, LimitExceededError
from ckpttool.formats import _meta_graph, _object_graph, _saved_objects, _wire
from ckpttool.formats._bundle import read_bounds, read_shape

from ..tensorflow_files import fixed32, message, node, number, shape, variable, varint


def test_fields_come_in_order_with_their_places() -> None:
    data = number(1, 300) + message(2, b"name") + fixed32(6, 7) + b"\x39" + bytes(range(8))
    found = list(_wire.fields(data))
    assert [(f.number, f.kind) for f in found] == [(1, 0), (2, 2), (6, 5), (7, 1)]
    assert found[0].value == 300
    assert data[found[1].value : found[1].end] == b"name"
    assert found[2].value == 7
    assert found[3].value == int.from_bytes(bytes(range(8)), "little")
    assert found[3].end == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a number that is not there
        b"\x08\x80",
        b"\x08" + b"\xff" * 10 + b"\x01",  # eleven bytes
        b"\x08" + b"\xff" * 9 + b"\x02",  # 65 bits
        b"\x0a\x05abc",  # longer than the message
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0d\x01\x02",  # cut fixed numbers
        b"\x09\x01\x02",
        b"\x0b",  # groups
        b"\x0c",
        b"\x0e",
        b"\x00\x01",  # field 0
        b"\xf8\xff\xff\xff\xff\x01\x01",  # a field number of 33 bits
    ],
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        list(_wire.fields(data))


def test_a_number_where_a_message_belongs_is_an_error() -> None:
    field = next(_wire.fields(number(1, 3)))
    with pytest.raises(CorruptCheckpointError):
        list(_wire.message(number(1, 3), field))


def test_negative_numbers_are_two_complement() -> None:
    field = next(_wire.fields(number(1, -5)))
    assert _wire.signed(field.value) == -5
    assert _wire.signed(2**63 - 1) == 2**63 - 1


def test_packed_and_single_numbers_read_the_same() -> None:
    packed = message(7, varint(1), varint(300), varint(2**40))
    assert _wire.numbers(packed, next(_wire.fields(packed))) == [1, 300, 2**40]
    assert _wire.numbers(number(7, 9), next(_wire.fields(number(7, 9)))) == [9]


@pytest.mark.parametrize("axes", [(), (3, 2), (0,), (2**40, 1)])
def test_shapes(axes: tuple[int, ...]) -> None:
    assert read_shape(shape(*axes)) == axes
    assert read_shape(b"\x12\x00" * 2) == (0, 0)  # a size of 0 is an empty message


@pytest.mark.parametrize("data", [shape(-1), number(3, 1), shape(*[1] * 255)])
def test_shapes_that_no_tensor_has_are_errors(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        read_shape(data)


def test_slices_with_negative_starts_are_errors() -> None:
    good = message(1, number(1, 2), number(2, 3)) + message(1)
    assert read_bounds(good, 0, len(good)) == ((2, 3), (0, -1))
    for bad in (message(1, number(1, -2)), message(1, number(1, 2)), message(1, number(2, -7))):
        with pytest.raises(CorruptCheckpointError):
            read_bounds(bad, 0, len(bad))


class TestObjectGraph:
    def test_short_and_long_fields_are_read(self) -> None:
        key, name = "k" * 200, "n" * 150
        data = (
            node({"model": 1, "x" * 140: 2}, slots=[(1, "m", 300)])
            + node({}, ("VARIABLE_VALUE", "short/kernel", key))
            + node({}, ("VARIABLE_VALUE", name, "a"), ("table-keys", "", "b"))
            + node({}) * 300
        )
        graph = _object_graph.parse(data, 1000)
        assert len(graph) == 303
        assert graph.children[0] == {"model": 1, "x" * 140: 2}
        assert graph.attributes[1] == (("VARIABLE_VALUE", "short/kernel", key),)
        assert graph.attributes[2] == (("VARIABLE_VALUE", name, "a"), ("table-keys", "", "b"))
        assert graph.slots == {0: [(1, "m", 300)]}

    def test_fields_of_later_versions_are_skipped(self) -> None:
        data = message(
            1, message(1, message(2, b"a"), number(1, 0), number(9, 4)), message(5, number(1, 1)), number(8, 3)
        )
        assert _object_graph.parse(data, 10).children == [{"a": 0}]

    @pytest.mark.parametrize("bad", [node({"a": 1}), node({"a": 2**40}), node({}, slots=[(0, "m", 9)])])
    def test_a_node_that_does_not_exist_is_an_error(self, bad: bytes) -> None:
        with pytest.raises(CorruptCheckpointError, match="does not have"):
            _object_graph.parse(bad, 10)

    def test_floods_are_errors(self) -> None:
        with pytest.raises(LimitExceededError):
            _object_graph.parse(node({}) * 11, 10)
        with pytest.raises(LimitExceededError):
            _object_graph.parse(node({str(place): 0 for place in range(200)}), 10)


def mutations(data: bytes, count: int, seed: int) -> list[bytes]:
    """Flipped, cut, doubled and spliced copies of a message."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(copy))
            kind = chance.randrange(4)
            if kind == 0:
                copy[place] = chance.randrange(256)
            elif kind == 1:
                del copy[place : place + chance.randint(1, 8)]
            elif kind == 2:
                copy[place:place] = chance.randbytes(chance.randint(1, 8))
            else:
                copy[place:place] = copy[: chance.randint(1, 40)]
            copy = copy or bytearray(b"\0")
        found.append(bytes(copy))
    return found


GRAPH = (
    node({"model": 1, "optimizer": 3})
    + node({"kernel": 2, "loop": 0})
    + variable("model/k", "dense/kernel")
    + node({"iter": 4}, slots=[(2, "m", 4)])
    + variable("optimizer/iter", "Adam/iter")
)
SAVED = number(1, 1) + message(
    2,
    message(1, message(4, b"serve"), message(5, b"2.15.0")),
    message(
        5, message(1, b"f"), message(2, message(1, message(1, b"x"), message(2, number(2, 1), message(3, shape(2)))))
    ),
    message(7, message(1, message(1, number(1, 1), message(2, b"v"))), message(1, message(7, message(6, b"v")))),
)


def test_the_fuzzed_object_graph_gives_a_graph_or_a_clear_error() -> None:
    for data in mutations(GRAPH, 4000, 1):
        with suppress(CheckpointError):
            _object_graph.parse(data, 100)


def test_the_fuzzed_meta_graph_gives_an_answer_or_a_clear_error() -> None:
    for data in mutations(SAVED, 4000, 2):
        with suppress(CheckpointError):
            for field in _wire.fields(data):
                if field.kind == _wire.BYTES:
                    graph = _meta_graph.read_meta_graph(data, field.value, field.end)
                    for each in _wire.fields(data, *(graph.objects or (0, 0))):
                        if each.kind == _wire.BYTES:
                            _saved_objects._object(data, each)


def test_fuzzed_messages_never_take_another_way() -> None:
    for data in mutations(bytes(range(1, 120)), 3000, 3):
        with suppress(CheckpointError):
            list(_wire.fields(data))
