"""Layers of several inputs.

Source: keras/layers/merge.py (Keras 2.2.4), keras/src/layers/merging (Keras 3.15).
"""

from __future__ import annotations

from ._rule import SAME, simple, table

_OLD = "keras/layers/merge.py (Keras 2.2.4)"

RULES = table(
    simple(("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"), SAME, source=_OLD),
    simple(("Concatenate",), "Concatenate", keep=("axis",), source=_OLD),
    simple(("Dot",), "Dot", keep=("axes", "normalize"), source=_OLD),
)
