"""Bounds that a hostile or damaged file must stay in. Each states the threat and the room it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from .errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """One value for all guards; `--limit NAME=VALUE` changes a field.

    Sizes are in bytes. The defaults leave about ten times the room of the largest published checkpoint seen.
    """

    max_objects: int = 1_000_000  # HDF5 groups and datasets, zip members, table entries: stops link cycles and floods
    max_depth: int = 64  # nesting of groups and models: stops recursion bombs; real files stay under 10
    max_config_bytes: int = 256 * 2**20  # model JSON: it is held in memory whole; the largest seen is 3 MB
    max_name_bytes: int = 16_384  # one layer or weight name: the longest seen is 300
    max_layers: int = 100_000  # layers of one model, nested ones counted
    max_nodes: int = 1_000_000  # calls of layers in one configuration
    max_inflation: int = 1_040  # declared over stored bytes of a compressed tensor: zeros give 1,032 with deflate
    max_inflated_bytes: int = 2**36  # a compressed archive member on disk, 64 GiB: weights that zip tools packed again
    max_chunk_bytes: int = 2**30  # one chunk of a tensor: it is decoded whole, in memory; h5py makes them up to 1 MB
    max_tensor_bytes: int = 2**44  # one tensor, 16 TiB: keeps sizes far from overflow in any library below

    def override(self, settings: Iterable[str]) -> Limits:
        """Return a copy with `NAME=VALUE` settings applied.

        Parameters
        ----------
        settings : strings such as `max_depth=128`; values are whole numbers above zero

        Raises
        ------
        UsageError : unknown name, or a value that is no such number
        """
        names = {field.name for field in fields(self)}
        changes: dict[str, int] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in names:
                raise UsageError(f"unknown limit '{name}'; limits are {', '.join(sorted(names))}")
            if not value.isdecimal() or len(value) > 18 or int(value) == 0:
                raise UsageError(f"limit '{name}' takes a whole number above zero, not '{value}'")
            changes[name] = int(value)
        return replace(self, **changes)
