"""Check the global heaps of an object's attributes before HDF5 reads them.

Texts of variable length lie in a global heap. HDF5 1.14 walks a heap by the sizes that stand in it: a size of zero in a
damaged file makes it walk in place without end (seen with one flipped byte, with headers of either version), which
nothing in this process could stop.
Source: HDF5 file format specification 3.0, III.E (global heap), IV.A.1 (object headers), IV.A.2.m and v (attributes).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

ReadAt = Callable[[int, int], bytes]  # (offset, nbytes) -> at most so many bytes

HEAP_MAGIC = b"GCOL"
_ATTRIBUTE, _CONTINUATION, _ATTRIBUTE_INFO = 0x000C, 0x0010, 0x0015
_VARIABLE_LENGTH = 9  # class of a datatype
_SHARED = 0x02  # flag of a message: what follows is a reference to it
_NOWHERE = 2**64 - 1  # an address that is not used
_MAX_BLOCKS = 1_000  # pieces of one header: real files have under ten
_MAX_HEADER_BYTES = 2**24  # of all pieces: an attribute in a header has up to 64 kB
_MAX_HEAP_OBJECTS = 65_536  # in one heap: their numbers have 16 bits
_REFERENCE = struct.Struct("<IQI")  # length, address of the heap, number of the object
_OBJECT = struct.Struct("<HHIQ")  # number, references, reserved, size
_SCANNED_BYTES = 2**20
_EVERY = -1  # key of what is known of all heaps of the file together: no address


def sound_heaps(read_at: ReadAt, header: int, size: int, known: dict[int, bool]) -> bool:
    """Whether HDF5 can walk every heap that an object's attributes refer to.

    Parameters
    ----------
    read_at : reads the file; offsets count from the HDF5 superblock
    header : where the object's header lies
    size : bytes of the file
    known : what was found about each heap before, by its address; many objects share one
    """
    heaps: set[int] = set()
    for data in _texts(read_at, header):
        if data is None:
            return every_heap_is_sound(read_at, size, known)
        heaps.update(_addresses(data))
    for address in heaps:
        if address not in known:
            known[address] = not 0 < address < size or _is_sound(read_at, address, size)
    return all(known[address] for address in heaps)


def every_heap_is_sound(read_at: ReadAt, size: int, known: dict[int, bool]) -> bool:
    """The same of all heaps in the file, for texts whose references lie in other structures; reads all of it once.

    What looks like a heap among values of tensors counts too, if its size fits: twelve bytes that chance does not give.
    """
    if _EVERY not in known:
        known[_EVERY] = all(_is_sound(read_at, place, size) for place in _heaps(read_at, size))
    return known[_EVERY]


def _heaps(read_at: ReadAt, size: int) -> Iterator[int]:
    magic = HEAP_MAGIC + b"\x01"
    for start in range(0, size, _SCANNED_BYTES):
        data = read_at(start, _SCANNED_BYTES + 15)  # one that begins at the end of this piece is read with it
        place = data.find(magic)
        while 0 <= place < _SCANNED_BYTES:
            length = int.from_bytes(data[place + 8 : place + 16], "little")
            if 16 <= length <= size - start - place:
                yield start + place
            place = data.find(magic, place + 1)


def _texts(read_at: ReadAt, header: int) -> Iterator[bytes | None]:
    """The stored data of each attribute of variable length; None for attributes that lie outside of the header."""
    for kind, flags, message in _messages(read_at, header):
        if kind == _ATTRIBUTE and flags & _SHARED:
            yield None
        elif kind == _ATTRIBUTE and len(message) >= 8:
            yield from _text(message)
        elif kind == _ATTRIBUTE_INFO and len(message) >= 10:
            heap = 2 + 2 * (message[1] & 1)  # behind the largest number of an attribute, where those are counted
            if int.from_bytes(message[heap : heap + 8], "little") != _NOWHERE:
                yield None


def _messages(read_at: ReadAt, header: int) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and content of each message of an object header, whatever its version."""
    start = read_at(header, 34)  # as long as the start of version 2 can be
    if len(start) < 16:
        return
    order = 0  # bytes behind a message's head in version 2, which start[5] decides
    if start[:4] == b"OHDR":
        at = 6 + (16 if start[5] & 0x20 else 0) + (4 if start[5] & 0x10 else 0)
        width = 1 << (start[5] & 3)
        order = 2 if start[5] & 4 else 0
        blocks = [(header + at + width, int.from_bytes(start[at : at + width], "little"))]
    elif start[0] == 1:
        blocks = [(header + 16, struct.unpack_from("<I", start, 8)[0])]
    else:
        return
    second = start[:4] == b"OHDR"
    head = 4 + order if second else 8
    left = _MAX_HEADER_BYTES
    for number, block in enumerate(blocks):  # grows in the loop
        left -= block[1]
        if left < 0:
            yield _ATTRIBUTE, _SHARED, b""
            return
        data = read_at(*block)
        place = 4 if second and number else 0  # behind the signature OCHK
        end = len(data) - (4 if second and number else 0)  # before the checksum, which no block 0 counts
        while place + head <= end:
            kind, length, flags = struct.unpack_from("<BHB" if second else "<HHB", data, place)
            message = data[place + head : place + head + length]
            if kind == _CONTINUATION and len(message) >= 16 and len(blocks) < _MAX_BLOCKS:
                further = struct.unpack_from("<QQ", message)
                blocks += [further] if further not in blocks else []  # a damaged one may lead round in a circle
            yield kind, flags, message
            place += head + length


def _text(message: bytes) -> Iterator[bytes]:
    version, name, datatype, space = message[0], *struct.unpack_from("<HHH", message, 2)
    start = 9 if version == 3 else 8
    if version == 1:  # each part is padded to eight bytes
        name, datatype, space = (-(-length // 8) * 8 for length in (name, datatype, space))
    shared = version > 1 and message[1] & 1  # the datatype is one that the file names, and only referred to here
    if message[start + name : start + name + 1] and (shared or message[start + name] & 0x0F == _VARIABLE_LENGTH):
        yield message[start + name + datatype + space :]


def _addresses(data: bytes) -> Iterator[int]:
    for place in range(0, len(data) - _REFERENCE.size + 1, _REFERENCE.size):
        _, address, _ = _REFERENCE.unpack_from(data, place)
        yield address


def _is_sound(read_at: ReadAt, address: int, size: int) -> bool:
    start = read_at(address, 16)
    if len(start) < 16 or start[:4] != HEAP_MAGIC:
        return True  # HDF5 itself refuses it
    length = struct.unpack_from("<Q", start, 8)[0]
    if address + length > size:
        return False
    place = 16
    for _ in range(_MAX_HEAP_OBJECTS):
        if place + _OBJECT.size > length:
            return True
        number, _, _, bytes_here = _OBJECT.unpack(read_at(address + place, _OBJECT.size))
        step = bytes_here if number == 0 else _OBJECT.size + -(-bytes_here // 8) * 8  # free space counts its own head
        if step < _OBJECT.size or place + step > length:
            return False
        place += step
    return False
