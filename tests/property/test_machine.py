"""Any course of events over the real pool and the real updater: a rank updates, dies, loses pages, recovers, dies again.

Whatever happens, every page holds what a job without crashes has there, or the rank refuses and has written nothing.
Hypothesis draws the events and shrinks what fails; ``Broken`` tells it as a numbered story.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.faults.userfaultfd import can_poison
from tests.machine.rank_machine import RankMachine

SEED_VARIABLE = "LETO_MACHINE_SEED"
needs_poison = pytest.mark.skipif(can_poison() is not None, reason=f"pages cannot be poisoned here: {can_poison()}")
pytestmark = needs_poison

QUICK = settings(
    max_examples=200,
    stateful_step_count=25,
    derandomize=True,  # the same stories everywhere
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1500, stateful_step_count=40, derandomize=False)


def test_any_course_of_events_is_exact_or_refused() -> None:
    run_state_machine_as_test(RankMachine, settings=QUICK)


@pytest.mark.slow
def test_many_courses_of_events_drawn_at_random() -> None:
    number = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().getrandbits(32))
    print(f"repeat with {SEED_VARIABLE}={number}")
    run_state_machine_as_test(seed(number)(RankMachine), settings=LONG)
