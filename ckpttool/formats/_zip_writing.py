"""Write zip archives of stored members, one of which may be written in place by other hands.

Source: APPNOTE.TXT 6.3.10 (PKWARE), 4.3; zip64 fields only where sizes ask for them, as Python's zipfile does.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ..checksums import crc32

_DOS_DATE = (1 << 5) | 1  # 1980-01-01
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_BIG = 0xFFFFFFFF
MAX_NAME_BYTES = 0xFFFF
_MAX_COUNT = 0xFFFF  # members that the end record of plain zip counts; as many say that zip64's has the number
_ZIP64_FROM = 2**31  # sizes that are only estimated: HDF5 adds its own structures to the values
_CHUNK_BYTES = 2**20
_REGULAR_FILE = 0o600 << 16


@dataclass(slots=True)
class _Member:
    name: bytes
    header_offset: int
    offset: int
    wide: bool  # the local header has room for sizes of 8 bytes
    size: int = 0
    crc32: int = 0

    @property
    def flags(self) -> int:
        """Bit 11 says that the name is UTF-8; without it readers take code page 437 (APPNOTE.TXT, appendix D)."""
        return 0 if self.name.isascii() else 0x800


class ZipWriter:
    """An archive on an empty file, open for reading and writing.

    Parameters
    ----------
    descriptor : of that file; not closed here
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._members: list[_Member] = []
        self._end = 0

    def add(self, name: str, data: bytes) -> None:
        """A small member, at once."""
        offset = self.begin(name, len(data))
        _pwrite(self._descriptor, data, offset)
        self.end()

    def add_pieces(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        """A member of about `size` bytes, piece by piece."""
        offset = self.begin(name, size)
        for piece in pieces:
            _pwrite(self._descriptor, piece, offset)
            offset += len(piece)
        self.end()

    def begin(self, name: str, expected_bytes: int) -> int:
        """Start a member; returns where its bytes go. Whatever is then in the file behind that place is the member.

        Parameters
        ----------
        name : its name
        expected_bytes : about how large it will be; decides on zip64
        """
        encoded = name.encode()
        wide = expected_bytes >= _ZIP64_FROM
        offset = self._end + _LOCAL.size + len(encoded) + (20 if wide else 0)
        self._members.append(_Member(encoded, self._end, offset, wide))
        os.ftruncate(self._descriptor, offset)
        return offset

    def end(self) -> None:
        """Finish the member: its size is what the file now holds, its checksum that of the bytes read back.

        Raises
        ------
        OSError : it grew beyond 4 GiB and was not expected to
        """
        member = self._members[-1]
        member.size = os.fstat(self._descriptor).st_size - member.offset
        if member.size >= _BIG and not member.wide:
            raise OSError("an archive member grew beyond 4 GiB")
        for start in range(0, member.size, _CHUNK_BYTES):
            chunk = os.pread(self._descriptor, min(_CHUNK_BYTES, member.size - start), member.offset + start)
            member.crc32 = crc32()(chunk, member.crc32)
        extra = struct.pack("<HHQQ", 1, 16, member.size, member.size) if member.wide else b""
        size = _BIG if member.wide else member.size
        version = 45 if member.wide else 20
        header = _LOCAL.pack(b"PK\x03\x04", version, member.flags, 0, 0, _DOS_DATE, member.crc32, size, size,
                             len(member.name), len(extra))  # fmt: skip
        _pwrite(self._descriptor, header + member.name + extra, member.header_offset)
        self._end = member.offset + member.size

    def close(self) -> None:
        """Write the central directory."""
        directory = b"".join(map(self._entry, self._members))
        start, count = self._end, len(self._members)
        tail = b""
        if start >= _BIG or count > _MAX_COUNT:
            tail = _END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), start)
            tail += _LOCATOR.pack(b"PK\x06\x07", 0, start + len(directory), 1)
        tail += _END.pack(b"PK\x05\x06", 0, 0, min(count, _MAX_COUNT), min(count, _MAX_COUNT), len(directory),
                          min(start, _BIG), 0)  # fmt: skip
        _pwrite(self._descriptor, directory + tail, start)

    @staticmethod
    def _entry(member: _Member) -> bytes:
        fields = []
        if member.wide:
            fields += [member.size, member.size]
        if member.header_offset >= _BIG:
            fields.append(member.header_offset)
        extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields) if fields else b""
        size = _BIG if member.wide else member.size
        version = 45 if fields else 20
        return _CENTRAL.pack(
            b"PK\x01\x02", version, 3, version, 0, member.flags, 0, 0, _DOS_DATE, member.crc32, size, size,
            len(member.name), len(extra), 0, 0, 0, _REGULAR_FILE, min(member.header_offset, _BIG),
        ) + member.name + extra  # fmt: skip


def _pwrite(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
