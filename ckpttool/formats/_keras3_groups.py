"""The tree of groups in a Keras 3 weights file, from one HDF5 file or from several shards of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..checkpoint import Layer, Role, TensorSpec, whole_number
from ..errors import CorruptCheckpointError
from ._hdf5 import Hdf5Dataset, Hdf5File, Hdf5Group

VARS = "vars"
OPTIMIZER = "optimizer"
_METRICS = frozenset(("metrics", "_metrics", "_loss_tracker", "_compile_metrics", "_compile_loss"))
_SEEDS = re.compile(r"_?(.*_)?(seed_generators?|random_generators?)(_\d+)?")
_SHARD_SEPARATOR = "//"  # in a locator, between a shard's name and the path in it; no path in HDF5 holds it


@dataclass(slots=True)
class Node:
    """One group while the tree is read: shards add to it."""

    name: str
    title: str | None = None
    address: tuple[int, int] = (0, 0)  # first shard, and the last place in it of a group inside: the order of writing
    tensors: list[TensorSpec] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)

    def layer(self) -> Layer:
        """The finished group, its children in the order in which they were written."""
        inside = sorted(self.children.values(), key=_address)
        return Layer(self.name, tensors=tuple(self.tensors), layers=tuple(child.layer() for child in inside),
                     title=self.title)  # fmt: skip


def _address(node: Node) -> tuple[int, int]:
    return node.address


def locate(locator: str) -> tuple[str, str]:
    """Shard name ("" where there is one file) and dataset path of a locator."""
    shard, separator, path = locator.partition(_SHARD_SEPARATOR)
    return (shard, path) if separator else ("", locator)


class Groups:
    """All groups of a file, read once.

    Parameters
    ----------
    files : the shards by name, or the one file under ""

    Raises
    ------
    CorruptCheckpointError : a group `vars` holds groups, or shards contradict each other
    """

    def __init__(self, files: dict[str, Hdf5File]) -> None:
        self._files = files
        self.root = Node("")
        self.loose: list[TensorSpec] = []
        self.titles: dict[str, str] = {}  # by group path, in the order of HDF5
        self.offsets: dict[str, int] = {}  # by locator, of the values that lie plainly in their HDF5 file
        for number, (shard, file) in enumerate(files.items()):
            self._around: set[int] = set()  # addresses of the groups that the walk is inside of
            self._read(file.root, self.root, number, shard, ())

    def _read(self, group: Hdf5Group, node: Node, number: int, shard: str, path: tuple[str, ...]) -> None:
        address = group.address
        if address in self._around:
            raise CorruptCheckpointError(f"the group '{'/'.join(path)}' is inside of itself", path=self._path())
        if not node.address[1]:
            node.address = (number, address)
        self._around.add(address)
        self._read_children(group, node, number, shard, path)
        self._around.discard(address)
        for child in node.children.values():
            if child.address[0] == node.address[0]:
                node.address = max(node.address, child.address)

    def _read_children(self, group: Hdf5Group, node: Node, number: int, shard: str, path: tuple[str, ...]) -> None:
        for name, child in group.children():
            if not isinstance(child, Hdf5Group):
                continue
            if name == VARS:
                self._variables(child, node, number, shard, path)
                continue
            known = node.children.get(name)
            if known is None:
                known = node.children[name] = Node(name)
            self._read(child, known, number, shard, (*path, name))

    def _variables(self, group: Hdf5Group, node: Node, number: int, shard: str, path: tuple[str, ...]) -> None:
        if node.address[0] == number:
            node.address = max(node.address, (number, group.address))
        title = group.text("name")
        if title is not None:
            node.title = node.title or title
            self.titles.setdefault("/".join(path), title)
        role = _role(path)
        into = node.tensors if role is Role.WEIGHT and path else self.loose
        for name, dataset in group.children(_by_number):
            if not isinstance(dataset, Hdf5Dataset):
                raise CorruptCheckpointError(
                    f"'{'/'.join((*path, VARS, name))}' is no tensor; the file is not one of Keras", path=self._path()
                )
            info = dataset.info()
            locator = f"{shard}{_SHARD_SEPARATOR}{dataset.path}" if shard else dataset.path
            position = whole_number(name)
            spec = TensorSpec((*path, name), info.shape, info.dtype, role, locator=locator, position=position)
            if info.offset is not None and info.unreadable is None:
                self.offsets[locator] = info.offset
            into.append(spec)
        if shard:
            node.tensors.sort(key=_by_position)  # the rest of the group may lie in another shard

    def _path(self) -> object:
        return next(iter(self._files.values())).path

    def layers(self) -> tuple[Layer, ...]:
        """The tree without the optimizer, metrics and seeds."""
        kept = [child.layer() for child in sorted(self.root.children.values(), key=_address)
                if child.name != OPTIMIZER and child.name not in _METRICS]  # fmt: skip
        return tuple(layer for layer in map(_without_seeds, kept) if layer is not None)

    def loose_tensors(self) -> Iterator[TensorSpec]:
        """The model's own variables, then those of the optimizer, then bookkeeping."""
        for spec in sorted(self.loose, key=_by_position):
            if spec.role is Role.WEIGHT:
                yield _renamed(spec, ("top_level_model_weights", spec.path[-1]))
        for role in (Role.OPTIMIZER, Role.BOOKKEEPING):
            yield from (spec for spec in self.loose if spec.role is role)


def _renamed(spec: TensorSpec, path: tuple[str, ...]) -> TensorSpec:
    return replace(spec, path=path)


def _without_seeds(layer: Layer) -> Layer | None:
    if _SEEDS.fullmatch(layer.name):
        return None
    inside = tuple(each for each in map(_without_seeds, layer.layers) if each is not None)
    return replace(layer, layers=inside)


def _role(path: tuple[str, ...]) -> Role:
    """By the attribute of the model that the group lies under, which the layout fixes."""
    if path and path[0] == OPTIMIZER:
        return Role.OPTIMIZER
    if path and (path[0] in _METRICS or any(_SEEDS.fullmatch(part) for part in path)):
        return Role.BOOKKEEPING
    return Role.WEIGHT


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (2**31, name)


def _by_position(spec: TensorSpec) -> tuple[int, str]:
    return (2**31 if spec.position is None else spec.position, spec.path[-1])


def holds_groups(root: Hdf5Group, depth: int = 4) -> str | None:
    """The first group that has a `vars` child of numbered datasets, or None; at most 200 groups are looked at."""
    queue: list[tuple[Hdf5Group, int]] = [(root, 0)]
    looked = 0
    empty: str | None = None
    while queue and looked < 200:
        group, level = queue.pop(0)
        looked += 1
        names = group.names()
        if VARS in names:
            held = group.group(VARS)
            if held is not None:
                inside = held.names()
                if inside and all(name.isdecimal() for name in inside):
                    return group.path or "/"
                if not inside and (held.text("name") is not None or level):
                    empty = empty or (group.path or "/")
        if level < depth:
            for name in names[:200]:
                child = group.group(name) if name != VARS else None
                if child is not None:
                    queue.append((child, level + 1))
    return empty
