"""What every format's reader and writer must do. A format's test module subclasses both."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ckpttool.checkpoint import Checkpoint, TensorSpec
from ckpttool.errors import CheckpointError, ReaderClosedError
from ckpttool.opening import open_checkpoint
from ckpttool.reading import Reader
from ckpttool.registry import format_module

from ..manifest import Truth, read

GARBAGE = 0xA5  # a byte no fixture is filled with


def everything(path: Path) -> tuple[Checkpoint, list[Truth]]:
    """Open, describe and read all values."""
    with open_checkpoint(path) as reader:
        checkpoint = reader.describe()
        return checkpoint, read(reader, [*checkpoint.weights(), *checkpoint.optimizer_tensors()])


class ReaderContract:
    """Subclasses give `sample`: the path of a file with weights, small, all values stored plainly."""

    format_name: ClassVar[str]

    @pytest.fixture
    def sample(self) -> Path:
        raise NotImplementedError

    def cut_points(self, size: int) -> Iterator[int]:
        """Lengths to which the sample is cut: all around its head, then evenly, then its last bytes."""
        yield from range(1, 130)
        yield from range(130, size, max(1, size // 97))
        yield from range(max(130, size - 16), size)

    def test_it_is_recognised(self, sample: Path) -> None:
        with open_checkpoint(sample) as reader:
            assert reader.describe().format == self.format_name

    def test_describe_reads_no_values(self, sample: Path, tmp_path: Path) -> None:
        """A file whose values are destroyed describes itself as before, so no value was looked at."""
        broken = tmp_path / sample.name
        data = bytearray(sample.read_bytes())
        with open_checkpoint(sample) as reader:
            before = reader.describe()
            for spec in before.weights():
                extent = reader.extent(spec)
                assert extent is not None, f"{spec.name} is not stored plainly; choose another sample"
                data[extent.offset : extent.offset + extent.nbytes] = bytes([GARBAGE]) * extent.nbytes
            old = read(reader, before.weights())
        broken.write_bytes(data)
        with open_checkpoint(broken) as reader:
            assert reader.describe() == before
            assert all(a.sha256 != b.sha256 for a, b in zip(read(reader, before.weights()), old, strict=True))

    def test_the_description_is_plain_data(self, sample: Path) -> None:
        with open_checkpoint(sample) as reader:
            described = reader.describe()
        assert pickle.loads(pickle.dumps(described)) == described
        with open_checkpoint(sample) as reader:
            assert reader.describe() == described

    @pytest.mark.parametrize("max_bytes", [1, 4, 28, 1000, 2**20])
    def test_blocks_join_to_the_whole(self, sample: Path, max_bytes: int) -> None:
        with open_checkpoint(sample) as reader:
            for spec in list(reader.describe().weights())[:6]:
                whole = reader.read(spec)
                assert whole.shape == spec.shape
                blocks = list(reader.iter_blocks(spec, max_bytes))
                assert all(block.ndim == 1 and block.nbytes <= max(max_bytes, whole.itemsize) for block in blocks)
                assert np.concatenate(blocks).tobytes() == whole.tobytes()
                assert {block.dtype for block in blocks} == {whole.dtype}

    def test_the_extent_holds_the_values(self, sample: Path) -> None:
        data = sample.read_bytes()
        with open_checkpoint(sample) as reader:
            for spec in reader.describe().weights():
                extent = reader.extent(spec)
                assert extent is not None
                assert data[extent.offset : extent.offset + extent.nbytes] == reader.read(spec).tobytes()

    def test_a_cut_file_is_an_error_of_its_own(self, sample: Path, tmp_path: Path) -> None:
        data = sample.read_bytes()
        cut = tmp_path / sample.name
        for length in self.cut_points(len(data)):
            cut.write_bytes(data[:length])
            with pytest.raises(CheckpointError) as caught:
                everything(cut)
            assert caught.value.code == 3, length
            assert str(cut) in str(caught.value), length

    def test_a_closed_reader_refuses(self, sample: Path) -> None:
        with open_checkpoint(sample) as reader:
            spec = next(reader.describe().weights())
        self.refuses(reader, spec)
        reader.close()
        self.refuses(reader, spec)

    @staticmethod
    def refuses(reader: Reader, spec: TensorSpec) -> None:
        with pytest.raises(ReaderClosedError):
            reader.describe()
        with pytest.raises(ReaderClosedError):
            reader.read(spec)
        with pytest.raises(ReaderClosedError):
            list(reader.iter_blocks(spec))
        with pytest.raises(ReaderClosedError):
            reader.extent(spec)

    def test_the_source_stays_as_it_is(self, sample: Path) -> None:
        before = (sample.read_bytes(), sample.stat().st_mtime_ns)
        everything(sample)
        assert (sample.read_bytes(), sample.stat().st_mtime_ns) == before


class WriterContract:
    """Subclasses give `sample`, a description and values to write, and say how the owning library reads it back."""

    format_name: ClassVar[str]

    @pytest.fixture
    def sample(self) -> Path:
        raise NotImplementedError

    def read_as_the_owner_does(self, path: Path) -> dict[str, bytes]:
        """The written tensors' bytes by path, read without ckpttool in the way the owning library reads."""
        raise NotImplementedError

    def write(self, sample: Path, output: Path) -> Checkpoint:
        """Write the sample anew in this format; returns what was written."""
        with open_checkpoint(sample) as reader:
            checkpoint = reader.describe()
            format_module(self.format_name).write(reader, checkpoint, output)
            return checkpoint

    def test_a_round_trip_keeps_every_bit(self, sample: Path, tmp_path: Path) -> None:
        output = tmp_path / f"written{sample.suffix}"
        written = self.write(sample, output)
        checkpoint, values = everything(output)
        with open_checkpoint(sample) as reader:
            weights = read(reader, written.weights())
        assert values == weights
        assert [path for path, _ in checkpoint.walk()] == [path for path, _ in written.walk()]

    def test_the_owning_library_finds_every_tensor(self, sample: Path, tmp_path: Path) -> None:
        output = tmp_path / f"written{sample.suffix}"
        self.write(sample, output)
        with open_checkpoint(sample) as reader:
            wanted = {spec.name: reader.read(spec).tobytes() for spec in reader.describe().weights()}
        assert self.read_as_the_owner_does(output) == wanted

    def test_writing_twice_gives_the_same_bytes(self, sample: Path, tmp_path: Path) -> None:
        first, second = tmp_path / f"a{sample.suffix}", tmp_path / f"b{sample.suffix}"
        self.write(sample, first)
        self.write(sample, second)
        assert first.read_bytes() == second.read_bytes()

    def test_progress_ends_at_the_total(self, sample: Path, tmp_path: Path) -> None:
        seen = []
        with open_checkpoint(sample) as reader:
            checkpoint = reader.describe()
            format_module(self.format_name).write(
                reader, checkpoint, tmp_path / f"written{sample.suffix}", on_progress=seen.append
            )
        assert seen[-1].done_bytes == seen[-1].total_bytes == sum(spec.nbytes for spec in checkpoint.weights())
        assert [step.done_bytes for step in seen] == sorted(step.done_bytes for step in seen)
