"""What `verify` proves about two files, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RTOL, ATOL = 1e-4, 1e-5  # float32; of an output's largest value, and absolute


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of one output over all cases."""

    output: int
    absolute: float
    largest: float  # the largest magnitude of the old output
    equal: bool  # within the tolerance


@dataclass(frozen=True, slots=True)
class Prediction:
    """The comparison of outputs on random inputs."""

    old: str  # the library that ran the old model
    new: str
    seeds: tuple[int, ...]
    batches: tuple[int, ...]
    rtol: float
    atol: float
    outputs: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether every output is within the tolerance."""
        return all(each.equal for each in self.outputs)

    @property
    def largest(self) -> float:
        """The largest absolute difference."""
        return max((each.absolute for each in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was proven about two files."""

    a: str
    b: str
    tensors: int  # equal
    of_tensors: int
    transformed: int  # of the equal ones, through a stated transformation
    differing: tuple[str, ...] = ()
    prediction: Prediction | None = None
    loaded_by: str | None = None  # the Keras that loaded B in a fresh process, in safe mode
    not_verified: tuple[str, ...] = ()  # what could not be proven, and why

    @property
    def wrong(self) -> bool:
        """Whether something differs, as opposed to being unproven."""
        return bool(self.differing) or (self.prediction is not None and not self.prediction.equal)

    @property
    def verified(self) -> bool:
        """Whether everything that was asked for is proven."""
        return not self.wrong and not self.not_verified

    def sentence(self) -> str:
        """The result for people."""
        text = f"{self.tensors} of {self.of_tensors} tensors equal"
        if self.transformed:
            text += f" ({self.transformed} through a stated transformation)"
        if self.prediction is not None:
            found = self.prediction
            how = "agree" if found.equal else "DIFFER"
            text += (
                f"; outputs {how} over {len(found.seeds)} seeds and {len(found.batches)} batch sizes "
                f"(largest difference {found.largest:.2g}; rtol {found.rtol:g}, atol {found.atol:g})"
            )
        if self.loaded_by is not None:
            text += f"; loaded in safe mode by {self.loaded_by}"
        verdict = "verified" if self.verified else "NOT VERIFIED" if not self.wrong else "NOT EQUAL"
        return f"{verdict}: {text}"

    def to_json(self) -> dict[str, Any]:
        """The object of `verify --json` and of `verification` in the report of `migrate`."""
        found = self.prediction
        return {
            "schema": 1,
            "a": self.a,
            "b": self.b,
            "verified": self.verified,
            "equal": not self.wrong,
            "tensors": self.tensors,
            "of_tensors": self.of_tensors,
            "transformed": self.transformed,
            "differing": list(self.differing),
            "prediction": None if found is None else {
                "old": found.old, "new": found.new, "seeds": list(found.seeds), "batches": list(found.batches),
                "rtol": found.rtol, "atol": found.atol, "equal": found.equal, "largest_difference": found.largest,
                "outputs": [{"output": each.output, "largest_difference": each.absolute,
                             "largest_value": each.largest, "equal": each.equal} for each in found.outputs],
            },
            "loaded_by": self.loaded_by,
            "not_verified": list(self.not_verified),
        }  # fmt: skip
