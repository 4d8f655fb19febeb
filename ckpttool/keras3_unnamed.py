"""Names for the groups of a Keras 3 weights file without its configuration, as far as the file notes them.

Keras since 3.6 notes each layer's name at its group, also of layers without weights. Files of older versions say class
and counter (`layers/dense_1`) or attribute (`embedding_table`); those are then the names, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .assets import gathered
from .checkpoint import Checkpoint, Layer, Notice, TensorSpec
from .keras3_layout import LAYERS, LAYERS_OF_2_13, Part, class_of_group, parts_of, stored_variables
from .keras_variables import Variable

Path = tuple[str, ...]
_MODEL_GROUPS = (LAYERS, LAYERS_OF_2_13)
_ATTRIBUTES_OF_WRAPPERS = ("forward_layer", "backward_layer", "layer", "cell", "cells")


def name_groups(checkpoint: Checkpoint, prefix: Path = ()) -> Checkpoint:
    """The stored tree with the names that the file notes.

    Parameters
    ----------
    checkpoint : as the reader describes it, or a part of it
    prefix : the path of the layer around, where this is a part

    Returns
    -------
    the same tensors (equal locators) under named layers; warnings `names-unknown` say what is not known
    """
    naming = _Groups(titled=any(layer.title for _, layer in checkpoint.walk()))
    layers = tuple(naming.children(checkpoint.layers, prefix))
    return replace(checkpoint, layers=layers).with_warnings(*([] if prefix else naming.notices()))


def children_of(nodes: Sequence[Layer], group: str) -> tuple[Layer, ...]:
    """What lies in the group of that name."""
    return next((node.layers for node in nodes if node.name == group), ())


def quantized_notice(name: str) -> Notice:
    """The warning about a layer whose stored integers are not its weights."""
    message = f"{name} is quantized: the stored integers are not its weights (float weight ≈ integer / scale)"
    return Notice("quantized", message, name)


class _Groups:
    def __init__(self, *, titled: bool) -> None:
        self._titled = titled
        self._numbered: list[str] = []  # layers whose variables have numbers in place of names
        self._inferred: list[str] = []
        self._quantized: list[str] = []

    def notices(self) -> list[Notice]:
        """What the file does not say."""
        notices = []
        if not self._titled:
            notices.append(
                Notice(
                    "names-unknown",
                    "the file does not say what its layers are called: they have the names of their classes and a "
                    "counter; --config with the model's JSON gives the real ones",
                )
            )
        if self._numbered:
            message = f"the file numbers the variables of {_shown(self._numbered)} and does not name them"
            notices.append(Notice("names-unknown", message))
        if self._inferred:
            message = f"the file numbers the variables of {_shown(self._inferred)}; kernel and bias go by their shapes"
            notices.append(Notice("names-inferred", message))
        notices.extend(quantized_notice(name) for name in self._quantized)
        return notices

    def children(self, nodes: Sequence[Layer], prefix: Path) -> Iterator[Layer]:
        """The layers among groups, those of containers too; `layers` first, as Keras visits them."""
        found: list[tuple[str, Layer]] = []
        for node in sorted(nodes, key=_models_first):
            found.extend(self._flat(node, ""))
        used: dict[str, int] = {}
        for container, node in found:
            name = node.title or (f"{container}/{node.name}" if container else node.name)
            if name in used and container:
                name = f"{container}/{name}"
            used[name] = used.get(name, -1) + 1
            if used[name]:
                name = f"{name}_{used[name]}"
            yield self._layer(node, name, prefix)

    def _flat(self, node: Layer, container: str) -> Iterator[tuple[str, Layer]]:
        """A layer, or those of a list or dict of layers."""
        if node.name in _MODEL_GROUPS:
            for each in node.layers:
                yield from self._flat(each, "")
        elif self._titled and node.title is None and not node.tensors and node.layers:
            for each in node.layers:
                yield from self._flat(each, f"{container}/{node.name}" if container else node.name)
        elif node.tensors or node.layers or node.assets or not node.name.startswith("_"):
            yield container, node

    def _layer(self, node: Layer, name: str, prefix: Path) -> Layer:
        layer = self._made(node, name, prefix)
        return replace(layer, assets=node.assets if layer.layers else gathered(node))

    def _made(self, node: Layer, name: str, prefix: Path) -> Layer:
        path = (*prefix, name)
        if any(child.name in _MODEL_GROUPS for child in node.layers):
            class_name = class_of_group(node.name)
            return Layer(name, class_name, self._own(node, path), tuple(self.children(node.layers, path)))
        class_name = class_of_group(node.name) or _class_by_cell(node)
        inner = next((child for child in node.layers if child.name == "layer"), None)
        if class_name == "TimeDistributed" and inner is not None:
            if any(child.name in _MODEL_GROUPS for child in inner.layers):
                return Layer(name, class_name, (), (self._layer(inner, inner.title or inner.name, path),))
        if class_name in ("Bidirectional", "TimeDistributed", "RNN", "SpectralNormalization"):
            return Layer(name, class_name, tuple(self._inside(node, path, class_name == "RNN")))
        parts = parts_of(class_name, None) if class_name else None
        if parts is not None and parts[0].groups:
            tensors = [spec for part in parts for spec in self._variables(_below(node, part.groups), part, path)]
            return Layer(name, class_name, tuple(tensors))
        return Layer(name, class_name, self._own(node, path), tuple(self.children(node.layers, path)))

    def _own(self, node: Layer, path: Path) -> tuple[TensorSpec, ...]:
        class_name = class_of_group(node.name)
        return tuple(self._variables(node, Part((), (), class_name or "", None), path))

    def _variables(self, node: Layer, part: Part, path: Path) -> Iterator[TensorSpec]:
        variables = stored_variables(part, node.tensors)
        if variables is None and _like_kernel_and_bias(node):
            variables = (Variable(("kernel",), None), Variable(("bias",), None))
            self._inferred.append("/".join(path))
        if variables is None and any(spec.position is not None for spec in node.tensors):
            self._numbered.append("/".join(path))
        if any(spec.is_quantized for spec in node.tensors):
            self._quantized.append("/".join((*path, *part.prefix)))
        for place, spec in enumerate(node.tensors):
            if variables is None:
                yield replace(spec, path=(*path, *part.prefix, spec.path[-1]))
            else:
                variable = variables[place]
                yield replace(spec, path=(*path, *part.prefix, *variable.path), trainable=variable.trainable)

    def _inside(self, node: Layer, path: Path, names_cell: bool) -> Iterator[TensorSpec]:
        """Every tensor of a wrapper layer, under the names of what it wraps; an RNN's own cell adds no name."""
        yield from self._variables(node, _part_of(node, names_cell), path)
        order = sorted(node.layers, key=lambda child: child.name == "backward_layer")
        for child in order:
            skipped = (child.name == "cell" and not names_cell) or child.name == "cells" or _is_stack(child)
            where = path if skipped else (*path, child.title or child.name)
            yield from self._inside(child, where, names_cell)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _like_kernel_and_bias(node: Layer) -> bool:
    """A matrix (or a convolution's kernel) and a vector as long as its last axis: what nearly every layer has."""
    shapes = [spec.shape for spec in node.tensors]
    return len(shapes) == 2 and len(shapes[0]) >= 2 and len(shapes[1]) == 1 and shapes[0][-1] == shapes[1][0]


