"""Which pages a loss comes to, from geometry, marks and seed."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.loss import Loss, LossClass
from chaos.targets.base import FaultNotInjected
from chaos.targets.lost_pages import choose, pages_of, parity_in_use
from chaos.targets.rank_geometry import RankGeometry
from leto.core.geometry import CodedGeometry, GradientGeometry, Page, Protection, Segment
from leto.core.layout import Allocation, PageClass
from leto.core.markers import Mark, Phase, Progress, StepDone, progress_of, step_mark
from leto.core.update_plan import OpKind, plan_update
from tests.crash.interleavings import legal_order

PAGE_BYTES = 4096
PROTECTION = Protection(page_bytes=PAGE_BYTES, data_pages=6, tier1_pages=4, tier2_pages=1, chunk_pages=3)
CODED = CodedGeometry(
    protection=PROTECTION, segments=(Segment(name="w", first=0, count=4500, optimizer=0, param_group=0),)
)  # 5 chunks of one page an array: two whole groups and a half one
GRADIENTS = GradientGeometry(protection=PROTECTION, pages=tuple(Page("gradients/dense0", k) for k in range(1, 9)))
GEOMETRY = RankGeometry(coded=CODED, gradients=GRADIENTS)
DERIVED = Allocation(name="derived/dense0", page_class=PageClass.DERIVED, byte_count=3 * PAGE_BYTES)
ALLOCATIONS = (DERIVED, Allocation(name="undo", page_class=PageClass.UNDO, byte_count=3 * PAGE_BYTES))
T = 7
AT_REST = Progress(phase=Phase.HEADER, iteration=T)


def begun(*, fetched: int = 0, written_back: int = 0, chunk: int | None = None, done: StepDone | None = None) -> Progress:
    step = step_mark(T, chunk, done).ordinal if chunk is not None and done is not None else 0
    return Progress(phase=Phase.BEGIN, iteration=T, step=step, fetched=fetched, written_back=written_back)


def loss(page_class: LossClass, count: int, *, per_group: bool = False, group: int | None = None, seed: int = 5) -> Loss:
    return Loss(page_class=page_class, per_group=per_group, count=count, group=group, seed=seed)


def chosen(*losses: Loss, progress: Progress = AT_REST) -> list[tuple[Page, ...]]:
    return [one.pages for one in choose(losses, GEOMETRY, ALLOCATIONS, progress)]


def test_the_geometry_survives_json() -> None:
    assert RankGeometry.from_json(json.loads(json.dumps(GEOMETRY.to_json()))) == GEOMETRY


@pytest.mark.parametrize(
    ("page_class", "sizes"),
    [
        (LossClass.CODED, [6, 6, 3]),
        (LossClass.GRADIENTS, [6, 2]),
        (LossClass.GRADIENT_PARITY, [4, 4]),
        (LossClass.TIER1, [4, 4, 4]),
        (LossClass.TIER2, [1, 1, 1]),
        (LossClass.UNDO, [3]),
        (LossClass.DERIVED, [3]),
        (LossClass.PARITY, [0]),
        (LossClass.SCRATCH, [8]),
        (LossClass.MARKERS, [3]),
        (LossClass.IN_FLIGHT, [0]),
    ],
)
def test_every_class_has_its_groups(page_class: LossClass, sizes: list[int]) -> None:
    groups = pages_of(page_class, GEOMETRY, ALLOCATIONS, AT_REST)
    assert [len(group) for group in groups] == sizes
    pages = [page for group in groups for page in group]
    assert len(set(pages)) == len(pages)


FLYING = begun(fetched=1, chunk=1, done=StepDone.UNDO_SAVED)


def test_no_class_but_the_chunk_in_flight_shares_a_page_with_another() -> None:
    classes = [c for c in LossClass if c is not LossClass.IN_FLIGHT]
    found = [page for c in classes for group in pages_of(c, GEOMETRY, ALLOCATIONS, FLYING) for page in group]
    assert len(set(found)) == len(found)


def test_per_group_takes_of_each_group_and_per_rank_of_all_together() -> None:
    (each,) = chosen(loss(LossClass.CODED, 2, per_group=True))
    by_group = [{p.page for p in CODED.group_pages(g)} for g in range(3)]
    assert [len(set(each) & group) for group in by_group] == [2, 2, 2]
    (together,) = chosen(loss(LossClass.CODED, 2))
    assert len(together) == 2


def test_one_group_alone() -> None:
    (pages,) = chosen(loss(LossClass.CODED, 4, per_group=True, group=1))
    assert set(pages) < {p.page for p in CODED.group_pages(1)}
    with pytest.raises(FaultNotInjected, match="cannot lose 4 coded pages of group 3: there are 3 groups"):
        chosen(loss(LossClass.CODED, 4, per_group=True, group=3))


@given(seed=st.integers(0, 2**64 - 1), few=st.integers(1, 15), more=st.integers(1, 15))
def test_losing_more_keeps_what_is_lost_of_fewer(seed: int, few: int, more: int) -> None:
    few, more = sorted((few, more))
    (one,), (other,) = chosen(loss(LossClass.CODED, few, seed=seed)), chosen(loss(LossClass.CODED, more, seed=seed))
    assert set(one) <= set(other)
    assert len(other) == more


def test_the_seed_chooses() -> None:
    assert len({chosen(loss(LossClass.CODED, 3, seed=seed))[0] for seed in range(50)}) > 20
    assert chosen(loss(LossClass.CODED, 3)) == chosen(loss(LossClass.CODED, 3))


def test_no_page_is_lost_twice() -> None:
    first, second = chosen(loss(LossClass.CODED, 9), loss(LossClass.CODED, 6))
    assert len({*first, *second}) == 15
    with pytest.raises(FaultNotInjected, match="cannot lose 7 coded pages: there are 6 where"):
        chosen(loss(LossClass.CODED, 9), loss(LossClass.CODED, 7))


def test_the_chunk_in_flight_and_then_others_of_its_group() -> None:
    flight, rest = chosen(loss(LossClass.IN_FLIGHT, 3), loss(LossClass.CODED, 3, per_group=True, group=0), progress=FLYING)
    assert set(flight) == {p.page for p in CODED.chunk_pages(1)}
    assert set(rest) == {p.page for p in CODED.chunk_pages(0)}
    with pytest.raises(FaultNotInjected, match="cannot lose 1 in-flight page: there are 0 where the rank stands"):
        chosen(loss(LossClass.IN_FLIGHT, 1), progress=begun(fetched=1, chunk=1, done=StepDone.COMMITTED))


def test_fewer_pages_than_asked_for_are_enough_only_where_nothing_is_needed_of_them() -> None:
    assert len(chosen(loss(LossClass.DERIVED, 99))[0]) == 3
    assert len(chosen(loss(LossClass.SCRATCH, 99))[0]) == 8
    with pytest.raises(FaultNotInjected, match="cannot lose 4 undo pages: there are 3 where the rank stands"):
        chosen(loss(LossClass.UNDO, 4))
    with pytest.raises(FaultNotInjected, match="cannot lose 4 coded pages per group: there are 3 where"):
        chosen(loss(LossClass.CODED, 4, per_group=True))


def test_a_class_without_a_page_is_not_lost() -> None:
    with pytest.raises(FaultNotInjected, match="cannot lose 1 parity page: there are 0 where the rank stands"):
        chosen(loss(LossClass.PARITY, 1))
    no_tier2 = RankGeometry(
        coded=CodedGeometry(protection=Protection(page_bytes=4096, tier2_pages=0, data_pages=6, chunk_pages=3), segments=()),
        gradients=GRADIENTS,
    )
    with pytest.raises(FaultNotInjected, match="cannot lose 1 tier2 page per group: there are none where the rank stands"):
        choose([loss(LossClass.TIER2, 1, per_group=True)], no_tier2, ALLOCATIONS, AT_REST)


def test_the_buffer_in_use_follows_the_plan_through_a_whole_update() -> None:
    """Against the plan itself: what an operation reads as its source is what speaks, or a copy of it, before the operation."""
    words = {"fetched": 0, "written_back": 0, "step": 0}
    for op in plan_update(CODED, T, begun()):
        in_use = parity_in_use(CODED, Progress(phase=Phase.BEGIN, iteration=T, **words))
        assert in_use == ([] if op.kind is OpKind.FETCH else [op.source_slot]), op.describe()
        if op.publish is not None:
            key = {1: "step", 2: "fetched", 3: "written_back"}[op.publish.word]
            words[key] = op.publish.mark.ordinal
    assert parity_in_use(CODED, Progress(phase=Phase.BEGIN, iteration=T, **words)) == []


@given(seed=st.integers(0, 2**32 - 1), chunks=st.integers(1, 15))
def test_the_buffers_in_use_of_a_pipelined_update_follow_its_lanes(seed: int, chunks: int) -> None:
    """What an operation reads is in use, what it fills is not, whatever order the lanes take."""
    coded = CodedGeometry(
        protection=replace(PROTECTION, pipelined=True),
        segments=(Segment(name="w", first=0, count=1024 * chunks, optimizer=0, param_group=0),),
    )
    words = [Mark(T, Phase.BEGIN), Mark(0, 0), Mark(0, 0), Mark(0, 0)]
    for op in legal_order(plan_update(coded, T, begun()), Random(seed)):
        in_use = parity_in_use(coded, progress_of(words))
        assert len(in_use) == len(set(in_use)) <= 3
        if op.kind in (OpKind.PARITY, OpKind.WRITE_BACK, OpKind.TIER2):
            assert op.source_slot in in_use, op.describe()
        if op.kind in (OpKind.FETCH, OpKind.PARITY):
            assert op.target_slot not in in_use, op.describe()
        if op.publish is not None:
            words[op.publish.word] = op.publish.mark
    assert parity_in_use(coded, progress_of(words)) == []


def test_outside_an_update_both_buffers_are_scratch() -> None:
    for phase in set(Phase) - {Phase.BEGIN}:
        assert parity_in_use(CODED, Progress(phase=phase, iteration=T, fetched=1)) == []
