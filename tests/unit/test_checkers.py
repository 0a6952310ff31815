"""Checkers on histories that an engine under test does not easily produce."""

from typing import Any

import pytest

from leto.core.records import IterationResult
from verify import checkers
from verify.checkers import Judgement
from verify.history import SYSTEM, Entry
from verify.ledger import Ledger, Record


def history(*entries: tuple[str, dict[str, Any]], step_s: float = 1.0) -> list[Entry]:
    return [
        Entry(number=n, utc="", elapsed_s=n * step_s, job="run", source=SYSTEM, name=name, fields=fields)
        for n, (name, fields) in enumerate(entries, start=1)
    ]


KILLED = ("killed", {"token": 1, "label": "kill #1"})
FAILURE = ("failure", {"rank": 0, "cause": "signal 9"})
FENCED = ("fenced", {"epoch": 2, "seconds": 0.1})
DECIDED = ("decided", {"action": "finish", "iteration": 3, "reason": "BEGIN", "epoch": 2})
RECOVERED = ("recovered", {"epoch": 2, "seconds": 0.4, "action": "finish", "level": "L1"})
DONE = ("outcome", {"status": "completed", "reason": ""})
WHOLE = (KILLED, FAILURE, FENCED, DECIDED, RECOVERED, DONE)


def audit(rank: int, epoch: int, iteration: int) -> tuple[str, dict[str, Any]]:
    fields = {"rank": rank, "epoch": epoch, "iteration": iteration, "groups": 2, "tier1_wrong": [], "tier2_wrong": []}
    return "audit", fields


@pytest.mark.parametrize("absent", [FAILURE, FENCED, DECIDED])
def test_a_recovery_without_a_witness_is_none(absent: tuple[str, dict[str, Any]]) -> None:
    entries = history(*(e for e in WHOLE if e is not absent))
    result = checkers.recoveries_witnessed(entries, 1, {"finish": 1})
    assert result.judgement is Judgement.FALSE
    assert f"without a '{absent[0]}' event" in result.reason


def test_a_recovery_that_nobody_caused_counts_against_the_system() -> None:
    extra = (FAILURE, FENCED, DECIDED, RECOVERED)
    result = checkers.recoveries_witnessed(history(*WHOLE[:-1], *extra, DONE), 1, {"finish": 1})
    assert (result.judgement, result.reason) == (Judgement.FALSE, "rank 0 failed by itself, no fault had fired: signal 9")


def test_a_failure_of_its_own_inside_a_recovery_counts_against_the_system() -> None:
    again = ("decided", {**DECIDED[1], "epoch": 3})
    recovered = ("recovered", {**RECOVERED[1], "epoch": 3})
    crash = ("failure", {"rank": 1, "cause": "ended with exit code 1"})
    entries = history(KILLED, FAILURE, FENCED, DECIDED, crash, FENCED, again, recovered, DONE)
    result = checkers.recoveries_witnessed(entries, 1, {"finish": 1})
    assert result.judgement is Judgement.FALSE
    assert result.reason == "rank 1 failed by itself, no fault had fired: ended with exit code 1"


def test_a_run_that_lost_a_service_on_the_way_did_not_complete() -> None:
    lost = ("service-ended", {"service": "state manager of rank 0", "cause": "was killed by SIGKILL"})
    result = checkers.completed(history(lost, DONE))
    assert (result.judgement, result.reason) == (Judgement.FALSE, "state manager of rank 0 was killed by SIGKILL")
    assert checkers.completed(history(DONE)).judgement is Judgement.TRUE


@pytest.mark.parametrize(("iteration", "judgement"), [(1, Judgement.FALSE), (2, Judgement.TRUE), (3, Judgement.TRUE)])
def test_a_control_that_diverges_before_its_first_fault_shows_nothing(iteration: int, judgement: Judgement) -> None:
    planned = ("planned", {"token": 1, "iteration": 3, "fault_id": "kill", "occurrence": 1})
    diverged = ("diverged", {"what": "loss", "iteration": iteration})
    assert checkers.control_diverged(history(planned, ("fired", {"token": 1}), diverged)).judgement is judgement
    assert checkers.control_diverged(history(planned, diverged)).judgement is Judgement.FALSE
    assert checkers.control_diverged(history(planned, diverged, ("fired", {"token": 1}))).judgement is Judgement.FALSE


def test_doing_something_else_than_was_decided_is_false() -> None:
    other = ("recovered", {"epoch": 2, "seconds": 0.4, "action": "restart"})
    result = checkers.recoveries_witnessed(history(*(other if e is RECOVERED else e for e in WHOLE)), 1, None)
    assert result.judgement is Judgement.FALSE
    assert "did not do what was decided: finish 3" in result.reason


