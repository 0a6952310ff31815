"""Planted bugs of the updater, the plan and the repair must be found by the state machine, and told in a few events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.explore import job
from chaos.mutants import MUTANTS
from chaos.planted.planting import Patch
from tests.machine import observed_rank
from tests.machine.rank_machine import Broken, RankMachine
from tests.property.test_machine import QUICK, needs_poison

pytestmark = needs_poison

MOST_EVENTS = 6
"""Of a story that tells a bug: it starts, does something, dies, loses something, recovers, and one that was not needed."""

SHORT = settings(QUICK, max_examples=1000, stateful_step_count=8, report_multiple_bugs=False)

QUICKLY = ["parity-in-place"]
"""In every run of the tests, the others at night."""
SLOWLY = [
    "no-undo",
    "marks-cleared-before-the-rebuild",
    "zero-fill",
    "in-flight-solved-as-committed",
    "last-row-kept-for-the-check",
    "chunk-in-flight-not-carried",
    "tier-2-forgotten",
    "lost-mirrors-read-as-words",
]
BUGS = [*QUICKLY, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOWLY)]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_told_shortly(bug: str) -> None:
    with Patch() as patch, pytest.raises(Broken) as found:
        MUTANTS[bug].plant(patch)
        patch.set(observed_rank, "rebuild", job.rebuild)  # the one that the explorer runs, with what was planted in it
        run_state_machine_as_test(RankMachine, settings=SHORT)
    print(found.value)
    assert found.value.events <= MOST_EVENTS
