"""Give a built model the stored weights. Knows variables only by name and shape, so it imports no keras."""

from __future__ import annotations

from typing import Any

from ..checkpoint import Checkpoint, TensorSpec
from ..reading import OnProgress, Progress, Reader
from .build import Built
from .plan import LayerPlan, Plan, WeightPlan, inner_model
from .planning import NotMigratedError
from .transformations import apply


def set_weights(
    built: Built, plan: Plan, checkpoint: Checkpoint, reader: Reader, *, on_progress: OnProgress | None = None
) -> None:
    """Give every variable the stored tensor that the plan names for it, transformed where the plan says so.

    Raises
    ------
    NotMigratedError : a layer has other variables than the plan, by number, name or shape
    """
    specs = {spec.path: spec for spec in checkpoint.weights()}
    total = sum(spec.nbytes for spec in specs.values())
    done = 0
    for path, layer in plan.model.walk():
        if layer.spec.model is not None or layer.spec.class_name == "InputLayer":
            continue
        made = built.layers[path]
        if not layer.weights and not made.weights:
            continue
        if any(made is other for where, other in built.layers.items() if where != path and where < path):
            continue
        for variable, weight in _matched("/".join(path), made, layer):
            spec = specs[weight.source]
            variable.assign(_transformed(reader, spec, weight, variable, "/".join(path)))
            done += spec.nbytes
            if on_progress is not None:
                on_progress(Progress(done, total, spec.name))
        if hasattr(made, "finalize_state"):
            made.finalize_state()  # Normalization keeps what it computes from its variables


def _matched(where: str, made: Any, layer: LayerPlan) -> list[tuple[Any, WeightPlan]]:
    """Variables beside their plans: in order, and named alike."""
    variables = list(made.weights)
    if inner_model(layer.spec) is not None:
        return []
    if len(variables) != len(layer.weights):
        raise NotMigratedError(f"{where}: has {len(variables)} variables in Keras 3, {len(layer.weights)} are stored")
    names = [variable.name for variable in variables]
    wanted = [weight.variable for weight in layer.weights]
    if names != wanted:
        if layer.spec.user is None:
            raise NotMigratedError(
                f"{where}: its variables are {', '.join(names)} in Keras 3, stored are {', '.join(wanted)}"
            )
        if len(set(names)) == len(names) and sorted(names) == sorted(wanted):
            by_name = dict(zip(names, variables, strict=True))
            return [(by_name[weight.variable], weight) for weight in layer.weights]
    return list(zip(variables, layer.weights, strict=True))


def _transformed(reader: Reader, spec: TensorSpec, weight: WeightPlan, variable: Any, where: str) -> Any:
    array = apply(weight.transformations, reader.read(spec))
    if tuple(variable.shape) != array.shape:
        raise NotMigratedError(
            f"{where}: {weight.variable} is {tuple(variable.shape)} in Keras 3, stored is {array.shape}"
        )
    return array