def test_a_second_failure_inside_a_recovery_is_one_recovery() -> None:
    later = ("decided", {**DECIDED[1], "epoch": 3})
    entries = history(
        KILLED, FAILURE, FENCED, DECIDED, KILLED, FAILURE, FENCED, later, ("recovered", {**RECOVERED[1], "epoch": 3})
    )
    assert checkers.recoveries_witnessed([*entries, *history(DONE)], 1, {"finish": 1}).judgement is Judgement.TRUE
    assert [r.epoch for r in checkers.recoveries_in(entries)] == [3]


def test_the_deadline_counts_from_the_kill() -> None:
    slow = history(*WHOLE, step_s=8.0)
    assert checkers.in_time(slow, 32.0).judgement is Judgement.TRUE
    result = checkers.in_time(slow, 31.0)
    assert (result.judgement, result.reason) == (Judgement.FALSE, "the slowest recovery took 32.00 s of 31 s that are allowed")


def test_a_kill_after_which_the_job_is_complete_needs_no_recovery() -> None:
    assert checkers.in_time(history(KILLED, DONE), 1.0).judgement is Judgement.TRUE
    hang = ("outcome", {"status": "hang", "reason": "no recovery"})
    assert checkers.in_time(history(KILLED, hang), 1.0).judgement is Judgement.FALSE


def test_parity_is_audited_by_every_rank_after_every_recovery_and_at_the_end() -> None:
    complete = [*WHOLE[:-1], audit(0, 2, 3), audit(1, 2, 3), audit(0, 2, 9), audit(1, 2, 9), DONE]
    assert checkers.parity_equal(history(*complete), 2, 9).judgement is Judgement.TRUE
    for absent, why in ((6, "after the recovery"), (8, "at the end")):
        entries = complete[:absent] + complete[absent + 1 :]
        if absent == 6:
            entries.remove(audit(1, 2, 9))
        result = checkers.parity_equal(history(*entries), 2, 9)
        assert result.judgement is Judgement.UNKNOWN
        assert f"rank 1 did not audit its parity {why}" in result.reason


def test_wrong_tier_2_alone_is_false() -> None:
    stale = ("audit", {**audit(1, 1, 9)[1], "tier2_wrong": [0]})
    assert checkers.parity_equal(history(stale), 2, 9).judgement is Judgement.FALSE


def test_a_fault_that_was_killed_before_it_was_recorded_did_not_fire_properly() -> None:
    planned = ("planned", {"token": 1, "fault_id": "kill", "occurrence": 1, "action": "kill", "iteration": 3, "rank": 0})
    steps = [(name, {"token": 1, "places": [{"token": 1}]}) for name in ("parked", "fired", "killed")]
    assert checkers.faults_fired(history(planned, *steps)).judgement is Judgement.TRUE
    for wrong in ([steps[0], steps[2], steps[1]], [*steps, steps[2]], steps[:2], []):
        assert checkers.faults_fired(history(planned, *wrong)).judgement is Judgement.FALSE


def test_a_fault_that_fired_before_a_held_rank_stood_did_not_fire_properly() -> None:
    aim = {
        "token": 1,
        "fault_id": "kill",
        "occurrence": 1,
        "action": "kill",
        "iteration": 3,
        "rank": 0,
        "holds": [{"token": 2}],
    }

    def fired(*tokens: int) -> Judgement:
        about = {"token": 1, "places": [{"token": token} for token in tokens]}
        return checkers.faults_fired(history(("planned", aim), *((n, about) for n in ("parked", "fired", "killed")))).judgement

    assert fired(1, 2) is Judgement.TRUE
    assert {fired(1), fired(2), fired(1, 3), fired(1, 2, 2)} == {Judgement.FALSE}


def test_a_fault_that_lost_less_than_planned_did_not_fire_properly() -> None:
    aim = {"token": 1, "fault_id": "kill", "occurrence": 1, "action": "kill", "iteration": 3, "rank": 0}
    steps = [(name, {"token": 1, "places": [{"token": 1}]}) for name in ("parked", "fired", "killed")]
    planned = ("planned", {**aim, "losses": [{"page_class": "coded"}, {"page_class": "tier1"}]})

    def lost(**pages: int) -> Judgement:
        lose = [("lose", {"token": 1, "page_class": name, "pages": [f"a:{k}" for k in range(n)]}) for name, n in pages.items()]
        return checkers.faults_fired(history(planned, steps[0], *lose, *steps[1:])).judgement

    assert lost(coded=2, tier1=1) is Judgement.TRUE
    assert {lost(coded=2), lost(), lost(coded=2, tier1=0), lost(coded=2, tier1=1, undo=1)} == {Judgement.FALSE}


