"""The decision table, row by row: the action and the reason of each."""

import pytest

from leto.core.errors import ProtocolViolation
from leto.core.geometry import CodedGeometry, Protection, Segment
from leto.core.markers import STEPS_PER_CHUNK, Phase, Progress, StepDone
from leto.core.recovery import Action, Decision, Row, checkpoint, crash_loop, decide, resume_row

LAST = 100
# one page of each array a chunk, two chunks a group: 5 chunks, groups (0 1) (2 3) (4)
PROTECTION = Protection(page_bytes=4096, data_pages=7, tier1_pages=4, tier2_pages=1, chunk_pages=3)
GEOMETRY = CodedGeometry(
    protection=PROTECTION, segments=(Segment(name="w", first=0, count=1024 * 4 + 10, optimizer=0, param_group=0),)
)


def at(phase: Phase, iteration: int, *, chunk: int = 0, done: int = 0, fetched: int = 0, written: int = 0) -> Progress:
    step = STEPS_PER_CHUNK * chunk + done
    return Progress(phase=phase, iteration=iteration, step=step, fetched=fetched, written_back=written)


DECISIONS = [
    # ranks, action, iteration, reason
    ([at(Phase.NONE, 0), at(Phase.HEADER, 1)], Action.COLD, 0, "rank 0 lacks HEADER(1)"),
    ([at(Phase.HEADER, 1), at(Phase.NONE, 0)], Action.COLD, 0, "rank 1 lacks HEADER(1)"),
    ([at(Phase.HEADER, 1)] * 2, Action.RESTART, 1, "COMPLETE(0) on all ranks, BEGIN(1) on none"),
    ([at(Phase.OWNED, 7), at(Phase.HEADER, 7)], Action.RESTART, 7, "COMPLETE(6) on all ranks, BEGIN(7) on none"),
    ([at(Phase.GRADS_PROTECTED, 7)] * 2, Action.RESTART, 7, "COMPLETE(6) on all ranks, BEGIN(7) on none"),
    ([at(Phase.HEADER, 8), at(Phase.COMPLETE, 7)], Action.RESTART, 8, "COMPLETE(7) on all ranks, BEGIN(8) on none"),
    ([at(Phase.COMPLETE, 7)] * 2, Action.RESTART, 8, "COMPLETE(7) on all ranks, BEGIN(8) on none"),
    (
        [at(Phase.GRADS_PROTECTED, 7), at(Phase.BEGIN, 7)],
        Action.FINISH,
        7,
        "rank 1 has BEGIN(7), rank 0 is at GRADS_PROTECTED(7)",
    ),
    (
        [at(Phase.BEGIN, 7, chunk=2, done=StepDone.UPDATED, fetched=2, written=1), at(Phase.COMPLETE, 7)],
        Action.FINISH,
        7,
        "rank 0 has BEGIN(7), rank 0 is at BEGIN(7) chunk 2 UPDATED",
    ),
    (
        [at(Phase.HEADER, 8), at(Phase.BEGIN, 7, chunk=1, fetched=1)],
        Action.FINISH,
        7,
        "rank 0 has BEGIN(7), rank 1 is at BEGIN(7) 1 chunks committed",
    ),
    ([at(Phase.HEADER, LAST + 1)] * 2, Action.ENDED, LAST, "HEADER(101) on all ranks"),
    (
        [at(Phase.HEADER, LAST + 1), at(Phase.COMPLETE, LAST)],
        Action.RESTART,
        LAST + 1,
        "COMPLETE(100) on all ranks, BEGIN(101) on none",
    ),
]


@pytest.mark.parametrize("other", [at(Phase.OWNED, 1), at(Phase.COMPLETE, 1), at(Phase.HEADER, 50)])
def test_a_marker_that_reads_as_nothing_beside_a_rank_under_way_is_never_a_cold_start(other: Progress) -> None:
    with pytest.raises(ProtocolViolation, match=r"rank 1 says that it lacks HEADER\(1\), but another is at"):
        decide([other, at(Phase.NONE, 0)], LAST)


@pytest.mark.parametrize(("ranks", "action", "iteration", "reason"), DECISIONS, ids=[d[3] for d in DECISIONS])
def test_decision_and_reason(ranks: list[Progress], action: Action, iteration: int, reason: str) -> None:
    decision = decide(ranks, LAST)
    assert (decision.action, decision.iteration, decision.reason) == (action, iteration, reason)


def test_spread_of_more_than_one_iteration_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match=r"INV-1: ranks are at iterations \[5, 7\]"):
        decide([at(Phase.HEADER, 5), at(Phase.HEADER, 7)], LAST)


@pytest.mark.parametrize("behind", [at(Phase.HEADER, 7), at(Phase.POST, 7), at(Phase.COMPLETE, 6)], ids=str)
def test_beginning_before_every_gradient_is_protected_is_a_violation(behind: Progress) -> None:
    with pytest.raises(ProtocolViolation, match="INV-G"):
        decide([at(Phase.BEGIN, 7), behind], LAST)


def test_restart_carries_nothing_that_speaks_of_lent_buffers() -> None:
    decision = decide([at(Phase.GRADS_PROTECTED, 7), at(Phase.OWNED, 7)], LAST)
    assert decision.carried == (at(Phase.HEADER, 7), at(Phase.HEADER, 7))


def test_restart_carries_complete_where_the_header_is_missing() -> None:
    decision = decide([at(Phase.COMPLETE, 7, chunk=5, fetched=3, written=3), at(Phase.OWNED, 8)], LAST)
    assert decision.carried == (at(Phase.COMPLETE, 7), at(Phase.HEADER, 8))


