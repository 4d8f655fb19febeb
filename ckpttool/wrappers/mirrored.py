"""Replica copies of model variables: `x` beside `x/replica_1` … in one file.

MirroredStrategy writes each weight once in every container (seen in TF 1.14 to 2.21), so most mirrored models leave no
trace and nothing is said of them. Copies come from scripts that save the replicas' own variables; optimizer slots
alone have copies in what a TF 1.15 `Saver` writes of a mirrored Keras model, which is a warning and no wrapper.
"""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..transforms import has_copies
from ..wrapping import Evidence

KIND = "mirrored"
_SHOWN = 3


def detect(checkpoint: Checkpoint) -> Evidence | None:
    """Copies prove themselves: each belongs to a variable of the same name and shape."""
    if not has_copies(checkpoint):
        return None
    from ..folding import missing_copies, replica_copies

    copies = replica_copies(checkpoint)
    highest = max(number for of_one in copies.values() for number in of_one)
    names = ", ".join("/".join(path) for path in list(copies)[:_SHOWN]) + (" …" if len(copies) > _SHOWN else "")
    reasons = [f"{len(copies)} variables have copies replica_1 to replica_{highest}: {names}"]
    missing = missing_copies(checkpoint)
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (" …" if len(missing) > _SHOWN else "")
        reasons.append(f"copies of {len(missing)} variables are missing: {shown}")
    return Evidence(KIND, (), highest + 1, True, tuple(reasons))


def unwrap(checkpoint: Checkpoint, evidence: Evidence) -> Checkpoint:
    """The same with each variable once."""
    from ..folding import without_copies

    return without_copies(checkpoint)