def test_a_free_running_kill_before_its_time_did_not_fire_properly() -> None:
    aim = {"token": 1, "fault_id": "kill", "occurrence": 1, "action": "kill", "iteration": 3, "rank": 0, "moment": 50}

    def seen_at(moment: int, *steps: str) -> Judgement:
        return checkers.faults_fired(history(("planned", aim), *((n, {"token": 1, "seen": moment}) for n in steps))).judgement

    assert {seen_at(50, "fired", "killed"), seen_at(51, "fired", "killed")} == {Judgement.TRUE}
    assert {seen_at(49, "fired", "killed"), seen_at(50, "killed"), seen_at(50, "fired")} == {Judgement.FALSE}


NATURAL = {"token": 1, "fault_id": "sigbus", "occurrence": 1, "action": "natural", "iteration": 3, "rank": 0}
SIGBUS = ("failure", {"rank": 0, "cause": "was killed by SIGBUS"})


@pytest.mark.parametrize(
    ("end", "failure", "judgement"),
    [
        ("released", SIGBUS, Judgement.TRUE),
        ("killed", SIGBUS, Judgement.FALSE),
        ("released", ("failure", {"rank": 1, "cause": "was killed by SIGBUS"}), Judgement.FALSE),
        ("released", ("failure", {"rank": 0, "cause": "was killed by SIGKILL"}), Judgement.FALSE),
        ("released", DONE, Judgement.FALSE),
    ],
)
def test_a_rank_that_is_let_go_must_die_of_sigbus(end: str, failure: tuple[str, dict[str, Any]], judgement: Judgement) -> None:
    steps = [(name, {"token": 1, "places": [{"token": 1}]}) for name in ("parked", "fired", end)]
    assert checkers.faults_fired(history(("planned", NATURAL), *steps, failure)).judgement is judgement


WAITING = {"token": 1, "fault_id": "kill", "occurrence": 1, "action": "kill", "iteration": 3, "rank": 0, "gate": {"token": 2}}
OPENED = ("gate-opened", {"token": 1, "level": "L3"})


def taken_over(level: str, *, opened: bool = True) -> list[Entry]:
    recovered = ("recovered", {**RECOVERED[1], "level": level})
    steps = [(name, {"token": 1, "label": "kill #1", "places": [{"token": 1}]}) for name in ("parked", "fired", "killed")]
    return history(("planned", WAITING), *([OPENED] if opened else []), *steps, FAILURE, FENCED, DECIDED, recovered, DONE)


def test_a_fault_that_waited_for_shadows_is_recovered_from_by_shadows() -> None:
    assert checkers.recovered_by_shadows(taken_over("L3")).judgement is Judgement.TRUE
    result = checkers.recovered_by_shadows(taken_over("L1"))
    assert (result.judgement, result.reason) == (
        Judgement.FALSE,
        "the recovery from kill #1 went by L1, shadows of L3 stood by",
    )
    assert checkers.recovered_by_shadows(history(("planned", WAITING), DONE)).judgement is Judgement.UNKNOWN


def test_a_fault_that_did_not_wait_for_shadows_did_not_fire_properly() -> None:
    assert checkers.faults_fired(taken_over("L3")).judgement is Judgement.TRUE
    assert checkers.faults_fired(taken_over("L3", opened=False)).judgement is Judgement.FALSE


@pytest.mark.parametrize(
    ("status", "reason", "judgement"),
    [
        ("refused", "rank 0: 17 of 60 pages are lost; no checkpoint", Judgement.TRUE),
        ("refused", "a crash loop", Judgement.FALSE),
        ("completed", "", Judgement.FALSE),
        ("failed", "17 of 60 pages", Judgement.FALSE),
        ("hang", "no recovery", Judgement.FALSE),
        ("missed", "a fault did not fire", Judgement.UNKNOWN),
    ],
)
def test_a_refusal_is_expected_for_its_reason(status: str, reason: str, judgement: Judgement) -> None:
    outcome = ("outcome", {"status": status, "reason": reason})
    assert checkers.refused(history(outcome), r"17 of \d+ pages").judgement is judgement


def test_a_refusal_in_time_is_in_time() -> None:
    refused = ("outcome", {"status": "refused", "reason": "lost"})
    assert checkers.in_time(history(KILLED, FAILURE, refused), 2.0).judgement is Judgement.TRUE
    assert checkers.in_time(history(KILLED, FAILURE, refused), 1.0).judgement is Judgement.FALSE


