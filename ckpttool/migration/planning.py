"""From a template's description to a `Plan`: the rules applied to every layer, the graph kept, the weights matched.

Pure: no value is read, keras is not imported. What cannot be expressed is collected, so that one message names it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Layer, TensorSpec
from ..errors import CheckpointError
from ..keras_config import Json, LayerConfig, ModelConfig, TensorRef, is_model_entry, model_from_json
from ..registry import FORMATS, format_module
from ..transforms import OWN_CLASS, model_config
from .calls import layer_call, stored_call
from .generation import corners_sampled, default_dtype, generation_of, holds_masked_steps, stored_dtype, version_of
from .masks import with_old_masks
from .plan import Call, LayerPlan, LayerSpec, ModelPlan, Path, Plan, Transformation, UserLayer, WeightPlan
from .rules import RULES
from .rules._rule import Arguments, Context, NotMigratableError, Ruled
from .rules.activations import hard_sigmoid_layer
from .rules.objects import keras_object
from .rules.operators import OPERATORS, operator_layer
from .sequential_input import first_input
from .transformations import flip_spatial

# Kernels that keras/engine/saving.py, preprocess_weights_for_loading (Keras 2.2.4) turns between backends.
_FLIPPED = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose"), ("kernel",)),
    "ConvLSTM2D": ("kernel", "recurrent_kernel"),
}
_NOT_FLIPPED = ("SeparableConv1D", "SeparableConv2D", "DepthwiseConv2D")
# Layers of tf.keras alone. In a file of standalone Keras such a name is that of a class of the user's own.
NOT_IN_STANDALONE_KERAS = frozenset(
    """LayerNormalization Attention AdditiveAttention MultiHeadAttention GroupNormalization UnitNormalization Rescaling
    Normalization Identity Conv1DTranspose DepthwiseConv1D ConvLSTM1D ConvLSTM3D SyncBatchNormalization""".split()
)
_ACTIVATION_LAYERS = ("LeakyReLU", "ELU", "ReLU", "ThresholdedReLU", "Softmax", "Activation")


class Need(NamedTuple):
    """One layer that cannot be migrated as it is."""

    layer: str  # path in the template
    class_name: str
    reason: str
    replaceable: bool


class NotMigratedError(CheckpointError, ValueError):
    """The model cannot be expressed in Keras 3 as it is; the message lists all that is needed."""

    code = 1

    def __init__(self, message: str, *, path: object = None, needs: tuple[Need, ...] = ()) -> None:
        super().__init__(message, path=path)
        self.needs = needs


@dataclass(frozen=True, slots=True)
class Replacements:
    """The user's own code, by name: nothing of it is imported here."""

    replace: Mapping[str, str] = field(default_factory=dict)  # layer's path or name -> "module:callable"
    custom: frozenset[str] = frozenset()  # names of classes and functions in their file


def make_plan(template: Checkpoint, replacements: Replacements = Replacements()) -> Plan:
    """Decide how every layer of a template becomes one of Keras 3.

    Parameters
    ----------
    template : assigned, unwrapped, with a configuration
    replacements : the user's own layers

    Raises
    ------
    NotMigratedError : some layers cannot be expressed; all of them are listed
    """
    model = model_config(template)
    if model is None:
        raise NotMigratedError("holds no model configuration, so there is no model to build; give one with --config")
    generation = generation_of(template, model)
    if generation == 1:
        raise NotMigratedError(
            "a file of Keras 1, whose layers have no rules yet; 'ckpttool unwrap' writes '.h5' for Keras 1, "
            "and '.npz' or '.safetensors' of the weights alone"
        )
    theano = generation == 2 and template.written_by.backend == "theano"
    corners = generation == 2 and corners_sampled(template.written_by, model)
    numbers, is_tensorflow = version_of(template.written_by)
    standalone = generation == 2 and bool(numbers) and not is_tensorflow
    planner = _Planner(
        replacements, generation, default_dtype(template), theano=theano, corners=corners, standalone=standalone
    )
    planned = planner.model(model, template.layers, ())
    if planner.needs:
        raise _not_migrated(planner.needs)
    unused = sorted(set(replacements.replace) - planner.replaced)
    if unused:
        raise NotMigratedError(f"--replace names '{unused[0]}', but no layer is called so")
    if generation == 2:
        planned = with_old_masks(planned, hold=holds_masked_steps(template.written_by))
    notes = [*planner.notes, *_copies(template)]
    return Plan(planned, generation, tuple(notes), tuple(dict.fromkeys(planner.custom)))


