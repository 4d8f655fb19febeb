"""Live models: the base model out of its wrapper, and trained weights from anywhere into a model.

Works on objects of Keras 3, tf_keras and Keras 2 by what they have in common, and imports none of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import Role
from .errors import LayerNotFoundError, UnsupportedError, WeightsMismatchError
from .layer_matching import Leaf, Pair, match_layers
from .live_graph import is_model, template_of, walk
from .selecting import fits
from .source import SourceOptions, open_source
from .wrapping import MAX_WRAPPER_DEPTH

APART = "the replicas hold different values; taken is the first one's, as `save` does"


def unwrap_model(model: Any, *, assume_wrapper: str | None = None) -> Any:
    """The base model inside a live one; its `get_layer` finds layers by name at any depth.

    Parameters
    ----------
    model : of Keras 3, tf_keras or Keras 2, also as `load_model` gave it: in `multi_gpu_model`, `make_parallel`, batch
        slices made by hand, or a model that only calls another one; or created under a strategy, or plain
    assume_wrapper : name of the layer that is the template, where nothing proves it (a subclassed wrapper)

    Returns
    -------
    the template itself, with the variables that the wrapper trains; `model` where there is no wrapper: one created
    under a strategy is its own base model, and `transfer_weights` takes its values into another. The returned object's
    `get_layer` takes a name, or a path (`tower/image_embedding`), of layers inside of layers too; where the model's own
    `get_layer` finds one, that is the answer

    Raises
    ------
    TypeError : not a model
    LayerNotFoundError : no model inside has the assumed name
    """
    if not is_model(model):
        raise TypeError(f"{type(model).__name__} is no Keras model; give one that has layers and get_layer")
    if assume_wrapper is not None:
        inside = [layer for path, layer in walk(model) if fits(path, assume_wrapper) and is_model(layer)]
        if len({id(layer) for layer in inside}) != 1:
            names = ", ".join("/".join(path) for path, layer in walk(model) if is_model(layer)) or "none"
            raise LayerNotFoundError(f"not just one model inside is called '{assume_wrapper}'; models inside: {names}")
        return _with_deep_get_layer(inside[0])
    return _with_deep_get_layer(_innermost(model))


def _innermost(model: Any) -> Any:
    for _ in range(MAX_WRAPPER_DEPTH):
        template = template_of(model)
        if template is None:
            break
        model = template
    return model


def _with_deep_get_layer(model: Any) -> Any:
    # Past Keras's own __setattr__, which would track it; an attribute of the object hides the method of the class.
    object.__setattr__(model, "get_layer", functools.partial(_get_layer, model))
    return model


def _get_layer(model: Any, name: str | None = None, index: int | None = None) -> Any:
    """A layer by name or index as Keras finds it, else by name or path at any depth."""
    try:
        return type(model).get_layer(model, name=name, index=index)
    except ValueError:
        if name is None:
            raise
    found = {id(layer): (path, layer) for path, layer in walk(model) if fits(path, name)}
    if len(found) == 1:
        return next(iter(found.values()))[1]
    shown = ", ".join("/".join(path) for path, _ in (found.values() if found else walk(model)))
    raise ValueError(f"{len(found) or 'no'} layers fit '{name}'; {'they are' if found else 'there are'}: {shown}")


@dataclass(frozen=True, slots=True)
class Transferred:
    """One tensor that went from source to target."""

    source: str
    target: str
    shape: tuple[int, ...]
    source_dtype: str
    target_dtype: str


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What went where."""

    matched_by: str  # "name", "numbered name" (dense_1 for dense_4) or "order"
    tensors: tuple[Transferred, ...]
    of_tensors: int  # how many the target has
    left_in_source: tuple[str, ...]  # layers of the source that the target does not have
    left_in_target: tuple[str, ...]  # layers of the target that keep their values
    warnings: tuple[str, ...] = ()  # variables of which the source's replicas hold different values

    def sentence(self) -> str:
        """The receipt: `10 of 10 tensors, 166 parameters, matched by name`."""
        parameters = sum(int(np.prod(each.shape)) for each in self.tensors)
        text = (
            f"{len(self.tensors)} of {self.of_tensors} tensors, {parameters:,} parameters, matched by {self.matched_by}"
        )
        left = [("not in the target", self.left_in_source), ("left as they were", self.left_in_target)]
        parts = [text, *(f"{what}: {', '.join(names)}" for what, names in left if names), *self.warnings[:1]]
        return "; ".join(parts) + (f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        tensors = [
            {
                "source": each.source,
                "target": each.target,
                "shape": list(each.shape),
                "source_dtype": each.source_dtype,
                "target_dtype": each.target_dtype,
            }
            for each in self.tensors
        ]
        return {
            "schema": 1,
            "matched_by": self.matched_by,
            "tensors": tensors,
            "of_tensors": self.of_tensors,
            "left_in_source": list(self.left_in_source),
            "left_in_target": list(self.left_in_target),
            "warnings": list(self.warnings),
        }


def transfer_weights(
    source: Any, target: Any, *, partial: bool = False, options: SourceOptions = SourceOptions()
) -> TransferReport:
    """Put trained weights into a live model: all of them, or none.

    Layers are matched by name and by the shapes of their tensors: by path; by name where that is unique; with the
    numbers in names that Keras gave taken as ranks, since `dense_1` of one process is `dense_4` of another; else by
    order, where all shapes fit in order and no given name would go elsewhere. Wrappers around source and target are
    looked through.

    Parameters
    ----------
    source : a live model (of another Keras, or distributed, too), or the path of any checkpoint
    target : a live model that has its weights
    partial : take what fits, though other layers of source or target are left over
    options : how to read a source that is a path

    Returns
    -------
    what went where; values are cast to the target's dtype

    Raises
    ------
    WeightsMismatchError : no layer fits; or only some fit, without `partial`; the target is as it was
    UnsupportedError : the source's kernels are turned (convolutions of Theano)
    TypeError : target, or source, is no model
    CheckpointError : whatever is wrong with the source's file
    """
    if not is_model(target):
        raise TypeError(f"{type(target).__name__} is no Keras model; the target has to be a live model")
    into = list(_leaves(_innermost(target)))
    if not into:
        raise WeightsMismatchError("the target has no weights yet; call it on an input, or build it, first")
    with _opened(source, options) as leaves:
        matching = match_layers(leaves, into, partial=partial)
        pairs = [pair for match in matching.matches for pair in match.pairs()]
        _assign(pairs)
    return TransferReport(
        matching.by,
        tuple(_transferred(pair) for pair in pairs),
        sum(len(leaf.tensors) for leaf in into),
        tuple(leaf.name for leaf in matching.left_in_source),
        tuple(leaf.name for leaf in matching.left_in_target),
        tuple(f"{source.name}: {APART}" for source, _ in pairs if _replicas_differ(source.variable)),
    )


def _transferred(pair: Pair) -> Transferred:
    source, target = pair
    return Transferred(source.name, target.name, target.shape, source.dtype, target.dtype)


@contextmanager
def _opened(source: Any, options: SourceOptions) -> Iterator[list[Leaf]]:
    if is_model(source):
        yield list(_leaves(_innermost(source)))
        return
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"{type(source).__name__} is no Keras model and no path")
    with open_source(source, options) as opened:
        yield _stored_leaves(opened)


