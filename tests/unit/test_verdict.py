import itertools

import pytest

from chaos.verdict import Verdict, conclude
from verify.checkers import CheckResult, Judgement

CHECKS = {
    "reference-equal": Verdict.UNKNOWN,
    "control": Verdict.INVALID,
    "faults-fired": Verdict.INVALID,
    "completed": Verdict.LIVENESS,
    "recoveries": Verdict.FAIL,
    "deadline": Verdict.LIVENESS,
    "exact": Verdict.FAIL,
    "parity": Verdict.FAIL,
    "shadows": Verdict.FAIL,
    "losses": Verdict.FAIL,
    "refused": Verdict.FAIL,
    "skipped": Verdict.INVALID,
    "growth": Verdict.RESIDUE,
    "residue": Verdict.RESIDUE,
}
ORDER = [Verdict.FAIL, Verdict.LIVENESS, Verdict.INVALID, Verdict.RESIDUE, Verdict.UNKNOWN]


def results(**changed: Judgement) -> list[CheckResult]:
    return [
        CheckResult(name=name, judgement=changed.get(name.replace("-", "_"), Judgement.TRUE), reason=f"why {name}")
        for name in CHECKS
    ]


def test_pass_needs_all_of_them() -> None:
    conclusion = conclude(results())
    assert (conclusion.verdict, conclusion.exit_code, conclusion.reason) == (
        Verdict.PASS,
        0,
        "why exact; why skipped; why losses; why refused",
    )


@pytest.mark.parametrize("name", CHECKS)
def test_one_false_check_decides(name: str) -> None:
    conclusion = conclude(results(**{name.replace("-", "_"): Judgement.FALSE}))
    assert conclusion.verdict is CHECKS[name]
    assert f"why {name}" in conclusion.reason


@pytest.mark.parametrize("name", CHECKS)
def test_missing_evidence_is_never_a_pass(name: str) -> None:
    assert conclude(results(**{name.replace("-", "_"): Judgement.UNKNOWN})).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations([c for c in CHECKS if c != "reference-equal"], 2)])
def test_of_two_false_checks_the_graver_decides(one: str, other: str) -> None:
    changed = {name.replace("-", "_"): Judgement.FALSE for name in (one, other)}
    assert conclude(results(**changed)).verdict is min(CHECKS[one], CHECKS[other], key=ORDER.index)


def test_without_an_equal_reference_nothing_else_counts() -> None:
    everything_false = dict.fromkeys((name.replace("-", "_") for name in CHECKS), Judgement.FALSE)
    assert conclude(results(**everything_false)).verdict is Verdict.UNKNOWN


def test_exit_codes() -> None:
    assert {v.word: v.value for v in Verdict} == {
        "pass": 0,
        "fail": 1,
        "usage": 2,
        "unknown": 3,
        "invalid": 4,
        "liveness": 5,
        "residue": 6,
        "internal": 70,
    }