def to_be_built(template: Checkpoint) -> bool:
    """Whether a `.keras` file of this template must be built layer by layer: unless its configuration is Keras 3's.

    That of a Keras 3 model of the user's own class names no layers and is written as it is.
    """
    model = model_config(template)
    if template.config is None and OWN_CLASS in dict(template.metadata) and template.written_by.keras_major == 3:
        return False
    written_here = "keras-archive" in FORMATS and hasattr(format_module("keras-archive"), "write")
    return model is None or generation_of(template, model) < 3 or not written_here


def describe_changes(plan: Plan) -> list[str]:
    """What a person should know of a plan, a line each."""
    notes = list(plan.notes)
    notes.extend(f"{'/'.join(path)}: {note}" for path, layer in plan.model.walk() for note in layer.notes)
    if plan.custom:
        notes.append(
            f"{', '.join(plan.custom)}: your own code; Keras loads the file where it is registered "
            "(keras.saving.register_keras_serializable) or given as custom_objects"
        )
    return notes


def _not_migrated(needs: list[Need]) -> NotMigratedError:
    alike: dict[tuple[str, str], list[str]] = {}
    for need in needs:
        alike.setdefault((need.class_name, need.reason), []).append(need.layer)
    reasons = "; ".join(f"{', '.join(names)} ({kind}): {reason}" for (kind, reason), names in alike.items())
    options = [f"--replace {need.layer}=MODULE:CALLABLE" for need in needs if need.replaceable]
    text = f"cannot be migrated as it is: {reasons}"
    own = any(need.class_name not in (*RULES, "Lambda") or "not Keras's own" in need.reason for need in needs)
    if options:
        text += f"; to go on, give your own Keras 3 layers: {' '.join(options)}"
    if own:
        text += f"{', or' if options else '; to go on, give'} --custom-objects FILE.py with their classes and functions"
    return NotMigratedError(text, needs=tuple(needs))


def _copies(template: Checkpoint) -> list[str]:
    seen: dict[str, TensorSpec] = {}
    shared = [spec.name for spec in template.weights() if seen.setdefault(spec.locator, spec) is not spec]
    return [f"shared by two models, now two copies: {', '.join(shared)}"] if shared else []