def _stored_leaves(opened: Any) -> list[Leaf]:
    """The layers of a checkpoint that hold tensors; a value is read when it is asked for."""
    leaves = []
    for path, layer in opened.template.walk():
        if layer.tensors:
            leaf = Leaf(path, layer.class_name)
            for spec in layer.tensors:
                read = functools.partial(opened.reader.read, spec)
                leaf.add("/".join(spec.path[len(path) :]) or spec.path[-1], spec.shape, spec.dtype, read)
            leaves.append(leaf)
    for spec in opened.template.loose:
        if spec.role is Role.WEIGHT:
            leaf = Leaf(spec.path[:-1] or spec.path, None)
            leaf.add(spec.path[-1], spec.shape, spec.dtype, functools.partial(opened.reader.read, spec))
            leaves.append(leaf)
    turned = any(len(tensor.shape) > 2 for leaf in leaves for tensor in leaf.tensors)
    if opened.whole.written_by.backend == "theano" and turned:
        raise UnsupportedError(
            "written with Theano, whose convolution kernels are turned; "
            f"first: ckpttool migrate {opened.path} -o new.keras"
        )
    return leaves


def _leaves(model: Any) -> Iterator[Leaf]:
    """The layers of a live model that hold variables, each variable once, in model order."""
    seen: set[int] = set()
    layers = [((), model), *walk(model)]
    own = [(path, layer) for path, layer in layers if not is_model(layer)]
    # A layer that only uses another one's variables comes after that one; then variables of models themselves.
    ordered = sorted(own, key=lambda each: hasattr(each[1], "trainable_kernel"))
    ordered += [(path, layer) for path, layer in layers if is_model(layer)]
    for path, layer in ordered:
        fresh = [variable for variable in _variables(layer) if id(variable) not in seen]
        seen.update(map(id, fresh))
        if fresh:
            leaf = Leaf(path or (model.name,), type(layer).__name__)
            for variable in fresh:
                name = str(getattr(variable, "path", variable.name)).rpartition("/")[2].partition(":")[0]
                dtype = str(getattr(variable.dtype, "name", variable.dtype))
                leaf.add(name, tuple(variable.shape), dtype, functools.partial(_value, variable), variable)
            yield leaf


def _variables(layer: Any) -> list[Any]:
    try:
        return list(layer.weights)
    except ValueError:  # as a Sequential of Keras 2 says that it has none yet
        return []


def _value(variable: Any) -> np.ndarray:
    """The value of a variable, of a distributed one as the strategy gives it: one copy, or the mean of all."""
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)


def _replicas_differ(variable: Any) -> bool:
    """Whether a variable that no strategy keeps equal has gone different ways on the devices.

    Statistics of BatchNormalization do in Keras 3, whose variables without gradients have no aggregation
    (keras/src/backend/tensorflow/core.py, 3.15); those of tf_keras are averaged.
    """
    inner = getattr(variable, "_value", variable)  # the variable of TensorFlow inside of one of Keras 3
    copies = getattr(inner, "values", None)
    if not isinstance(copies, tuple) or not str(getattr(inner, "aggregation", "")).endswith("NONE"):
        return False
    first, *others = (np.asarray(copy.numpy()) for copy in copies)
    return any(not np.array_equal(first, other) for other in others)


def _assign(pairs: list[Pair]) -> None:
    """Assign every value; if one cannot be read or assigned, put back what was there."""
    undo: list[Callable[[], Any]] = []
    try:
        for source, target in pairs:
            value = source.read()
            undo.append(functools.partial(target.variable.assign, _value(target.variable)))
            target.variable.assign(value.astype(target.dtype) if source.dtype != target.dtype else value)
    except BaseException:
        for restore in reversed(undo):
            restore()
        raise
