"""Containers that know tensors by name only: `.npz` and `.safetensors`. A name is `layer/…/variable`.

A tensor whose name begins with `optimizer/` is optimizer state, since `convert` writes it so; but `optimizer/kernel`
and the like are a layer's that is called so: state is named after what it belongs to, or is a counter or a rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .checkpoint import Checkpoint, Layer, Notice, Role, TensorSpec
from .errors import UnsupportedError, WeightsMismatchError
from .keras_config import LayerConfig, ModelConfig
from .keras_variables import expected_variables

OPTIMIZER = "optimizer"
_OF_A_LAYER = frozenset(
    """kernel bias gamma beta moving_mean moving_variance embeddings recurrent_kernel depthwise_kernel pointwise_kernel
    alpha""".split()
)

Path = tuple[str, ...]


def names(checkpoint: Checkpoint) -> list[tuple[str, TensorSpec]]:
    """Every tensor of a description with the name to write it by, in model order; a shared tensor under each name.

    Raises
    ------
    UnsupportedError : two tensors have one name, or a name cannot be written as UTF-8
    """
    specs = [*checkpoint.weights(), *checkpoint.optimizer_tensors()]
    named = {}
    for spec in specs:
        if spec.name in named:
            raise UnsupportedError(f"two tensors are called '{spec.name}', and this format knows them by name only")
        if not spec.name.isascii():
            try:
                spec.name.encode("utf-8")
            except UnicodeEncodeError:
                raise UnsupportedError(f"the name of tensor {spec.name!a} is no text of UTF-8; write '.h5'") from None
        named[spec.name] = spec
    return list(named.items())


def tensor(name: str, shape: tuple[int, ...], dtype: str, locator: str) -> TensorSpec:
    """The description of a stored tensor by its name."""
    path = tuple(name.split("/"))
    optimizer = path[0] == OPTIMIZER and (len(path) > 2 or (len(path) == 2 and path[1] not in _OF_A_LAYER))
    return TensorSpec(path, shape, dtype, Role.OPTIMIZER if optimizer else Role.WEIGHT, locator=locator)


def grouped(specs: Iterable[TensorSpec]) -> tuple[tuple[Layer, ...], tuple[TensorSpec, ...]]:
    """Layers by the parts of the names, in order of first appearance; and the tensors of no layer."""
    top = _Group()
    loose: list[TensorSpec] = []
    for spec in specs:
        if spec.role is not Role.WEIGHT or len(spec.path) == 1:
            loose.append(spec)
            continue
        group = top
        for part in spec.path[:-1]:
            group = group.inside.setdefault(part, _Group())
        group.tensors.append(spec)
    return top.layers(), tuple(loose)


class _Group:
    __slots__ = ("inside", "tensors")

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.inside: dict[str, _Group] = {}

    def layers(self) -> tuple[Layer, ...]:
        return tuple(
            Layer(name, tensors=tuple(group.tensors), layers=group.layers()) for name, group in self.inside.items()
        )


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Give tensors known by name the layers of a configuration: class, order, nesting; layers without weights too.

    Parameters
    ----------
    checkpoint : as a reader of such a format describes it
    model : the configuration, or None
    path : the file, for messages

    Raises
    ------
    WeightsMismatchError : a layer that must have weights has none, or others
    """
    if model is None:
        return checkpoint
    by_layer: dict[Path, list[TensorSpec]] = {}
    left = list(checkpoint.weights())
    leaves = sorted(_leaves(model.layers, ()), key=_depth, reverse=True)
    for where, _ in leaves:
        count = len(where)
        by_layer[where] = [spec for spec in left if spec.path[:count] == where and len(spec.path) > count]
        taken = {spec.path for spec in by_layer[where]}
        left = [spec for spec in left if spec.path not in taken]
    layers = tuple(_layer(config, (config.name,), by_layer, path) for config in model.layers)
    beside, loose = grouped(left)
    notices = [
        Notice("unmatched-layer", f"layer '{each.name}' is stored, but not in the configuration", each.name)
        for each in beside
    ]
    others = tuple(spec for spec in checkpoint.loose if spec.role is not Role.WEIGHT)
    return replace(checkpoint, layers=(*layers, *beside), loose=(*loose, *others)).with_warnings(*notices)


def _depth(leaf: tuple[Path, LayerConfig]) -> int:
    return len(leaf[0])


def _leaves(layers: Sequence[LayerConfig], prefix: Path) -> Iterable[tuple[Path, LayerConfig]]:
    from .flat_order import leaves_of

    for layer in layers:
        yield from ((leaf.path, leaf.config) for leaf in leaves_of(layer, prefix))


def _layer(config: LayerConfig, where: Path, by_layer: dict[Path, list[TensorSpec]], path: object) -> Layer:
    inside: tuple[Layer, ...] = ()
    tensors: tuple[TensorSpec, ...] = ()
    if where in by_layer:
        tensors = _in_order(config, where, by_layer[where], path)
    elif config.model is not None:
        inside = tuple(_layer(each, (*where, each.name), by_layer, path) for each in config.model.layers)
    elif config.inner is not None:
        inside = (_layer(config.inner, (*where, config.inner.name), by_layer, path),)
    return Layer(config.name, config.class_name, tensors, inside, config.trainable, config.calls)


def _in_order(config: LayerConfig, where: Path, tensors: list[TensorSpec], path: object) -> tuple[TensorSpec, ...]:
    """In the order of `layer.weights`; as stored for a class that is not Keras's own."""
    expected = expected_variables(config)
    if expected is None:
        return tuple(tensors)
    by_path = {spec.path: spec for spec in tensors}
    symbols: dict[str, int] = {}
    found = []
    for variable in expected:
        spec = by_path.pop((*where, *variable.path), None)
        if spec is None or not variable.fits(spec.shape, symbols):
            what = "is missing" if spec is None else f"has shape {spec.shape}"
            name = "/".join((*where, *variable.path))
            raise WeightsMismatchError(f"the configuration asks for {name}, which {what}", path=path)
        found.append(replace(spec, trainable=variable.trainable))
    if by_path:
        names = ", ".join("/".join(each) for each in by_path)
        raise WeightsMismatchError(f"the configuration has no place for {names}", path=path)
    return tuple(found)