class _Planner:
    def __init__(
        self, replacements: Replacements, generation: int, dtype: str | None, *, theano: bool, corners: bool,
        standalone: bool,
    ) -> None:  # fmt: skip
        self._standalone = standalone
        self._theano = theano
        self._corners = corners
        self._user = replacements
        self._generation = generation
        self._dtype = dtype
        self.needs: list[Need] = []
        self.notes: list[str] = []
        self.custom: list[str] = []
        self.replaced: set[str] = set()

    def model(self, model: ModelConfig, stored: tuple[Layer, ...], path: Path) -> ModelPlan:
        """Plan one model; layers that fail are noted in `needs`."""
        by_name = {layer.name: layer for layer in stored}
        names = _new_names([layer.name for layer in model.layers])
        for old, new in names.items():
            if old != new:
                self.notes.append(f"'{'/'.join((*path, old))}' is called '{new}': Keras 3 allows no '/' in a name")
        layers = tuple(
            planned
            for layer in model.layers
            if (planned := self._layer(layer, by_name.get(layer.name), names, (*path, layer.name))) is not None
        )
        name = (model.name or ("model" if model.functional else "sequential")).replace("/", "_")
        trainable = _trainable(model)
        if model.functional:
            inputs = tuple(_renamed(ref, names) for ref in model.inputs)
            outputs = tuple(_renamed(ref, names) for ref in model.outputs)
            return ModelPlan(name, False, layers, inputs, outputs, trainable)
        return self._sequential(model, stored, ModelPlan(name, True, layers, trainable=trainable), path)

    def _sequential(self, model: ModelConfig, stored: tuple[Layer, ...], plan: ModelPlan, path: Path) -> ModelPlan:
        inputs = [layer for layer in plan.layers if layer.spec.class_name == "InputLayer"]
        if inputs:
            spec: LayerSpec | None = replace(
                inputs[0].spec, arguments={**inputs[0].spec.arguments, "name": inputs[0].name}
            )
        else:
            spec = first_input(model, plan, stored, self._dtype)
        if spec is None and not self.needs:
            self._need(path or (plan.name,), "Sequential", "nothing says the shape of its input", replaceable=False)
        layers = tuple(layer for layer in plan.layers if layer.spec.class_name != "InputLayer")
        return replace(plan, layers=layers, input_spec=spec)

    def _need(self, path: Path, class_name: str, reason: str, *, replaceable: bool = True) -> None:
        self.needs.append(Need("/".join(path), class_name, reason, replaceable))

    def _layer(
        self, layer: LayerConfig, stored: Layer | None, names: Mapping[str, str], path: Path
    ) -> LayerPlan | None:
        try:
            if layer.class_name in OPERATORS and not self._given(layer, path):
                return self._operator(layer, names)
            ruled, extra = self._ruled(layer, stored, path)
            weights = () if ruled.spec.model is not None else _weights(ruled, stored, path)
            calls = tuple(self._call(layer, node, names, ruled, extra) for node in layer.nodes)
        except NotMigratableError as error:
            self._need(path, layer.class_name, error.reason, replaceable=error.replaceable)
            return None
        return LayerPlan(names[layer.name], ruled.spec, layer.name, layer.class_name, calls, weights, ruled.before,
                         tuple(ruled.notes))  # fmt: skip

    def _call(self, layer: LayerConfig, node: Any, names: Mapping[str, str], ruled: Ruled, as_stored: bool) -> Call:
        if as_stored:
            return stored_call(node, names)
        return layer_call(layer, node, names, ruled.call_keywords)

    def _operator(self, layer: LayerConfig, names: Mapping[str, str]) -> LayerPlan:
        spec, calls = operator_layer(layer, [stored_call(node, names) for node in layer.nodes])
        return LayerPlan(names[layer.name], spec, layer.name, layer.class_name, tuple(calls))

    def _given(self, layer: LayerConfig, path: Path) -> UserLayer | None:
        for key in ("/".join(path), layer.name):
            if key in self._user.replace:
                self.replaced.add(key)
                return UserLayer(self._user.replace[key], layer.entry)
        if layer.model is None and _bare(layer.class_name) in self._user.custom:
            return UserLayer("custom", layer.entry)
        return None

    def _ruled(self, layer: LayerConfig, stored: Layer | None, path: Path) -> tuple[Ruled, bool]:
        user = self._given(layer, path)
        if user is not None:
            self.custom.append("/".join(path))
            return Ruled(LayerSpec(_bare(layer.class_name), {}, user=user)), True
        if layer.model is not None:
            model = self.model(layer.model, stored.layers if stored is not None else (), path)
            return Ruled(LayerSpec("Sequential" if model.sequential else "Functional", {}, model=model)), False
        return self._by_rule(layer.class_name, layer.config, stored, path), False

    def _by_rule(self, class_name: str, config: Json, stored: Layer | None, path: Path) -> Ruled:
        rule = RULES.get(class_name)
        if class_name == "Lambda":
            raise NotMigratableError("Python bytecode, which is never run")
        if rule is None:
            raise NotMigratableError(f"'{class_name}' is not one of Keras's own layers with a rule")
        if self._standalone and class_name in NOT_IN_STANDALONE_KERAS:
            raise NotMigratableError(f"Keras up to 2.3 had no '{class_name}', so it is somebody's own")

        def nested(entry: Json, context: Context) -> Ruled:
            return self._nested(entry, stored, path)

        context = Context(
            self._generation,
            self._corners,
            stored_dtype(stored) or self._dtype,
            nested,
            self._object,
            self._activation_layer,
        )
        ruled = rule.apply(Arguments(class_name, config, context), context)
        return _from_theano(class_name, ruled) if self._theano else ruled

    def _nested(self, entry: Json, stored: Layer | None, path: Path) -> Ruled:
        """A layer inside a layer: its tensors are the outer one's, its models are models."""
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
            raise NotMigratableError("the layer inside it is not stored as one")
        config = entry.get("config")
        if is_model_entry(entry):
            parsed = model_from_json(entry)
            inner = next((layer for layer in stored.layers), None) if stored is not None else None
            where = (*path, parsed.name or "model")
            model = self.model(parsed, inner.layers if inner is not None else (), where)
            model = replace(model, name=(parsed.name or "model").replace("/", "_"))
            return Ruled(LayerSpec("Sequential" if model.sequential else "Functional", {}, model=model))
        return self._by_rule(entry["class_name"], config if isinstance(config, Mapping) else {}, stored, path)

    def _object(self, module: str, value: Any) -> Any:
        """An initializer, regularizer or constraint: Keras's own, or one of the user's file."""
        name = value.get("class_name", value.get("config")) if isinstance(value, Mapping) else value
        if isinstance(name, str) and _bare(name) in self._user.custom:
            self.custom.append(_bare(name))
            return LayerSpec(_bare(name), {}, user=UserLayer("object", value if isinstance(value, Mapping) else {}))
        return keras_object(module, value)

    def _activation_layer(self, stored: Json) -> LayerSpec | None:
        """A layer without weights that serves as an activation."""
        if isinstance(stored, Mapping) and stored.get("class_name") in _ACTIVATION_LAYERS:
            config = stored.get("config")
            if isinstance(config, Mapping):
                ruled = self._by_rule(stored["class_name"], config, None, ())
                return hard_sigmoid_layer(ruled.spec.arguments.get("dtype")) if ruled.before else ruled.spec
        name = stored if isinstance(stored, str) else stored.get("config") if isinstance(stored, Mapping) else None
        if isinstance(name, str) and _bare(name) in self._user.custom:
            self.custom.append(name)
            return LayerSpec(_bare(name), {}, user=UserLayer("function", {}))
        return None


