"""Execute a plan with Keras 3: the only module of the migration that imports keras, inside functions.

Layers are made by Keras's own classes and called in graph order; weights are set by name and shape; the model is saved
by Keras's own saver. The user's backend is respected.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from ..errors import MissingDependencyError, OutputError, UsageError
from ..frameworks import quiet_tensorflow
from ..keras_config import TensorRef
from .calls import tensors_of
from .plan import Call, JoinedMask, KerasObject, LayerPlan, LayerSpec, ModelPlan, Path, Plan
from .planning import NotMigratedError
from .user_code import UserCode, imported

# What Keras raises about an argument, a shape or a call that it does not take.
_REFUSALS = (ValueError, TypeError, AttributeError, NotImplementedError, IndexError, KeyError, RuntimeError)


def import_keras() -> Any:
    """Keras 3, with TensorFlow's chatter off unless the user set its level.

    Raises
    ------
    MissingDependencyError : keras or its backend is not installed, or keras is older than 3
    """
    try:
        with quiet_tensorflow():
            import keras
    except ImportError as error:
        raise MissingDependencyError(
            f"Keras 3 is needed to build the model ({error}); pip install 'ckpttool[tensorflow]'"
        ) from error
    if int(keras.__version__.split(".", 1)[0]) < 3:
        raise MissingDependencyError(
            f"Keras 3 is needed, here is Keras {keras.__version__}; pip install 'ckpttool[tensorflow]'"
        )
    return keras


@dataclass(slots=True)
class Built:
    """A built model and its layers by their paths in the plan."""

    model: Any
    layers: dict[Path, Any]


def build_model(plan: Plan, user: UserCode | None = None) -> Built:
    """Make the model of a plan, with initial weights.

    Raises
    ------
    NotMigratedError : Keras refuses a layer or a call
    MissingDependencyError : Keras 3 is not installed
    """
    return _Builder(import_keras(), user or UserCode()).whole(plan.model)


class _Builder:
    def __init__(self, keras: Any, user: UserCode) -> None:
        self._keras = keras
        self._user = user
        self._layers: dict[Path, Any] = {}

    def whole(self, plan: ModelPlan) -> Built:
        model = self.model(plan, ())
        return Built(model, self._layers)

    def model(self, plan: ModelPlan, path: Path) -> Any:
        """One model, its nested ones first."""
        made = {layer.name: self._layer(layer, (*path, layer.name)) for layer in plan.layers}
        self._layers.update({(*path, name): each for name, each in made.items()})
        model = self._sequential(plan, made) if plan.sequential else self._functional(plan, made, path)
        if plan.trainable is False:
            model.trainable = False
        return model

    def _sequential(self, plan: ModelPlan, made: Mapping[str, Any]) -> Any:
        if plan.input_spec is None:
            raise NotMigratedError("nothing says the shape of the Sequential's input")
        layers = [self._spec(plan.input_spec)]
        for layer in plan.layers:
            layers.extend(self._spec(spec) for spec in layer.before)
            layers.append(made[layer.name])
        with _refusals(plan.name):
            return self._keras.Sequential(layers, name=plan.name)

    def _functional(self, plan: ModelPlan, made: Mapping[str, Any], path: Path) -> Any:
        tensors = _Tensors()
        before = {layer.name: [self._spec(spec) for spec in layer.before] for layer in plan.layers}
        left: dict[str, list[Call]] = {}
        for layer in plan.layers:
            if layer.spec.class_name == "InputLayer":
                tensors.put(layer.name, 0, made[layer.name].output)
            else:
                left[layer.name] = list(layer.calls)
        while left:
            ready = [name for name, calls in left.items() if not calls or tensors.has(calls[0])]
            if not ready:
                raise NotMigratedError(f"{'/'.join(path) or plan.name}: the calls of its layers wait for each other")
            for name in ready:
                if not left[name]:
                    del left[name]
                    continue
                call = left[name].pop(0)
                with _refusals("/".join((*path, name))):
                    tensors.put(name, None, self._call(made[name], before[name], call, tensors))
        with _refusals("/".join(path) or plan.name):
            inputs = _one_or_list([tensors.get(ref) for ref in plan.inputs])
            outputs = _one_or_list([tensors.get(ref) for ref in plan.outputs])
            return self._keras.Model(inputs, outputs, name=plan.name)

    def _call(self, layer: Any, before: list[Any], call: Call, tensors: _Tensors) -> Any:
        positional = [tensors.filled(each) for each in call.positional]
        joined = call.keywords.get("mask")
        if isinstance(joined, JoinedMask):
            mask = self._mask(joined, tensors)
            return positional[0] if mask is None else layer(positional[0], mask=mask)
        keywords = {key: tensors.filled(each) for key, each in call.keywords.items()}
        for each in before:
            positional[0] = each(positional[0])
        return layer(*positional, **keywords)

    def _mask(self, joined: JoinedMask, tensors: _Tensors) -> Any:
        """The mask that all masked tensors agree on; None where there is none, or Keras 3 has the same by itself."""
        masks = [getattr(tensors.get(ref), "_keras_mask", None) for ref in joined.tensors]
        found = list({id(mask): mask for mask in masks if mask is not None}.values())
        if not found or (len(found) == 1 and len(masks) == joined.of and None not in masks and not joined.always):
            return None
        mask = found[0]
        for other in found[1:]:
            mask = self._keras.ops.logical_and(mask, other)
        return mask

    def _layer(self, layer: LayerPlan, path: Path) -> Any:
        spec = layer.spec
        if spec.user is not None:
            return self._users(layer, path)
        if spec.model is not None:
            return self.model(spec.model, path)
        if spec.class_name.startswith("ops."):
            function = spec.class_name.removeprefix("ops.")
            return _Operator(_getitem if function == "getitem" else getattr(self._keras.ops, function), layer.name)
        with _refusals("/".join(path)):
            return self._spec(spec, path, name=layer.name)

    def _spec(self, spec: LayerSpec, path: Path = (), **more: Any) -> Any:
        if spec.user is not None:
            made = self._user.namespace[spec.class_name]
            config = spec.user.entry.get("config")
            return made(**config) if isinstance(made, type) and isinstance(config, Mapping) else made
        if spec.model is not None:
            return self.model(spec.model, (*path, spec.model.name))
        arguments = {key: self._value(value, path) for key, value in spec.arguments.items()}
        return getattr(self._keras.layers, spec.class_name)(**{**arguments, **more})

    def _value(self, value: Any, path: Path) -> Any:
        if isinstance(value, LayerSpec):
            return self._spec(value, path)
        if isinstance(value, tuple) and value and isinstance(value[0], LayerSpec):
            return [self._spec(each, path) for each in value]
        if isinstance(value, KerasObject):
            return getattr(getattr(self._keras, value.module), value.class_name)(**value.config)
        return value

    def _users(self, layer: LayerPlan, path: Path) -> Any:
        """A layer that the user's own code makes; whatever it raises is theirs to see."""
        given = layer.spec.user
        config = given.entry.get("config") if given is not None else None
        config = dict(config) if isinstance(config, Mapping) else {}
        if given is not None and given.how != "custom":
            made = imported(given.how)(config)
        else:
            for key in ("batch_input_shape", "build_config", "shared_object_id"):
                config.pop(key, None)
            made = self._user.namespace[layer.spec.class_name].from_config(config)
        if not isinstance(made, self._keras.layers.Layer):
            raise UsageError(f"{'/'.join(path)}: the code given for it returned no Keras 3 layer, but {type(made)}")
        if made.name != layer.name:
            made.name = layer.name
        return made


