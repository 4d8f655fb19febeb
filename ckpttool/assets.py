"""Files that layers keep beside their weights, such as vocabularies: where they belong, and how they move.

A `.keras` archive holds them as `assets/<group of the layer>/<name>`; the group is the one that its weights have.
Source: keras/src/saving/saving_lib.py, `DiskIOStore`; `save_assets` of keras/src/layers/preprocessing/index_lookup.py
and text_vectorization.py (Keras 3.15; the same in tf.keras 2.12 to 2.15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .checkpoint import Asset, Checkpoint, Layer, Notice
from .keras3_layout import LAYERS, LAYERS_OF_2_13, LOOKUPS, plain_class
from .reading import Reader, asset_chunks
from .transforms import model_config

FOLDER = "assets/"
CONTAINERS = (LAYERS, LAYERS_OF_2_13)
Path = tuple[str, ...]
_SHOWN = 3


def with_assets(checkpoint: Checkpoint, assets: Sequence[Asset]) -> Checkpoint:
    """The stored description with each asset file at its group.

    Parameters
    ----------
    checkpoint : as the reader describes it: a tree of groups, each Layer called after its group
    assets : all files of the archive; their locators are the members' names
    """
    if not assets:
        return checkpoint
    groups: dict[Path, list[str]] = {}  # of each group the names of those inside, made ones too
    for path, layer in Layer("", layers=checkpoint.layers).walk():
        groups[path] = [child.name for child in layer.layers]
    found: dict[Path, list[Asset]] = {}
    for asset in assets:
        parts = ("", *asset.locator.removeprefix(FOLDER).split("/"))
        depth = 1
        while depth < len(parts) - 1 and _is_group(groups, parts[: depth + 1]):
            depth += 1
        found.setdefault(parts[:depth], []).append(replace(asset, place="/".join(parts[depth:])))
    root = _with_files(Layer("", layers=checkpoint.layers), ("",), groups, found)
    return replace(checkpoint, layers=root.layers, assets=root.assets)


def _is_group(groups: dict[Path, list[str]], path: Path) -> bool:
    """Whether there is such a group; one of a container of layers is made where no weights made it."""
    if path in groups:
        return True
    if path[-1] in CONTAINERS or path[-2] in CONTAINERS:
        groups[path[:-1]].append(path[-1])
        groups[path] = []
        return True
    return False


def _with_files(layer: Layer, path: Path, groups: dict[Path, list[str]], found: dict[Path, list[Asset]]) -> Layer:
    known = {child.name: child for child in layer.layers}
    inside = tuple(
        _with_files(known.get(name, Layer(name)), (*path, name), groups, found) for name in groups.get(path, ())
    )
    return replace(layer, layers=inside, assets=tuple(found.get(path, ())))


def gathered(node: Layer | None) -> tuple[Asset, ...]:
    """All files of a group and of the groups inside, their places as seen from the group."""
    if node is None:
        return ()
    inside = [replace(asset, place=f"{child.name}/{asset.place}") for child in node.layers for asset in gathered(child)]
    return (*node.assets, *inside)


def with_unplaced(stored: Checkpoint, named: Checkpoint) -> Checkpoint:
    """The named description with those files that no layer of it has, at the places where they are stored."""
    held = named.all_assets()
    left = [
        replace(asset, place=asset.locator.removeprefix(FOLDER))
        for locator, (_, asset) in stored.all_assets().items()
        if locator not in held
    ]
    return replace(named, assets=(*named.assets, *left)) if left else named


def left_out(before: Mapping[str, tuple[tuple[str, ...], Asset]], kept: Mapping[str, Any], why: str) -> list[Notice]:
    """A warning about the asset files of a source that an output does not hold.

    Parameters
    ----------
    before, kept : by locator, see `Checkpoint.all_assets`
    why : the reason, for people
    """
    left = {locator: path for locator, (path, _) in before.items() if locator not in kept}
    if not left:
        return []
    layers = list(dict.fromkeys("/".join(path) for path in left.values() if path))
    of = f" of {', '.join(layers[:_SHOWN])}{' …' if len(layers) > _SHOWN else ''}" if layers else ""
    message = f"{files(len(left))}{of} left out: {why}"
    return [Notice("assets-left-out", message, layers[0] if len(layers) == 1 else None)]


def differing_files(reader: Reader, mine: Checkpoint, other: Reader, theirs: Checkpoint) -> list[str]:
    """Names of asset files that one of two descriptions lacks, or that hold other bytes; read block by block.

    Parameters
    ----------
    reader, other : give the bytes of what `mine` and `theirs` describe

    Raises
    ------
    CheckpointError : a file cannot be read
    """
    ours, held = _by_name(mine), _by_name(theirs)
    return [
        name
        for name in dict.fromkeys((*ours, *held))
        if name not in ours or name not in held or _digest(reader, ours[name]) != _digest(other, held[name])
    ]


def _by_name(checkpoint: Checkpoint) -> dict[str, Asset]:
    return {"/".join((*path, asset.place)): asset for path, asset in checkpoint.all_assets().values()}


def _digest(reader: Reader, asset: Asset) -> bytes:
    import hashlib  # loads OpenSSL, which only `verify` needs

    digest = hashlib.sha256()
    for chunk in asset_chunks(reader, asset):
        digest.update(chunk)
    return digest.digest()


def files(number: int) -> str:
    """A number of asset files, for people."""
    return f"{number} asset file{'' if number == 1 else 's'}"


def missing(checkpoint: Checkpoint) -> list[Notice]:
    """A warning about lookup layers whose vocabulary is neither in the configuration nor in an asset file."""
    model = model_config(checkpoint)
    if model is None:
        return []
    held = {path for path, asset in checkpoint.all_assets().values() if asset.place == "vocabulary.txt"}
    without = [
        "/".join(path)
        for path, layer in model.walk()
        if plain_class(layer.class_name) in LOOKUPS and layer.config.get("vocabulary") is None and path not in held
    ]
    if not without:
        return []
    shown = ", ".join(without[:_SHOWN]) + (" …" if len(without) > _SHOWN else "")
    message = f"the source holds no vocabulary of {shown}: set it again (`set_vocabulary`) before the model is used"
    return [Notice("assets-missing", message, without[0] if len(without) == 1 else None)]
