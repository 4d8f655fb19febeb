"""What a configuration tells about batch slices and their merges, without decoding any function.

A slice is a Lambda, a layer of a class of the wrapper's author, or a chain of op layers. Which part of the batch it
takes shows in plain JSON only: a Lambda's arguments, the numbers beside its bytecode, the constants of op layers.
What differs from its source in shape (a crop, a part of the channels) is no slice of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..keras_config import LayerConfig, ModelConfig, TensorRef
from ..keras_variables import expected_variables
from ._op_nodes import is_op, operation
from ._op_values import chain, is_part

Shape = tuple[int | None, ...]

# Names that people gave the two arguments of a slice; a crop's are others (start, size, top, left).
INDEX_NAMES = frozenset(
    """i j k g n idx index id part partno partid gpu gpuid gpuidx gpuindex dev device deviceid devid replica replicaid
    replicaidx tower towerid shard shardid rank split splitid slice sliceid sliceidx worker batchidx""".split()
)
COUNT_NAMES = frozenset(
    """n parts nparts numparts gpus ngpus ngpu nbgpus nbgpu numgpus numgpu gpucount count total splits nsplits numsplits
    replicas nreplicas numreplicas towers ntowers numtowers shards nshards numshards devices ndevices numdevices slices
    nslices numslices workers nworkers numworkers worldsize""".split()
)


# What published wrappers call their slices' arguments: with these, also a template of unknown shape is not cropped.
PUBLISHED = (
    {"i", "parts"},  # keras/utils/multi_gpu_utils.py (Keras 2.2.4)
    {"idx", "parts"},  # make_parallel (keras-extras)
    {"n_gpus", "part"},  # to_multi_gpu (keras-multi-gpu)
    {"ngpus", "part", "dev"},  # ModelMGPU (keras_experiments)
)


@dataclass(frozen=True, slots=True)
class Slice:
    """One call's input, traced back to the tensor that it is a part of."""

    source: TensorRef
    layers: frozenset[str]  # the layers that make the slice
    proven: bool  # the file's numbers say: part `call` of `calls`
    arguments: tuple[str, ...] = ()  # names of a Lambda's arguments


def trace(model: ModelConfig, ref: TensorRef, part: int, parts: int, wanted: Shape | None) -> Slice | None:
    """The slice that a tensor is, or None where it is made by anything else, or cannot be a slice of the batch.

    Parameters
    ----------
    part, parts : which call's input it is, of how many
    wanted : the shape that the called model's input has, where known
    """
    layer = model.layer(ref.layer)
    if layer is None or ref.call >= len(layer.nodes):
        return None
    if is_op(layer):
        return _of_ops(model, ref, part, parts, wanted)
    if layer.class_name == "Lambda" or (layer.model is None and expected_variables(layer) is None):
        return _of_layer(model, layer, ref, part, parts, wanted)
    return None


def _of_ops(model: ModelConfig, ref: TensorRef, part: int, parts: int, wanted: Shape | None) -> Slice | None:
    found = chain(model, ref)
    if found is None:
        return None
    source, layers = found
    shape = shape_of(model, source)
    if not _alike(shape, wanted):
        return None
    proven = is_part(model, ref, source, part, parts, shape)
    return None if proven is False else Slice(source, layers, bool(proven))


def _of_layer(
    model: ModelConfig, layer: LayerConfig, ref: TensorRef, part: int, parts: int, wanted: Shape | None
) -> Slice | None:
    inputs = layer.nodes[ref.call].inputs
    if len(inputs) != 1:
        return None
    shape = shape_of(model, inputs[0])
    if not _alike(shape, wanted) or not _alike(shape, _stated_output(layer)):
        return None
    arguments = layer.config.get("arguments")
    names = tuple(sorted(arguments)) if isinstance(arguments, Mapping) else ()
    proven = ref.tensor == 0 and _says(layer, part, parts, _fixed(shape) and _fixed(wanted))
    return Slice(inputs[0], frozenset([layer.name]), proven, names)


def _stated_output(layer: LayerConfig) -> Shape | None:
    """A Lambda's `output_shape`, which is without the batch axis, with an unknown batch in front."""
    stated = layer.config.get("output_shape")
    if isinstance(stated, Mapping):
        stated = stated.get("items")
    if not isinstance(stated, list) or not all(axis is None or type(axis) is int for axis in stated):
        return None
    if layer.config.get("output_shape_type", "raw") != "raw":
        return None
    return (None, *stated)


def shape_of(model: ModelConfig, ref: TensorRef) -> Shape | None:
    """The shape of an input layer's tensor, batch axis first; of other tensors nothing is known."""
    layer = model.layer(ref.layer)
    if layer is None or layer.class_name != "InputLayer":
        return None
    return stated_shape(layer)