def test_every_job_that_was_started_is_looked_through_for_residue() -> None:
    started, residue = ("started", {"iterations": 3}), ("residue", {"leaks": []})
    assert checkers.no_residue(history(started, DONE, residue)).judgement is Judgement.TRUE
    result = checkers.no_residue(history(started, DONE))
    assert (result.judgement, result.reason) == (Judgement.UNKNOWN, "run was started, and nobody looked for what it left")
    never = ("outcome", {"status": checkers.NEVER_STARTED, "reason": "no fork server"})
    assert checkers.no_residue(history(started, never)).judgement is Judgement.TRUE
    assert checkers.no_residue(history(started, ("residue", {"leaks": ["socket"]}))).judgement is Judgement.FALSE


def recovered_by(*actions: str) -> list[Entry]:
    one_by_one = [
        (KILLED, FAILURE, FENCED, ("decided", {**DECIDED[1], "action": a}), ("recovered", {**RECOVERED[1], "action": a}))
        for a in actions
    ]
    return history(*(entry for recovery in one_by_one for entry in recovery), DONE)


MIXED = {"restart": 2, "finish": 1}


@pytest.mark.parametrize(
    ("rules", "actions", "judgement", "reason"),
    [
        (MIXED, ("restart", "finish", "restart"), Judgement.TRUE, "3 of 3 recoveries by restart (2), finish (1)"),
        (MIXED, ("restart", "finish", "finish"), Judgement.FALSE, "went by restart (1), finish (2), expected restart (2), fin"),
        (MIXED, ("restart", "cold", "finish"), Judgement.FALSE, "recovery 2 went by cold, expected restart or finish: BEGIN"),
        (None, ("restart", "cold", "ended"), Judgement.TRUE, "3 of 3 recoveries by restart (1), cold (1), ended (1)"),
    ],
)
def test_recoveries_are_counted_by_rule(
    rules: dict[str, int] | None, actions: tuple[str, ...], judgement: Judgement, reason: str
) -> None:
    result = checkers.recoveries_witnessed(recovered_by(*actions), 3, rules)
    assert result.judgement is judgement
    assert reason in result.reason


def test_nothing_planned_is_nothing_missed() -> None:
    assert checkers.faults_fired([]).judgement is Judgement.TRUE


def test_an_audit_of_nothing_shows_nothing() -> None:
    name, fields = audit(0, 1, 5)
    result = checkers.parity_equal(history((name, fields | {"groups": 0}), DONE), 1, 5)
    assert (result.judgement, result.reason) == (Judgement.UNKNOWN, "rank 0 audited no group after iteration 5")
    assert checkers.parity_equal(history((name, fields), DONE), 1, 5).judgement is Judgement.TRUE


def skipping(*by_rank: set[int]) -> dict[int, Ledger]:
    """The reference of a job of four iterations, with the steps that each rank skipped."""

    def record(iteration: int, skipped: bool) -> Record:
        result = IterationResult(iteration=iteration, loss="", grad_norm="", skipped=skipped, samples=())
        return Record(result=result, state={}, live={})

    return {
        rank: Ledger(rank=rank, world_size=len(by_rank), names=(), records={t: record(t, t in skipped) for t in range(1, 5)})
        for rank, skipped in enumerate(by_rank)
    }


def fault_in(iteration: int) -> list[Entry]:
    return history(("planned", {"token": 1, "iteration": iteration}), ("fired", {"token": 1}))


@pytest.mark.parametrize(
    ("by_rank", "iteration", "judgement", "reason"),
    [
        (({2, 3}, {2, 3}), 3, Judgement.TRUE, "2 steps skipped, 1 of 1 faults fired in one of them"),
        (({2, 3}, {2, 3}), 1, Judgement.FALSE, "2 steps were skipped, and no fault fired in one of them"),
        (({2}, {2}), 2, Judgement.FALSE, "1 steps were skipped, those of iterations 2; expected 2"),
        ((set(), set()), 2, Judgement.FALSE, "0 steps were skipped; expected 2"),
        (({2, 3}, {2}), 2, Judgement.FALSE, "a step was skipped on one rank and not on another"),
    ],
)
def test_skipped_steps_must_be_there_and_be_hit(
    by_rank: tuple[set[int], ...], iteration: int, judgement: Judgement, reason: str
) -> None:
    result = checkers.steps_skipped(skipping(*by_rank), fault_in(iteration), 2)
    assert (result.judgement, result.reason) == (judgement, reason)


def test_skipped_steps_of_a_run_without_faults_are_only_counted() -> None:
    assert checkers.steps_skipped(skipping({4}), history(), 1).judgement is Judgement.TRUE
