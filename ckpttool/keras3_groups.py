"""The groups of a Keras 3 weights file that a description becomes: the way back from layers to classes and counters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .assets import FOLDER
from .checkpoint import Asset, Checkpoint, Layer, Role, TensorSpec, whole_number
from .errors import UnsupportedError
from .flat_order import holds_model
from .keras3_layout import LAYERS, LOOKUPS, Part, group_names, is_custom, parts_of, plain_class, stored_variables
from .keras_config import LayerConfig, ModelConfig
from .transforms import model_config

KERAS3_FORMATS = ("keras-weights", "keras-archive")
GROUP_NAMES = "group_names"  # key of a description's metadata: JSON, group -> the name that Keras notes there
OPTIMIZER = "optimizer"
_GONE = frozenset(
    """CuDNNLSTM CuDNNGRU LocallyConnected1D LocallyConnected2D Convolution1D Convolution2D Convolution3D
    AtrousConvolution1D AtrousConvolution2D Deconvolution2D SeparableConvolution2D MaxoutDense Highway SReLU
    ParametricSoftplus TimeDistributedDense""".split()
)
_ONE_GATE = re.compile("[WUb]_[icfozrh]")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One group to write."""

    path: str  # "layers/dense_1", without "vars"; "" for the model itself
    title: str | None  # the name that Keras since 3.6 notes there
    tensors: tuple[TensorSpec, ...] = ()  # variables 0, 1, …
    names: tuple[str, ...] = ()  # of the variables, where a layer stores them under names of its own
    assets: tuple[Asset, ...] = ()  # files of the layer, with their places below the group

    def named(self) -> Iterator[tuple[str, TensorSpec]]:
        """Name in the group, and tensor."""
        yield from zip(self.names or map(str, range(len(self.tensors))), self.tensors, strict=True)


def _held(path: str, title: str | None, found: Mapping[str, TensorSpec]) -> StoredGroup:
    """A group of variables by their stored names: numbers, which are counted anew, or names of the layer's own."""
    numbers = {name: whole_number(name) for name in found}
    if None not in numbers.values():
        return StoredGroup(
            path, title, tuple(found[name] for name in sorted(found, key=lambda name: numbers[name] or 0))
        )
    return StoredGroup(path, title, tuple(found.values()), tuple(found))


def stored_groups(checkpoint: Checkpoint) -> Iterator[StoredGroup]:
    """The groups in Keras's own order, each once.

    Parameters
    ----------
    checkpoint : with a configuration, or from a file of the same layout and whole

    Raises
    ------
    UnsupportedError : neither; or a layer that Keras 3 does not have, or whose variables are not known
    """
    model = model_config(checkpoint)
    if model is not None:
        yield from _Placing(checkpoint).whole(checkpoint, model)
    elif checkpoint.format in KERAS3_FORMATS:
        yield from _as_stored(checkpoint)
    else:
        raise UnsupportedError(
            "holds no model configuration, which decides the groups of Keras 3's layout; give it with --config, or "
            "write '.h5' or '.safetensors'"
        )
    yield from _optimizer(checkpoint)


def _as_stored(checkpoint: Checkpoint) -> Iterator[StoredGroup]:
    """A file of the same layout: its groups by the tensors' locators, without those around the template."""
    around = _groups_around(checkpoint)
    titles = {group.removeprefix(around): title for group, title in _noted_names(checkpoint).items()
              if group.startswith(around) and group.partition("/")[0] != OPTIMIZER}  # fmt: skip
    groups: dict[str, dict[str, TensorSpec]] = {group: {} for group in titles}
    kept = [spec for spec in checkpoint.loose if spec.role is Role.WEIGHT]
    for spec in [*(each for layer in checkpoint.layers for each in layer.all_tensors()), *kept]:
        group, name = _place(spec)
        if not group.startswith(around):
            raise UnsupportedError(f"{spec.name}: its group '{group}' lies outside of the template")
        groups.setdefault(group.removeprefix(around), {})[name] = spec
    for group, found in groups.items():
        yield _held(group, titles.get(group), found)
    places = {locator: locator.removeprefix(FOLDER) for locator in checkpoint.all_assets()}
    assets = [
        replace(asset, place=places[locator].removeprefix(around))
        for locator, (_, asset) in checkpoint.all_assets().items()
        if places[locator].startswith(around)
    ]
    yield StoredGroup("", None, assets=tuple(assets))


