"""Operations 9 and 10 in one pass: the bytes of the two of them, and crashes in it anywhere (U2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.explore.rank import KERNELS, InMemoryRank, Process, values
from chaos.explore.steps import State, Step, Steps
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.update_plan import OpKind, plan_update
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.updater import ChunkUpdater
from tests.crash.test_chunk_transactions import T, counts, crash_within, rank_of, run_uninterrupted

TORN = [State("in the update", progress=0.3), State("in the parity", progress=0.8)]
TORN += [replace(state, garbage=True) for state in TORN]


def fused(process: Process) -> UpdateParts:
    return replace(process.parts, fused=True)


def finish(rank: InMemoryRank, *, fused_too: bool = True) -> None:
    """A process that runs the rest of the update; then both tiers must be those of the data."""
    process = rank.process()
    parts = fused(process) if fused_too else process.parts
    ChunkUpdater(parts, rank.gradients).run(values(T), process.marks.progress())
    assert process.updater.audit().equal


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("sizes", [[1], [9000], [3000, 4000, 2500, 6000]])
def test_a_fused_update_gives_the_bytes_of_the_unfused_one(sizes: list[int], pipelined: bool) -> None:
    expected = run_uninterrupted(rank_of(sizes, pipelined=pipelined))
    rank = rank_of(sizes, pipelined=pipelined)
    rank.process().begin(T)
    finish(rank)
    assert rank.durable() == expected


@settings(max_examples=60, deadline=None)
@given(counts, st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), max_size=4), st.integers(0, 2**32 - 1))
def test_either_plan_finishes_what_crashes_of_the_other_left(
    sizes: list[int], crashes: list[tuple[float, bool, bool]], seed: int
) -> None:
    expected = run_uninterrupted(rank_of(sizes))
    rank = rank_of(sizes)
    garbage = np.random.default_rng(seed)
    rank.process().begin(T)
    for where, torn, with_fused in crashes:
        crash_within(rank, where, garbage if torn else None, fused=with_fused)
    finish(rank, fused_too=seed % 2 == 0)
    assert rank.durable() == expected


class LeftIn:
    """A driver whose every step is left in one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def take(self, index: int, step: Step) -> None:
        step.leave(self._state)


class Blind:
    """A watch that judges nothing."""

    def before(self, kernel: Kernel | None, site: Site | None, touched: tuple[str, ...]) -> None:
        return None

    def marked(self, word_address: int, value: int) -> None:
        return None

    def name(self, word_address: int, value: int) -> str:
        return "mark"


@pytest.mark.parametrize("state", TORN, ids=str)
def test_a_crash_inside_the_pass_over_every_chunk(state: State) -> None:
    """What the armed kernel has done when it parks is there, and nothing else of the chunk is."""
    sizes = [3000, 4000, 2500]
    expected = run_uninterrupted(rank_of(sizes))
    chunks = rank_of(sizes).coded.chunk_count
    for chunk in range(chunks):
        rank = rank_of(sizes)
        process = rank.process()
        process.begin(T)
        plan = plan_update(rank.coded, T, process.marks.progress(), fused=True)
        stop = next(op.index for op in plan if op.chunk == chunk and op.kind is OpKind.UPDATE_AND_PARITY)
        PlanExecutor(process.parts, values(T)).run(plan[:stop])
        before = rank.durable()
        torn = Steps(rank.memory, KERNELS, LeftIn(state), Blind())
        PlanExecutor(replace(process.parts, kernels=torn), values(T)).run_unmarked(plan[stop])
        assert torn.count == 1
        assert rank.durable() != before
        rank.crash()
        finish(rank)
        assert rank.durable() == expected, chunk


class Asked:
    """Failpoints that remember who asked."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Kernel, Site]] = []

    def reach(self, point: Point, site: Site) -> None:
        return None

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        self.kernels.append((kernel, site))
        return None


def test_a_fused_update_asks_for_the_same_faults_in_the_same_order() -> None:
    asked = {}
    for with_fused in (False, True):
        rank, failpoints = rank_of([9000, 5000]), Asked()
        process = Process(rank, failpoints=failpoints)
        process.begin(T)
        ChunkUpdater(replace(process.parts, fused=with_fused), rank.gradients).run(values(T), process.marks.progress())
        asked[with_fused] = failpoints.kernels
    assert asked[True] == asked[False]
    assert {Kernel.ADAM, Kernel.RS_UPDATE} <= {kernel for kernel, _ in asked[True]}
