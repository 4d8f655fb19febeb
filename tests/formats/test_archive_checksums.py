"""Values that lie in a zip archive are compared with its checksum when they are copied; the damage is made here."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckpttool
from ckpttool.checksums import crc32, joined_crc32
from ckpttool.errors import CorruptCheckpointError
from ckpttool.opening import open_checkpoint
from ckpttool.source import SourceOptions

UNCHECKED = SourceOptions(checksums=False)


def damaged(path: Path, target: Path, member: str, fraction: float) -> Path:
    """A copy with one bit of a member's stored bytes turned, at a place within it."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
        assert info.compress_type == zipfile.ZIP_STORED
    start = info.header_offset + 30 + int.from_bytes(data[info.header_offset + 26 : info.header_offset + 28], "little")
    start += int.from_bytes(data[info.header_offset + 28 : info.header_offset + 30], "little")
    data[start + int(fraction * (info.file_size - 1))] ^= 4
    target.write_bytes(data)
    return target


@pytest.fixture
def archive(fixture_files: Path) -> Path:
    """A `.keras` archive as Keras 3.15 wrote it."""
    return fixture_files / "keras-3.15-deep.keras"


@pytest.mark.parametrize("suffix", [".safetensors", ".h5", ".weights.h5", ".keras", ".npz"])
def test_a_sound_archive_is_converted(archive: Path, tmp_path: Path, suffix: str) -> None:
    assert ckpttool.convert(archive, tmp_path / f"out{suffix}").tensors


@pytest.mark.parametrize("suffix", [".safetensors", ".h5", ".npz"])
def test_a_turned_bit_among_the_values_is_found(archive: Path, tmp_path: Path, suffix: str) -> None:
    """The last quarter of the member holds values alone: HDF5 itself sees nothing wrong with it."""
    output = tmp_path / f"out{suffix}"
    bad = damaged(archive, tmp_path / "bad.keras", "model.weights.h5", 0.97)
    with pytest.raises(CorruptCheckpointError, match=r"'model\.weights\.h5' has another checksum .*--no-checksum"):
        ckpttool.convert(bad, output)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.keras"]
    ckpttool.convert(bad, output, options=UNCHECKED)
    assert output.stat().st_size


def test_the_optimizer_that_is_left_out_is_read_for_the_checksum_too(fixture_files: Path, tmp_path: Path) -> None:
    source = fixture_files / "slots-keras-3.15-archive-adam.keras"
    assert ckpttool.unwrap(source, tmp_path / "sound.safetensors").optimizer_left_out
    bad = damaged(source, tmp_path / "bad.keras", "model.weights.h5", 0.988)
    with pytest.raises(CorruptCheckpointError, match="another checksum"):
        ckpttool.unwrap(bad, tmp_path / "out.safetensors")


@pytest.fixture
def old_archive(fixture_files: Path, tmp_path: Path) -> Path:
    """A `.keras` archive of tf.keras, which is built anew for Keras 3, with a bit of a weight turned."""
    path = fixture_files / "tf-2.15-sequential-mirrored.keras"
    with open_checkpoint(path) as reader:
        place = reader.extent(next(reader.describe().weights()))
    assert place is not None
    data = bytearray(path.read_bytes())
    data[place.offset] ^= 4
    (tmp_path / "bad.keras").write_bytes(data)
    return tmp_path / "bad.keras"


def test_a_turned_bit_is_found_when_the_model_goes_to_tf_keras(old_archive: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="another checksum"):
        ckpttool.migrate(old_archive, tmp_path / "out.h5", to="tf-keras", verify=False)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.keras"]
    ckpttool.migrate(old_archive, tmp_path / "out.h5", to="tf-keras", verify=False, options=UNCHECKED)


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore")  # of Keras and TensorFlow themselves
def test_a_turned_bit_is_found_when_the_model_is_built_anew(old_archive: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="another checksum"):
        ckpttool.unwrap(old_archive, tmp_path / "out.keras")
    with pytest.raises(CorruptCheckpointError, match="another checksum"):
        ckpttool.migrate(old_archive, tmp_path / "out.keras", verify=False)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.keras"]
    assert ckpttool.unwrap(old_archive, tmp_path / "out.keras", options=UNCHECKED).tensors


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_npz_members_are_compared_one_by_one(tmp_path: Path, dtype: str | None) -> None:
    source = tmp_path / "two.npz"
    np.savez(
        source, **{"a/kernel": np.arange(300_000, dtype=np.float32) % 1000, "b/kernel": np.arange(7, dtype=np.float32)}
    )
    bad = damaged(source, tmp_path / "bad.npz", "a/kernel.npy", 0.5)
    ckpttool.convert(source, tmp_path / "sound.safetensors", dtype=dtype)
    with pytest.raises(CorruptCheckpointError, match=r"'a/kernel\.npy' has another checksum"):
        ckpttool.convert(bad, tmp_path / "out.safetensors", dtype=dtype)


@pytest.mark.parametrize("seed", range(5))
def test_parts_join_to_the_checksum_of_the_whole(seed: int) -> None:
    chosen = random.Random(seed)
    first, second = (chosen.randbytes(chosen.choice([0, 1, 7, 4096, 100_003])) for _ in range(2))
    assert joined_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("installed", [True, False])
