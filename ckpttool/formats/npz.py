"""NumPy's `.npz`: a zip of `.npy` members, each a short header and the values. Pickled objects are never loaded.

Source: numpy/lib/format.py (formats 1.0 to 3.0), numpy/lib/_npyio_impl.py, `savez` (NumPy 2). Members that are stored,
in C order and little-endian are read where they lie; others are decoded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import ITEM_BYTES, Checkpoint, TensorSpec
from ..copying import copy_tensor, little_endian_bytes, open_new
from ..dtypes import numpy_dtype
from ..errors import CorruptCheckpointError, LimitExceededError, ReaderClosedError, UnsupportedError
from ..named_tensors import assign, grouped, names, tensor
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match, OnProgress, Progress
from ..reading import Reader as SourceReader
from ._zip_writing import MAX_NAME_BYTES, ZipWriter

__all__ = ["FORMAT", "SIGNS", "Reader", "assign", "sniff", "write"]

FORMAT = "npz"
SIGNS = "zip whose members end in .npy"
HOLDS_CONFIG = False
OPTIMIZER_FROM = ("*",)  # formats whose optimizer state can be written; under `optimizer/` and the names it has
SUFFIX = ".npy"
NPY_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000  # of a member; NumPy refuses longer ones since its parser could be made to crash

_HEADER = re.compile(
    rb"\{\s*'descr':\s*'(?P<descr>[^']{1,100})',\s*'fortran_order':\s*(?P<fortran>True|False),\s*"
    rb"'shape':\s*\((?P<shape>[\d,\sL]{0,1000})\),?\s*\}\s*"
)


class _Place(NamedTuple):
    member: str
    dtype: np.dtype[Any]  # as stored
    fortran: bool
    start: int  # bytes of header within the member
    unreadable: str | None = None


def sniff(probe: Probe) -> Match | None:
    """Recognise a zip whose members are all arrays."""
    archive = probe.zip()
    if not archive or not archive.members or not all(name.endswith(SUFFIX) for name in archive.members):
        return None
    return Match(FORMAT, f"a zip of {len(archive.members)} '{SUFFIX}' members")


class Reader(Closing):
    """One `.npz` archive."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._path = probe.path
        self._limits = probe.limits
        archive = probe.zip()
        if archive is None:
            raise self._corrupt("no zip archive")
        self._archive = archive
        self._verified = probe.options.checksums
        self._closed = False
        self._places: dict[str, _Place] = {}
        try:
            specs = [self._tensor(member) for member in self._archive.members]
        except BaseException:
            self.close()
            raise
        layers, loose = grouped(specs)
        self._described = Checkpoint(FORMAT, "zip", "weights", layers, loose)

    def close(self) -> None:
        """Release the archive."""
        self._closed = True
        self._probe.close()

    def _tensor(self, member: str) -> TensorSpec:
        name = member.removesuffix(SUFFIX)
        head = self._archive.head(member, MAX_HEADER_BYTES + 12)
        if len(head) < 10 or not head.startswith(NPY_MAGIC):
            raise self._corrupt(f"member '{member}' is no '.npy' array")
        wide = head[6] in (2, 3)
        if not wide and head[6] != 1:
            raise UnsupportedError(f"member '{member}' is of '.npy' format {head[6]}", path=self._path)
        fixed = 12 if wide else 10
        start = fixed + int.from_bytes(head[8:fixed], "little")
        if start > MAX_HEADER_BYTES:
            raise LimitExceededError(f"member '{member}' has a header of {start:,} bytes", path=self._path)
        place, shape, dtype = self._header(member, head[fixed:start], start)
        declared = place.dtype.itemsize * math.prod(shape)
        if place.unreadable is None and start + declared != self._archive.members[member].size_bytes:
            raise self._corrupt(
                f"member '{member}' holds {self._archive.members[member].size_bytes - start:,} bytes of values, "
                f"its shape {shape} asks for {declared:,}"
            )
        self._places[member] = place
        return tensor(name, shape, dtype, member)

    def _header(self, member: str, text: bytes, start: int) -> tuple[_Place, tuple[int, ...], str]:
        found = _HEADER.fullmatch(text)
        if found is None:
            if b"'descr': [" in text:
                return _Place(member, np.dtype("V1"), False, start, "is a structured array"), (), "structured"
            raise self._corrupt(f"member '{member}' has a header that is not NumPy's")
        try:
            shape = tuple(int(part.strip(b" L")) for part in found["shape"].split(b",") if part.strip())
        except ValueError as error:
            raise self._corrupt(f"member '{member}' has a header that is not NumPy's") from error
        if math.prod(shape) > self._limits.max_tensor_bytes:
            raise LimitExceededError(
                f"member '{member}' declares shape {shape}", path=self._path, limit="max_tensor_bytes"
            )
        descr = found["descr"].decode("ascii", "replace")
        if descr.endswith("O"):
            place = _Place(member, np.dtype("V8"), False, start, "holds pickled objects, which ckpttool never loads")
            return place, shape, "object"
        try:
            stored = np.dtype(descr)
        except (TypeError, ValueError) as error:
            raise self._corrupt(f"member '{member}' is of an unknown type {descr!r}") from error
        dtype = "bfloat16" if stored == np.dtype("V2") else stored.name  # what NumPy makes of ml_dtypes.bfloat16
        unreadable = None if dtype in ITEM_BYTES else f"has the type {stored}, which no Keras tensor has"
        place = _Place(member, stored, found["fortran"] == b"True" and len(shape) > 1, start, unreadable)
        return place, shape, dtype

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(what, path=self._path)

    def verify(self) -> None:
        """Compare the checksums of the members that were copied as they lie there.

        Raises
        ------
        CorruptCheckpointError : one does not fit
        """
        self._archive.verify()

    def describe(self) -> Checkpoint:
        """Layers by the parts of the names, in the archive's order."""
        self._check_open()
        return self._described

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosedError("the reader is closed", path=self._path)

    def _place(self, spec: TensorSpec) -> _Place:
        self._check_open()
        place = self._places.get(spec.locator)
        if place is None:
            raise self._corrupt(f"holds no tensor '{spec.locator}'")
        return place

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie in the file; None where they are packed, in another order or big-endian."""
        place = self._place(spec)
        member = self._archive.members[place.member]
        plain = not place.fortran and place.dtype == place.dtype.newbyteorder("<") and place.unreadable is None
        if member.deflated or not plain:
            return None
        part_of = self._archive.checksum(place.member) if self._verified else None
        return Extent(self._path, member.offset + place.start, member.size_bytes - place.start, part_of=part_of)

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        place = self._place(spec)
        if place.unreadable is not None:
            raise UnsupportedError(f"member '{place.member}' {place.unreadable}", path=self._path)
        dtype = numpy_dtype(spec.dtype)
        items = max(1, max_bytes // dtype.itemsize)
        if place.fortran:
            values = np.concatenate([np.empty(0, dtype), *self._stored(place, dtype, BLOCK_BYTES)])
            flat = np.ascontiguousarray(values.reshape(spec.shape, order="F")).reshape(-1)
            yield from (flat[start : start + items] for start in range(0, flat.size, items))
            return
        yield from self._stored(place, dtype, items * dtype.itemsize)

    def _stored(self, place: _Place, dtype: np.dtype[Any], nbytes: int) -> Iterator[np.ndarray]:
        """The values in stored order, native-endian, in pieces of `nbytes`, a whole number of elements."""
        pending = bytearray()
        skip = place.start
        for chunk in self._archive.chunks(place.member):
            pending += chunk[skip:]
            skip = max(0, skip - len(chunk))
            end = len(pending) - len(pending) % nbytes
            for start in range(0, end, nbytes):
                yield self._values(bytes(pending[start : start + nbytes]), place, dtype)
            del pending[:end]
        if pending:
            yield self._values(bytes(pending), place, dtype)

    @staticmethod
    def _values(data: bytes, place: _Place, dtype: np.dtype[Any]) -> np.ndarray:
        values = np.frombuffer(data, place.dtype)
        return values.view(dtype) if place.dtype.kind == "V" else values.astype(dtype, copy=False)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        blocks = list(self.iter_blocks(spec))
        values = np.concatenate(blocks) if blocks else np.empty(0, numpy_dtype(spec.dtype))
        return values.reshape(spec.shape)


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write the tensors of a description, streamed from a reader; its configuration has no place in the format.

    Members are stored, dated 1980, in model order. bfloat16 and float8 become float32, which is exact.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : its weights and optimizer tensors are written
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : text, two tensors of one name, or a name that may not stand in an archive
    OSError : the file cannot be written
    """
    named = names(checkpoint)
    total = sum(spec.nbytes for _, spec in named)
    done = 0
    with open_new(path) as file:
        archive = ZipWriter(file.fileno())
        for name, spec in named:
            _check(name, spec)
            header = npy_header(spec)
            offset = archive.begin(f"{name}{SUFFIX}", len(header) + 2 * spec.nbytes)
            file.seek(offset)
            file.write(header)
            file.flush()
            _write_values(reader, spec, file.fileno(), offset + len(header))
            archive.end()
            done += spec.nbytes
            if on_progress is not None:
                on_progress(Progress(done, total, spec.name))
        archive.close()


