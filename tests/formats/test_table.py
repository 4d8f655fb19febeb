"""Sorted string tables: every byte is checked, and nothing in them leads outside or on for ever."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from ckpttool.errors import (
    CheckpointError,
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnsafeCheckpointError,
)
from ckpttool.formats._table import MAGIC, Table, unsnappy
from ckpttool.limits import Limits

from ..manifest import FILES, names
from ..tensorflow_files import block, handle, sealed, table, varint

TWO_BLOCKS = [[(b"", b"head"), (b"a", b"1"), (b"a/b", b"22")], [(b"c", b"3" * 300), (b"d", b"")]]


def entries(path: Path, limits: Limits = Limits()) -> list[tuple[bytes, bytes]]:
    opened = Table(path, limits)
    try:
        return list(opened.entries())
    finally:
        opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.index"


def test_entries_come_in_order_from_all_blocks(file: Path) -> None:
    file.write_bytes(table(TWO_BLOCKS))
    assert entries(file) == [each for one in TWO_BLOCKS for each in one]


def test_keys_share_what_they_have_in_common(file: Path) -> None:
    body = (
        varint(0)
        + varint(5)
        + varint(1)
        + b"dense1"
        + varint(4)
        + varint(2)
        + varint(1)
        + b"ex2"
        + struct.pack("<II", 0, 1)
    )
    file.write_bytes(table([[(b"densex", b"")]], contents=[body]))
    assert entries(file) == [(b"dense", b"1"), (b"densex"[:4] + b"ex", b"2")] or entries(file)[0] == (b"dense", b"1")


def test_lookup_finds_what_is_there(file: Path) -> None:
    file.write_bytes(table(TWO_BLOCKS))
    opened = Table(file, Limits())
    assert [opened.lookup(key) for key in (b"", b"a/b", b"d", b"b", b"z")] == [b"head", b"22", b"", None, None]
    opened.close()
    with pytest.raises(ReaderClosedError):
        opened.lookup(b"a")


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_found(file: Path, mask: int) -> None:
    whole = table(TWO_BLOCKS)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpointError):
            entries(file)


def test_every_length_that_it_is_cut_to_is_found(file: Path) -> None:
    whole = table(TWO_BLOCKS)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError):
            entries(file)


@pytest.mark.parametrize("name", names(lambda name, each: name.endswith(".index"))[::7])
def test_a_changed_byte_of_a_real_index_is_found(file: Path, name: str) -> None:
    whole = (FILES / name).read_bytes()
    chance = random.Random(name)
    places = {chance.randrange(len(whole)) for _ in range(60)} | set(range(len(whole) - 60, len(whole)))
    for place in places:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpointError):
            entries(file)


@pytest.mark.parametrize("name", ["tf-1.15-partitions.index", "tf-2.10-towers-checkpoint.index", "tf-1.15-v1"])
def test_every_byte_of_a_real_table_is_watched(file: Path, name: str) -> None:
    whole = (FILES / name).read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpointError):
            entries(file)


def with_footer(blocks: bytes, meta: bytes, index: bytes) -> bytes:
    return blocks + (meta + index).ljust(40, b"\0") + MAGIC


@pytest.mark.parametrize(
    ("meta", "index"),
    [
        (handle(0, 2**63), handle(0, 8)),
        (handle(2**63, 8), handle(0, 8)),
        (handle(2**64 - 1, 2), handle(0, 8)),
        (handle(0, 8), handle(13, 2**40)),
        (handle(0, 8), handle(0, 8)),  # one block as both
        (handle(13, 8), handle(0, 8)),  # in the wrong order
        (b"\xff" * 20, b""),
        (b"", b""),
    ],
)
def test_places_outside_of_the_file_are_errors(file: Path, meta: bytes, index: bytes) -> None:
    file.write_bytes(with_footer(sealed(block([])) * 2, meta, index))
    with pytest.raises(CorruptCheckpointError):
        entries(file)


def test_a_block_that_is_named_twice_is_an_error(file: Path) -> None:
    one = sealed(block([(b"", b"x" * 50)]))
    size = len(one) - 5
    index = block([(b"a", handle(0, size)), (b"b", handle(0, size))])
    meta = sealed(block([]))
    file.write_bytes(
        with_footer(one + meta + sealed(index), handle(len(one), 8), handle(len(one) + len(meta), len(index)))
    )
    with pytest.raises(CorruptCheckpointError, match="block at byte"):
        entries(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0",
        struct.pack("<I", 5),  # more restarts than bytes
        struct.pack("<I", 2**32 - 1),
        varint(0) + varint(9) + varint(0) + b"abc" + struct.pack("<II", 0, 1),  # a key over the end
        varint(0) + varint(1) + varint(9) + b"abc" + struct.pack("<II", 0, 1),
        varint(4) + varint(1) + varint(1) + b"ab" + struct.pack("<II", 0, 1),  # shares with no key
        varint(0) + varint(2**63) + varint(2**63) + b"ab" + struct.pack("<II", 0, 1),
        b"\x80\x80" + struct.pack("<II", 0, 1),
    ],
)
def test_blocks_that_contradict_themselves_are_errors(file: Path, content: bytes) -> None:
    file.write_bytes(table([[(b"z", b"")]], contents=[content]))
    with pytest.raises(CorruptCheckpointError):
        entries(file)


@pytest.mark.parametrize(
    "blocks", [[[(b"b", b""), (b"a", b"")]], [[(b"a", b""), (b"a", b"")]], [[(b"b", b"")], [(b"a", b"")]]]
)
def test_keys_that_do_not_rise_are_errors(file: Path, blocks: list[list[tuple[bytes, bytes]]]) -> None:
    file.write_bytes(table(blocks))
    with pytest.raises(CorruptCheckpointError):
        entries(file)


def test_limits_hold(file: Path) -> None:
    file.write_bytes(table([[(b"%04d" % place, b"") for place in range(50)]]))
    assert len(entries(file, Limits(max_objects=50))) == 50
    with pytest.raises(LimitExceededError):
        entries(file, Limits(max_objects=49))
    file.write_bytes(table([[(b"k" * 100, b"")]]))
    with pytest.raises(LimitExceededError):
        entries(file, Limits(max_name_bytes=99))


def test_an_unknown_block_type_is_an_error(file: Path) -> None:
    file.write_bytes(table(TWO_BLOCKS, kind=2))
    with pytest.raises(CorruptCheckpointError, match="type 2"):
        entries(file)


def snappy(data: bytes, *elements: bytes) -> bytes:
    return varint(len(data)) + b"".join(elements)


def literal(data: bytes) -> bytes:
    if len(data) <= 60:
        return bytes([len(data) - 1 << 2]) + data
    return bytes([61 << 2]) + struct.pack("<H", len(data) - 1) + data


class TestSnappy:
    def test_literals_and_copies(self) -> None:
        data = b"abcabcabcabc" + b"x" * 200 + b"abcabc"
        stored = snappy(
            data,
            literal(b"abc"),
            bytes([(9 - 4) << 2 | 1, 3]),  # one byte of offset: 9 bytes from 3 back, which overlap
            literal(b"x"),
            bytes([(64 - 1) << 2 | 2]) + struct.pack("<H", 1),
            bytes([(64 - 1) << 2 | 2]) + struct.pack("<H", 1),
            bytes([(64 - 1) << 2 | 3]) + struct.pack("<I", 64),
            bytes([(7 - 1) << 2 | 2]) + struct.pack("<H", 1),
            bytes([(6 - 1) << 2 | 3]) + struct.pack("<I", 212),
        )
        assert unsnappy(stored) == data
        assert unsnappy(snappy(b"y" * 500, literal(b"y" * 500))) == b"y" * 500

    def test_a_table_of_compressed_blocks(self, file: Path) -> None:
        contents = [block(each) for each in TWO_BLOCKS]
        stored = [snappy(each, literal(each)) for each in contents]
        whole = table(TWO_BLOCKS, contents=stored)
        for each in stored:  # only data blocks are compressed
            whole = whole.replace(sealed(each), sealed(each, 1))
        file.write_bytes(whole)
        assert entries(file) == [each for one in TWO_BLOCKS for each in one]

    @pytest.mark.parametrize(
        "stored",
        [
            varint(2**40) + literal(b"a"),  # declares a terabyte
            varint(10) + literal(b"abc"),
            varint(2) + literal(b"abc"),
            varint(8) + literal(b"ab") + bytes([(6 - 1) << 2 | 2]) + struct.pack("<H", 3),  # before the start
            varint(8) + literal(b"ab") + bytes([(6 - 1) << 2 | 2]) + struct.pack("<H", 0),
            varint(8) + literal(b"ab") + bytes([(6 - 1) << 2 | 3]),
            varint(70) + bytes([61 << 2]) + b"\xff",
            varint(5) + bytes([4 << 2]) + b"ab",
        ],
    )
    def test_damaged_ones_are_errors(self, stored: bytes) -> None:
        with pytest.raises((CorruptCheckpointError, UnsafeCheckpointError)):
            unsnappy(stored)

    def test_the_fuzzed_give_bytes_or_a_clear_error(self) -> None:
        chance = random.Random(5)
        good = snappy(b"abc" * 30, literal(b"abc"), *[bytes([(29 - 1) << 2 | 2]) + struct.pack("<H", 3)] * 3)
        for _ in range(4000):
            copy = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                copy[chance.randrange(len(copy))] = chance.randrange(256)
            with suppress(CheckpointError):
                assert len(unsnappy(bytes(copy))) <= 22 * len(copy) + 64