def _from_theano(class_name: str, ruled: Ruled) -> Ruled:
    """Kernels that Theano convolved with, for a Keras that correlates."""
    if class_name in _NOT_FLIPPED:
        raise NotMigratableError("depthwise kernels trained on Theano are not migrated")
    for variable in _FLIPPED.get(class_name, ()):
        ruled.changes[(variable,)] = (flip_spatial(), *ruled.changes.get((variable,), ()))
        ruled.notes.append(f"{variable} turned around: the file's backend is Theano")
    return ruled


def _bare(class_name: str) -> str:
    """A registered class goes by `package>Name`."""
    return class_name.rpartition(">")[2]


def _trainable(model: ModelConfig) -> bool | None:
    config = model.raw.get("config")
    value = config.get("trainable") if isinstance(config, Mapping) else None
    return value if isinstance(value, bool) else None


def _new_names(old: list[str]) -> dict[str, str]:
    """Names without '/', unique in their model."""
    taken = {name for name in old if "/" not in name}
    names: dict[str, str] = {}
    for name in old:
        new = name
        if "/" in name or not name:
            base = name.replace("/", "_") or "layer"
            new, number = base, 1
            while new in taken:
                new, number = f"{base}_{number}", number + 1
            taken.add(new)
        names[name] = new
    return names


def _renamed(ref: TensorRef, names: Mapping[str, str]) -> TensorRef:
    return ref._replace(layer=names[ref.layer])


def _weights(ruled: Ruled, stored: Layer | None, path: Path) -> tuple[WeightPlan, ...]:
    """Each stored tensor of a leaf and what happens to it, in the order that both Keras share."""
    if stored is None or stored.layers:
        return ()
    plans: list[WeightPlan] = []
    for spec in stored.tensors:
        inner = spec.path[len(path) :]
        changes: tuple[Transformation, ...] = ruled.changes.get(inner, ())
        plans.append(WeightPlan(ruled.names.get(inner, inner[-1]), spec.path, changes))
    unknown = [each for each in ruled.changes if each not in {spec.path[len(path) :] for spec in stored.tensors}]
    if stored.tensors and any(each[-1] != "bias" for each in unknown):
        raise NotMigratableError(f"its stored tensors have no {'/'.join(unknown[0])} to transform", replaceable=False)
    return tuple(plans)
