"""The table of rules as the documentation shows it, made from the rules themselves.

`python -c 'from ckpttool.migration.table import markdown; print(markdown())'` gives what docs/migration.md holds.
"""

from __future__ import annotations

from .rules import THEMES
from .rules._rule import SAME, Rule


def markdown() -> str:
    """Every rule as a row of a Markdown table, by theme: classes, what they become, what changes, the source."""
    lines = ["| in Keras 2, tf.keras | in Keras 3 | what changes | source |", "| --- | --- | --- | --- |"]
    for theme, rules in THEMES.items():
        lines.append(f"| **{theme}** | | | |")
        lines.extend(_row(rule) for rule in dict.fromkeys(rules.values()))
    return "\n".join(lines) + "\n"


def _row(rule: Rule) -> str:
    names = " ".join(f"`{name}`" for name in rule.classes)
    becomes = "the same" if rule.becomes in (SAME, *rule.classes) and len(rule.classes) == 1 else f"{rule.becomes}"
    return f"| {names} | {becomes} | {rule.does} | {rule.source} |"
