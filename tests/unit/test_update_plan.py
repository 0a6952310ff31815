"""Plans: the order of Pseudocode 1, and that resuming from any mark is the suffix of the whole plan."""

from hypothesis import given
from hypothesis import strategies as st

from leto.core.geometry import CodedGeometry, Protection, Segment
from leto.core.markers import Mark, Phase, Progress, StepDone, Word, progress_of
from leto.core.update_plan import Operation, OpKind, plan_update, speaking_slot

T = 7


def geometry(chunks: int) -> CodedGeometry:
    protection = Protection(page_bytes=4096, data_pages=7, tier1_pages=4, tier2_pages=1, chunk_pages=3)
    segment = Segment(name="w", first=0, count=1024 * chunks - 3, optimizer=0, param_group=0)
    return CodedGeometry(protection=protection, segments=(segment,))


def whole(chunks: int) -> tuple[Operation, ...]:
    return plan_update(geometry(chunks), T, Progress(phase=Phase.BEGIN, iteration=T))


def test_the_order_of_pseudocode_1() -> None:
    kinds = [op.kind for op in whole(3)]
    chunk = [OpKind.SAVE_UNDO, OpKind.UPDATE, OpKind.PARITY, OpKind.COMMIT]
    tail = [OpKind.WRITE_BACK, OpKind.TIER2]
    assert kinds == [OpKind.FETCH, *chunk, *chunk, *tail, OpKind.FETCH, *chunk, *tail]


def test_parity_never_overwrites_the_buffer_that_speaks() -> None:
    for op in whole(5):
        if op.kind is OpKind.PARITY:
            assert op.source_slot != op.target_slot


def test_write_back_copies_the_slot_of_the_last_commit() -> None:
    slots = [op.source_slot for op in whole(3) if op.kind is OpKind.WRITE_BACK]
    assert slots == [speaking_slot(2), speaking_slot(1)]


def test_one_mark_for_both_tiers() -> None:
    """U17: written_back is published after tier 2, so that (H, T) is never seen mixed."""
    for op in whole(3):
        word = op.publish.word if op.publish else None
        assert (word is Word.WRITTEN_BACK) == (op.kind is OpKind.TIER2)


def test_a_skipped_step_is_an_empty_plan() -> None:
    assert plan_update(geometry(3), T, Progress(phase=Phase.BEGIN, iteration=T), skipped=True) == ()


def test_marks_of_another_iteration_count_as_nothing() -> None:
    old = Progress(phase=Phase.COMPLETE, iteration=T - 1, step=12, fetched=2, written_back=2)
    assert plan_update(geometry(3), T, old) == whole(3)


@given(st.integers(1, 9), st.data())
def test_resuming_is_the_suffix(chunks: int, data: st.DataObject) -> None:
    """After every published mark, the new plan is what was left; only a chunk in flight is restored and redone."""
    plan = whole(chunks)
    done = data.draw(st.integers(0, len(plan)))
    marks = [Mark(T, Phase.BEGIN), Mark(0, 0), Mark(0, 0), Mark(0, 0)]
    for op in plan[:done]:
        if op.publish:
            marks[op.publish.word] = op.publish.mark
    resumed = plan_update(geometry(chunks), T, progress_of(marks))
    assert _skeleton(resumed) == _expected(plan, done)


def _skeleton(plan: tuple[Operation, ...]) -> list[tuple[OpKind, int, int | None, int, int]]:
    return [(op.kind, op.group, op.chunk, op.source_slot, op.target_slot) for op in plan]


def _expected(plan: tuple[Operation, ...], done: int) -> list[tuple[OpKind, int, int | None, int, int]]:
    """An independent statement of the table: the first unmarked operation, moved back to what must be redone."""
    start = done
    while start > 0 and plan[start - 1].publish is None:
        start -= 1  # done but not marked: redone
    if start == len(plan):
        return []
    last = plan[start - 1].publish if start else None
    flying = last is not None and last.word is Word.STEP and last.mark.ordinal % 4 != StepDone.COMMITTED % 4
    if not flying:
        return _skeleton(plan[start:])
    chunk = plan[start - 1].chunk
    first = next(n for n, op in enumerate(plan) if op.chunk == chunk)
    restore = _skeleton(plan[first : first + 1])[0]
    return [(OpKind.RESTORE, *restore[1:]), *_skeleton(plan[first + 1 :])]
