"""crc32c, with which TensorFlow guards its files, and crc32, that of zip archives; by fast packages where installed.

Without the package `crc32c` the first is computed in Python, by folding: a message is a polynomial over two elements,
and only its remainder counts, so its first half can be moved onto the second, multiplied by `x^s mod P`. Large integers
do that with shifts and exclusive ors of whole halves, some fifty times faster than a loop over bytes; a table finishes
the last few hundred bytes.
Source: tensorflow/core/lib/hash/crc32c.h (TF 2.21) for the mask; RFC 3720, appendix B.4 for the polynomial.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bit-reflected: bit 31 is the constant term, bit 0 that of x^31
_ONE = 0x80000000  # the polynomial 1
_MASK_DELTA = 0xA282EAD8
_SHORT_BITS = 4096  # below this the table is faster than another fold
_TRIED_LENGTHS = 48  # fold lengths near a power of two among which the one with the fewest terms is taken

_CRC32_POLYNOMIAL = 0xEDB88320  # of zip archives, bit-reflected as above
_WORTH_COMPILED_BYTES = 2**17  # from here a compiled function gains more than its import costs (15 ms)

Crc = Callable[[bytes | memoryview, int], int]  # (data, checksum so far) -> checksum; of either kind


def masked(crc: int) -> int:
    """The form in which files store a checksum: rotated and moved, so that sums of sums do not collide."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@lru_cache(maxsize=1)
def implementation() -> Crc:
    """`crc(data, previous)`: the compiled function where the package is installed, else ours."""
    try:
        from crc32c import crc32c as compiled
    except ImportError:
        return folded_crc32c
    return compiled


def crc32c(data: bytes | memoryview, previous: int = 0) -> int:
    """The checksum of `data`, continued from that of what stood before it.

    Parameters
    ----------
    data : any number of bytes
    previous : the checksum so far; 0 at the start

    Returns
    -------
    0 … 2³²−1
    """
    if len(data) < _WORTH_COMPILED_BYTES and "crc32c" not in sys.modules:
        return folded_crc32c(data, previous)
    return implementation()(data, previous)


@lru_cache(maxsize=1)
def crc32() -> Crc:
    """`crc32(data, previous)`, the checksum of zip archives: zlib-ng's where it is installed, else zlib's.

    zlib-ng uses the processor's carry-less multiplication: measured, a tenth of zlib's time.
    """
    import zlib

    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib.crc32
    compiled: Crc = zlib_ng.crc32
    return compiled


def joined_crc32(first: int, second: int, second_bytes: int) -> int:
    """The crc32 of two runs of bytes one behind the other, from that of each.

    Parameters
    ----------
    first, second : 0 … 2³²−1
    second_bytes : length of the second run

    Returns
    -------
    0 … 2³²−1

    Notes
    -----
    What follows multiplies the remainder of what stood before by `x^8` for each byte. Source: crc32_combine of zlib 1.3
    (crc32.c), which does the same.
    """
    return _product(first, _power(second_bytes)) ^ second


@lru_cache(maxsize=4096)
def _power(nbytes: int) -> int:
    """`x^(8·nbytes) mod P`, by squaring."""
    result, base, count = _ONE, _ONE >> 8, nbytes
    while count:
        if count & 1:
            result = _product(result, base)
        base = _product(base, base)
        count >>= 1
    return result


def _product(one: int, other: int) -> int:
    """The product of two polynomials modulo crc32's, their bits reflected."""
    result = 0
    while other:
        if other & _ONE:
            result ^= one
        one = one >> 1 ^ (_CRC32_POLYNOMIAL if one & 1 else 0)
        other = other << 1 & 0xFFFFFFFF
    return result


def folded_crc32c(data: bytes | memoryview, previous: int = 0) -> int:
    """The same without a compiled package: some 100 MB a second."""
    register = previous ^ 0xFFFFFFFF
    bits = 8 * len(data)
    if bits >= 2 * _SHORT_BITS:
        number = int.from_bytes(data, "little") ^ register
        register = 0
        level = (bits // 2).bit_length() - 1
        while bits >= _SHORT_BITS and level > 8:
            length, shifts = _fold(level)
            if bits < 2 * length:
                level -= 1
                continue
            moved = length - 32
            low = number & ((1 << moved) - 1)
            number >>= moved
            for shift in shifts:
                number ^= low << shift
            bits -= moved
        data = number.to_bytes(bits // 8, "little")
    table = _table()
    for byte in data:
        register = table[(register ^ byte) & 255] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    """What eight zero bits make of a byte in the register."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


@lru_cache(maxsize=64)
def _fold(level: int) -> tuple[int, tuple[int, ...]]:
    """A length s near 2^level bits, and by how far the first s − 32 bits must be shifted for each term of x^s mod P."""
    power = _ONE >> 1
    for _ in range(level):
        power = _times(power, power)
    length, best, fewest = 1 << level, power, power.bit_count()
    table = _table()
    for step in range(1, _TRIED_LENGTHS):
        power = table[power & 255] ^ (power >> 8)  # times x^8
        if power.bit_count() < fewest:
            length, best, fewest = (1 << level) + 8 * step, power, power.bit_count()
    return length, tuple(bit + 1 for bit in range(32) if best >> bit & 1)  # bit b is x^(31 − b)


def _times(left: int, right: int) -> int:
    """The product of two polynomials of degree below 32, modulo P."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = (left << 1) & 0xFFFFFFFF
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
    return product