def test_finish_carries_everything_with_the_chunk_in_flight_as_undo_saved() -> None:
    flying = at(Phase.BEGIN, 7, chunk=2, done=StepDone.PARITY_UPDATED, fetched=2, written=1)
    protected = at(Phase.GRADS_PROTECTED, 7)
    decision = decide([flying, protected], LAST)
    assert decision.carried == (at(Phase.BEGIN, 7, chunk=2, done=StepDone.UNDO_SAVED, fetched=2, written=1), protected)


def test_finish_keeps_committed_work_and_a_later_header() -> None:
    committed = at(Phase.BEGIN, 7, chunk=3, fetched=2, written=1)
    decision = decide([committed, at(Phase.POST, 8)], LAST)
    assert decision.carried == (committed, at(Phase.HEADER, 8))


ROWS = [
    (Action.FINISH, 7, at(Phase.GRADS_PROTECTED, 7), Row.RUN_WHOLE_UPDATE, "somebody began"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7), Row.REDO_FETCH, "parity of group 0 was not fetched"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, fetched=1), Row.REDO_SAVE_UNDO, "chunk 0 of group 0 is untouched"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=1, fetched=1), Row.REDO_SAVE_UNDO, "chunk 1 of group 0 is untouched"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=1, done=1, fetched=1), Row.RESTORE_AND_REDO, "UNDO_SAVED"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=1, done=2, fetched=1), Row.RESTORE_AND_REDO, "UPDATED"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=1, done=3, fetched=1), Row.RESTORE_AND_REDO, "PARITY_UPDATED"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=2, fetched=1), Row.REDO_WRITE_BACK, "Q speaks"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=2, fetched=1, written=1), Row.REDO_FETCH, "parity of group 1"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=2, fetched=2, written=1), Row.REDO_SAVE_UNDO, "chunk 2 of group 1"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=5, fetched=3, written=2), Row.REDO_WRITE_BACK, "group 2"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=5, fetched=3, written=3), Row.MARK_COMPLETE, "all 3 groups"),
    # Pipelined (U35): group 0 waits for its write-back, and the groups after it are under way.
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=2, fetched=3), Row.REDO_WRITE_BACK, "group 0 is committed"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=4, fetched=3), Row.REDO_WRITE_BACK, "group 0 is committed"),
    (
        Action.FINISH,
        7,
        at(Phase.BEGIN, 7, chunk=4, done=2, fetched=3),
        Row.RESTORE_AND_REDO,
        "chunk 4 was in flight (UPDATED): restore it from undo; group 0 is committed, its write-back is not durable: Q speaks",
    ),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=0, done=1), Row.RESTORE_AND_REDO, "chunk 0 was in flight (UNDO_SAVED)"),
    (Action.FINISH, 7, at(Phase.BEGIN, 7, chunk=1, fetched=3), Row.REDO_SAVE_UNDO, "chunk 1 of group 0 is untouched"),
    (Action.FINISH, 7, at(Phase.COMPLETE, 7), Row.KEEP_BUILD_HEADER, "build HEADER(8) from POST(7)"),
    (Action.FINISH, 7, at(Phase.HEADER, 8), Row.KEEP_RELOAD_HEADER, "HEADER(8) is durable"),
    (Action.RESTART, 8, at(Phase.COMPLETE, 7), Row.KEEP_BUILD_HEADER, "build HEADER(8) from POST(7)"),
    (Action.RESTART, 8, at(Phase.HEADER, 8), Row.KEEP_RELOAD_HEADER, "HEADER(8) is durable"),
    (Action.ENDED, LAST, at(Phase.HEADER, LAST + 1), Row.KEEP_RELOAD_HEADER, "HEADER(101) is durable"),
    (Action.COLD, 0, at(Phase.NONE, 0), Row.START_COLD, "from the seed"),
]


@pytest.mark.parametrize(("action", "iteration", "progress", "row", "reason"), ROWS)
def test_row_and_reason(action: Action, iteration: int, progress: Progress, row: Row, reason: str) -> None:
    decision = Decision(action=action, iteration=iteration, reason="", carried=())
    found, why = resume_row(GEOMETRY, decision, progress)
    assert found is row
    assert reason in why


def test_a_skipped_step_has_nothing_to_redo() -> None:
    """U25: its BEGIN is durable, and nothing is fetched because nothing is updated."""
    decision = Decision(action=Action.FINISH, iteration=7, reason="", carried=())
    row, why = resume_row(GEOMETRY, decision, at(Phase.BEGIN, 7), skipped=True)
    assert (row, why) == (Row.MARK_COMPLETE, "the step of 7 is skipped: there is nothing to update")
    for progress in (at(Phase.GRADS_PROTECTED, 7), at(Phase.COMPLETE, 7), at(Phase.HEADER, 8)):
        assert resume_row(GEOMETRY, decision, progress, skipped=True) == resume_row(GEOMETRY, decision, progress)


def test_every_row_of_the_crash_point_table_is_tested() -> None:
    assert {r[3] for r in ROWS} == set(Row)


def test_a_crash_loop_is_given_up_with_its_reason() -> None:
    assert crash_loop(3) is None
    reason = crash_loop(4)
    assert reason is not None
    assert "4 failures" in reason
    assert checkpoint(reason, [at(Phase.HEADER, 3)]).action is Action.CHECKPOINT
