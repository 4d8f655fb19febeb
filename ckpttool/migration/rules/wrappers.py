"""Layers around a layer: TimeDistributed and Bidirectional.

Source: keras/layers/wrappers.py (Keras 2.2.4), keras/src/layers/rnn/bidirectional.py, time_distributed.py (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..plan import LayerSpec
from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, table

_OLD = "keras/layers/wrappers.py (Keras 2.2.4)"


def _named(spec: LayerSpec, name: str) -> LayerSpec:
    return replace(spec, arguments={**spec.arguments, "name": name})


def _entry(arguments: Arguments, key: str) -> Mapping[str, Any] | None:
    stored = arguments.value(key)
    if stored is None:
        return None
    if not isinstance(stored, Mapping) or not isinstance(stored.get("class_name"), str):
        raise NotMigratableError(f"its {key} is not stored as a layer")
    return stored


def _inner_name(entry: Mapping[str, Any]) -> str:
    config = entry.get("config")
    name = config.get("name") if isinstance(config, Mapping) else None
    return name if isinstance(name, str) else str(entry["class_name"]).lower()


def _time_distributed(arguments: Arguments, context: Context) -> Ruled:
    entry = _entry(arguments, "layer")
    if entry is None:
        raise NotMigratableError("it wraps no layer")
    made = context.nested(entry, context)
    if made.before:
        raise NotMigratableError("its inner layer becomes two layers in Keras 3")
    name = _inner_name(entry)
    arguments.set("layer", made.spec if made.spec.model is not None else _named(made.spec, name))
    arguments.drop("activity_regularizer", None)
    changes = {(name, *path): change for path, change in made.changes.items()}
    return Ruled(arguments.finish("TimeDistributed"), changes, notes=list(made.notes))


def _bidirectional(arguments: Arguments, context: Context) -> Ruled:
    entry = _entry(arguments, "layer")
    if entry is None:
        raise NotMigratableError("it wraps no layer")
    forward = context.nested(entry, context)
    base = _inner_name(entry).removeprefix("forward_")
    arguments.set("layer", _named(forward.spec, base))
    given = _entry(arguments, "backward_layer")
    back_base = base
    backward = forward
    if given is not None:
        backward = context.nested(given, context)
        back_base = _inner_name(given).removeprefix("backward_")
        if _differs(forward.spec, backward.spec):
            arguments.set("backward_layer", _named(backward.spec, f"backward_{back_base}"))
    elif forward.spec.arguments.get("go_backwards"):
        other = {**forward.spec.arguments, "go_backwards": False}  # Keras 3 would let both go backwards
        arguments.set("backward_layer", _named(replace(forward.spec, arguments=other), f"backward_{back_base}"))
    arguments.keep("merge_mode")
    arguments.drop("activity_regularizer", None)
    arguments.drop("weights", None)
    changes = {(f"forward_{base}", *path): change for path, change in forward.changes.items()}
    changes |= {(f"backward_{back_base}", *path): change for path, change in backward.changes.items()}
    return Ruled(arguments.finish("Bidirectional"), changes, notes=list(forward.notes))


def _differs(forward: LayerSpec, backward: LayerSpec) -> bool:
    """Whether the backward layer is more than the forward one the other way round, which Keras 3 makes itself."""
    skipped = ("go_backwards", "name")
    first = {key: value for key, value in forward.arguments.items() if key not in skipped}
    second = {key: value for key, value in backward.arguments.items() if key not in skipped}
    turned = bool(forward.arguments.get("go_backwards")) is False and bool(backward.arguments.get("go_backwards"))
    return forward.class_name != backward.class_name or first != second or not turned


RULES = table(
    Rule(("TimeDistributed",), "TimeDistributed", "the inner layer by its rule", _OLD, _time_distributed),
    Rule(
        ("Bidirectional",),
        "Bidirectional",
        "both inner layers by their rules",
        _OLD,
        _bidirectional,
    ),
)