def test_the_sum_is_zlibs_with_and_without_the_package(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setitem(__import__("sys").modules, "zlib_ng", None)
    crc32.cache_clear()
    data = random.Random(3).randbytes(300_001)
    assert crc32()(data[777:], crc32()(data[:777], 0)) == zlib.crc32(data)
    crc32.cache_clear()


def header_of(data: bytes, member: str) -> tuple[int, int]:
    """Where the checksum of a member stands: in its own header, and in the directory."""
    return data.index(member.encode()) - 30 + 14, data.rindex(member.encode()) - 46 + 16


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("suffix", [".safetensors", ".keras", ".weights.h5"])
def test_a_changed_checksum_is_found_wherever_it_stands(
    archive: Path, tmp_path: Path, places: tuple[int, ...], suffix: str
) -> None:
    data = bytearray(archive.read_bytes())
    for place in places:
        data[header_of(data, "model.weights.h5")[place]] ^= 1
    bad = tmp_path / "bad.keras"
    bad.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"another checksum .*--no-checksum"):
        ckpttool.convert(bad, tmp_path / f"out{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.keras"]
    assert ckpttool.convert(bad, tmp_path / f"out{suffix}", options=UNCHECKED).tensors


@pytest.mark.parametrize(
    ("member", "old", "new"), [("config.json", b"top_bn", b"top_bm"), ("metadata.json", b"3.15", b"3.14")]
)
def test_a_changed_text_is_found_and_can_be_read_as_it_is(
    archive: Path, tmp_path: Path, member: str, old: bytes, new: bytes
) -> None:
    bad = tmp_path / "bad.keras"
    bad.write_bytes(archive.read_bytes().replace(old, new))
    with pytest.raises(CorruptCheckpointError, match=rf"'{member}' has another checksum .*--no-checksum"):
        ckpttool.convert(bad, tmp_path / "out.npz")
    assert ckpttool.convert(bad, tmp_path / "out.npz", options=UNCHECKED).tensors


def test_a_changed_asset_is_found_where_it_is_copied(fixture_files: Path, tmp_path: Path) -> None:
    member = "assets/layers/string_lookup/vocabulary.txt"
    bad = damaged(fixture_files / "keras-3.15-lookup.keras", tmp_path / "bad.keras", member, 0.5)
    with pytest.raises(CorruptCheckpointError, match=rf"'{member}' has another checksum .*--no-checksum"):
        ckpttool.convert(bad, tmp_path / "out.keras")
    assert ckpttool.convert(bad, tmp_path / "out.keras", options=UNCHECKED).assets_kept == 6


class Stream(io.RawIOBase):
    """What cannot be sought in: zipfile then writes sizes and checksums behind the members."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


@pytest.mark.parametrize("kind", ["behind", "behind, deflated", "zip64"])
def test_checksums_behind_members_and_in_zip64_are_compared_too(kind: str, archive: Path, tmp_path: Path) -> None:
    stream = io.BytesIO() if kind == "zip64" else Stream()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED if "deflated" in kind else zipfile.ZIP_STORED
            with new.open(info, "w", force_zip64=kind == "zip64") as member:
                member.write(old.read(name))
    sound = tmp_path / "sound.keras"
    sound.write_bytes(stream.getvalue() if isinstance(stream, io.BytesIO) else stream.data)
    assert ckpttool.convert(sound, tmp_path / "a.safetensors").tensors
    if "deflated" not in kind:
        bad = damaged(sound, tmp_path / "bad.keras", "model.weights.h5", 0.99)
        with pytest.raises(CorruptCheckpointError, match="another checksum"):
            ckpttool.convert(bad, tmp_path / "b.safetensors")


@pytest.mark.parametrize("where", ["same", "inside", "tail", "across the end", "start of the file", "end of the file"])
def test_tensors_that_overlap_are_no_damage_and_hide_none(where: str, archive: Path, tmp_path: Path) -> None:
    """One dataset is moved onto another in HDF5's own structures; the checksum is that of the changed file."""
    with zipfile.ZipFile(archive) as file:
        texts = {name: file.read(name) for name in file.namelist()}
    weights = bytearray(texts["model.weights.h5"])
    found: list[tuple[int, int]] = []
    with h5py.File(io.BytesIO(weights)) as file:
        file.visititems(lambda _, item: found.append((item.id.get_storage_size(), item.id.get_offset()))
                        if isinstance(item, h5py.Dataset) and item.id.get_offset() else None)  # fmt: skip
    (size, offset), (large, other) = min(found), max(found)
    targets = {"same": other, "inside": other + 8, "tail": other + large - size, "across the end": other + large - 4,
               "start of the file": 8, "end of the file": len(weights) - size}  # fmt: skip
    place = weights.index(struct.pack("<QQ", offset, size))
    weights[place : place + 8] = targets[where].to_bytes(8, "little")
    sound = tmp_path / "sound.keras"
    with zipfile.ZipFile(sound, "w") as new:
        for name, data in texts.items():
            new.writestr(name, bytes(weights) if name == "model.weights.h5" else data)
    for suffix in (".safetensors", ".h5", ".keras"):
        assert ckpttool.convert(sound, tmp_path / f"out{suffix}").tensors
    for fraction in (0.995, 0.98):
        bad = damaged(sound, tmp_path / "bad.keras", "model.weights.h5", fraction)
        with pytest.raises(CorruptCheckpointError):
            ckpttool.convert(bad, tmp_path / "bad.safetensors")
