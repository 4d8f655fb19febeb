"""What a migration did, for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..checkpoint import Notice
from ..reporting import TensorRecord, megabytes, notices_json
from ..verification import Verification
from ..wrapping import Evidence
from .plan import Plan


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration wrote, or in a dry run would write, and what is proven about it."""

    source: str
    output: str
    format: str  # "keras-archive" or "keras-h5"
    tensors: int
    of_tensors: int
    parameters: int
    nbytes: int
    wrapper: Evidence | None
    optimizer_left_out: bool
    plan: Plan | None  # None for tf-keras, whose configuration stays as it is
    warnings: tuple[Notice, ...] = ()
    notes: tuple[str, ...] = ()
    verification: Verification | None = None  # None in a dry run and with --no-verify
    records: tuple[TensorRecord, ...] = ()
    source_sha256: str | None = None
    dry_run: bool = False

    @property
    def verified(self) -> bool:
        """Whether the output is proven to be the source."""
        return self.verification is not None and self.verification.verified

    def sentence(self) -> str:
        """The receipt."""
        text = f"{self.tensors} of {self.of_tensors} tensors, {self.parameters:,} parameters, {megabytes(self.nbytes)}"
        if self.wrapper is not None:
            count = self.wrapper.replicas
            text += f"; {count} replicas removed" if count else "; the wrapper removed"
        if self.optimizer_left_out:
            text += "; optimizer state left out"
        return text

    def transformed(self) -> list[tuple[str, str]]:
        """(tensor, transformation) of every tensor that is not taken bit for bit."""
        return [] if self.plan is None else self.plan.transformed()

    def to_json(self) -> dict[str, Any]:
        """The object of `migrate --json` and of `--report`."""
        found = self.verification
        return {
            "schema": 1,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "output": self.output,
            "format": self.format,
            "kind": "model",
            "dry_run": self.dry_run,
            "receipt": self.sentence(),
            "tensors": self.tensors,
            "of_tensors": self.of_tensors,
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "wrapper": None if self.wrapper is None else self.wrapper.to_json(),
            "optimizer_left_out": self.optimizer_left_out,
            "warnings": notices_json(self.warnings),
            "notes": list(self.notes),
            "transformations": [{"tensor": tensor, "transformation": how} for tensor, how in self.transformed()],
            "custom": [] if self.plan is None else list(self.plan.custom),
            "verified": self.verified,
            "verification": None if found is None else found.to_json(),
            "plan": self.plan.to_json() if self.plan is not None and self.dry_run else None,
            "map": [
                {"stored_as": each.stored_as, "written_as": each.written_as, "shape": list(each.shape),
                 "dtype": each.dtype, "sha256": each.sha256}
                for each in self.records
            ],
        }  # fmt: skip
