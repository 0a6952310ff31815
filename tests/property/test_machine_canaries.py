"""Bugs planted in the updater, the plan and the repair must be found by the state machine, and told in a few events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from leto.core import recovery, repair, update_plan
from leto.core.markers import STEPS_PER_CHUNK, Progress
from leto.memory.control import ControlPage
from leto.update.executor import PlanExecutor
from leto.update.repair import RepairExecutor
from tests.machine import observed_rank
from tests.machine.rank_machine import Broken, RankMachine
from tests.property.test_machine import QUICK, needs_poison

pytestmark = needs_poison

Patch = pytest.MonkeyPatch
MOST_EVENTS = 6
"""Of a story that tells a bug: it starts, does something, dies, loses something, recovers, and one that was not needed."""


def undo_not_restored(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_restore", lambda self, op: None)


def parity_overwritten_in_place(patch: Patch) -> None:
    slot = update_plan.speaking_slot
    for module in (update_plan, repair):
        patch.setattr(module, "speaking_slot", lambda geometry, group, commits: slot(geometry, group, 0))


def marks_of_lost_pages_cleared_before_the_rebuild(patch: Patch) -> None:
    rebuild = observed_rank.rebuild

    def cleared(*arguments: Any, acknowledge: Callable[[], None], **options: Any) -> Any:
        acknowledge()
        return rebuild(*arguments, acknowledge=lambda: None, **options)

    patch.setattr(observed_rank, "rebuild", cleared)


def lost_pages_taken_as_zeros(patch: Patch) -> None:
    patch.setattr(RepairExecutor, "run", lambda self, operations: None)


def lost_undo_solved_as_if_committed(patch: Patch) -> None:
    standing = repair._standing
    patch.setattr(repair, "_standing", lambda *arguments: replace(standing(*arguments), in_flight=None))


def the_last_solvable_page_is_refused(patch: Patch) -> None:
    patch.setattr(repair.Budget, "spare_rows", property(lambda b: b.rows - b.lost_rows - b.lost_pages - 1))


def chunk_in_flight_not_carried(patch: Patch) -> None:
    carried = recovery._carried_by_finish

    def dropped(progress: Progress, begun: int) -> Progress:
        kept = carried(progress, begun)
        return replace(kept, step=kept.step - kept.step % STEPS_PER_CHUNK)

    patch.setattr(recovery, "_carried_by_finish", dropped)


def written_back_without_tier_2(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_tier2", lambda self, op: None)


SHORT = settings(QUICK, max_examples=1000, stateful_step_count=8, report_multiple_bugs=False)


def lost_mirrors_read_as_words(patch: Patch) -> None:
    read = ControlPage.read_progress
    patch.setattr(ControlPage, "read_progress", lambda self, epoch, lost=(): read(self, epoch))


QUICKLY = [undo_not_restored, marks_of_lost_pages_cleared_before_the_rebuild, parity_overwritten_in_place]
"""These in every run of the tests, the others at night."""
SLOWLY = [
    lost_pages_taken_as_zeros,
    lost_undo_solved_as_if_committed,
    the_last_solvable_page_is_refused,
    chunk_in_flight_not_carried,
    written_back_without_tier_2,
    lost_mirrors_read_as_words,
]
BUGS = [*QUICKLY, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOWLY)]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found_and_told_shortly(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises(Broken) as found:
        run_state_machine_as_test(RankMachine, settings=SHORT)
    print(found.value)
    assert found.value.events <= MOST_EVENTS
