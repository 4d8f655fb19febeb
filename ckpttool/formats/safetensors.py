"""safetensors: a length, a JSON header that gives each tensor's type, shape and place, and the values.

Source: the format's description in the README of huggingface/safetensors, and what its library 0.5 refuses: the values
follow each other without holes, in the header's offsets, which count from the end of the header. Types of more bytes
come first, so that every tensor lies aligned.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import ITEM_BYTES, Checkpoint, TensorSpec
from ..copying import copy_tensors, open_new
from ..errors import CorruptCheckpointError, LimitExceededError, ReaderClosedError, UnreadableError, UnsupportedError
from ..named_tensors import assign, grouped, names, tensor
from ..probe import Probe
from ..reading import BLOCK_BYTES, Closing, Extent, Match, OnProgress
from ..reading import Reader as SourceReader

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FORMAT", "SIGNS", "Reader", "assign", "sniff", "write"]

FORMAT = "safetensors"
SIGNS = "a length in 8 bytes and a JSON header"
HOLDS_CONFIG = False
OPTIMIZER_FROM = ("*",)  # formats whose optimizer state can be written; under `optimizer/` and the names it has
METADATA = "__metadata__"
MAX_HEADER_BYTES = 100_000_000  # bytes; the library refuses a longer header
ALIGNMENT = 8  # bytes; the header is padded with spaces to a multiple of it

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {code: name for name, code in DTYPES.items()}


def sniff(probe: Probe) -> Match | None:
    """Recognise a header length that fits the file, followed by a JSON object."""
    if probe.is_dir or len(probe.head) < ALIGNMENT + 2 or probe.head[ALIGNMENT : ALIGNMENT + 1] != b"{":
        return None
    length = int.from_bytes(probe.head[:ALIGNMENT], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        return None
    return Match(FORMAT, f"a JSON header of {length:,} bytes")


class Reader(Closing):
    """One safetensors file."""

    def __init__(self, probe: Probe) -> None:
        self._path = probe.path
        self._limits = probe.limits
        try:
            self._file = probe.path.open("rb")
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror}", path=probe.path) from error
        try:
            self._described = self._read_header(os.fstat(self._file.fileno()).st_size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _read_header(self, size_bytes: int) -> Checkpoint:
        length = int.from_bytes(self._file.read(ALIGNMENT), "little")
        start = ALIGNMENT + length
        if length > MAX_HEADER_BYTES or start > size_bytes:
            raise self._corrupt(f"its header of {length:,} bytes is longer than the file; it is truncated")
        header = self._parsed(self._file.read(length))
        metadata = header.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self._corrupt("its metadata is not a table of texts")
        if len(header) > self._limits.max_objects:
            raise LimitExceededError(f"holds {len(header):,} tensors", path=self._path, limit="max_objects")
        self._places: dict[str, tuple[int, int]] = {}
        specs = [self._tensor(name, entry, start) for name, entry in header.items()]
        end = start
        for offset, nbytes in sorted(self._places.values()):
            if offset != end:
                raise self._corrupt("its tensors overlap or leave holes")
            end = offset + nbytes
        if end != size_bytes:
            short = "; it is truncated" if end > size_bytes else ""
            raise self._corrupt(f"its tensors end at byte {end:,}, the file at {size_bytes:,}{short}")
        layers, loose = grouped(specs)
        return Checkpoint(FORMAT, FORMAT, "weights", layers, loose, metadata=tuple(metadata.items()))

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            header = json.loads(data.decode("utf-8"), object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            if isinstance(error, CorruptCheckpointError):
                raise
            raise self._corrupt("its header is not JSON") from error
        if not isinstance(header, dict):
            raise self._corrupt("its header is not a JSON object")
        return header

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise self._corrupt("its header names something twice")
        return found

    def _tensor(self, name: str, entry: Any, start: int) -> TensorSpec:
        try:
            code, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(f"the header's entry of tensor {name!r} is incomplete") from error
        numbers = (*shape, first, last)
        if not isinstance(code, str) or not all(type(number) is int and number >= 0 for number in numbers):
            raise self._corrupt(f"the header's entry of tensor {name!r} is not one")
        if len(name) > self._limits.max_name_bytes:
            raise LimitExceededError(f"a name of {len(name):,} characters", path=self._path, limit="max_name_bytes")
        dtype = _NAMES.get(code, code.lower())
        known = ITEM_BYTES.get(dtype)
        if last < first or (known is not None and last - first != known * math.prod(shape)):
            raise self._corrupt(f"tensor {name!r} has {last - first:,} bytes for shape {shape} of {dtype}")
        self._places[name] = (start + first, last - first)
        return tensor(name, shape, dtype, name)

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(what, path=self._path)

    def describe(self) -> Checkpoint:
        """Layers by the parts of the names, in the header's order."""
        self._check_open()
        return self._described

    def _check_open(self) -> None:
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self._path)

    def extent(self, spec: TensorSpec) -> Extent | None:
        """Where the tensor's bytes lie in the file."""
        self._check_open()
        if spec.locator not in self._places:
            raise self._corrupt(f"holds no tensor '{spec.locator}'")
        if spec.dtype not in ITEM_BYTES:
            return None
        return Extent(self._path, *self._places[spec.locator])

    def iter_blocks(self, spec: TensorSpec, max_bytes: int = BLOCK_BYTES) -> Iterator[np.ndarray]:
        """The tensor's elements in C order, as 1-D arrays of at most `max_bytes` bytes each."""
        from ._plain_blocks import plain_blocks

        extent = self.extent(spec)
        if extent is None:
            raise UnsupportedError(f"{spec.name}: values of type {spec.dtype} are not read", path=self._path)
        yield from plain_blocks(self._file.fileno(), extent, spec.dtype, max_bytes)

    def read(self, spec: TensorSpec) -> np.ndarray:
        """The whole tensor, of `spec.shape`."""
        from ._plain_blocks import joined

        return joined(list(self.iter_blocks(spec)), spec)


