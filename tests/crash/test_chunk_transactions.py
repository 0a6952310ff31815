"""Chunk transactions under crashes at any operation, any number of times, with the next operation's target torn (R9, U2)."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.explore.lanes import touched_by
from chaos.explore.rank import InMemoryRank, values
from leto.core.geometry import Page, Protection, Segment
from leto.core.layout import TIER2, UNDO, PageClass, parity_slot, tier1
from leto.core.update_plan import Operation, plan_update
from leto.update.executor import PlanExecutor

T = 3
PROTECTION = Protection(page_bytes=4096, data_pages=13, tier1_pages=4, tier2_pages=1, chunk_pages=6)


def rank_of(counts: list[int], *, pipelined: bool = False) -> InMemoryRank:
    segments, first = [], 0
    for n, count in enumerate(counts):
        optimizer = n % 2
        segments.append(Segment(name=f"p{n}", first=first, count=count, optimizer=optimizer, param_group=n % (2 - optimizer)))
        first += count
    return InMemoryRank(tuple(segments), replace(PROTECTION, pipelined=pipelined), seed=len(counts))


def target_of(rank: InMemoryRank, op: Operation) -> list[Page]:
    """Pages the operation writes: after a crash inside it they hold anything."""
    _, written = touched_by(op, rank.coded)
    return sorted(written)


def crash_within(rank: InMemoryRank, where: float, garbage: np.random.Generator | None, *, fused: bool = False) -> None:
    """A new process does this share of what is left of update T and dies, inside the next operation where there is garbage."""
    process = rank.process()
    plan = plan_update(rank.coded, T, process.marks.progress(), fused=fused)
    stop = int(where * len(plan))
    PlanExecutor(process.parts, values(T)).run(plan[:stop])
    if garbage is not None and stop < len(plan):
        for page in target_of(rank, plan[stop]):
            rank.memory.page(page)[:] = garbage.integers(0, 256, rank.coded.protection.page_bytes, dtype=np.uint8)
    rank.crash()


def run_uninterrupted(rank: InMemoryRank) -> dict[str, bytes]:
    process = rank.process()
    process.begin(T)
    process.updater.run(values(T), process.marks.progress())
    return rank.durable()


counts = st.lists(st.integers(1, 6000), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(counts, st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=4), st.integers(0, 2**32 - 1))
def test_any_chain_of_crashes_ends_in_the_crash_free_bytes(
    sizes: list[int], crashes: list[tuple[float, bool]], seed: int
) -> None:
    expected = run_uninterrupted(rank_of(sizes))
    rank = rank_of(sizes)
    garbage = np.random.default_rng(seed)
    rank.process().begin(T)
    for where, torn in crashes:
        crash_within(rank, where, garbage if torn else None)
    process = rank.process()
    process.updater.run(values(T), process.marks.progress())
    assert rank.durable() == expected
    assert process.updater.audit().equal


def test_a_crash_after_every_single_operation_with_its_target_done_but_not_marked() -> None:
    sizes = [3000, 4000, 2500]
    reference = rank_of(sizes)
    plan_length = len(plan_update(reference.coded, T, begun(reference)))
    expected = run_uninterrupted(rank_of(sizes))
    for stop in range(plan_length):
        rank = rank_of(sizes)
        process = rank.process()
        process.begin(T)
        plan = plan_update(rank.coded, T, process.marks.progress())
        executor = PlanExecutor(process.parts, values(T))
        executor.run(plan[:stop])
        executor.run_unmarked(plan[stop])  # done, its mark is not
        rank.crash()
        process = rank.process()
        process.updater.run(values(T), process.marks.progress())
        assert rank.durable() == expected, plan[stop].describe()


def begun(rank: InMemoryRank):  # type: ignore[no-untyped-def]
    process = rank.process()
    process.begin(T)
    return process.marks.progress()


@settings(max_examples=20, deadline=None)
@given(counts, st.floats(0, 1))
def test_gradients_are_read_only_and_covered(sizes: list[int], where: float) -> None:
    """INV-G's data half: an update changes no gradient, and gradient parity can rebuild them."""
    rank = rank_of(sizes)
    process = rank.process()
    process.updater.protect_gradients(T)
    before = copy.deepcopy(rank.memory.contents(["gradients/all", "gradient-parity/0"]))
    process.begin(T)
    plan = plan_update(rank.coded, T, process.marks.progress())
    PlanExecutor(process.parts, values(T)).run(plan[: int(where * len(plan))])
    assert rank.memory.contents(["gradients/all", "gradient-parity/0"]) == before


def test_the_audit_sees_one_flipped_bit_in_data_tier_1_and_tier_2() -> None:
    for name, expected in (("exp_avg", "tier1_wrong"), (tier1(0), "tier1_wrong"), (TIER2, "tier2_wrong")):
        rank = rank_of([5000])
        rank.memory.bytes(name)[17] ^= 4
        audit = rank.process().updater.audit()
        assert not audit.equal
        assert 0 in getattr(audit, expected), name


@pytest.mark.parametrize("pipelined", [False, True])
def test_lent_buffers_are_scribbled(pipelined: bool) -> None:
    rank = rank_of([5000], pipelined=pipelined)
    rank.process().updater.lend()
    slots = [name for name, page_class in rank.classes.items() if page_class is PageClass.PARITY]
    assert slots == [parity_slot(slot) for slot in range(4 if pipelined else 2)]
    for name in (UNDO, *slots, "gradient-parity/0"):
        assert set(rank.memory.bytes(name).view(np.uint32).tolist()) == {0xDEADBEEF}, name
