"""crc32c: our own against known values and the compiled package."""

from __future__ import annotations

import random

import pytest

from ckpttool import checksums
from ckpttool.checksums import crc32c, folded_crc32c, masked


def test_it_gives_the_values_of_rfc_3720() -> None:
    assert folded_crc32c(b"123456789") == 0xE3069283
    assert folded_crc32c(bytes(32)) == 0x8A9136AA
    assert folded_crc32c(bytes([255]) * 32) == 0x62A8AB43
    assert folded_crc32c(bytes(range(32))) == 0x46DD794E
    assert folded_crc32c(b"") == 0


def test_the_mask_of_nothing_is_what_empty_tensors_hold() -> None:
    assert masked(0) == 2726488792


@pytest.mark.parametrize("size", [*range(1030, 1100, 7), 2000, 4096, 65_537, 262_144, 700_001])
def test_folding_equals_the_loop_over_bytes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    parts = 0
    for start in range(0, size, 1000):  # shorter than what is folded
        parts = folded_crc32c(data[start : start + 1000], parts)
    assert folded_crc32c(data) == parts
    assert folded_crc32c(data[777:], folded_crc32c(data[:777])) == parts


def test_every_bit_of_a_block_counts() -> None:
    data = bytearray(random.Random(1).randbytes(3000))
    before = folded_crc32c(bytes(data))
    for place in range(0, 3000, 13):
        data[place] ^= 1 << place % 8
        assert folded_crc32c(bytes(data)) != before
        data[place] ^= 1 << place % 8


@pytest.mark.needs("crc32c")
@pytest.mark.parametrize("size", [0, 1, 100, 5000, 300_000])
def test_the_compiled_package_gives_the_same(size: int) -> None:
    from crc32c import crc32c as compiled

    data = random.Random(size).randbytes(size)
    assert compiled(data, 12345) == folded_crc32c(data, 12345)


@pytest.mark.parametrize("installed", [True, False])
def test_long_data_is_summed_with_and_without_the_package(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setitem(__import__("sys").modules, "crc32c", None)
    checksums.implementation.cache_clear()
    data = random.Random(2).randbytes(400_000)
    assert crc32c(data) == folded_crc32c(data)
    checksums.implementation.cache_clear()
