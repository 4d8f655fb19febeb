"""What the dot-product layers of both Keras generations share: arguments, the source layer's kernel, and its place.

Nothing here imports Keras: the layer classes are made of this and of the `Layer` of the library at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

PACKAGE = "ckpttool"  # under which the classes are registered: "ckpttool>EmbeddingDotProduct"
AXES = ("rows", "columns")
ON_ITS_OWN = (
    "layer '{name}' was made from a configuration alone, so that it has a copy of '{source}' of its own; "
    "to keep them shared, save the model and load it"
)


def library_of(layer: Any) -> tuple[str, int]:
    """Name and major version of the library that made a layer, by the modules of its base classes.

    Parameters
    ----------
    layer : a live layer

    Returns
    -------
    ("keras", 3), ("keras", 2) or ("tf_keras", 2)

    Raises
    ------
    TypeError : not a Keras layer
    """
    for base in type(layer).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("keras", "tf_keras"):
            major = str(getattr(sys.modules[root], "__version__", "2")).partition(".")[0]
            return root, int(major)
    raise TypeError(f"{type(layer).__name__} is no layer of keras or tf_keras; give the layer that has the kernel")


def kernel_of(layer: Any) -> Any:
    """The live matrix of a layer: `kernel` of a Dense, `embeddings` of an Embedding.

    Parameters
    ----------
    layer : built, or an Embedding, which needs no input to be built

    Returns
    -------
    the library's own variable, shape (rows, dim)

    Raises
    ------
    ValueError : the layer has none yet, or one that is no matrix
    """
    if not layer.built and hasattr(layer, "input_dim") and hasattr(layer, "output_dim"):
        layer.build(None)
    kernel = None
    if layer.built:
        found = (getattr(layer, name, None) for name in ("kernel", "embeddings"))
        kernel = next((each for each in found if each is not None), None)
    if kernel is None:
        why = "no kernel and no embedding table" if layer.built else "no kernel yet; call it on its input first"
        raise ValueError(f"layer '{layer.name}' ({type(layer).__name__}) has {why}")
    if len(kernel.shape) != 2:
        raise ValueError(f"layer '{layer.name}' has a kernel of shape {tuple(kernel.shape)}; it has to be (rows, dim)")
    return kernel


def check_axis(axis: str) -> str:
    """Refuse an axis that is neither of the two.

    Raises
    ------
    ValueError : with both possible ones in the message
    """
    if axis not in AXES:
        raise ValueError(f'axis is {axis!r}; it has to be "rows" or "columns"')
    return axis


def check_width(input_shape: Any, kernel: Any, axis: str, name: str) -> None:
    """Refuse vectors of another width than the kernel's.

    Parameters
    ----------
    input_shape : (…, width); a width of None is not checked
    kernel : shape (rows, dim)
    axis : "rows" for a width of dim, "columns" for one of rows
    name : of the source layer, for the message

    Raises
    ------
    ValueError : with both possible shapes in the message
    """
    shape = tuple(input_shape)
    rows, dim = tuple(kernel.shape)
    width = dim if axis == "rows" else rows
    if len(shape) < 2 or (shape[-1] is not None and shape[-1] != width):
        raise ValueError(
            f"vectors have shape {shape} with axis=\"{axis}\"; the kernel of '{name}', of shape {(rows, dim)}, "
            f'takes (…, {dim}) with axis="rows" or (…, {rows}) with axis="columns"'
        )


def find_same_layer(tensors: list[Any], like: Any) -> Any:
    """The layer of the same name and class among those that made the tensors, or that share an input with these.

    Parameters
    ----------
    tensors : symbolic tensors of a functional model, which may be in the making
    like : the layer to look for, or a copy of it

    Returns
    -------
    that layer, which may be `like` itself; None where there is none, or several
    """
    found = {
        id(layer): layer
        for operation in _connected(tensors)
        for layer in _with_inner(operation)
        if layer.name == like.name and type(layer) is type(like)
    }
    if id(like) in found:
        return like
    return next(iter(found.values())) if len(found) == 1 else None


def called_on(layer: Any) -> list[Any]:
    """The symbolic tensors that a layer was called on."""
    return [tensor for node in layer._inbound_nodes for tensor in _inputs(node)]


def _inputs(node: Any) -> list[Any]:
    tensors = getattr(node, "input_tensors", ())
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]


def _connected(tensors: list[Any]) -> Iterator[Any]:
    """Operations behind the tensors, and those after these as far as they have been called."""
    waiting = [history[0] for tensor in tensors if (history := getattr(tensor, "_keras_history", None)) is not None]
    seen: set[int] = set()
    while waiting:
        operation = waiting.pop()
        if operation is None or id(operation) in seen:
            continue
        seen.add(id(operation))
        yield operation
        for node in operation._inbound_nodes:
            waiting += [tensor._keras_history[0] for tensor in _inputs(node)]
        for node in operation._outbound_nodes:
            waiting.append(getattr(node, "operation", None) or getattr(node, "layer", None))


def _with_inner(operation: Any) -> Iterator[Any]:
    """An operation and the layers inside it."""
    yield operation
    for layer in getattr(operation, "layers", None) or ():
        yield from _with_inner(layer)


def is_entry_of(entry: Mapping[str, Any], source: Mapping[str, Any]) -> bool:
    """Whether two entries of a configuration have the same class and name."""
    return _identity(entry) == _identity(source)


def _identity(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    config = entry.get("config")
    return entry.get("class_name"), config.get("name") if isinstance(config, Mapping) else None


def inner_entries(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of the layers inside a model's, at any depth."""
    config = entry.get("config")
    layers = config.get("layers") if isinstance(config, Mapping) else None
    for inner in layers if isinstance(layers, list) else ():
        yield inner
        yield from inner_entries(inner)
