"""Bugs planted in the updater must be caught by the crash tests' oracle: if one of these passes unseen, the oracle is blind."""

import pytest

from chaos.explore.rank import InMemoryRank, values
from chaos.mutants import MUTANTS
from chaos.planted.planting import Patch
from leto.core.update_plan import plan_update
from leto.update.executor import PlanExecutor
from tests.crash.test_chunk_transactions import T, rank_of, run_uninterrupted

SIZES = [3000, 4000, 2500]


EXPECTED = run_uninterrupted(rank_of(SIZES))


def every_crash_is_exact() -> bool:
    rank = rank_of(SIZES)
    rank.process().begin(T)
    total = len(plan_update(rank.coded, T, rank.process().marks.progress()))
    return all(_crash_at(stop) == EXPECTED for stop in range(total))


def _crash_at(stop: int) -> dict[str, bytes]:
    """Crash with operation ``stop`` done and not marked, then finish."""
    rank: InMemoryRank = rank_of(SIZES)
    process = rank.process()
    process.begin(T)
    plan = plan_update(rank.coded, T, process.marks.progress())
    executor = PlanExecutor(process.parts, values(T))
    executor.run(plan[:stop])
    executor.run_unmarked(plan[stop])
    rank.crash()
    process = rank.process()
    process.updater.run(values(T), process.marks.progress())
    return rank.durable()


BUGS = (
    "no-undo",
    "undo-refilled-in-recovery",
    "parity-in-place",
    "write-back-forgotten",
    "tier-2-forgotten",
    "fetch-skipped",
)


def test_the_correct_updater_is_exact() -> None:
    assert every_crash_is_exact()


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    with Patch() as patch:
        MUTANTS[bug].plant(patch)
        assert not every_crash_is_exact()
