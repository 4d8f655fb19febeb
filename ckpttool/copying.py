"""Move a tensor's bytes into an open file: by the kernel where they lie plainly, else block by block."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from . import checksums
from .checkpoint import TensorSpec
from .errors import CorruptCheckpointError
from .reading import BLOCK_BYTES, Extent, OnProgress, Progress, Reader

if TYPE_CHECKING:
    import numpy as np

KERNEL_CHUNK_BYTES = 2**25  # bytes asked of the kernel at once: progress stays visible, memory is not used
COPY_BYTES = 2**19  # a buffer that stays in the second-level cache between its read and its write
PAGE_BYTES = 4096  # the kernel moves pages; where they do not lie alike it copies slower than a read and a write do
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class Hash(Protocol):
    """What hashlib's objects offer."""

    def update(self, data: memoryview | bytes, /) -> None: ...


def copy_tensor(reader: Reader, spec: TensorSpec, descriptor: int, offset: int, digest: Hash | None = None) -> int:
    """Write a tensor's values, little-endian and in C order, at an offset of an open file.

    Parameters
    ----------
    reader, spec : the tensor; any shape, any dtype but text
    descriptor : of a file open for writing
    offset : bytes from the start of that file
    digest : fed with the bytes written, where given

    Returns
    -------
    bytes written

    Raises
    ------
    CorruptCheckpointError : the source holds fewer or more bytes than the shape says
    OSError : the output cannot be written
    """
    extent = reader.extent(spec) if digest is None else None
    if extent is not None and extent.nbytes == spec.nbytes:
        source = _open(extent.path)
        try:
            _copy_extent(spec.name, source, extent, descriptor, offset)
        finally:
            os.close(source)
        return spec.nbytes
    done = 0
    for block in reader.iter_blocks(spec, BLOCK_BYTES):
        data = little_endian_bytes(block)
        if done + len(data) > spec.nbytes:
            done += len(data)
            break
        if digest is not None:
            digest.update(data)
        write_at(descriptor, data, offset + done)
        done += len(data)
    if done != spec.nbytes:
        raise CorruptCheckpointError(f"{spec.name}: {done:,} bytes of values for shape {spec.shape}")
    return done


def copy_tensors(
    reader: Reader, places: Sequence[tuple[TensorSpec, int]], descriptor: int, on_progress: OnProgress | None = None
) -> None:
    """Write many tensors at their offsets of one open file; each source file is opened once.

    Raises
    ------
    CorruptCheckpointError, OSError : as `copy_tensor`
    """
    total = sum(spec.nbytes for spec, _ in places)
    done = 0
    sources: dict[Path, int] = {}
    _reserve(descriptor, places)
    try:
        for spec, offset in places:
            extent = reader.extent(spec)
            if extent is not None and extent.nbytes == spec.nbytes:
                if extent.path not in sources:
                    sources[extent.path] = _open(extent.path)
                _copy_extent(spec.name, sources[extent.path], extent, descriptor, offset)
                done += spec.nbytes
            else:
                done += copy_tensor(reader, spec, descriptor, offset)
            if on_progress is not None:
                on_progress(Progress(done, total, spec.name))
    finally:
        for source in sources.values():
            os.close(source)


def open_new(path: Path) -> IO[bytes]:
    """Open a file of no bytes, there or not yet, for reading and writing.

    Not by mode `wb`: after `O_TRUNC` ext4 starts to write the file back when it is closed (fs/ext4/inode.c, Linux 6.18,
    `EXT4_STATE_DA_ALLOC_CLOSE`), which doubles the cost of a copy.

    Raises
    ------
    OSError : it cannot be opened
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    if os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "r+b")


def _reserve(descriptor: int, places: Sequence[tuple[TensorSpec, int]]) -> None:
    """Ask for the room at once: a full disk shows before anything is copied, and writing costs a third less (ext4)."""
    if not places or not hasattr(os, "posix_fallocate"):
        return
    first = min(offset for _, offset in places)
    last = max(offset + spec.nbytes for spec, offset in places)
    try:
        os.posix_fallocate(descriptor, first, last - first)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


def little_endian_bytes(block: np.ndarray) -> memoryview:
    """The block's bytes as a file holds them."""
    import sys

    import numpy as np

    flat = np.ascontiguousarray(block).reshape(-1)
    if sys.byteorder == "big" and flat.dtype.itemsize > 1:
        flat = flat.byteswap()
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def _copy_extent(name: str, source: int, extent: Extent, descriptor: int, offset: int) -> None:
    """Copy bytes as they are; where they have a checksum, through memory, and compare it at the end."""
    verify: checksums.Crc | None = None
    if extent.crc32c is not None:
        verify = checksums.crc32c
    elif extent.part_of is not None:
        verify = checksums.crc32()
    done = 0
    if extent.nbytes > COPY_BYTES and (offset - extent.offset) % PAGE_BYTES == 0 and verify is None:
        done = _copy_by_kernel(source, extent, descriptor, offset)
    crc = 0
    if done < extent.nbytes:
        crc = _copy_through_memory(source, extent, descriptor, offset, done, verify)
    if extent.part_of is not None:
        extent.part_of.saw(extent.offset, extent.nbytes, crc)
    if extent.crc32c is not None and checksums.masked(crc) != extent.crc32c:
        raise CorruptCheckpointError(
            f"{name}: its checksum does not fit its bytes; the file is damaged, try another copy "
            "(--no-checksum reads it as it is)",
            path=extent.path,
        )


def _copy_through_memory(
    source: int, extent: Extent, descriptor: int, offset: int, done: int, checksum: checksums.Crc | None
) -> int:
    """Copy what is not done yet; returns its checksum, 0 without a function for it."""
    crc = 0
    buffer = memoryview(bytearray(min(COPY_BYTES, extent.nbytes - done)))
    while done < extent.nbytes:
        if extent.nbytes - done < len(buffer):
            buffer = buffer[: extent.nbytes - done]
        count = os.preadv(source, [buffer], extent.offset + done)
        if not count:
            raise CorruptCheckpointError("the file became shorter while it was read", path=extent.path)
        data = buffer if count == len(buffer) else buffer[:count]
        if checksum is not None:
            crc = checksum(data, crc)
        write_at(descriptor, data, offset + done)
        done += count
    return crc


def _copy_by_kernel(source: int, extent: Extent, descriptor: int, offset: int) -> int:
    """Bytes that `copy_file_range` moved; fewer than asked where the file systems do not offer it."""
    if not hasattr(os, "copy_file_range"):
        return 0
    done = 0
    while done < extent.nbytes:
        try:
            moved = os.copy_file_range(
                source, descriptor, min(KERNEL_CHUNK_BYTES, extent.nbytes - done), extent.offset + done, offset + done
            )
        except OSError as error:
            if error.errno in _NO_KERNEL_COPY:
                return done
            raise
        if moved == 0:
            return done
        done += moved
    return done


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset of an open file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