def write(reader: SourceReader, checkpoint: Checkpoint, path: Path, *, on_progress: OnProgress | None = None) -> None:
    """Write the tensors of a description, streamed from a reader; its configuration has no place in the format.

    The header lists them in model order. Its metadata holds `format` ("ckpttool"), `version`, and of the description's
    metadata `source` and `source_bytes`.

    Parameters
    ----------
    reader : gives the values of every tensor of `checkpoint`
    checkpoint : its weights and optimizer tensors are written
    path : a new file
    on_progress : called after each tensor

    Raises
    ------
    UnsupportedError : a dtype that the format does not have, or two tensors of one name
    OSError : the file cannot be written
    """
    from .. import __version__

    named = names(checkpoint)
    for name, spec in named:
        if spec.dtype not in DTYPES:
            other = "; write '.h5' or '.npz'" if spec.dtype in ITEM_BYTES else ""
            raise UnsupportedError(f"{name}: safetensors holds no {spec.dtype} tensors{other}")
        if name == METADATA:
            raise UnsupportedError(f"{name}: safetensors holds no tensor of that name; write '.h5' or '.npz'")
    offsets: dict[str, int] = {}
    end = 0
    for name, spec in sorted(named, key=_narrowness):
        offsets[name] = end
        end += spec.nbytes
    about = {key: value for key, value in checkpoint.metadata if key in ("source", "source_bytes")}
    header: dict[str, Any] = {METADATA: {"format": "ckpttool", "version": __version__, **about}}
    for name, spec in named:
        place = [offsets[name], offsets[name] + spec.nbytes]
        header[name] = {"dtype": DTYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": place}
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % ALIGNMENT)
    if len(data) > MAX_HEADER_BYTES:
        raise UnsupportedError(f"its header would have {len(data):,} bytes; safetensors allows {MAX_HEADER_BYTES:,}")
    start = ALIGNMENT + len(data)
    with open_new(path) as file:
        file.write(len(data).to_bytes(ALIGNMENT, "little") + data)
        file.flush()
        places = [(spec, start + offsets[name]) for name, spec in named if spec.nbytes]
        file.truncate(start + end)
        copy_tensors(reader, places, file.fileno(), on_progress)


def _narrowness(item: tuple[str, TensorSpec]) -> int:
    return -ITEM_BYTES[item[1].dtype]
