"""Initializers, regularizers, constraints and activations: which names Keras 3 has, and what became of the others.

They do not change what a trained model computes (activations do), but a silent loss would change its training: what
is not Keras's own stops the migration.
Source: keras/initializers.py, regularizers.py, constraints.py, activations.py (Keras 2.2.4; tf.keras 1.12–2.15),
keras/src/initializers, regularizers, constraints, activations (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plan import KerasObject
from ._rule import NotMigratableError, plain

# name in old files -> (class in Keras 3, arguments kept)
_INITIALIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Zeros": ("Zeros", ()),
    "Ones": ("Ones", ()),
    "Constant": ("Constant", ("value",)),
    "RandomNormal": ("RandomNormal", ("mean", "stddev", "seed")),
    "RandomUniform": ("RandomUniform", ("minval", "maxval", "seed")),
    "TruncatedNormal": ("TruncatedNormal", ("mean", "stddev", "seed")),
    "VarianceScaling": ("VarianceScaling", ("scale", "mode", "distribution", "seed")),
    "Orthogonal": ("Orthogonal", ("gain", "seed")),
    "Identity": ("Identity", ("gain",)),
    **{name: (name, ("seed",)) for name in ("GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform",
                                            "LecunNormal")},
}  # fmt: skip
_INITIALIZER_ALIASES = {
    "zero": "Zeros", "zeros": "Zeros", "one": "Ones", "ones": "Ones", "constant": "Constant",
    "normal": "RandomNormal", "random_normal": "RandomNormal", "uniform": "RandomUniform",
    "random_uniform": "RandomUniform", "truncated_normal": "TruncatedNormal", "orthogonal": "Orthogonal",
    "identity": "Identity", "IdentityInitializer": "Identity", "glorot_uniform": "GlorotUniform",
    "glorot_normal": "GlorotNormal", "he_uniform": "HeUniform", "he_normal": "HeNormal",
    "lecun_uniform": "LecunUniform", "lecun_normal": "LecunNormal", "variance_scaling": "VarianceScaling",
    "OrthogonalInitializer": "Orthogonal",
}  # fmt: skip
_REGULARIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "L1L2": ("L1L2", ("l1", "l2")),
    "L1": ("L1", ("l1",)),
    "L2": ("L2", ("l2",)),
    "OrthogonalRegularizer": ("OrthogonalRegularizer", ("factor", "mode")),
}
_REGULARIZER_ALIASES = {"l1": "L1", "l2": "L2", "l1_l2": "L1L2"}
_CONSTRAINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "MaxNorm": ("MaxNorm", ("max_value", "axis")),
    "NonNeg": ("NonNeg", ()),
    "UnitNorm": ("UnitNorm", ("axis",)),
    "MinMaxNorm": ("MinMaxNorm", ("min_value", "max_value", "rate", "axis")),
}
_CONSTRAINT_ALIASES = {
    "max_norm": "MaxNorm", "maxnorm": "MaxNorm", "non_neg": "NonNeg", "nonneg": "NonNeg", "unit_norm": "UnitNorm",
    "unitnorm": "UnitNorm", "min_max_norm": "MinMaxNorm",
}  # fmt: skip
_TABLES = {
    "initializers": (_INITIALIZERS, _INITIALIZER_ALIASES),
    "regularizers": (_REGULARIZERS, _REGULARIZER_ALIASES),
    "constraints": (_CONSTRAINTS, _CONSTRAINT_ALIASES),
}
_DROPPED = {"dtype", "input_axes", "output_axes"}  # dtype: initializers of TF 1.14 and 1.15; axes: unset in Keras 3
_DISTRIBUTIONS = {"normal": "truncated_normal"}  # VarianceScaling cut its normal off at two deviations, always

# activation in old files -> in Keras 3
ACTIVATIONS: dict[str, str] = {
    **{name: name for name in """elu exponential gelu hard_sigmoid linear relu relu6 selu sigmoid softmax softplus
       softsign tanh mish leaky_relu log_softmax""".split()},
    "swish": "silu",
    "silu": "silu",
    "softmax_v2": "softmax",  # tf.nn.softmax goes by this name (tensorflow/python/ops/nn_ops.py, TF 1.15–2.4)
}  # fmt: skip
ACTIVATIONS_OF_KERAS_3 = {
    name: name for name in """celu glu hard_shrink hard_silu hard_swish hard_tanh log_sigmoid soft_shrink sparse_plus
    sparse_sigmoid sparsemax squareplus tanh_shrink threshold""".split()
}  # fmt: skip


def keras_object(module: str, value: Any) -> KerasObject | None:
    """The Keras 3 counterpart of a stored initializer, regularizer or constraint; None for none.

    Parameters
    ----------
    module : "initializers", "regularizers" or "constraints"
    value : None, a name, or `{"class_name": …, "config": {…}}` with or without Keras 3's `module`

    Raises
    ------
    NotMigratableError : not Keras's own, or with an argument that Keras 3 does not have
    """
    if value is None:
        return None
    known, aliases = _TABLES[module]
    name, config = _named(value)
    kind = module.removesuffix("s")
    found = known.get(aliases.get(name, name))
    if found is None:
        raise NotMigratableError(f"the {kind} {name!r:.60} is not Keras's own", replaceable=False)
    class_name, kept = found
    left = {key: each for key, each in config.items() if key not in kept and key not in _DROPPED and each is not None}
    left.pop("name", None)
    if left:
        raise NotMigratableError(f"the {kind} {name} has arguments unknown to Keras 3: {', '.join(sorted(left))}")
    arguments = {key: config[key] for key in kept if key in config}
    if class_name == "VarianceScaling" and "distribution" in arguments:
        arguments["distribution"] = _DISTRIBUTIONS.get(arguments["distribution"], arguments["distribution"])
    if class_name == "Constant" and not isinstance(arguments.get("value", 0), int | float):
        return KerasObject(module, "Zeros")  # a whole table as initial value: the stored weights replace it
    return KerasObject(module, class_name, arguments)


def _named(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and isinstance(value.get("class_name"), str):
        config = value.get("config")
        return value["class_name"].rpartition(">")[2], dict(plain(config)) if isinstance(config, Mapping) else {}
    if isinstance(value, Mapping) and isinstance(value.get("config"), str):
        return value["config"], {}
    raise NotMigratableError(f"{value!r:.60} is not an initializer, regularizer or constraint", replaceable=False)


def activation_name(value: Any, *, generation: int) -> str | None:
    """The Keras 3 name of an activation given by name; None where it is not one of Keras's own functions."""
    if isinstance(value, Mapping) and value.get("class_name") == "function" and isinstance(value.get("config"), str):
        value = value["config"]
    if value is None:
        return "linear"
    if not isinstance(value, str):
        return None
    return ACTIVATIONS.get(value) or (ACTIVATIONS_OF_KERAS_3.get(value) if generation == 3 else None)