def _part_of(node: Layer, in_rnn: bool) -> Part:
    by_title = class_of_group(node.title or "") if node.name in _ATTRIBUTES_OF_WRAPPERS else None
    class_name = by_title or class_of_group(node.name) or _class_by_shapes(node, in_rnn) or ""
    return Part((), (), class_name, None)


def _class_by_shapes(node: Layer, in_rnn: bool) -> str | None:
    """What a wrapper most likely wraps: all of Keras's cells name their variables alike, and so do Dense layers."""
    shapes = [spec.shape for spec in node.tensors]
    ranks = [len(shape) for shape in shapes]
    if node.name == "cell" and ranks[:2] == [2, 2] and shapes[0][1] == shapes[1][1]:
        return "LSTMCell" if len(shapes) <= 3 else None
    if node.name == "layer" and not in_rnn and ranks == [2, 1] and shapes[0][1] == shapes[1][0]:
        return "Dense"
    return None


def _is_stack(node: Layer) -> bool:
    return any(child.name == "cells" for child in node.layers)


def _class_by_cell(node: Layer) -> str | None:
    """A group called after an attribute that holds nothing but the cell of an LSTM, GRU or SimpleRNN."""
    if node.tensors or len(node.layers) != 1 or node.layers[0].name != "cell":
        return None
    name = class_of_group(node.layers[0].title or "") or ""
    return name.removesuffix("Cell") if name.endswith("Cell") else None


def _below(node: Layer, groups: Sequence[str]) -> Layer:
    for group in groups:
        node = next((each for each in node.layers if each.name.lstrip("_") == group.lstrip("_")), Layer(group))
    return node


def _models_first(node: Layer) -> bool:
    return node.name not in _MODEL_GROUPS
