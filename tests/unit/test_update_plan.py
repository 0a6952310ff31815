"""Plans: the order of Pseudocode 1, lanes and slots, and that resuming from any marks is the suffix of the whole plan."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.geometry import CodedGeometry, Protection, Segment
from leto.core.layout import TIER2, UNDO, parity_slot, tier1
from leto.core.markers import Mark, Phase, Progress, StepDone, Word, progress_of
from leto.core.update_plan import COPY_LANE, Lane, Operation, OpKind, plan_update, speaking_slot
from tests.crash.interleavings import legal_order

T = 7
BEGUN = Progress(phase=Phase.BEGIN, iteration=T)


def geometry(chunks: int, *, per_group: int = 2, pipelined: bool = False) -> CodedGeometry:
    protection = Protection(
        page_bytes=4096, data_pages=3 * per_group + 1, tier1_pages=4, tier2_pages=1, chunk_pages=3, pipelined=pipelined
    )
    segment = Segment(name="w", first=0, count=1024 * chunks - 3, optimizer=0, param_group=0)
    return CodedGeometry(protection=protection, segments=(segment,))


def whole(chunks: int, *, per_group: int = 2, pipelined: bool = False) -> tuple[Operation, ...]:
    return plan_update(geometry(chunks, per_group=per_group, pipelined=pipelined), T, BEGUN)


CHUNK = [OpKind.SAVE_UNDO, OpKind.UPDATE, OpKind.PARITY, OpKind.COMMIT]
BACK = [OpKind.WRITE_BACK, OpKind.TIER2]


def test_the_order_of_pseudocode_1() -> None:
    kinds = [op.kind for op in whole(3)]
    assert kinds == [OpKind.FETCH, *CHUNK, *CHUNK, *BACK, OpKind.FETCH, *CHUNK, *BACK]


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_fused_plan_joins_update_and_parity_and_changes_nothing_else(pipelined: bool) -> None:
    shape = geometry(9, pipelined=pipelined)
    apart, fused = plan_update(shape, T, BEGUN), plan_update(shape, T, BEGUN, fused=True)
    kept = [op for op in apart if op.kind is not OpKind.UPDATE]
    assert [op.index for op in fused] == list(range(len(kept)))
    for one, other in zip(fused, kept, strict=True):
        kind = OpKind.UPDATE_AND_PARITY if other.kind is OpKind.PARITY else other.kind
        waits = tuple(kept.index(apart[place]) for place in other.depends_on)
        assert one == replace(other, kind=kind, index=one.index, depends_on=waits)


def test_a_fused_plan_resumes_what_was_left_in_flight() -> None:
    step = 4 * 1 + StepDone.UPDATED
    left = replace(BEGUN, step=step, fetched=1)
    kinds = [op.kind for op in plan_update(geometry(2), T, left, fused=True)]
    assert kinds == [OpKind.RESTORE, OpKind.UPDATE_AND_PARITY, OpKind.COMMIT, *BACK]


def test_a_serial_plan_has_one_lane_and_nothing_to_wait_for() -> None:
    assert {(op.lane, op.depends_on) for op in whole(9)} == {(Lane.COMPUTE, ())}


def test_the_lanes_of_a_pipelined_plan() -> None:
    plan = whole(9, pipelined=True)  # groups of 2, 2, 2, 2 and 1 chunks
    lanes = {lane: [(op.kind, op.group) for op in plan if op.lane is lane] for lane in Lane}
    assert lanes[Lane.COMPUTE] == [(kind, chunk // 2) for chunk in range(9) for kind in CHUNK]
    first = [(OpKind.FETCH, group) for group in (0, 1, 2)]
    then = [step for g in (0, 1) for step in (*((kind, g) for kind in BACK), (OpKind.FETCH, g + 3))]
    assert lanes[Lane.COPY] == [*first, *then, *((kind, g) for g in (2, 3, 4) for kind in BACK)]


def test_each_lane_waits_for_the_other_where_it_must_and_nowhere_else() -> None:
    plan = whole(9, pipelined=True)
    place = {(op.kind, op.group, op.chunk): op.index for op in plan}
    waits = {op.index: op.depends_on for op in plan if op.depends_on}
    expected = {}
    for group in range(5):
        first, last = 2 * group, min(2 * group + 1, 8)
        expected[place[OpKind.PARITY, group, first]] = (place[OpKind.FETCH, group, None],)
        expected[place[OpKind.WRITE_BACK, group, None]] = (place[OpKind.COMMIT, group, last],)
    assert waits == expected


@pytest.mark.parametrize("pipelined", [False, True])
def test_every_word_has_one_writer(pipelined: bool) -> None:
    """So mirrors differ by at most one mark a lane."""
    for op in whole(9, pipelined=pipelined):
        if op.publish is not None:
            assert (op.publish.word is Word.STEP) == (op.kind not in COPY_LANE)


def touched(op: Operation, plan_of: CodedGeometry) -> tuple[set[str], set[str]]:
    """What an operation reads and writes."""
    chunk = f"chunk {op.chunk}"
    source, target = parity_slot(op.source_slot), parity_slot(op.target_slot)
    return {
        OpKind.FETCH: ({tier1(op.group)}, {target}),
        OpKind.SAVE_UNDO: ({chunk}, {UNDO}),
        OpKind.RESTORE: ({UNDO}, {chunk}),
        OpKind.UPDATE: ({chunk}, {chunk}),
        OpKind.PARITY: ({chunk, UNDO, source}, {target}),
        OpKind.COMMIT: (set(), set()),
        OpKind.WRITE_BACK: ({source}, {tier1(op.group)}),
        OpKind.TIER2: ({source}, {f"{TIER2} page {op.group}"}),
    }[op.kind]


def closure(plan: tuple[Operation, ...]) -> list[set[int]]:
    """By place, everything that is done before."""
    before: list[set[int]] = []
    last: dict[Lane, int] = {}
    for op in plan:
        direct = [*op.depends_on, *([last[op.lane]] if op.lane in last else [])]
        before.append({*direct, *(n for d in direct for n in before[d])})
        last[op.lane] = op.index
    return before


@pytest.mark.parametrize("per_group", [1, 2, 3, 4])
@given(chunks=st.integers(1, 20))
def test_what_lanes_leave_unordered_never_touches_the_same_pages(per_group: int, chunks: int) -> None:
    coded = geometry(chunks, per_group=per_group, pipelined=True)
    plan = plan_update(coded, T, BEGUN)
    before = closure(plan)
    for later in plan:
        for earlier in plan[: later.index]:
            if earlier.index not in before[later.index]:
                (reads, writes), (reads_too, writes_too) = touched(earlier, coded), touched(later, coded)
                shared = writes & (reads_too | writes_too) | writes_too & reads
                assert not shared, f"{earlier.describe()} and {later.describe()} share {shared}"


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("per_group", [1, 2, 3, 4])
def test_slots_are_a_ring(per_group: int, pipelined: bool) -> None:
    """Against the recurrence: commits alternate between home and scratch, the one they do not end in is the next scratch, and
    a group's home is the slot that was written back longest ago."""
    coded = geometry(per_group * 12, per_group=per_group, pipelined=pipelined)
    *free, scratch = range(coded.protection.parity_slots)
    for group in range(coded.group_count):
        home = free.pop(0)
        ends = [home, scratch]
        assert [speaking_slot(coded, group, commits) for commits in range(per_group + 1)] == (ends * 3)[: per_group + 1]
        free.append(ends[per_group % 2])
        scratch = ends[1 - per_group % 2]