def _getitem(tensor: Any, key: tuple[Any, ...]) -> Any:
    return tensor[tuple(Ellipsis if isinstance(each, str) else each for each in key)]


class _Operator:
    """A function of keras.ops that is called like a layer; its node in the graph gets the old layer's name."""

    def __init__(self, function: Any, name: str) -> None:
        self._function = function
        self._name = name
        self.weights: list[Any] = []
        self._calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        result = self._function(*arguments, **keywords)
        first = result[0] if isinstance(result, list | tuple) else result
        suffix = f"_{self._calls}" if self._calls else ""
        first._keras_history.operation.name = self._name + suffix
        self._calls += 1
        return result


class _Tensors:
    """The symbolic tensors made so far, by layer, call and number."""

    def __init__(self) -> None:
        self._made: dict[str, list[list[Any]]] = {}

    def put(self, layer: str, call: int | None, outputs: Any) -> None:
        self._made.setdefault(layer, []).append(list(_flat(outputs)))

    def has(self, call: Call) -> bool:
        return all(len(self._made.get(ref.layer, ())) > ref.call for ref in tensors_of(call))

    def get(self, ref: TensorRef) -> Any:
        outputs = self._made[ref.layer][ref.call]
        if ref.tensor >= len(outputs):
            raise NotMigratedError(f"{ref.layer} has {len(outputs)} outputs, its output {ref.tensor} is used")
        return outputs[ref.tensor]

    def filled(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return self.get(value)
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, Mapping):
            return {key: self.filled(each) for key, each in value.items()}
        return value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from _flat(value[key])
    else:
        yield value


def _one_or_list(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


@contextlib.contextmanager
def _refusals(where: str) -> Iterator[None]:
    """Turn what Keras raises about a layer into an error that names it."""
    try:
        yield
    except NotMigratedError:
        raise
    except _REFUSALS as error:
        text = " ".join(str(error).split())
        raise NotMigratedError(f"{where}: Keras 3 refuses it: {text[:300]}") from error


def save_model(built: Built, path: FilePath) -> None:
    """Save with Keras's own saver; `path` is a temporary name, so it need not end in `.keras`.

    Raises
    ------
    OutputError : the file cannot be written
    """
    named = path.with_name(f"{path.name}.keras")
    try:
        built.model.save(named, overwrite=True)
        os.replace(named, path)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            named.unlink()
