"""Tables, bundles and messages written byte by byte, so that a test can write what TensorFlow never would."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from ckpttool.checksums import crc32c, masked

MAGIC = bytes.fromhex("57fb808b247547db")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """A varint field; negative numbers as 64-bit two's complement."""
    return varint(field << 3) + varint(value & (2**64 - 1))


def message(field: int, *content: bytes) -> bytes:
    """A length-delimited field."""
    body = b"".join(content)
    return varint(field << 3 | 2) + varint(len(body)) + body


def fixed32(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<I", value)


def block(entries: Iterable[tuple[bytes, bytes]], restarts: int = 1) -> bytes:
    """A block's content; keys are not shortened."""
    body = b"".join(varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    return body + b"\0\0\0\0" * restarts + struct.pack("<I", restarts)


def sealed(content: bytes, kind: int = 0) -> bytes:
    """A block with its trailer."""
    return content + bytes([kind]) + struct.pack("<I", masked(crc32c(content + bytes([kind]))))


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def table(blocks: list[list[tuple[bytes, bytes]]], kind: int = 0, contents: list[bytes] | None = None) -> bytes:
    """A whole table of data blocks; `contents` gives what is stored in their place, such as compressed bytes."""
    out, index = b"", []
    for number_, entries in enumerate(blocks):
        content = contents[number_] if contents else block(entries)
        index.append((entries[-1][0] if entries else b"", handle(len(out), len(content))))
        out += sealed(content, kind)
    metaindex = block([])
    meta = handle(len(out), len(metaindex))
    out += sealed(metaindex)
    content = block(index)
    where = handle(len(out), len(content))
    out += sealed(content)
    return out + (meta + where).ljust(40, b"\0") + MAGIC


def shape(*axes: int) -> bytes:
    return b"".join(message(2, number(1, axis)) for axis in axes)


def header(shards: int = 1, *more: bytes) -> bytes:
    return number(1, shards) + b"".join(more) + message(3, number(1, 1))


def entry(
    axes: tuple[int, ...], size: int, crc: int, *, dtype: int = 1, offset: int = 0, shard: int = 0, more: bytes = b""
) -> bytes:
    """A BundleEntryProto."""
    return (
        number(1, dtype) + message(2, shape(*axes)) + number(3, shard) + number(4, offset) + number(5, size) + more
        + fixed32(6, crc)
    )  # fmt: skip


def text_bytes(texts: list[bytes]) -> tuple[bytes, int]:
    """A text tensor's bytes and the checksum that its entry holds."""
    crc = crc32c(b"".join(struct.pack("<I", len(text)) for text in texts))
    stored = b"".join(varint(len(text)) for text in texts)
    rest = struct.pack("<I", masked(crc)) + b"".join(texts)
    return stored + rest, masked(crc32c(rest, crc))


def write_bundle(
    prefix: Path, tensors: dict[str, tuple[tuple[int, ...], bytes]], graph: bytes | None = None, dtype: int = 1
) -> None:
    """Write a bundle of one shard: name -> shape and bytes; and an object graph, where given."""
    data = b""
    entries = [(b"", header())]
    stored = {name.encode(): (axes, values, masked(crc32c(values)), dtype) for name, (axes, values) in tensors.items()}
    if graph is not None:
        values, crc = text_bytes([graph])
        stored[b"_CHECKPOINTABLE_OBJECT_GRAPH"] = ((), values, crc, 7)
    for key, (axes, values, crc, kind) in sorted(stored.items()):
        entries.append((key, entry(axes, len(values), crc, dtype=kind, offset=len(data))))
        data += values
    Path(f"{prefix}.index").write_bytes(table([entries]))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)


def node(
    children: dict[str, int], *attributes: tuple[str, str, str], slots: Iterable[tuple[int, str, int]] = ()
) -> bytes:
    """A TrackableObject."""
    parts = [message(1, number(1, child), message(2, name.encode())) for name, child in children.items()]
    parts += [message(2, *(message(place, text.encode()) for place, text in enumerate(each, 1))) for each in attributes]
    parts += [message(3, number(1, owner), message(2, name.encode()), number(3, slot)) for owner, name, slot in slots]
    return message(1, *parts)


def variable(key: str, full_name: str = "") -> bytes:
    """The node of a variable."""
    return node({}, ("VARIABLE_VALUE", full_name, key))


def snappy(data: bytes) -> bytes:
    """Compress as snappy does, greedily, with literals and copies of all three kinds."""
    out, at, start = bytearray(varint(len(data))), 0, 0
    known: dict[bytes, int] = {}
    while at + 4 <= len(data):
        before = known.get(data[at : at + 4])
        known[data[at : at + 4]] = at
        if before is None:
            at += 1
            continue
        length = 4
        while at + length < len(data) and length < 64 and data[before + length] == data[at + length]:
            length += 1
        out += _literals(data[start:at])
        offset = at - before
        if length < 12 and offset < 2048:
            out += bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 255])
        elif offset < 65536 and length % 2:
            out += bytes([length - 1 << 2 | 2]) + struct.pack("<H", offset)
        else:
            out += bytes([length - 1 << 2 | 3]) + struct.pack("<I", offset)
        at += length
        start = at
    return bytes(out + _literals(data[start:]))


def _literals(data: bytes) -> bytes:
    if not data:
        return b""
    size = len(data) - 1
    if size < 60:
        return bytes([size << 2]) + data
    width = (size.bit_length() + 7) // 8
    return bytes([59 + width << 2]) + size.to_bytes(width, "little") + data
