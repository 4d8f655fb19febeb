"""Guarded access to zip archives, shared by every format inside them. Nothing is ever extracted under a member's name.

Python's zipfile reads the central directory; what it takes on trust is checked here: names, flags, the local header
of each member used, overlaps, and inflated bytes as they come.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from ..checksums import crc32, joined_crc32
from ..errors import (
    CorruptCheckpointError,
    LimitExceededError,
    ReaderClosedError,
    UnreadableError,
    UnsafeCheckpointError,
    UnsupportedError,
)
from ..limits import Limits
from ._window import Window

ZIP_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # APPNOTE.TXT 6.3.10, 4.3.7
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # general purpose bits 0, 6 and 13
_CHUNK_BYTES = 2**20


class Member(NamedTuple):
    """One member of an archive."""

    name: str
    offset: int  # of its bytes, from the start of the file
    stored_bytes: int
    size_bytes: int  # as declared; what comes is counted
    deflated: bool
    crc32: int


class MemberChecksum:
    """The checksum of a member that is stored as it is, from those of its parts in any order.

    Parameters
    ----------
    descriptor, path : the archive, open
    member : which of its members
    """

    def __init__(self, descriptor: int, path: Path, member: Member) -> None:
        self._descriptor = descriptor
        self._path = path
        self._member = member
        self._parts: dict[int, tuple[int, int]] = {}  # offset -> (bytes, crc32)

    def saw(self, offset: int, nbytes: int, crc32: int) -> None:
        """Note the checksum of a part that was read; `offset` counts from the start of the archive."""
        if nbytes:
            self._parts[offset] = (nbytes, crc32)

    def verify(self) -> None:
        """Read what nobody read, and compare the whole.

        Raises
        ------
        CorruptCheckpointError : the bytes are others than the archive's checksum says
        """
        member = self._member
        place, crc = member.offset, 0
        for offset in sorted(self._parts):
            nbytes, part = self._parts[offset]
            if offset < place:
                continue  # two tensors of the same bytes
            crc = joined_crc32(self._read(place, offset, crc), part, nbytes)
            place = offset + nbytes
        if self._read(place, member.offset + member.stored_bytes, crc) != member.crc32:
            raise CorruptCheckpointError(
                f"member '{_shown(member.name)}' has another checksum than the archive gives; the file is damaged, try "
                "another copy (--no-checksum reads it as it is)",
                path=self._path,
            )

    def _read(self, start: int, end: int, crc: int) -> int:
        """The checksum continued over bytes from `start` to `end`."""
        while start < end:
            data = os.pread(self._descriptor, min(_CHUNK_BYTES, end - start), start)
            if not data:
                break
            crc = crc32()(data, crc)
            start += len(data)
        return crc


class ZipArchive:
    """A zip archive, opened read-only.

    Parameters
    ----------
    path : the archive
    limits : bounds on members and sizes
    verify : compare the checksums of members that are read

    Raises
    ------
    CorruptCheckpointError : no central directory, or one that contradicts the local headers
    UnsafeCheckpointError : names that reach outside, duplicate names, overlapping or encrypted members, links
    LimitExceededError : too many members, or more bytes than the bounds
    """

    def __init__(self, path: Path, limits: Limits, *, verify: bool = True) -> None:
        self.path = path
        self._limits = limits
        self._verified = verify
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror}", path=path) from error
        self._temporary: list[IO[bytes]] = []
        self._checksums: dict[str, MemberChecksum] = {}
        try:
            self.members = {member.name: member for member in self._checked()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the archive and the temporary files of inflated members."""
        for file in (self._file, *self._temporary):
            file.close()

    def _checked(self) -> Iterator[Member]:
        try:
            with zipfile.ZipFile(self._file) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError, OverflowError) as error:
            raise CorruptCheckpointError(
                f"begins like a zip archive, but its directory cannot be read ({error}); it is truncated or damaged",
                path=self.path,
            ) from error
        if len(entries) > self._limits.max_objects:
            raise LimitExceededError(f"holds {len(entries):,} members", path=self.path, limit="max_objects")
        seen: set[str] = set()
        end = 0
        for entry in sorted(entries, key=_header_offset):
            if entry.filename in seen:
                raise UnsafeCheckpointError(f"holds two members called '{_shown(entry.filename)}'", path=self.path)
            seen.add(entry.filename)
            member = self._member(entry)
            if entry.header_offset < end:
                raise UnsafeCheckpointError(f"member '{_shown(entry.filename)}' overlaps another", path=self.path)
            end = member.offset + member.stored_bytes
            yield member

    def _member(self, entry: zipfile.ZipInfo) -> Member:
        name = entry.filename
        parts = name.removesuffix("/").split("/")
        odd = any(part in ("", ".", "..") or "\\" in part for part in parts) or ":" in parts[0]
        if odd or "\0" in entry.orig_filename:  # zipfile ends the name there
            raise UnsafeCheckpointError(f"refused member name '{_shown(entry.orig_filename)}'", path=self.path)
        if name.endswith("/") and entry.file_size:
            raise UnsafeCheckpointError(f"member '{_shown(name)}' is a folder that holds bytes", path=self.path)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise UnsafeCheckpointError(f"member '{_shown(name)}' is a link", path=self.path)
        if entry.flag_bits & _ENCRYPTED:
            raise UnsupportedError(f"member '{_shown(name)}' is encrypted", path=self.path)
        header = os.pread(self._file.fileno(), _LOCAL_HEADER.size, entry.header_offset)
        if len(header) != _LOCAL_HEADER.size:
            raise CorruptCheckpointError(f"member '{_shown(name)}' lies behind the end of the file", path=self.path)
        magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        offset = entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        local = os.pread(self._file.fileno(), name_length, entry.header_offset + _LOCAL_HEADER.size)
        if magic != ZIP_MAGIC or method != entry.compress_type or local != entry.orig_filename.encode(_coding(entry)):
            raise CorruptCheckpointError(
                f"the header of member '{_shown(name)}' says other things than the directory", path=self.path
            )
        told = not flags & 0x8 and 0xFFFFFFFF not in (packed, size)
        if told and (packed, size) != (entry.compress_size, entry.file_size):
            raise CorruptCheckpointError(
                f"the header of member '{_shown(name)}' says other sizes than the directory", path=self.path
            )
        if told and self._verified and crc != entry.CRC:
            raise CorruptCheckpointError(
                f"the header of member '{_shown(name)}' gives another checksum than the directory; the file is damaged "
                "(--no-checksum reads it as it is)",
                path=self.path,
            )
        if offset + entry.compress_size > os.fstat(self._file.fileno()).st_size:
            raise CorruptCheckpointError(f"member '{_shown(name)}' ends behind the end of the file", path=self.path)
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnsupportedError(f"member '{_shown(name)}' is packed by method {method}", path=self.path)
        deflated = method == zipfile.ZIP_DEFLATED
        if not deflated and entry.compress_size != entry.file_size:
            raise CorruptCheckpointError(f"stored member '{_shown(name)}' declares two sizes", path=self.path)
        return Member(name, offset, entry.compress_size, entry.file_size, deflated, entry.CRC)

    def read(self, name: str, max_bytes: int) -> bytes:
        """The bytes of a small member.

        Raises
        ------
        LimitExceededError : larger than `max_bytes`
        CorruptCheckpointError : other bytes than its checksum says
        """
        member = self.members[name]
        if member.size_bytes > max_bytes:
            raise LimitExceededError(f"member '{_shown(name)}' holds {member.size_bytes:,} bytes", path=self.path)
        parts: list[bytes] = []
        for part in self._bytes(member, max_bytes):
            parts.append(part)
        return b"".join(parts)

    def checksum(self, name: str) -> MemberChecksum:
        """What gathers the checksum of a member that is stored as it is, while its parts are read."""
        if name not in self._checksums:
            self._checksums[name] = MemberChecksum(self._file.fileno(), self.path, self.members[name])
        return self._checksums[name]

    def verify(self) -> None:
        """Compare the checksum of every member that `checksum` was asked for; what was not read yet is read.

        Raises
        ------
        CorruptCheckpointError : one does not fit
        """
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        for checksum in self._checksums.values():
            checksum.verify()

    def head(self, name: str, nbytes: int) -> bytes:
        """The first bytes of a member, at most `nbytes`; unchecked, since its checksum covers the whole."""
        member = self.members[name]
        head = b""
        for part in self._inflated(member, nbytes) if member.deflated else self._raw(member, nbytes):
            head += part
            if len(head) >= nbytes:
                break
        return head[:nbytes]

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a member as they come, counted and checked against its checksum at the end."""
        return self._bytes(self.members[name], self._limits.max_inflated_bytes)

    def window(self, name: str, *, verify: bool) -> Window:
        """A member as a file: in place where it is stored, else inflated into an unnamed temporary file.

        Parameters
        ----------
        name : of the member
        verify : let `verify` compare its checksum, where it is read in place; an inflated one is always compared

        Raises
        ------
        LimitExceededError : it inflates beyond the bounds
        CorruptCheckpointError : it cannot be inflated, or its checksum does not fit
        """
        member = self.members[name]
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        if not member.deflated:
            part_of = self.checksum(name) if verify else None
            return Window(self._file.fileno(), member.offset, member.size_bytes, in_place=True, part_of=part_of)
        import tempfile  # brings modules that no archive of Keras's own needs

        file: IO[bytes] = tempfile.TemporaryFile(prefix="ckpttool-")  # noqa: SIM115 (closed by `close`)
        self._temporary.append(file)
        for part in self._bytes(member, self._limits.max_inflated_bytes):
            file.write(part)
        file.flush()
        return Window(file.fileno(), 0, member.size_bytes, in_place=False)

    def _bytes(self, member: Member, max_bytes: int) -> Iterator[bytes]:
        """The member's bytes as they come, counted and checked."""
        bound = min(max_bytes, member.stored_bytes * self._limits.max_inflation + _CHUNK_BYTES)
        done, crc = 0, 0
        for part in self._inflated(member) if member.deflated else self._raw(member):
            done += len(part)
            if done > bound:
                raise LimitExceededError(
                    f"member '{_shown(member.name)}' inflates beyond {bound:,} bytes",
                    path=self.path,
                    limit="max_inflation" if bound < max_bytes else None,
                )
            crc = crc32()(part, crc) if self._verified else 0
            yield part
        if done != member.size_bytes:
            raise CorruptCheckpointError(
                f"member '{_shown(member.name)}' holds {done:,} bytes and declares {member.size_bytes:,}; the file is "
                "damaged",
                path=self.path,
            )
        if self._verified and crc != member.crc32:
            raise CorruptCheckpointError(
                f"member '{_shown(member.name)}' has another checksum than the archive gives; the file is damaged, try "
                "another copy (--no-checksum reads it as it is)",
                path=self.path,
            )

    def _raw(self, member: Member, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
        if self._file.closed:
            raise ReaderClosedError("the reader is closed", path=self.path)
        for start in range(0, member.stored_bytes, chunk_bytes):
            yield os.pread(self._file.fileno(), min(chunk_bytes, member.stored_bytes - start), member.offset + start)

    def _inflated(self, member: Member, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for packed in self._raw(member, chunk_bytes):
                while packed:
                    yield inflater.decompress(packed, chunk_bytes)
                    packed = inflater.unconsumed_tail
            yield inflater.flush(chunk_bytes)
        except zlib.error as error:
            raise CorruptCheckpointError(
                f"member '{_shown(member.name)}' cannot be inflated ({error}); the file is damaged", path=self.path
            ) from error


def _header_offset(entry: zipfile.ZipInfo) -> int:
    return entry.header_offset


def _coding(entry: zipfile.ZipInfo) -> str:
    return "utf-8" if entry.flag_bits & 0x800 else "cp437"


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)
