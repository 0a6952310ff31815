"""Pipelined updates: every order that the lanes allow, and a crash at every cut of every one of them (U35).

A cut is how far each lane is. If every step that leads to a cut leaves the same bytes and marks there, then by induction every
order does; so it is enough to visit each cut once, from every cut before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.explore.memory import MarkerImage
from chaos.explore.rank import KERNELS, InMemoryRank, Process, values
from leto.core.geometry import Protection, Segment
from leto.core.layout import PageClass
from leto.core.markers import pack
from leto.core.update_plan import Operation, plan_update
from leto.update.executor import PlanExecutor
from tests.crash.interleavings import legal_order, next_of
from tests.crash.test_chunk_transactions import T, run_uninterrupted, target_of

PAGE_BYTES = 4096
Saved = tuple[Mapping[str, bytes], MarkerImage]


def rank_of(chunks: int, per_group: int, *, pipelined: bool = True) -> InMemoryRank:
    protection = Protection(
        page_bytes=PAGE_BYTES, data_pages=3 * per_group, tier1_pages=2, tier2_pages=1, chunk_pages=3, pipelined=pipelined
    )
    segment = Segment(name="w", first=0, count=PAGE_BYTES // 4 * chunks - 5, optimizer=0, param_group=0)
    return InMemoryRank((segment,), protection, seed=chunks)


def save(rank: InMemoryRank) -> Saved:
    """Everything that an update writes."""
    unchanged = (PageClass.RECORDS, PageClass.GRADIENTS, PageClass.GRADIENT_PARITY)
    return rank.memory.contents(n for n, c in rank.classes.items() if c not in unchanged), rank.marker_image()


def load(rank: InMemoryRank, saved: Saved) -> None:
    contents, marks = saved
    for name, content in contents.items():
        rank.memory.bytes(name)[:] = np.frombuffer(content, np.uint8)
    rank.markers.restore(marks)
    rank.epoch = marks.epoch


def plan_of(rank: InMemoryRank) -> tuple[Operation, ...]:
    return plan_update(rank.coded, T, rank.process().marks.progress())


def executor_of(process: Process) -> PlanExecutor:
    return PlanExecutor(process.parts, values(T))


def every_cut(rank: InMemoryRank) -> Iterator[tuple[frozenset[int], Saved]]:
    """What is done and what is there then, at every cut of the whole plan; both ways to a cut leave the same."""
    rank.process().begin(T)
    plan = plan_of(rank)
    level = {frozenset[int](): save(rank)}
    while level:
        yield from level.items()
        following: dict[frozenset[int], Saved] = {}
        for done, saved in level.items():
            for op in next_of(plan, done):
                load(rank, saved)
                executor_of(rank.process()).run_marked(op)
                cut, there = done | {op.index}, save(rank)
                assert following.setdefault(cut, there) == there, f"{op.describe()} is not independent of what lies beside it"
        level = following


class Left(Enum):
    """In what state a crash leaves the operation that a lane is at."""

    UNTOUCHED = auto()
    TORN = auto()
    UNMARKED = auto()
    MARKED_ONCE = auto()  # in the first of three mirrors


def leave(rank: InMemoryRank, op: Operation, state: Left, garbage: np.random.Generator) -> None:
    process = rank.process()
    if state is Left.TORN:
        for page in target_of(rank, op):
            rank.memory.page(page)[:] = garbage.integers(0, 256, PAGE_BYTES, dtype=np.uint8)
    elif state is not Left.UNTOUCHED:
        executor_of(process).run_unmarked(op)
    if state is Left.MARKED_ONCE and op.publish is not None:
        first = rank.markers.word_addresses(rank.epoch, op.publish.word)[:1]
        KERNELS.publish(first, pack(rank.epoch, op.publish.mark))


def finish(rank: InMemoryRank) -> dict[str, bytes]:
    """The rest of the update, on real lanes."""
    rank.crash()
    process = rank.process()
    process.updater.run(values(T), process.marks.progress())
    return rank.durable()


@pytest.mark.parametrize(("chunks", "per_group"), [(6, 1), (9, 2), (7, 3)])
def test_a_crash_at_every_cut_of_every_order_ends_in_the_bytes_of_a_serial_update(chunks: int, per_group: int) -> None:
    expected = run_uninterrupted(rank_of(chunks, per_group, pipelined=False))
    visited, crashed = rank_of(chunks, per_group), rank_of(chunks, per_group)
    crashed.process().begin(T)
    plan, garbage, longest = plan_of(crashed), np.random.default_rng(chunks), 0
    for done, saved in every_cut(visited):
        longest = max(longest, len(done))
        at = next_of(plan, done)
        for states in product(Left, repeat=len(at)):
            load(crashed, saved)
            for op, state in zip(at, states, strict=True):
                leave(crashed, op, state, garbage)
            where = ", ".join(f"{op.describe()} {state.name}" for op, state in zip(at, states, strict=True))
            assert finish(crashed) == expected, where or "the end"
    assert longest == len(plan)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 14), st.integers(1, 4), st.lists(st.floats(0, 1), max_size=3), st.integers(0, 2**32 - 1))
def test_any_chain_of_crashes_in_any_order_ends_in_the_bytes_of_a_serial_update(
    chunks: int, per_group: int, crashes: list[float], seed: int
) -> None:
    expected = run_uninterrupted(rank_of(chunks, per_group, pipelined=False))
    rank, garbage, random = rank_of(chunks, per_group), np.random.default_rng(seed), Random(seed)
    rank.process().begin(T)
    for where in crashes:
        plan = plan_of(rank)
        order = legal_order(plan, random)
        ran = order[: int(where * len(order))]
        executor_of(rank.process()).run(ran)
        for op in next_of(plan, {op.index for op in ran}):
            leave(rank, op, random.choice(list(Left)), garbage)
        rank.crash()
    assert finish(rank) == expected
    assert rank.process().updater.audit().equal


def test_up_to_three_slots_speak_at_once() -> None:
    """Two groups committed and not written back, the third begun: none of them could be fetched from tier 1 again."""
    rank = rank_of(6, 1)
    most = 0
    for done, saved in every_cut(rank):
        load(rank, saved)
        progress = rank.process().marks.progress()
        groups = range(progress.written_back, rank.coded.group_count)
        most = max(most, sum(progress.commits_in(rank.coded.chunks_of(group)) > 0 for group in groups))
        assert progress.fetched <= progress.written_back + 3, done
    assert most == 3