def stated_shape(layer: LayerConfig) -> Shape | None:
    """`batch_input_shape` (Keras 1 and 2) or `batch_shape` (Keras 3) of a layer."""
    for key in ("batch_input_shape", "batch_shape"):
        stated = layer.config.get(key)
        if isinstance(stated, Mapping):
            stated = stated.get("items")
        if isinstance(stated, list) and stated and all(axis is None or type(axis) is int for axis in stated):
            return tuple(stated)
    return None


def _alike(first: Shape | None, second: Shape | None) -> bool:
    """Whether two shapes can be equal on all axes but the batch."""
    if first is None or second is None:
        return True
    if len(first) != len(second):
        return False
    return all(a == b or a is None or b is None for a, b in zip(first[1:], second[1:], strict=True))


def _fixed(shape: Shape | None) -> bool:
    return shape is not None and all(axis is not None for axis in shape[1:])


def _says(layer: LayerConfig, part: int, parts: int, same_shape: bool) -> bool:
    """Whether a layer's numbers say: part `part` of `parts`.

    Numbers could be those of a crop: they count where the shapes of source and template are known and the same, or
    where the arguments are those of a published wrapper.
    """
    config = layer.config
    arguments = config.get("arguments") if layer.class_name == "Lambda" else config
    named = _named_numbers(arguments)
    published = isinstance(arguments, Mapping) and set(arguments) in PUBLISHED
    if not same_shape and not published:
        return False
    if named.index is not None:
        return named.index == part and (named.count == parts or (named.count is None and parts in _beside(config)))
    if layer.class_name != "Lambda" or arguments:
        return False
    defaults, closure = _defaults_and_closure(config)
    late = [parts - 1, parts]  # a closure over the loop's variable: its last value stands in each slice
    return sorted(_numbers(defaults)) == [part, parts] or sorted(_numbers(closure)) in ([part, parts], late)


@dataclass(frozen=True, slots=True)
class _Named:
    index: int | None = None
    count: int | None = None


def _named_numbers(arguments: Any) -> _Named:
    """The two numbers of a slice, by the names of its arguments; others (a device's name) may stand beside them."""
    if not isinstance(arguments, Mapping):
        return _Named()
    numbers = {str(name).lower().replace("_", ""): value for name, value in arguments.items() if type(value) is int}
    if len(numbers) not in (1, 2):
        return _Named()
    for index in numbers:
        rest = [name for name in numbers if name != index]
        if index in INDEX_NAMES and (not rest or rest[0] in COUNT_NAMES):
            if rest and index == "n" and rest[0] in INDEX_NAMES:
                continue
            return _Named(numbers[index], numbers[rest[0]] if rest else None)
    return _Named()


def _defaults_and_closure(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """What Keras stores beside a function's bytecode: a list of three, in Keras 3 a mapping."""
    function = config.get("function")
    if isinstance(function, Mapping):
        inner = function.get("config")
        return (inner.get("defaults"), inner.get("closure")) if isinstance(inner, Mapping) else (None, None)
    if isinstance(function, list) and len(function) == 3:
        return function[1], function[2]
    return None, None


def _beside(config: Mapping[str, Any]) -> list[int]:
    return [number for values in _defaults_and_closure(config) for number in _numbers(values)]


def _numbers(values: Any) -> list[int]:
    """Whole numbers among defaults or a closure's values, which Keras may wrap in one more list."""
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    return [value for value in values if type(value) is int] if isinstance(values, list) else []


def joins(layer: LayerConfig) -> str | None:
    """How a layer joins its inputs: "batch" for a concatenation on axis 0, "mean" for an average, "code" for a Lambda.

    None for layers that do something else, and for a concatenation on another axis.
    """
    if layer.class_name == "Merge":
        config = layer.config
        mode = config.get("mode")
        if mode == "concat":
            return "batch" if config.get("concat_axis") == 0 else None
        return "mean" if mode == "ave" else None
    if is_op(layer):
        found = operation(layer, 0) if layer.nodes else None
        return "batch" if found is not None and found.name == "concat" and found.operands.get("axis") == 0 else None
    if layer.class_name == "Concatenate":
        return "batch" if layer.config.get("axis") == 0 else None
    return {"Average": "mean", "Lambda": "code"}.get(layer.class_name)


def joined(model: ModelConfig, calls: Sequence[tuple[str, int]]) -> Iterator[tuple[LayerConfig, int]]:
    """The layers that join one tensor of every call, in call order, and the index of that tensor.

    Parameters
    ----------
    model : the parallel model
    calls : (layer, call) of each replica, in order
    """
    for layer in model.layers:
        if len(layer.nodes) != 1:
            continue
        inputs = layer.nodes[0].inputs
        if [(ref.layer, ref.call) for ref in inputs] != list(calls) or joins(layer) is None:
            continue
        if len({ref.tensor for ref in inputs}) == 1:
            yield layer, inputs[0].tensor
