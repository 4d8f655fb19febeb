"""`list_formats`: what can be read and written, by which signs it is known, and what is installed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .registry import FORMAT_EXTRAS, FORMAT_SIGNS, FORMATS, OUTPUT_SUFFIXES


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """One row of the table."""

    name: str
    reads: bool
    writes: tuple[str, ...]  # the suffixes of `-o` that give this format; empty where it cannot be written
    signs: str  # how content is recognised
    extras: tuple[tuple[str, str | None], ...]  # optional packages that do more with it, and their installed versions

    def to_json(self) -> dict[str, Any]:
        """As `formats --json` shows it."""
        return {
            "name": self.name,
            "reads": self.reads,
            "writes": list(self.writes),
            "signs": self.signs,
            "extras": dict(self.extras),
        }


def list_formats() -> tuple[FormatInfo, ...]:
    """Every format of the registry, in its order.

    Returns
    -------
    rows with the format's name, the suffixes that write it, its signs, and optional packages with their versions
    """
    return tuple(
        FormatInfo(
            name,
            True,
            tuple(suffix for suffix, written in OUTPUT_SUFFIXES.items() if written == name),
            FORMAT_SIGNS.get(name, ""),
            tuple((package, _installed(package)) for package in FORMAT_EXTRAS.get(name, ())),
        )
        for name in FORMATS
    )


def _installed(package: str) -> str | None:
    """The installed version of a package, found without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
