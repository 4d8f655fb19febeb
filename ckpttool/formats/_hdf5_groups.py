"""Groups of HDF5, whose links are checked one by one before they are followed."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5t

from ..errors import CheckpointError, CorruptCheckpointError, LimitExceededError, UnsafeCheckpointError
from ._hdf5_datasets import H5PY_ERRORS, Hdf5Dataset, shown

if TYPE_CHECKING:
    from ._hdf5 import Hdf5File

_REFUSED_PARTS = frozenset(("", ".", ".."))
_TEXT = h5py.string_dtype()


def damaged(path: Path, what: str, error: Exception) -> NoReturn:
    """Raise what h5py said about a damaged file as one clear error; our own errors pass as they are."""
    if isinstance(error, CheckpointError):
        raise error
    reason = " ".join(str(error).split())[:200]
    raise CorruptCheckpointError(f"{what} cannot be read ({reason}); the file is damaged", path=path) from error


class Hdf5Group:
    """A group whose links are checked one by one before they are followed."""

    __slots__ = ("_file", "_id", "_last", "path")

    def __init__(self, file: Hdf5File, identifier: h5g.GroupID, path: str) -> None:
        self._file = file
        self._id = identifier
        self._last: tuple[str, h5g.GroupID] | None = None  # the group that the last name lay in: its siblings follow
        self.path = path

    def text(self, name: str) -> str | None:
        """A text attribute, or None where there is none."""
        value = self._attribute(name)
        if value is None or isinstance(value, h5py.Empty):
            return None
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(()).item()
        return self._decode(value, name)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list attribute, also where it is cut into `name0`, `name1` …; None where there is none.

        A list without entries is stored as an empty float64 array (every Keras), so size 0 means no entries.
        Source: keras/src/legacy/saving/legacy_h5_format.py, `load_attributes_from_hdf5_group` (Keras 3.15).
        """
        value = self._attribute(name)
        if value is not None:
            return self._items(value, name)
        parts: list[str] = []
        for number in range(self._file.limits.max_layers):
            value = self._attribute(f"{name}{number}")
            if value is None:
                return tuple(parts) if number else None
            parts.extend(self._items(value, name))
        raise LimitExceededError(f"attribute '{name}' has too many pieces", path=self._file.path)

    def has_texts(self, name: str) -> bool:
        """Whether there is such a list attribute, whole or cut into pieces; nothing is read."""
        try:
            return bool(h5a.exists(self._id, name.encode()) or h5a.exists(self._id, f"{name}0".encode()))
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"attribute '{name}' of {self._where()}", error)

    def attribute_names(self) -> list[str]:
        """The names of all attributes."""
        try:
            return [str(name) for name in h5py.AttributeManager(_Holder(self._id))]
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"the attributes of {self._where()}", error)

    def _items(self, value: Any, name: str) -> tuple[str, ...]:
        if isinstance(value, h5py.Empty):
            return ()
        array = np.asarray(value)
        if array.size == 0:
            return ()
        if array.size > self._file.limits.max_objects:
            raise LimitExceededError(
                f"attribute '{name}' lists {array.size:,} names", path=self._file.path, limit="max_objects"
            )
        if array.ndim != 1 or array.dtype.kind not in "SOU":
            raise CorruptCheckpointError(f"{self._where()}: '{name}' is not a list of names", path=self._file.path)
        return tuple([self._decode(item, name) for item in array.tolist()])

    def _decode(self, value: Any, name: str) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            raise CorruptCheckpointError(f"{self._where()}: attribute '{name}' is not text", path=self._file.path)
        if len(value) > self._file.limits.max_config_bytes:
            raise LimitExceededError(
                f"attribute '{name}' holds {len(value):,} characters", path=self._file.path, limit="max_config_bytes"
            )
        return str(value)

    def _attribute(self, name: str) -> Any:
        try:
            return self._read_attribute(name)
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"attribute '{name}' of {self._where()}", error)

    def _read_attribute(self, name: str) -> Any:
        key = name.encode()
        if not h5a.exists(self._id, key):
            return None
        attribute = h5a.open(self._id, key)
        type_id = attribute.get_type()
        shape = attribute.shape
        count = 0 if shape is None else 1
        for length in shape or ():
            count *= length
        size = type_id.get_size()
        if count * size > self._file.limits.max_config_bytes:
            raise LimitExceededError(f"attribute '{name}' is too large", path=self._file.path, limit="max_config_bytes")
        type_class = type_id.get_class()
        if type_class == h5t.STRING and not type_id.is_variable_str() and shape is not None:
            if type_id.get_strpad() != h5t.STR_SPACEPAD:
                values = np.empty(shape, f"S{size}")
                attribute.read(values, mtype=type_id)
                return values
        if type_class not in (h5t.STRING, h5t.FLOAT, h5t.INTEGER):
            raise CorruptCheckpointError(f"attribute '{name}' is neither text nor a number", path=self._file.path)
        if type_class == h5t.STRING and type_id.is_variable_str():
            if not self._file.heaps_are_sound(self._id):
                raise CorruptCheckpointError(f"the texts of {self._where()} are damaged", path=self._file.path)
            if shape == ():  # a note at each group of Keras 3: h5py's manager takes twice as long
                text = np.empty((), _TEXT)
                attribute.read(text)
                return text.item()
        return h5py.AttributeManager(_Holder(self._id))[name]

    def _where(self) -> str:
        return f"group '{shown(self.path)}'" if self.path else "the file"

    @property
    def address(self) -> int:
        """Where the group's header lies: groups made later lie further back, which shows the order of making."""
        try:
            return int(h5o.get_info(self._id).addr)
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)

    def names(self) -> list[str]:
        """The names in the group, in HDF5's order, which carries no meaning."""
        try:
            return [name.decode("utf-8", "surrogateescape") for name in self._id]
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)

    def children(
        self, order: Callable[[str], tuple[int, str]] | None = None
    ) -> Iterator[tuple[str, Hdf5Group | Hdf5Dataset | None]]:
        """The names in the group with what they stand for, opened one by one; its links are looked up once for all.

        Parameters
        ----------
        order : what to sort the names by; without it they come in HDF5's order, which carries no meaning

        Raises
        ------
        UnsafeCheckpointError, LimitExceededError : as `child`
        """
        kinds: dict[str, int] = {}

        def note(name: bytes, info: h5l.LinkInfo) -> None:
            kinds[name.decode("utf-8", "surrogateescape")] = info.type

        try:
            self._id.links.iterate(note, info=True)
        except H5PY_ERRORS as error:
            damaged(self._file.path, self._where(), error)
        for name in kinds if order is None else sorted(kinds, key=order):
            yield name, self._child(name, kinds[name])

    def child(self, name: str) -> Hdf5Group | Hdf5Dataset | None:
        """The object at `name` (parts separated by '/'), or None where a part is missing.

        Raises
        ------
        UnsafeCheckpointError : a part is a soft or external link, '..', empty, or the name starts at the root
        LimitExceededError : too long or too deep
        """
        return self._child(name, None)

    def _child(self, name: str, kind: int | None) -> Hdf5Group | Hdf5Dataset | None:
        limits = self._file.limits
        if len(name) > limits.max_name_bytes:
            raise LimitExceededError(
                f"a name of {len(name):,} characters", path=self._file.path, limit="max_name_bytes"
            )
        parts = name.split("/")
        if not _REFUSED_PARTS.isdisjoint(parts) or "\0" in name:
            raise UnsafeCheckpointError(f"refused name '{shown(name)}' in {self._where()}", path=self._file.path)
        if len(parts) + self.path.count("/") > limits.max_depth:
            raise LimitExceededError(
                f"groups nested deeper than {limits.max_depth}", path=self._file.path, limit="max_depth"
            )
        full = posixpath.join(self.path, name) if self.path else name
        try:
            target = self._open(name, parts, full, kind)
        except H5PY_ERRORS as error:
            damaged(self._file.path, f"'{shown(full)}'", error)
        if isinstance(target, h5d.DatasetID):
            return Hdf5Dataset(self._file, target, full)
        if isinstance(target, h5g.GroupID):
            return Hdf5Group(self._file, target, full)
        return None

    def _open(self, name: str, parts: list[str], full: str, kind: int | None) -> Any:
        group_id = self._id
        if len(parts) > 1:
            inside = name[: -len(parts[-1]) - 1]
            if self._last is not None and self._last[0] == inside:
                group_id = self._last[1]
            else:
                for part in parts[:-1]:
                    opened = self._open_link(group_id, part, full)
                    if not isinstance(opened, h5g.GroupID):
                        return None
                    group_id = opened
                self._last = (inside, group_id)
        self._file.count_object()
        return self._open_link(group_id, parts[-1], full, kind)

    def _open_link(self, group_id: h5g.GroupID, part: str, full: str, kind: int | None = None) -> Any:
        """The object behind one hard link, or None where there is none; `kind` is the link's, where it is known."""
        key = part.encode("utf-8", "surrogateescape")
        if kind is None:
            try:
                kind = group_id.links.get_info(key).type
            except (KeyError, RuntimeError):
                if not group_id.links.exists(key):
                    return None
                raise
        if kind == h5l.TYPE_HARD:
            return h5o.open(group_id, key)
        word = "an external link" if kind == h5l.TYPE_EXTERNAL else "a soft link"
        raise UnsafeCheckpointError(f"'{shown(full)}' is {word}, which is not followed", path=self._file.path)

    def group(self, name: str) -> Hdf5Group | None:
        """The group at `name`, or None where there is none or it is no group."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Group) else None

    def dataset(self, name: str) -> Hdf5Dataset | None:
        """The dataset at `name`, or None where there is none or it is no dataset."""
        child = self.child(name)
        return child if isinstance(child, Hdf5Dataset) else None


class _Holder:
    """What h5py's attribute manager needs of its parent."""

    def __init__(self, identifier: h5g.GroupID) -> None:
        self.id = identifier