def _noted_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The names that the source notes at its groups; empty for files of Keras before 3.6."""
    noted = dict(checkpoint.metadata).get(GROUP_NAMES)
    return dict(json.loads(noted)) if noted is not None else {}


def _groups_around(checkpoint: Checkpoint) -> str:
    """The groups of the models that the template was lifted out of: two a level, `layers` and the model's own."""
    levels = sum(int(value) for key, value in checkpoint.metadata if key == "lifted_levels")
    first = next(checkpoint.weights(), None)
    if not levels or first is None:
        return ""
    return "/".join(_place(first)[0].split("/")[: 2 * levels]) + "/"


def _place(spec: TensorSpec) -> tuple[str, str]:
    """Group and name there (a number, mostly) of a tensor of a Keras 3 file."""
    inside = spec.locator.rpartition("//")[2]
    group, separator, name = inside.rpartition("vars/")
    if not separator or "/" in name or (group and not group.endswith("/")):
        raise UnsupportedError(f"{spec.name}: a variable that lies in no group 'vars'")
    return group.removesuffix("/"), name


def _optimizer(checkpoint: Checkpoint) -> Iterator[StoredGroup]:
    """The optimizer's state, where it comes from a file of the same layout."""
    found = checkpoint.optimizer_tensors()
    if found and checkpoint.format not in KERAS3_FORMATS:
        raise UnsupportedError(
            f"the optimizer state of {checkpoint.format} is ordered otherwise than Keras 3's; leave it out, or write "
            "'.h5'"
        )
    groups: dict[str, dict[str, TensorSpec]] = {}
    for spec in found:
        group, name = _place(spec)
        groups.setdefault(group, {})[name] = spec
    for group, held in groups.items():
        yield _held(group, None, held)


