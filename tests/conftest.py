"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import manifest as manifest_module


@pytest.fixture(scope="session")
def fixture_files() -> Path:
    """The folder of committed checkpoints."""
    return manifest_module.FILES


@pytest.fixture(scope="session")
def manifest() -> dict[str, dict[str, Any]]:
    """What the old libraries said about each."""
    return manifest_module.ENTRIES
