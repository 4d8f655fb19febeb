"""The table of rules: class name in Keras 2 and tf.keras -> how it becomes a layer of Keras 3."""

from __future__ import annotations

from . import activations, attention, convolution, core, merging, normalization, operators, recurrent, wrappers
from ._rule import Rule

THEMES: dict[str, dict[str, Rule]] = {
    "Core layers": core.RULES,
    "Activations": activations.RULES,
    "Convolutions and pooling": convolution.RULES,
    "Recurrent layers": recurrent.RULES,
    "Wrappers": wrappers.RULES,
    "Merging": merging.RULES,
    "Normalisation": normalization.RULES,
    "Attention": attention.RULES,
    "Operators": operators.RULES,
}

RULES: dict[str, Rule] = {name: rule for theme in THEMES.values() for name, rule in theme.items()}
