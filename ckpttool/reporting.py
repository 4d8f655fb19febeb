"""The receipt of a conversion: one sentence for people, one JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .assets import files
from .checkpoint import Notice
from .checkpoint import notices_json as notices_json
from .output import output_file
from .wrapping import Evidence


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One written tensor and where it came from."""

    stored_as: str
    written_as: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str  # of the values, little-endian, in C order


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion wrote, or in a dry run would write."""

    source: str
    output: str
    format: str
    kind: str  # "model" or "weights"
    tensors: int  # written
    of_tensors: int  # weights that the source holds
    parameters: int
    nbytes: int
    wrapper: Evidence | None
    optimizer_left_out: bool
    warnings: tuple[Notice, ...]
    notes: tuple[str, ...] = ()
    records: tuple[TensorRecord, ...] = ()
    source_sha256: str | None = None
    dry_run: bool = False
    optimizer_kept: int = 0  # tensors of the optimizer's state that were written
    assets_kept: int = 0  # files of layers, such as vocabularies
    assets_left_out: int = 0

    def sentence(self) -> str:
        """The receipt, the same in the terminal, the API and the report."""
        text = f"{self.tensors} of {self.of_tensors} tensors, {self.parameters:,} parameters, {megabytes(self.nbytes)}"
        if self.wrapper is not None:
            count = self.wrapper.replicas
            if self.wrapper.kind == "mirrored":
                text += f"; copies of {count} replicas folded into one"
            else:
                text += f"; {count} replicas removed" if count else "; the wrapper removed"
        if self.optimizer_kept:
            text += f"; optimizer state kept, {self.optimizer_kept} tensors"
        if self.optimizer_left_out:
            text += "; optimizer state left out (--keep-optimizer)"
        if self.assets_kept:
            text += f"; {files(self.assets_kept)} kept"
        if self.assets_left_out:
            text += f"; {files(self.assets_left_out)} left out"
        return text

    def to_json(self) -> dict[str, Any]:
        """The report as `--report` and `--json` give it."""
        return {
            "schema": 1,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "output": self.output,
            "format": self.format,
            "kind": self.kind,
            "dry_run": self.dry_run,
            "receipt": self.sentence(),
            "tensors": self.tensors,
            "of_tensors": self.of_tensors,
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "wrapper": None if self.wrapper is None else self.wrapper.to_json(),
            "optimizer_left_out": self.optimizer_left_out,
            "optimizer_kept": self.optimizer_kept,
            "assets_kept": self.assets_kept,
            "assets_left_out": self.assets_left_out,
            "warnings": notices_json(self.warnings),
            "notes": list(self.notes),
            "map": [
                {"stored_as": each.stored_as, "written_as": each.written_as, "shape": list(each.shape),
                 "dtype": each.dtype, "sha256": each.sha256}
                for each in self.records
            ],
        }  # fmt: skip


def megabytes(nbytes: int) -> str:
    """A size for people, in units of 1024: `98 MB`, `1.9 kB`, `12 B`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1024 or unit == "TB":
            break
    return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"


def file_sha256(path: Path) -> str | None:
    """A source file's checksum; None for a folder."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        import hashlib  # loads OpenSSL: 4 ms that most runs can do without

        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(document: dict[str, Any], path: Path, *, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Write a JSON file whole or not at all.

    Raises
    ------
    OutputExistsError, OutputIsInputError, OutputError : see `output_file`
    """
    with output_file(path, overwrite=overwrite, inputs=inputs) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
