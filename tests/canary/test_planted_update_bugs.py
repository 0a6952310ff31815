"""Bugs planted in the updater must be caught by the crash tests' oracle: if one of these passes unseen, the oracle is blind."""

from collections.abc import Callable
from typing import Any

import pytest

from chaos.explore.rank import InMemoryRank, values
from chaos.targets import planted
from leto.core import update_plan
from leto.core.update_plan import plan_update
from leto.update.executor import PlanExecutor
from tests.crash.test_chunk_transactions import T, durable, rank_of, run_uninterrupted

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
    return durable(rank)


def no_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanExecutor, "_restore", PlanExecutor._restore)  # put back when the test ends
    context: Any = None
    planted.no_undo(context)


def parity_updated_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update_plan, "speaking_slot", lambda *place: 0)


def write_back_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanExecutor, "_write_back", lambda self, op: None)


def tier2_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanExecutor, "_tier2", lambda self, op: None)


def undo_refilled_when_resuming(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanExecutor, "_restore", PlanExecutor._save_undo)


def fetch_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanExecutor, "_fetch", lambda self, op: None)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    no_undo,
    parity_updated_in_place,
    write_back_forgotten,
    tier2_forgotten,
    undo_refilled_when_resuming,
    fetch_skipped,
]


def test_the_correct_updater_is_exact() -> None:
    assert every_crash_is_exact()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert not every_crash_is_exact()
