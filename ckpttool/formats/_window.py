"""A part of an open file as a file of its own, so that HDF5 inside an archive is read where it lies."""

from __future__ import annotations

import io
import os
from typing import Any

from ..reading import Whole


class Window(io.RawIOBase):
    """Bytes of an open file that are an HDF5 file themselves, as a read-only file object for h5py.

    Parameters
    ----------
    descriptor : of the file around; stays open for as long as the window is used, and is not closed with it
    offset, nbytes : where the window lies, in bytes
    in_place : whether the bytes lie in the path that users see, so that extents may be given out; False for a member
        that was inflated into an unnamed temporary file
    part_of : what is told the checksums of extents that are read, where there is one over the whole window to verify
    """

    def __init__(
        self, descriptor: int, offset: int, nbytes: int, *, in_place: bool, part_of: Whole | None = None
    ) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.offset = offset
        self.nbytes = nbytes
        self.in_place = in_place
        self.part_of = part_of
        self._position = 0

    def readable(self) -> bool:
        """True: h5py asks."""
        return True

    def seekable(self) -> bool:
        """True: h5py asks."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place in the window; bytes from its start, its end or the present place."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.nbytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """The present place, in bytes from the window's start."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the present place; fewer bytes only at the window's end."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self.nbytes - self._position))
        done = 0
        while done < wanted:
            got = os.preadv(self.descriptor, [view[done:wanted]], self.offset + self._position + done)
            if not got:
                break
            done += got
        self._position += done
        return done


class WriteWindow(io.RawIOBase):
    """The end of an open file as a file of its own, for h5py to write. An error of the system is kept until `check`.

    HDF5 cannot give up half-way when a file object raises: it tries again while it closes, and h5py then raises
    something else. So a failed write is taken for done, and the file is abandoned afterwards.

    Parameters
    ----------
    descriptor : of a file open for reading and writing; not closed with the window
    offset : bytes from its start to the window's
    """

    def __init__(self, descriptor: int, offset: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._offset = offset
        self._position = 0
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error of a write, if there was one.

        Raises
        ------
        OSError : the file cannot be written
        """
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        """True: HDF5 reads back what it wrote."""
        return True

    def writable(self) -> bool:
        """True: h5py asks."""
        return True

    def seekable(self) -> bool:
        """True: h5py asks."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place in the window; bytes from its start, its end or the present place."""
        end = os.fstat(self._descriptor).st_size - self._offset
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: end}[whence] + offset
        return self._position

    def tell(self) -> int:
        """The present place, in bytes from the window's start."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the present place."""
        view = memoryview(buffer).cast("B")
        got = os.preadv(self._descriptor, [view], self._offset + self._position)
        if self._error is not None:
            view[got:] = bytes(len(view) - got)  # what could not be written reads as zeros
            got = len(view)
        self._position += got
        return got

    def write(self, data: Any) -> int:
        """Write all bytes at the present place."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self._error is None:
            try:
                done += os.pwrite(self._descriptor, view[done:], self._offset + self._position + done)
            except OSError as error:
                self._error = error
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the window."""
        size = self._position if size is None else size
        try:
            os.ftruncate(self._descriptor, self._offset + size)
        except OSError as error:
            self._error = self._error or error
        return size
