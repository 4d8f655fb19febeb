"""Masks that Keras 3 joins or applies in another way, made explicit in the plan.

Three things changed. A merge of several tensors has in Keras 2 and tf.keras the mask that all of its masked inputs
agree on; in Keras 3 it is masked only where every input is, or not at all. `Bidirectional(return_sequences=True)` held
the state at masked steps in standalone Keras 2 and tf.keras up to 1.13; later ones give 0 there. So a merge gets a
layer behind it that carries the joined mask, and such a Bidirectional becomes its two layers and a merge.
Source: keras/layers/merge.py, compute_mask; keras/layers/wrappers.py (Keras 2.2.4); tensorflow/python/keras/layers/
wrappers.py, force_zero_output_for_mask (TF 1.14); keras/src/layers/merging (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..keras_config import TensorRef
from .calls import tensors_of
from .plan import Call, JoinedMask, LayerPlan, LayerSpec, ModelPlan

_MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
_ENDS = frozenset(
    """Flatten Reshape Dot GlobalAveragePooling1D GlobalMaxPooling1D Functional Sequential InputLayer""".split()
)
_MODES = {"concat": ("Concatenate", {"axis": -1}), "sum": ("Add", {}), "ave": ("Average", {}), "mul": ("Multiply", {})}
_RECURRENT = ("SimpleRNN", "LSTM", "GRU", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")


def with_old_masks(model: ModelPlan, *, hold: bool) -> ModelPlan:
    """The same model with the masks of Keras 2, at every level.

    Parameters
    ----------
    model : planned; unchanged where no mask is made
    hold : whether a Bidirectional holds its state at masked steps
    """
    model = replace(model, layers=tuple(_inside(layer, hold) for layer in model.layers))
    if not any(_makes_mask(layer.spec) for layer in model.layers):
        return model
    if model.sequential:
        if not hold or not any(_to_expand(layer, set()) for layer in _masked_chain(model)):
            return model
        model = _as_functional(model)
    return _Rewriter(model, hold).rewritten()


def _inside(layer: LayerPlan, hold: bool) -> LayerPlan:
    if layer.spec.model is None:
        return layer
    return replace(layer, spec=replace(layer.spec, model=with_old_masks(layer.spec.model, hold=hold)))


def _makes_mask(spec: LayerSpec) -> bool:
    inner = spec.arguments.get("layer")
    if isinstance(inner, LayerSpec):
        return _makes_mask(inner)
    return spec.class_name == "Masking" or (spec.class_name == "Embedding" and bool(spec.arguments.get("mask_zero")))


def _keeps_mask(spec: LayerSpec) -> bool:
    """Whether a mask of the input may reach the output."""
    if spec.class_name == "Bidirectional":
        inner = spec.arguments["layer"]
        return isinstance(inner, LayerSpec) and _keeps_mask(inner)
    if spec.class_name in _RECURRENT:
        return bool(spec.arguments.get("return_sequences"))
    return spec.class_name not in _ENDS


def _masked_chain(model: ModelPlan) -> Iterator[LayerPlan]:
    """The layers of a Sequential that get a masked input."""
    masked = False
    for layer in model.layers:
        if masked:
            yield layer
        masked = _makes_mask(layer.spec) or (masked and _keeps_mask(layer.spec))


def _to_expand(layer: LayerPlan, masked: set[str]) -> bool:
    spec = layer.spec
    inner = spec.arguments.get("layer")
    if spec.class_name != "Bidirectional" or not isinstance(inner, LayerSpec) or inner.class_name not in _RECURRENT:
        return False
    simple = inner.arguments.get("return_sequences") and not inner.arguments.get("return_state")
    plain = not inner.arguments.get("stateful") and all("initial_state" not in call.keywords for call in layer.calls)
    return bool(simple and plain and spec.arguments.get("merge_mode", "concat") in _MODES)


def _as_functional(model: ModelPlan) -> ModelPlan:
    """A Sequential as the functional model that it is."""
    spec = model.input_spec
    if spec is None:
        return model
    name = str(spec.arguments.get("name", f"{model.name}_input"))
    first = LayerSpec("InputLayer", {key: value for key, value in spec.arguments.items() if key != "name"})
    layers = [LayerPlan(name, first, name, "InputLayer")]
    for layer in model.layers:
        ref = TensorRef(layers[-1].name, 0, 0)
        layers.append(replace(layer, calls=(Call((ref,)),)))
    ends = (TensorRef(name, 0, 0),), (TensorRef(layers[-1].name, 0, 0),)
    return ModelPlan(model.name, False, tuple(layers), *ends, model.trainable)


@dataclass(slots=True)
class _Rewriter:
    """One functional model: which tensors are masked, which layers are added behind which."""

    model: ModelPlan
    hold: bool

    def rewritten(self) -> ModelPlan:
        masked = self._masked()
        taken = {layer.name for layer in self.model.layers}
        moved: dict[str, str] = {}  # layer -> the layer behind it that carries its mask
        layers: list[LayerPlan] = []
        for layer in self.model.layers:
            inputs = [[ref for ref in tensors_of(call) if ref.layer in masked] for call in layer.calls]
            if not any(inputs):
                layers.append(layer)
            elif self.hold and _to_expand(layer, masked):
                moved[layer.name] = _free(f"{layer.name}_mask", taken)
                layers.extend(_expanded(layer, taken))
                layers.append(_carrier(layer, moved[layer.name], inputs, always=True))
            elif _joins(layer.spec):
                moved[layer.name] = _free(f"{layer.name}_mask", taken)
                layers.append(layer)
                layers.append(_carrier(layer, moved[layer.name], inputs, always=False))
            else:
                layers.append(layer)
        carriers = set(moved.values())
        redirected = tuple(each if each.name in carriers else _redirected(each, moved) for each in layers)
        fixed = tuple(_masks_redirected(each, moved) if each.name in carriers else each for each in redirected)
        return replace(self.model, layers=fixed)

    def _masked(self) -> set[str]:
        """Layers whose output may be masked, by what goes into them."""
        masked = {layer.name for layer in self.model.layers if _makes_mask(layer.spec)}
        while True:
            more = {
                layer.name
                for layer in self.model.layers
                if layer.name not in masked
                and _keeps_mask(layer.spec)
                and any(ref.layer in masked for call in layer.calls for ref in tensors_of(call))
            }
            if not more:
                return masked
            masked |= more


def _joins(spec: LayerSpec) -> bool:
    """A merge whose mask Keras 3 makes otherwise; on another axis than the last the masks are joined end to end."""
    return spec.class_name in _MERGES and (
        spec.class_name != "Concatenate" or spec.arguments.get("axis", -1) in (-1, 2)
    )


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def _carrier(layer: LayerPlan, name: str, inputs: list[list[TensorRef]], *, always: bool) -> LayerPlan:
    """A TimeDistributed identity that is called with a mask: it computes nothing and hands the mask on."""
    identity = LayerSpec("TimeDistributed", {"layer": LayerSpec("Identity")})
    calls = tuple(
        Call(
            (TensorRef(layer.name, number, 0),), {"mask": JoinedMask(tuple(refs), len(list(tensors_of(call))), always)}
        )
        for number, (call, refs) in enumerate(zip(layer.calls, inputs, strict=True))
    )
    return LayerPlan(name, identity, layer.old_name, layer.old_class, calls)


def _expanded(layer: LayerPlan, taken: set[str]) -> Iterator[LayerPlan]:
    """A Bidirectional as a forward layer, a backward layer, a turn of its steps, and a merge under the old name."""
    inner = layer.spec.arguments["layer"]
    given = layer.spec.arguments.get("backward_layer")
    backwards = {**inner.arguments, "go_backwards": not inner.arguments.get("go_backwards")}
    backward = given if isinstance(given, LayerSpec) else replace(inner, arguments=backwards)
    names = [_free(f"{layer.name}_{part}", taken) for part in ("forward", "backward", "turned")]
    for name, spec, prefix in ((names[0], inner, "forward_"), (names[1], backward, "backward_")):
        weights = tuple(weight for weight in layer.weights if _part(weight.source).startswith(prefix))
        yield LayerPlan(name, _without_name(spec), layer.old_name, layer.old_class, layer.calls, weights)
    turns = tuple(Call((TensorRef(names[1], number, 0),), {"axis": 1}) for number in range(len(layer.calls)))
    yield LayerPlan(names[2], LayerSpec("ops.flip"), layer.old_name, layer.old_class, turns)
    class_name, arguments = _MODES[layer.spec.arguments.get("merge_mode", "concat")]
    dtype = {"dtype": layer.spec.arguments["dtype"]} if "dtype" in layer.spec.arguments else {}
    joins = tuple(
        Call(([TensorRef(names[0], number, 0), TensorRef(names[2], number, 0)],)) for number in range(len(layer.calls))
    )
    note = "holds its state at masked steps, as Keras 2 did: its two layers and a merge"
    spec = LayerSpec(class_name, {**arguments, **dtype})
    yield LayerPlan(layer.name, spec, layer.old_name, layer.old_class, joins, notes=(*layer.notes, note))


def _part(source: tuple[str, ...]) -> str:
    return source[-2] if len(source) > 1 else ""


def _without_name(spec: LayerSpec) -> LayerSpec:
    return replace(spec, arguments={key: value for key, value in spec.arguments.items() if key != "name"})


def _redirected(layer: LayerPlan, moved: Mapping[str, str]) -> LayerPlan:
    return replace(layer, calls=tuple(_moved(call, moved) for call in layer.calls))


def _masks_redirected(layer: LayerPlan, moved: Mapping[str, str]) -> LayerPlan:
    """A carrier's tensor stays the merge's own; the masks it joins are those behind earlier merges."""
    calls = tuple(replace(call, keywords=_value(call.keywords, moved)) for call in layer.calls)
    return replace(layer, calls=calls)


def _moved(call: Call, moved: Mapping[str, str]) -> Call:
    return Call(_value(call.positional, moved), _value(call.keywords, moved))


def _value(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, TensorRef):
        return value._replace(layer=moved.get(value.layer, value.layer))
    if isinstance(value, JoinedMask):
        return replace(value, tensors=tuple(_value(ref, moved) for ref in value.tensors))
    if isinstance(value, tuple):
        return tuple(_value(each, moved) for each in value)
    if isinstance(value, list):
        return [_value(each, moved) for each in value]
    if isinstance(value, Mapping):
        return {key: _value(each, moved) for key, each in value.items()}
    return value
