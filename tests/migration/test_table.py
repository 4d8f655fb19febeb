"""The documentation shows the rules as they are."""

from __future__ import annotations

from pathlib import Path

from ckpttool.migration.rules import RULES
from ckpttool.migration.table import markdown


def test_the_documented_table_is_that_of_the_rules(root: Path) -> None:
    text = (root / "docs" / "migration.md").read_text("utf-8")
    shown = text.partition("<!-- rules -->\n")[2].partition("<!-- end of rules -->")[0]
    assert shown == markdown(), "put markdown() of ckpttool/migration/table.py into docs/migration.md"


def test_every_class_has_a_row() -> None:
    text = markdown()
    for name in RULES:
        assert f"`{name}`" in text