@pytest.mark.parametrize("pipelined", [False, True])
def test_parity_never_overwrites_the_buffer_that_speaks(pipelined: bool) -> None:
    for op in whole(9, pipelined=pipelined):
        assert (op.kind in (OpKind.PARITY, OpKind.COMMIT)) == (op.source_slot != op.target_slot)


@pytest.mark.parametrize("pipelined", [False, True])
def test_write_back_copies_the_slot_of_the_last_commit(pipelined: bool) -> None:
    committed = {}
    for op in whole(9, pipelined=pipelined):
        if op.kind is OpKind.COMMIT:
            committed[op.group] = op.target_slot
        elif op.kind in BACK:
            assert op.source_slot == committed[op.group]


def test_one_mark_for_both_tiers() -> None:
    """U17: written_back is published after tier 2, so that (H, T) is never seen mixed."""
    for op in whole(3):
        word = op.publish.word if op.publish else None
        assert (word is Word.WRITTEN_BACK) == (op.kind is OpKind.TIER2)


def test_a_skipped_step_is_an_empty_plan() -> None:
    assert plan_update(geometry(3), T, BEGUN, skipped=True) == ()


def test_marks_of_another_iteration_count_as_nothing() -> None:
    old = Progress(phase=Phase.COMPLETE, iteration=T - 1, step=12, fetched=2, written_back=2)
    assert plan_update(geometry(3), T, old) == whole(3)


@given(st.integers(1, 12), st.integers(1, 3), st.booleans(), st.data())
def test_resuming_is_what_is_left(chunks: int, per_group: int, pipelined: bool, data: st.DataObject) -> None:
    """After any operations that the lanes allow, the new plan is what is not marked; only a chunk in flight is restored."""
    coded = geometry(chunks, per_group=per_group, pipelined=pipelined)
    order = legal_order(plan_update(coded, T, BEGUN), data.draw(st.randoms(use_true_random=False)))
    done = data.draw(st.integers(0, len(order)))
    marks = [Mark(T, Phase.BEGIN), Mark(0, 0), Mark(0, 0), Mark(0, 0)]
    for op in order[:done]:
        if op.publish:
            marks[op.publish.word] = op.publish.mark
    resumed = plan_update(coded, T, progress_of(marks))
    whole_plan = plan_update(coded, T, BEGUN)
    for lane in Lane:
        left = [op for op in whole_plan if op.lane is lane]
        ran = [op for op in order[:done] if op.lane is lane]
        assert _skeleton(op for op in resumed if op.lane is lane) == _expected(left, len(ran))
    _check_order(resumed)


def _skeleton(plan):  # type: ignore[no-untyped-def]
    return [(op.kind, op.group, op.chunk, op.source_slot, op.target_slot) for op in plan]


def _expected(plan, done):  # type: ignore[no-untyped-def]
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


def _check_order(plan: tuple[Operation, ...]) -> None:
    """A parity operation finds its group fetched, a write-back its group committed, by the plan or before it."""
    before = closure(plan)
    for op in plan:
        kinds = {OpKind.PARITY: OpKind.FETCH, OpKind.WRITE_BACK: OpKind.COMMIT}
        wanted = [other.index for other in plan if other.kind is kinds.get(op.kind) and other.group == op.group]
        assert set(wanted) <= before[op.index]
