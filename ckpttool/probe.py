"""What a path looks like, found out once and shown to every format: first bytes, kind, names in the folder."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CheckpointNotFoundError, UnknownFormatError, UnreadableError
from .limits import Limits
from .reading import ReadOptions

if TYPE_CHECKING:
    from .formats._hdf5 import Hdf5File
    from .formats._tf_places import Place

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZIP_MAGIC = b"PK\x03\x04"
HEAD_BYTES = 512
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FILE_SUFFIXES = (".h5", ".hdf5", ".keras", ".npz", ".safetensors")

_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"BZh", "bzip2-compressed; unpack it first"),
    (b"\xfd7zXZ\x00", "xz-compressed; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed; unpack it first"),
    (b"\x80\x02", "a Python pickle, which ckpttool never loads"),
    (b"\x80\x03", "a Python pickle, which ckpttool never loads"),
    (b"\x80\x04", "a Python pickle, which ckpttool never loads"),
    (b"\x80\x05", "a Python pickle, which ckpttool never loads"),
    (ZIP_MAGIC, "a zip archive that is neither a Keras model nor of NumPy arrays; if a checkpoint is in it, unpack it"),
    (b"\x7fELF", "a program, not a checkpoint"),
    (b"GGUF", "a GGUF model, which Keras and TensorFlow do not write"),
)


def _not_found(path: str | os.PathLike[str]) -> CheckpointNotFoundError:
    if _URL.match(os.fspath(path)):  # shown as given: a Path would make one slash of two
        return CheckpointNotFoundError("a URL, and only local files are read; download it first", path=path)
    return CheckpointNotFoundError("no such file or folder", path=Path(path))


class Probe:
    """A path seen from outside. Opens a container at most once; `close` gives it back.

    Parameters
    ----------
    path : file or folder
    limits : the bounds that apply to what is opened
    options : what the caller asked for beside the path

    Raises
    ------
    CheckpointNotFoundError : there is nothing at the path
    UnreadableError : no permission, or neither file nor folder
    """

    def __init__(
        self, path: str | os.PathLike[str], limits: Limits = Limits(), options: ReadOptions = ReadOptions()
    ) -> None:
        self.path = Path(path)
        self.limits = limits
        self.options = options
        self.is_dir = self.is_prefix = False  # a prefix is no file: files of a TensorFlow checkpoint begin with it
        self.head, self.size_bytes = b"", 0
        self._hdf5: Hdf5File | None = None
        self._place: list[Place | None] = []
        try:
            status = self.path.stat()
            self.is_dir = stat.S_ISDIR(status.st_mode)
            self.size_bytes = status.st_size
            if stat.S_ISREG(status.st_mode):
                with self.path.open("rb") as file:
                    self.head = file.read(HEAD_BYTES)
            elif not self.is_dir:
                raise UnreadableError("neither a file nor a folder", path=self.path)
        except FileNotFoundError:
            self.is_prefix = self._is_prefix()
            if not self.is_prefix:
                raise _not_found(path) from None
        except NotADirectoryError:
            raise CheckpointNotFoundError("no such file: a part of its path is a file", path=self.path) from None
        except UnreadableError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise UnreadableError(f"cannot be read: {reason}", path=self.path) from error

    @property
    def names(self) -> frozenset[str]:
        """The names in the folder; empty for a file."""
        if not self.is_dir:
            return frozenset()
        try:
            return frozenset(os.listdir(self.path))
        except OSError as error:
            raise UnreadableError(f"cannot be listed: {error.strerror}", path=self.path) from error

    def has_hdf5_magic(self) -> bool:
        """HDF5 starts at 0, or behind a user block at 512, 1024, 2048 … (HDF5 file format specification, II.A)."""
        if self.head.startswith(HDF5_MAGIC):
            return True
        if self.head.startswith(b"PK\x03\x04"):
            return False  # an archive whose HDF5 member happens to lie at such a place
        offset = 512
        if self.is_dir or self.size_bytes <= offset:
            return False
        with self.path.open("rb") as file:
            while offset < self.size_bytes:
                file.seek(offset)
                if file.read(len(HDF5_MAGIC)) == HDF5_MAGIC:
                    return True
                offset *= 2
        return False

    def container(self) -> str:
        """What the path begins with: "folder", "zip", "hdf5", "json" or "other"; "prefix" where it is no file."""
        if self.is_dir or self.is_prefix:
            return "folder" if self.is_dir else "prefix"
        if self.head.startswith(ZIP_MAGIC):
            return "zip"
        if self.has_hdf5_magic():
            return "hdf5"
        return "json" if self.head.lstrip()[:1] == b"{" else "other"

    def hdf5(self) -> Hdf5File | None:
        """The opened HDF5 container, or None where the path is not HDF5."""
        if self._hdf5 is None and self.has_hdf5_magic():
            from .formats._hdf5 import Hdf5File

            self._hdf5 = Hdf5File(self.path, self.limits)
        return self._hdf5

    def _is_prefix(self) -> bool:
        from .formats._tf_places import is_prefix

        return is_prefix(os.fspath(self.path))

    def tensorflow(self) -> Place | None:
        """What the path names among the things that TensorFlow saves, or None; looked for once."""
        if not self._place:
            from .formats._tf_places import locate

            self._place.append(locate(self))
        return self._place[0]

    def close(self) -> None:
        """Close what was opened."""
        if self._hdf5 is not None:
            self._hdf5.close()
            self._hdf5 = None

    def unknown(self, tried: list[str]) -> UnknownFormatError:
        """The error that says what the content is when no format recognises it."""
        return UnknownFormatError(f"{self._content()} (tried: {', '.join(tried)})", path=self.path)

    def foreign(self) -> str | None:
        """What the file is where its first bytes are those of something else."""
        return next((meaning for magic, meaning in _FOREIGN if self.head.startswith(magic)), None)

    def _content(self) -> str:
        if self.is_dir:
            shown = ", ".join(sorted(self.names)[:5]) + (" …" if len(self.names) > 5 else "") or "nothing"
            if any(name.lower().endswith(_FILE_SUFFIXES) for name in self.names):
                return f"a folder, not one checkpoint; give the path of a file in it; it holds {shown}"
            return f"a folder that holds no known checkpoint; it holds {shown}"
        if self.size_bytes == 0:
            return "the file is empty"
        if (meaning := self.foreign()) is not None:
            return f"not a checkpoint: {meaning}"
        text = self.head.lstrip()[:64].lower()
        if text.startswith((b"<!doctype html", b"<html", b"<head")):
            return "an HTML page, not the file; download it again with its direct link"
        if self._hdf5 is not None:
            return f"HDF5, but not a Keras model; it holds {self._hdf5.summary()}"
        if len(self.head) >= 262 and self.head[257:262] == b"ustar":
            return "a tar archive; unpack it first"
        if self.head[:1] in b"{[":
            return "JSON text, not weights; give it as --config beside the weights"
        return f"not a known checkpoint; it begins with bytes {self.head[:8].hex(' ')}"
