"""Bundles that TensorFlow reads and x86 builds of it never write: big-endian ones, and compressed indexes.

Each is made of a fixture's bytes, and TensorFlow's own reader is the proof that it is what another build would write.
"""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckpttool.checkpoint import ITEM_BYTES
from ckpttool.checksums import crc32c, masked
from ckpttool.cli.main import run
from ckpttool.formats import _wire
from ckpttool.formats._bundle import DATA_TYPES, Bundle, Entry
from ckpttool.formats._table import Table, unsnappy
from ckpttool.limits import Limits
from ckpttool.opening import open_checkpoint

from ..manifest import FILES
from ..tensorflow_files import (
    MAGIC,
    block,
    handle,
    header,
    number,
    sealed,
    snappy,
    table,
    varint,
)
from ..tensorflow_files import entry as bundle_entry
from .test_tf_checkpoint import read_all

NAMES = ["tf-1.15-dtypes", "tf-1.15-partitions", "tf-1.15-sharded", "tf-1.15-names", "tf-2.10-towers-checkpoint"]
_COMPONENT = {"complex64": 4, "complex128": 8}  # bytes of what is turned


def table_entries(index: Path) -> list[tuple[bytes, bytes]]:
    opened = Table(index, Limits())
    try:
        return list(opened.entries())
    finally:
        opened.close()


def turned(entry: Entry, stored: bytes) -> tuple[bytes, int]:
    """A tensor's bytes as a big-endian machine writes them, and their masked checksum."""
    dtype = DATA_TYPES[entry.dtype]
    if dtype != "string":
        width = _COMPONENT.get(dtype, ITEM_BYTES[dtype])
        values = np.frombuffer(stored, f"u{width}").byteswap().tobytes()
        return values, masked(crc32c(values))
    at, lengths = 0, []
    for _ in range(math.prod(entry.shape)):
        length, at = _wire.varint(stored, at, len(stored))
        lengths.append(length)
    crc = crc32c(b"".join(struct.pack(">I", length) for length in lengths))
    rest = struct.pack(">I", masked(crc)) + stored[at + 4 :]
    return stored[:at] + rest, masked(crc32c(rest, crc))


def big_endian(source: Path, target: Path) -> None:
    bundle = Bundle(Path(f"{source}.index"), str(source), Limits())
    slices = dict(bundle.slice_entries())
    made = [(b"", header(bundle.shards, number(2, 1)))]
    data = dict.fromkeys(range(bundle.shards), b"")
    for key, value in table_entries(bundle.index)[1:]:
        entry = bundle.entries[key.decode()] if key[0] else slices[key]
        if not entry.slices:
            stored = bundle.shard_path(entry.shard).read_bytes()[entry.offset : entry.offset + entry.size]
            new, crc = turned(entry, stored)
            value = bundle_entry(
                entry.shape, len(new), crc, dtype=entry.dtype, shard=entry.shard, offset=len(data[entry.shard])
            )
            data[entry.shard] += new
        made.append((key, value))
    Path(f"{target}.index").write_bytes(table([made]))
    for place, values in data.items():
        Path(f"{target}.data-{place:05d}-of-{bundle.shards:05d}").write_bytes(values)


def compressed(source: Path, target: Path) -> None:
    entries = table_entries(Path(f"{source}.index"))
    size = max(1, len(entries) // 3)
    out, index = b"", []
    for each in (entries[start : start + size] for start in range(0, len(entries), size)):
        content = snappy(block(each))
        index.append((each[-1][0], handle(len(out), len(content))))
        out += sealed(content, 1)
    places = b""
    for content in (snappy(block([])), snappy(block(index))):
        places += handle(len(out), len(content))
        out += sealed(content, 1)
    Path(f"{target}.index").write_bytes(out + places.ljust(40, b"\0") + MAGIC)
    for path in source.parent.glob(f"{source.name}.data-*"):
        shutil.copy(path, f"{target}{path.name.removeprefix(source.name)}")


@pytest.mark.parametrize("make", [big_endian, compressed])
@pytest.mark.parametrize("name", NAMES)
def test_they_hold_what_the_usual_ones_do(name: str, make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    make(FILES / name, tmp_path / "m")
    assert read_all(tmp_path / "m") == read_all(FILES / name)


@pytest.mark.tensorflow
@pytest.mark.parametrize("make", [big_endian, compressed])
@pytest.mark.parametrize("name", NAMES)
def test_tensorflow_reads_them_the_same(name: str, make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    import tensorflow as tf

    make(FILES / name, tmp_path / "m")
    theirs = tf.train.load_checkpoint(str(tmp_path / "m"))
    shapes = theirs.get_variable_to_shape_map()
    with open_checkpoint(tmp_path / "m") as reader:
        checkpoint = reader.describe()
        for spec in (*checkpoint.weights(), *checkpoint.loose):
            if " … " in spec.locator:
                continue
            assert list(spec.shape) == shapes[spec.locator]
            ours, value = reader.read(spec), theirs.get_tensor(spec.locator)
            if ours.dtype == object:
                assert ours.tolist() == (value if isinstance(value, bytes) else value.tolist())
            else:
                assert (ours.dtype, ours.tobytes()) == (np.asarray(value).dtype, np.asarray(value).tobytes())


def test_a_changed_byte_of_big_endian_values_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big_endian(FILES / "tf-1.15-sharded", tmp_path / "m")
    data = tmp_path / "m.data-00000-of-00002"
    whole = data.read_bytes()
    data.write_bytes(whole[:5] + bytes([whole[5] ^ 1]) + whole[6:])
    assert run(["unwrap", str(tmp_path / "m"), "-o", str(tmp_path / "out.npz")]) == 3
    assert "checksum does not fit" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 59, 60, 61, 255, 256, 257, 65536, 70000, 2**24 + 1])
def test_the_tests_own_compression_is_undone(size: int) -> None:
    noise = np.random.default_rng(size).integers(0, 256, min(size, 5000), np.uint8).tobytes()
    for data in (noise, (noise[:7] * (size // 7 + 1))[:size], bytes(min(size, 70000)), noise + b"-" + noise):
        assert unsnappy(snappy(data)) == data


@pytest.mark.parametrize(
    "content",
    [
        varint(2**60) + b"\0a",  # declares more than there can be
        varint(8) + b"\x04ab" + bytes([5 << 2 | 2, 0, 0]),  # a copy from here
        varint(8) + b"\x04ab" + bytes([5 << 2 | 2, 3, 0]),  # from before the start
        varint(8) + b"\x04ab" + bytes([1 << 2 | 1, 9]),
        varint(8) + b"\x04ab" + bytes([5 << 2 | 3, 1, 0]),  # cut off
        varint(8) + b"\x04ab" + bytes([1 << 2 | 1]),
        varint(50) + bytes([30 << 2]) + b"ab",
        varint(2**31) + bytes([63 << 2]) + b"\xff\xff\xff\x7f" + b"ab",
        varint(3) + b"\x14abcdef",  # holds more than it declares
        b"\xff" * 12,
        b"",
    ],
)
def test_hostile_compressed_blocks_are_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = table([[(b"", header())]], contents=[content])
    (tmp_path / "m.index").write_bytes(whole.replace(sealed(content), sealed(content, 1)))
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(8))
    assert run(["inspect", str(tmp_path / "m")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"ckpttool: {tmp_path / 'm'}")
