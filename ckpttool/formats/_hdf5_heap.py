"""Check the global heaps of a group's attributes before HDF5 reads them.

Texts of variable length lie in a global heap. HDF5 1.14 walks a heap by the sizes that stand in it: a size of zero in a
damaged file makes it walk in place without end (seen with one flipped byte), which nothing in this process could stop.
Source: HDF5 file format specification 3.0, III.E (global heap) and IV.A.1.a (version 1 object headers, which Keras's
files have). Headers of version 2 are not looked into.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

ReadAt = Callable[[int, int], bytes]  # (offset, nbytes) -> at most so many bytes

HEAP_MAGIC = b"GCOL"
_ATTRIBUTE, _CONTINUATION = 0x000C, 0x0010
_VARIABLE_LENGTH = 9  # class of a datatype
_MAX_BLOCKS = 1_000  # pieces of one header: real files have under ten; a damaged one may lead round in a circle
_REFERENCE = struct.Struct("<IQI")  # length, address of the heap, number of the object
_OBJECT = struct.Struct("<HHIQ")  # number, references, reserved, size


def sound_heaps(read_at: ReadAt, header: int, size: int, known: dict[int, bool]) -> bool:
    """Whether HDF5 can walk every heap that a group's attributes refer to.

    Parameters
    ----------
    read_at : reads the file; offsets count from the HDF5 superblock
    header : where the group's object header lies
    size : bytes of the file
    known : what was found about each heap before, by its address; many groups share one
    """
    heaps = {address for data in _texts(read_at, header) for address in _addresses(data)}
    for address in heaps:
        if address not in known:
            known[address] = not 0 < address < size or _is_sound(read_at, address, size)
    return all(known[address] for address in heaps)


def _texts(read_at: ReadAt, header: int) -> Iterator[bytes]:
    """The stored data of each attribute of variable length."""
    start = read_at(header, 16)
    if len(start) < 16 or start[0] != 1:
        return
    blocks = [(header + 16, struct.unpack_from("<I", start, 8)[0])]
    for number in range(_MAX_BLOCKS):
        if number >= len(blocks):
            return
        data = read_at(*blocks[number])
        place = 0
        while place + 8 <= len(data):
            kind, length = struct.unpack_from("<HH", data, place)
            message = data[place + 8 : place + 8 + length]
            if kind == _CONTINUATION and len(message) >= 16:
                blocks.append(struct.unpack_from("<QQ", message))
            elif kind == _ATTRIBUTE and len(message) >= 8:
                yield from _text(message)
            place += 8 + length


def _text(message: bytes) -> Iterator[bytes]:
    version, name, datatype, space = message[0], *struct.unpack_from("<HHH", message, 2)
    start = 9 if version == 3 else 8
    if version == 1:  # each part is padded to eight bytes
        name, datatype, space = (-(-length // 8) * 8 for length in (name, datatype, space))
    if message[start + name : start + name + 1] and message[start + name] & 0x0F == _VARIABLE_LENGTH:
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
    while place + _OBJECT.size <= length:
        number, _, _, bytes_here = _OBJECT.unpack(read_at(address + place, _OBJECT.size))
        step = bytes_here if number == 0 else _OBJECT.size + -(-bytes_here // 8) * 8  # free space counts its own head
        if step < _OBJECT.size or place + step > length:
            return False
        place += step
    return True
