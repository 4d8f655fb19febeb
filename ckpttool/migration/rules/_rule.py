"""What a rule is, and the careful reading of a layer's arguments that all rules share.

A rule turns one layer's configuration into the specification of a Keras 3 layer. Every argument must be named by its
rule: kept, renamed, or dropped with the values that make dropping harmless. An argument that no rule knows stops the
migration, because it may change what the layer computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...keras_config import Json
from ..plan import LayerSpec, Transformation

VariablePath = tuple[str, ...]  # of the old layer's variable: ("kernel",) or ("forward_lstm", "kernel")
_BASE = ("name", "trainable", "dtype", "batch_input_shape", "input_shape", "build_config", "input_dtype",
         "batch_size", "dynamic", "autocast", "build_input_shape", "experimental_autocast",
         "shared_object_id")  # fmt: skip


SAME = "the same"  # as what the class is called in Keras 3


class NotMigratableError(Exception):
    """This layer cannot be expressed; `reason` says why, `replaceable` whether a layer of the user's would help."""

    def __init__(self, reason: str, *, replaceable: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.replaceable = replaceable


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside the layer's own configuration."""

    generation: int  # 2 or 3
    corners: bool  # whether bilinear upsampling sampled corners of pixels
    dtype: str | None  # the dtype of the layer's stored tensors, or of the whole model's where it has none
    nested: Callable[[Json, Context], Ruled]  # applies the rules to a layer inside a layer
    objects: Callable[[str, Any], Any]  # ("initializers", stored value) -> KerasObject or None
    custom_activation: Callable[[Json], LayerSpec | None]  # a layer used as an activation


@dataclass(slots=True)
class Ruled:
    """What a rule made of a layer."""

    spec: LayerSpec
    changes: dict[VariablePath, tuple[Transformation, ...]] = field(default_factory=dict)
    names: dict[VariablePath, str] = field(default_factory=dict)  # variables that Keras 3 calls otherwise
    left_out: set[VariablePath] = field(default_factory=set)  # variables that Keras 3 does not have
    before: tuple[LayerSpec, ...] = ()
    call_keywords: dict[str, Any] = field(default_factory=dict)  # added to every call
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the table."""

    classes: tuple[str, ...]  # class names in Keras 2 and tf.keras
    becomes: str  # the class in Keras 3
    does: str  # what changes, in one sentence for the documentation
    source: str  # library, version and file that say so
    apply: Callable[[Arguments, Context], Ruled]


class Arguments:
    """A layer's configuration, of which each argument must be taken once."""

    def __init__(self, class_name: str, config: Json, context: Context) -> None:
        self.class_name = class_name
        self._config = dict(config)
        self._left = {key for key in self._config if key not in _BASE}
        self._context = context
        self._new: dict[str, Any] = {}
        name = config.get("name")
        self.name = name if isinstance(name, str) else class_name.lower()

    def __contains__(self, key: str) -> bool:
        return key in self._config

    def require(self, *keys: str) -> None:
        """Refuse a configuration that Keras's own layer of this name would not have written."""
        missing = [key for key in keys if key not in self._config]
        if missing:
            raise NotMigratableError(f"without {', '.join(missing)} it is not Keras's own {self.class_name}")

    def value(self, key: str, default: Any = None) -> Any:
        """Take an argument without keeping it."""
        self._left.discard(key)
        return plain(self._config.get(key, default))

    def keep(self, *keys: str) -> None:
        """Pass arguments on as they are; absent ones stay absent, so that Keras 3's default holds."""
        for key in keys:
            if key in self._config:
                self._new[key] = self.value(key)

    def keep_or(self, key: str, default: Any) -> None:
        """Pass an argument on, or what old files without it mean."""
        self._new[key] = self.value(key, default)

    def rename(self, old: str, new: str) -> None:
        """Pass an argument on under another name."""
        if old in self._config:
            self._new[new] = self.value(old)

    def set(self, key: str, value: Any) -> None:
        """Give the new layer an argument."""
        self._new[key] = value

    def unset(self, key: str) -> None:
        """Leave out what was passed on before."""
        self._new.pop(key, None)

    def drop(self, key: str, *harmless: Any) -> None:
        """Leave an argument out: whatever it is, or only where it has one of the harmless values."""
        value = self.value(key, None)
        if harmless and value is not None and value not in harmless:
            raise NotMigratableError(f"{key}={value!r} has no counterpart in Keras 3")

    def objects(self, module: str, *keys: str) -> None:
        """Initializers, regularizers or constraints."""
        for key in keys:
            if key in self._config:
                self._new[key] = self._context.objects(module, self.value(key))

    def for_variables(self, *variables: str) -> None:
        """The initializer, regularizer and constraint of each variable."""
        for variable in variables:
            self.objects("initializers", f"{variable}_initializer")
            self.objects("regularizers", f"{variable}_regularizer")
            self.objects("constraints", f"{variable}_constraint")

    def common_regularizer(self) -> None:
        """`activity_regularizer`, which most layers have."""
        self.objects("regularizers", "activity_regularizer")

    def finish(self, becomes: str) -> LayerSpec:
        """The new layer, once every argument was taken.

        Raises
        ------
        NotMigratableError : an argument is left that the rule does not know
        """
        if self._left:
            unknown = ", ".join(f"{key}={self._config[key]!r:.40}" for key in sorted(self._left))
            raise NotMigratableError(f"the rule for {self.class_name} does not know {unknown}")
        trainable = self._config.get("trainable")
        if trainable is False:
            self._new["trainable"] = False
        self._new["dtype"] = policy(self._config.get("dtype"), self._context.dtype) or "float32"
        return LayerSpec(becomes, self._new)


def plain(value: Any) -> Any:
    """JSON without tf.keras's marked tuples: `{"class_name": "__tuple__", "items": […]}` is a list."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__tuple__" and isinstance(value.get("items"), list):
            return plain(value["items"])
        return value
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


_POLICY_CLASSES = ("Policy", "PolicyV1", "DTypePolicy")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "mixed_float16", "mixed_bfloat16", "int32", "int64", "int8",
           "uint8", "int16", "uint16", "uint32", "uint64", "bool")  # fmt: skip


def policy(value: Any, otherwise: str | None) -> str | None:
    """The name of a dtype policy, from a string or from the stored object; None leaves Keras 3's default.

    Raises
    ------
    NotMigratableError : a policy that Keras 3 does not have
    """
    if isinstance(value, Mapping) and value.get("class_name") in _POLICY_CLASSES:
        inside = value.get("config")
        value = inside.get("name") if isinstance(inside, Mapping) else None
    if value in (None, "infer", "_infer", "infer_float32_vars"):
        return otherwise
    if value in ("infer_with_float32_vars", "float32_infer"):
        return "float32"
    if value not in _DTYPES:
        raise NotMigratableError(f"the dtype policy {value!r:.60} has no counterpart in Keras 3", replaceable=False)
    return str(value)


def table(*rules: Rule) -> dict[str, Rule]:
    """Rules by class name."""
    return {name: rule for rule in rules for name in rule.classes}


def simple(
    classes: Sequence[str],
    becomes: str,
    *,
    keep: Sequence[str] = (),
    drop: Mapping[str, Sequence[Any]] | None = None,
    does: str = "as it is",
    source: str,
) -> Rule:
    """A rule for a layer whose arguments are kept under their names or harmlessly dropped."""

    def apply(arguments: Arguments, context: Context) -> Ruled:
        arguments.keep(*keep)
        for key, harmless in (drop or {}).items():
            arguments.drop(key, *harmless)
        return Ruled(arguments.finish(arguments.class_name if becomes == SAME else becomes))

    return Rule(tuple(classes), becomes, does, source, apply)
