"""The protocol buffer wire format, decoded by hand within bounds; no message is built and no schema is needed.

Faster here than the protobuf runtime, and free of its version conflicts. Groups (wire types 3 and 4) are refused:
nothing that TensorFlow saves uses them. Nothing recurses: a caller steps into the fields that it knows.
Source: protobuf.dev, "Encoding"; checked against the files of TF 1.4 to 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..errors import CorruptCheckpointError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10  # 64 bits in groups of seven


class Field(NamedTuple):
    """One field of a message: a number, or where its bytes lie."""

    number: int
    kind: int  # VARINT, FIXED64, BYTES or FIXED32
    value: int  # unsigned; for BYTES the start of the content
    end: int  # for BYTES the end of the content; else that of the field


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned number and the place behind it.

    Raises
    ------
    CorruptCheckpointError : it is longer than ten bytes or than 64 bits, or runs over `end`
    """
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if at + count >= end:
            raise CorruptCheckpointError("a number is cut off")
        byte = data[at + count]
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            if value >> 64:
                break
            return value, at + count + 1
    raise CorruptCheckpointError("a number has more than 64 bits")


def signed(value: int) -> int:
    """An int32 or int64 field's value: negative numbers are stored as 64-bit two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message in `data[start:end]`, in file order.

    Raises
    ------
    CorruptCheckpointError : not a valid message
    """
    at = start
    stop = len(data) if end is None else end
    while at < stop:
        tag = data[at]
        if tag < 128:
            at += 1
        else:
            tag, at = varint(data, at, stop)
        number, kind = tag >> 3, tag & 7
        if number == 0 or tag >> 32:
            raise CorruptCheckpointError(f"a message has a field number of {number}")
        if kind == VARINT:
            value, at = varint(data, at, stop)
            yield Field(number, kind, value, at)
        elif kind == BYTES:
            length, at = varint(data, at, stop)
            if length > stop - at:
                raise CorruptCheckpointError(f"field {number} of a message is longer than the message")
            yield Field(number, kind, at, at + length)
            at += length
        elif kind in (FIXED32, FIXED64):
            width = 4 if kind == FIXED32 else 8
            if width > stop - at:
                raise CorruptCheckpointError(f"field {number} of a message is cut off")
            yield Field(number, kind, int.from_bytes(data[at : at + width], "little"), at + width)
            at += width
        else:
            raise CorruptCheckpointError(f"field {number} of a message has the unknown wire type {kind}")


def text(data: bytes, start: int, end: int) -> str:
    """A string field. Names are UTF-8; anything else is kept, so that it can be shown and looked up."""
    return data[start:end].decode("utf-8", "surrogateescape")


def message(data: bytes, field: Field) -> Iterator[Field]:
    """The fields of the message inside a field.

    Raises
    ------
    CorruptCheckpointError : the field holds no bytes
    """
    if field.kind != BYTES:
        raise CorruptCheckpointError(f"field {field.number} of a message is a number where a message belongs")
    return fields(data, field.value, field.end)


def numbers(data: bytes, field: Field) -> list[int]:
    """A repeated varint field, packed or not: unsigned values."""
    if field.kind == VARINT:
        return [field.value]
    found = []
    at = field.value
    while at < field.end:
        value, at = varint(data, at, field.end)
        found.append(value)
    return found
