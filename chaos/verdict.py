"""Check results -> one verdict with its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from verify.checkers import CheckResult, Judgement


class Verdict(Enum):
    """The value is the exit code."""

    PASS = 0
    FAIL = 1  # diverged or corrupt
    USAGE = 2
    UNKNOWN = 3  # the reference does not equal itself, or the history does not tell
    INVALID = 4  # a fault did not fire where it was aimed, or the faults show nothing
    LIVENESS = 5  # hang, crash loop, refusal, over budget
    RESIDUE = 6
    INTERNAL = 70

    @property
    def word(self) -> str:
        return self.name.lower()


_WHEN_FALSE = {
    "reference-equal": Verdict.UNKNOWN,
    "exact": Verdict.FAIL,
    "parity": Verdict.FAIL,
    "recoveries": Verdict.FAIL,
    "shadows": Verdict.FAIL,
    "losses": Verdict.FAIL,
    "refused": Verdict.FAIL,
    "completed": Verdict.LIVENESS,
    "deadline": Verdict.LIVENESS,
    "faults-fired": Verdict.INVALID,
    "control": Verdict.INVALID,
    "skipped": Verdict.INVALID,
    "growth": Verdict.RESIDUE,
    "residue": Verdict.RESIDUE,
}

# What is wrong with the system outranks what is wrong with the experiment, safety outranks liveness, and evidence that is
# merely missing comes last: it usually has one of the others as its cause.
_PRECEDENCE = (Verdict.FAIL, Verdict.LIVENESS, Verdict.INVALID, Verdict.RESIDUE, Verdict.UNKNOWN)


@dataclass(frozen=True)
class Conclusion:
    verdict: Verdict
    reason: str

    @property
    def exit_code(self) -> int:
        return self.verdict.value


def conclude(results: Sequence[CheckResult]) -> Conclusion:
    """The verdict with the reason of the check that decided it. Without A/A equality nothing else counts."""
    reference = next(r for r in results if r.name == "reference-equal")
    if reference.judgement is not Judgement.TRUE:
        return Conclusion(Verdict.UNKNOWN, reference.reason)
    graded = [(_grade(r), r) for r in results if r.judgement is not Judgement.TRUE]
    for verdict in _PRECEDENCE:
        for grade, result in graded:
            if grade is verdict:
                return Conclusion(verdict, f"{result.name}: {result.reason}")
    said = {r.name: r.reason for r in results}
    return Conclusion(Verdict.PASS, "; ".join(said[name] for name in ("exact", "skipped", "losses", "refused") if name in said))


def _grade(result: CheckResult) -> Verdict:
    return Verdict.UNKNOWN if result.judgement is Judgement.UNKNOWN else _WHEN_FALSE[result.name]