def _check(name: str, spec: TensorSpec) -> None:
    if spec.dtype not in ITEM_BYTES:
        raise UnsupportedError(f"{name}: '.npz' of arrays holds no {spec.dtype} tensors")
    if len(name.encode()) + len(SUFFIX) > MAX_NAME_BYTES:
        raise UnsupportedError(f"a name of {len(name):,} characters is too long for an archive; write '.safetensors'")
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts) or ":" in parts[0]:
        raise UnsupportedError(f"the name '{name}' may not stand in an archive; write '.safetensors'")


def _write_values(reader: SourceReader, spec: TensorSpec, descriptor: int, offset: int) -> None:
    if not becomes_float32(spec):
        copy_tensor(reader, spec, descriptor, offset)
        return
    from ..copying import write_at

    for block in reader.iter_blocks(spec, BLOCK_BYTES):
        data = little_endian_bytes(block.astype(np.float32))
        write_at(descriptor, data, offset)
        offset += len(data)


def becomes_float32(spec: TensorSpec) -> bool:
    """Whether the values change their type on the way, exactly: NumPy's files have no bfloat16 and no float8."""
    return spec.dtype.startswith(("bfloat", "float8"))


def npy_header(spec: TensorSpec) -> bytes:
    """The header of a `.npy` file (format 1.0) for a tensor's values."""
    import io

    dtype = np.dtype(np.float32 if becomes_float32(spec) else spec.dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": spec.shape}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