class _Placing:
    """One walk of a configuration, with the description's layers beside it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._layers = dict(checkpoint.walk())
        self._tensors = {spec.path: spec for spec in checkpoint.weights()}
        self._keras3 = checkpoint.format in KERAS3_FORMATS
        self._shared: set[int] = set()
        self._noted = _noted_names(checkpoint)

    def whole(self, checkpoint: Checkpoint, model: ModelConfig) -> Iterator[StoredGroup]:
        """The model's own group, then its layers."""
        own = tuple(spec for spec in checkpoint.loose if spec.role is Role.WEIGHT)
        yield from self._model(model, "", ())
        yield StoredGroup("", model.name, own, assets=checkpoint.assets)

    def _model(self, model: ModelConfig, group: str, path: Path) -> Iterator[StoredGroup]:
        base = f"{group}/{LAYERS}" if group else LAYERS
        for config, name in zip(model.layers, group_names(model), strict=True):
            if model.class_name == "Sequential" and config.class_name == "InputLayer":
                continue  # Keras keeps it out of `model.layers`
            yield from self._layer(config, f"{base}/{name}", (*path, config.name))

    def _layer(self, config: LayerConfig, group: str, path: Path) -> Iterator[StoredGroup]:
        number = config.entry.get("shared_object_id")
        if self._keras3 and isinstance(number, int):
            if number in self._shared:
                return
            self._shared.add(number)
        layer = self._layers.get(path)
        for each in self._groups(config, layer, group, path):
            yield replace(each, assets=layer.assets) if layer is not None and each.path == group else each

    def _groups(self, config: LayerConfig, layer: Layer | None, group: str, path: Path) -> Iterator[StoredGroup]:
        own = layer.tensors if layer is not None else ()
        if config.model is not None:
            yield StoredGroup(group, config.name, own)
            yield from self._model(config.model, group, path)
        elif config.inner is not None and holds_model(config):
            yield StoredGroup(group, config.name)
            yield from self._layer(config.inner, f"{group}/layer", (*path, config.inner.name))
        else:
            yield from self._leaf(config, layer, group, path)

    def _leaf(self, config: LayerConfig, layer: Layer | None, group: str, path: Path) -> Iterator[StoredGroup]:
        class_name = plain_class(config.class_name)
        tensors = tuple(layer.all_tensors()) if layer is not None else ()
        parts = None if is_custom(config) else parts_of(class_name, config.config)
        if not tensors:
            yield StoredGroup(group, config.name)
            return
        if class_name in _GONE:
            raise UnsupportedError(
                f"layer '{'/'.join(path)}' is a {class_name}, which Keras 3 does not have; 'ckpttool migrate' says "
                "what can take its place, and '.h5' keeps it"
            )
        if class_name in LOOKUPS and not is_custom(config):
            yield from _weights_of_terms(config, tensors, group, path)
            return
        if parts is None or any(stored_variables(part, ()) is None for part in parts):
            if not self._keras3:
                raise UnsupportedError(
                    f"layer '{'/'.join(path)}' is of the class '{config.class_name}', whose groups in Keras 3's layout "
                    "are not known; write '.h5' or '.safetensors'"
                )
            yield from _own_class(config, tensors, group, self._noted)
            return
        yield from self._parts(config, parts, tensors, group, path)

    def _parts(
        self, config: LayerConfig, parts: Sequence[Part], tensors: Sequence[TensorSpec], group: str, path: Path
    ) -> Iterator[StoredGroup]:
        left = {spec.path for spec in tensors}
        titled: dict[str, StoredGroup] = {}
        if all(part.groups for part in parts):
            titled[group] = StoredGroup(group, config.name)
        for part in parts:
            for depth, title in enumerate(part.titles[:-1], 1):
                inner = "/".join((group, *part.groups[:depth]))
                if title is not None:
                    titled.setdefault(inner, StoredGroup(inner, title))
            found = self._ordered(config, part, tensors, path)
            left -= {spec.path for spec in found}
            inner = "/".join((group, *part.groups))
            title = part.titles[-1] if part.titles else config.name
            titled[inner] = StoredGroup(inner, title, found)
        if left:
            raise UnsupportedError(f"'{'/'.join(min(left))}' has no place in a {config.class_name} of Keras 3")
        yield from titled.values()

    def _ordered(
        self, config: LayerConfig, part: Part, tensors: Sequence[TensorSpec], path: Path
    ) -> tuple[TensorSpec, ...]:
        """A part's tensors in the order of Keras 3's variables."""
        prefix = (*path, *part.prefix)
        own = [spec for spec in tensors if spec.path[:-1] == prefix]
        variables = stored_variables(part, own)
        if variables is None:
            return tuple(own)
        found: list[TensorSpec] = []
        for variable in variables:
            if _ONE_GATE.fullmatch(variable.path[-1]):
                raise UnsupportedError(
                    f"layer '{'/'.join(path)}' ({config.class_name}) holds one array a gate, as Keras 1 stores them; "
                    "'ckpttool migrate' joins them"
                )
            spec = self._tensors.get((*prefix, *variable.path))
            if spec is None:
                wanted = "/".join((*part.prefix, *variable.path))
                raise UnsupportedError(
                    f"layer '{'/'.join(path)}' ({config.class_name}) holds no '{wanted}' as Keras 3 wants it; for a "
                    "model of Keras 1 use 'ckpttool migrate'"
                )
            found.append(spec)
        return tuple(found)


def _weights_of_terms(
    config: LayerConfig, tensors: Sequence[TensorSpec], group: str, path: Path
) -> Iterator[StoredGroup]:
    """A lookup layer's variables by their own names, in its group and in that of the layer inside."""
    groups: dict[str, dict[str, TensorSpec]] = {group: {}}
    for spec in tensors:
        groups.setdefault("/".join((group, *spec.path[len(path) : -1])), {})[spec.path[-1]] = spec
    for name, held in groups.items():
        yield _held(name, config.name if name == group else None, held)


def _own_class(
    config: LayerConfig, tensors: Sequence[TensorSpec], group: str, noted: Mapping[str, str]
) -> Iterator[StoredGroup]:
    """A class that only its code describes: its groups as the source has them, below the layer's own."""
    wanted = group.split("/")
    groups: dict[str, dict[str, TensorSpec]] = {group: {}}
    titles = {group: config.name}
    for spec in tensors:
        stored, own_name = _place(spec)
        parts = stored.split("/")
        start = next((i for i in range(len(parts)) if parts[i : i + len(wanted)] == wanted), None)
        if start is None:
            raise UnsupportedError(
                f"layer '{config.name}' ({config.class_name}): its groups cannot be told from '{stored}'"
            )
        name = "/".join(parts[start:])
        groups.setdefault(name, {})[own_name] = spec
        if stored in noted:
            titles.setdefault(name, noted[stored])
    for name, held in groups.items():
        yield _held(name, titles.get(name), held)
