"""Keras 2's `multi_gpu_model`: one template model behind Lambda batch slices and one Concatenate per output.

For a template with m inputs and k outputs over N devices the parallel model has m·N Lambdas with the arguments
`{"i": replica, "parts": N}`, the template called N times, and k `Concatenate(axis=0)`, named like the template's output
layers (`concatenate_1` in 2.0.9). All weights are the template's.
Source: keras/utils/multi_gpu_utils.py (Keras 2.2.4), tensorflow/python/keras/utils/multi_gpu_utils.py (TF 1.15).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint, Layer
from ..transforms import model_config
from ..wrapping import Evidence
from ._graph import by_graph, without_graph

if TYPE_CHECKING:
    from ..keras_config import LayerConfig, ModelConfig

KIND = "multi_gpu_model"
_LAMBDA = re.compile(r"lambda(_\d+)?")


def detect(checkpoint: Checkpoint) -> Evidence | None:
    """Prove the wrapper by the configuration, or suspect it by the groups of a weights-only file."""
    model = model_config(checkpoint)
    if model is not None:
        return _by_config(model) or by_graph(checkpoint, KIND)
    suspected = _by_groups(checkpoint) or _by_classes(checkpoint) or _by_places(checkpoint)
    if checkpoint.config_of:
        return _by_given_template(checkpoint, suspected)
    return suspected or by_graph(checkpoint, KIND)


def unwrap(checkpoint: Checkpoint, evidence: Evidence) -> Checkpoint:
    """The template; where there is more around the wrapper, or the wrapper is inside a model, see `data_parallel`."""
    if not evidence.template:
        return without_graph(checkpoint)
    from .data_parallel import unwrap as unwrap_shape

    return without_graph(unwrap_shape(checkpoint, evidence))


def _by_config(model: ModelConfig) -> Evidence | None:
    if not model.functional:
        return None
    templates = [layer for layer in model.layers if layer.model is not None]
    if len(templates) != 1:
        return None
    template = templates[0]
    replicas = len(template.nodes)
    if replicas < 2 or not _only_wrapper_layers(model, template):
        return None
    if not _inputs_are_slices(model, template) or not _outputs_are_joined(model, template):
        return None
    slices = sum(layer.class_name == "Lambda" for layer in model.layers)
    return Evidence(
        KIND,
        (template.name,),
        replicas,
        True,
        (
            f"'{template.name}' ({template.class_name}) is called {replicas} times and is the only layer with weights",
            f"{slices} Lambda slices with arguments i = 0…{replicas - 1}, parts = {replicas}",
            f"{len(model.outputs)} Concatenate on axis 0",
        ),
    )


def _only_wrapper_layers(model: ModelConfig, template: LayerConfig) -> bool:
    allowed = ("InputLayer", "Lambda", "Concatenate")
    return all(layer is template or layer.class_name in allowed for layer in model.layers)


def _inputs_are_slices(model: ModelConfig, template: LayerConfig) -> bool:
    """Call j takes input p through a Lambda of its own with i = j and parts = N, from the same input for all j."""
    replicas = len(template.nodes)
    sources: list[tuple[str, ...]] = []
    used: set[str] = set()
    for number, node in enumerate(template.nodes):
        names: list[str] = []
        for ref in node.inputs:
            slicer = model.layer(ref.layer)
            if slicer is None or slicer.class_name != "Lambda" or slicer.name in used or len(slicer.nodes) != 1:
                return False
            used.add(slicer.name)
            if slicer.config.get("arguments") != {"i": number, "parts": replicas}:
                return False
            inputs = slicer.nodes[0].inputs
            if len(inputs) != 1:
                return False
            names.append(inputs[0].layer)
        sources.append(tuple(names))
    lambdas = {layer.name for layer in model.layers if layer.class_name == "Lambda"}
    source_layers = [model.layer(name) for name in sources[0]]
    return (
        bool(sources[0])
        and len(set(sources)) == 1
        and len(set(sources[0])) == len(sources[0])
        and used == lambdas
        and all(layer is not None and layer.class_name == "InputLayer" for layer in source_layers)
    )


def _outputs_are_joined(model: ModelConfig, template: LayerConfig) -> bool:
    """Every output is one tensor of the template, of all calls in order, joined on the batch axis."""
    merges = [layer for layer in model.layers if layer.class_name == "Concatenate"]
    outputs = [ref.layer for ref in model.outputs]
    if not outputs or sorted(outputs) != sorted(layer.name for layer in merges):
        return False
    tensors: list[int] = []
    for merge in merges:
        if merge.config.get("axis") != 0 or len(merge.nodes) != 1:
            return False
        inputs = merge.nodes[0].inputs
        if [(ref.layer, ref.call) for ref in inputs] != [(template.name, call) for call in range(len(template.nodes))]:
            return False
        if len({ref.tensor for ref in inputs}) != 1:
            return False
        tensors.append(inputs[0].tensor)
    return len(set(tensors)) == len(tensors)


def _by_groups(checkpoint: Checkpoint) -> Evidence | None:
    """A weights-only parallel model: inputs, lambdas, one group with everything, merges. Also fits other models."""
    if checkpoint.kind != "weights" or checkpoint.format != "keras-h5":
        return None
    layers = checkpoint.layers
    weighted = [place for place, layer in enumerate(layers) if any(True for _ in layer.all_tensors())]
    lambdas = [place for place, layer in enumerate(layers) if _LAMBDA.fullmatch(layer.name)]
    if len(weighted) != 1 or len(lambdas) < 2:
        return None
    place = weighted[0]
    inputs, merges = lambdas[0], len(layers) - place - 1
    together = lambdas == list(range(lambdas[0], place))
    if not together or inputs < 1 or merges < 1 or len(lambdas) % inputs or len(lambdas) // inputs < 2:
        return None
    template = layers[place]
    if not _holds_other_scopes(template):
        return None
    count = sum(1 for _ in template.all_tensors())
    return Evidence(
        KIND,
        (template.name,),
        len(lambdas) // inputs,
        False,
        (f"group '{template.name}' holds all {count} tensors", f"{len(lambdas)} empty lambda groups"),
    )


def _by_classes(checkpoint: Checkpoint) -> Evidence | None:
    """The same in the layout of Keras 3, whose groups tell the classes."""
    if checkpoint.kind != "weights" or checkpoint.format != "keras-weights":
        return None
    layers = checkpoint.layers
    templates = [layer for layer in layers if any(True for _ in layer.all_tensors())]
    counts = {
        name: sum(layer.class_name == name for layer in layers) for name in ("InputLayer", "Lambda", "Concatenate")
    }
    inputs, slices, merges = counts.values()
    if len(templates) != 1 or not templates[0].layers or not inputs or not merges or slices % inputs:
        return None
    if slices // inputs < 2 or sum(counts.values()) != len(layers) - 1:
        return None
    template = templates[0]
    count = sum(1 for _ in template.all_tensors())
    reasons = (f"group '{template.name}' holds all {count} tensors", f"{slices} empty lambda groups")
    return Evidence(KIND, (template.name,), slices // inputs, False, reasons)


def _by_places(checkpoint: Checkpoint) -> Evidence | None:
    """The same in a TensorFlow checkpoint without configuration: one model, and layers that only have places.

    Inputs and slices come before the model, m + m·N of them, and at least one merge layer after it.
    """
    if checkpoint.format != "tf-checkpoint" or checkpoint.config is not None:
        return None
    layers = checkpoint.layers
    templates = [place for place, layer in enumerate(layers) if any(True for _ in layer.all_tensors())]
    if len(templates) != 1:
        return None
    place = templates[0]
    template = layers[place]
    others = [layer for layer in layers if layer is not template]
    if not _is_positional(template) or any(not re.fullmatch(r"layer-\d+", layer.name) for layer in others):
        return None
    if place < 3 or place == len(layers) - 1:
        return None
    count = sum(1 for _ in template.all_tensors())
    around = f"{place} layers without weights before it, {len(layers) - place - 1} after it"
    return Evidence(KIND, (template.name,), None, False, (f"'{template.name}' holds all {count} tensors", around))


def _is_positional(template: Layer) -> bool:
    """Whether a stored object is a functional model: its layers are listed by place, its InputLayer first."""
    return bool(template.layers) and not template.tensors


def _holds_other_scopes(template: Layer) -> bool:
    """A model's group holds the scopes of its layers; a plain layer's group its own variables."""
    return bool(template.layers)


def _by_given_template(checkpoint: Checkpoint, suspected: Evidence | None) -> Evidence:
    """A configuration was given, and every tensor of the one group with weights fits it."""
    from .data_parallel import by_groups

    suspected = suspected or by_groups(checkpoint)
    count = sum(1 for _ in checkpoint.weights())
    proof = f"the given configuration fits all {count} tensors of group '{checkpoint.config_of[-1]}'"
    if suspected is not None and suspected.template == checkpoint.config_of:
        return replace(suspected, certain=True, reasons=(*suspected.reasons, proof))
    return Evidence("data_parallel", checkpoint.config_of, None, True, (proof,))
