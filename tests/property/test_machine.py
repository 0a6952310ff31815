"""Any course of events over the real pool and the real updater: a rank updates, dies, loses pages, recovers, dies again.

Whatever happens, every page holds what a job without crashes has there, or the rank refuses and has written nothing.
Hypothesis draws the events and shrinks what fails; ``Broken`` tells it as a numbered story.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from chaos.explore.shapes import SHAPES
from chaos.faults.userfaultfd import can_poison
from leto.core.geometry import CodedGeometry
from leto.core.layout import PageClass
from leto.core.markers import MIRRORS, Phase
from leto.core.update_plan import Lane, Operation
from tests.machine.crash_free import CrashFree
from tests.machine.observed_rank import ObservedRank
from tests.machine.pooled_rank import PooledRank, gradients_of
from tests.machine.torn import KillInCall, Torn

SEED_VARIABLE = "LETO_MACHINE_SEED"
needs_poison = pytest.mark.skipif(can_poison() is not None, reason=f"pages cannot be poisoned here: {can_poison()}")
pytestmark = needs_poison

TORN = {
    "torn at 0.3": Torn(0.3, garbage=False),
    "torn at 0.8": Torn(0.8, garbage=False),
    "torn at 0.3, the rest garbage": Torn(0.3, garbage=True),
    "torn at 0.8, the rest garbage": Torn(0.8, garbage=True),
}
DONE = {"done, not marked": 0, "marked in 1 of 3 mirrors": 1, "marked in 2 of 3 mirrors": 2}
MOST_LOSSES = 3
"""One after the other; with more hardly a story is left that is not refused."""
CODED_OR_NOT = [k for k in PageClass if k not in (PageClass.DERIVED, PageClass.MARKERS, PageClass.RECORDS)]
LOSABLE = [*CODED_OR_NOT, *CODED_OR_NOT, PageClass.RECORDS]
"""Records are always refused, so they are lost less often."""


class Broken(AssertionError):
    """What happened, step by step, and what was wrong then. ``events`` is how many events that took."""

    def __init__(self, story: list[str], events: int, error: Exception) -> None:
        lines = [f"  {n}. {told}" for n, told in enumerate(story, 1)]
        super().__init__("\n".join(["what happened:", *lines, f"  then: {type(error).__name__}: {error}"]))
        self.events = events


def told(event: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong in an event is told with everything that led to it."""

    @functools.wraps(event)
    def telling(machine: RankMachine, **arguments: Any) -> None:
        try:
            event(machine, **arguments)
        except Broken:
            raise
        except Exception as error:
            machine.broken = True
            raise Broken(machine.story, machine.events, error) from error

    return telling


NARROW, WIDE = SHAPES["narrow"], SHAPES["wide"]
PROTECTIONS = {
    "narrow": NARROW.protection,
    "wide": WIDE.protection,
    "two lanes": replace(NARROW.protection, data_pages=6, pipelined=True),
    "without tier 2": replace(NARROW.protection, tier2_pages=0),
}


@cache
def coded_of(shape: str) -> CodedGeometry:
    return CodedGeometry(protection=PROTECTIONS[shape], segments=(WIDE if shape == "wide" else NARROW).segments)


@cache
def crash_free(shape: str) -> CrashFree:
    return CrashFree(coded_of(shape), gradients_of(coded_of(shape)))


def in_phase(*phases: Phase) -> Callable[[RankMachine], bool]:
    return lambda machine: machine.it.process is not None and machine.it.account.phase in phases


def can_go_on(lane: Lane) -> Callable[[RankMachine], bool]:
    return lambda machine: machine.it.next_operation(lane) is not None


def alive(machine: RankMachine) -> bool:
    return machine.it.process is not None


def dead(machine: RankMachine) -> bool:
    return machine.it.process is None and machine.it.refused is None


def refused(machine: RankMachine) -> bool:
    return machine.it.refused is not None


mirrors = st.sampled_from([MIRRORS, MIRRORS, MIRRORS, 1, 2])  # most of them go on


class RankMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.story: list[str] = []
        self.events = 0
        self.broken = False
        self.losses = 0  # since a process lived
        self.decided = False  # since a process lived
        self.moved = False  # since it recovered
        self.it: ObservedRank

    @initialize(shape=st.sampled_from(list(PROTECTIONS)))
    @told
    def starts(self, shape: str) -> None:
        """Where the stories begin that are worth telling: in an update."""
        self._event(f"a job of shape {shape} starts and begins update 1")
        self.losses, self.decided, self.moved = 0, False, False
        self.it = ObservedRank(PooledRank(coded_of(shape)), crash_free(shape))
        self.it.begin()

    @precondition(in_phase(Phase.HEADER))
    @rule(until=st.sampled_from([Phase.GRADS_PROTECTED, Phase.POST, Phase.OWNED]))
    @told
    def computes(self, until: Phase) -> None:
        self._event(f"it computes iteration {self._iteration} and comes to {until.name}")
        self.it.compute(until)
        self.moved = True

    @precondition(in_phase(Phase.HEADER, Phase.OWNED, Phase.POST, Phase.GRADS_PROTECTED))
    @rule(mirrors=mirrors)
    @told
    def begins(self, mirrors: int) -> None:
        self._event(f"it begins update {self._iteration}{_dies_with(mirrors)}")
        self.it.begin(mirrors)
        self.moved = True

    @precondition(can_go_on(Lane.COMPUTE))
    @rule(count=st.integers(1, 20))
    @told
    def operates(self, count: int) -> None:
        self._event("it does")
        self.story[-1] += f" {', '.join(self.it.operate(count, Lane.COMPUTE))}"
        self.moved = True

    @precondition(can_go_on(Lane.COPY))
    @rule(count=st.integers(1, 8))
    @told
    def copies(self, count: int) -> None:
        self._event("its copy lane does")
        self.story[-1] += f" {', '.join(self.it.operate(count, Lane.COPY))}"
        self.moved = True

    @precondition(in_phase(Phase.BEGIN))
    @rule(mirrors=mirrors)
    @told
    def completes(self, mirrors: int) -> None:
        self._event(f"it completes update {self._iteration}{_dies_with(mirrors)}")
        self.it.complete(mirrors)
        self.moved = True

    @precondition(in_phase(Phase.COMPLETE))
    @rule(mirrors=mirrors)
    @told
    def comes_to_the_next_header(self, mirrors: int) -> None:
        self._event(f"it comes to HEADER({self._iteration + 1}){_dies_with(mirrors)}")
        self.it.next_header(mirrors)
        self.moved = True

    @precondition(lambda machine: alive(machine) and machine.moved)
    @rule()
    @told
    def dies(self) -> None:
        self._event("it dies")
        self.it.die()

    @precondition(can_go_on(Lane.COMPUTE))
    @rule(how=st.sampled_from([*DONE, *TORN]))
    @told
    def dies_in_an_operation(self, how: str) -> None:
        self._dies_in(Lane.COMPUTE, how)

    @precondition(can_go_on(Lane.COPY))
    @rule(how=st.sampled_from([*DONE, *TORN]))
    @told
    def dies_in_its_copy_lane(self, how: str) -> None:
        self._dies_in(Lane.COPY, how)

    @precondition(lambda machine: can_go_on(Lane.COMPUTE)(machine) and can_go_on(Lane.COPY)(machine))
    @rule(how=st.sampled_from([*DONE, *TORN]), beside=st.sampled_from([*DONE, *TORN]))
    @told
    def dies_in_both_lanes(self, how: str, beside: str) -> None:
        op, copy = self.it.next_operation(Lane.COMPUTE), self.it.next_operation(Lane.COPY)
        assert op is not None and copy is not None
        self._event(f"it dies in {op.describe()}, {how}, and in {copy.describe()}, {beside}")
        self._leave(copy, beside)
        self._leave(op, how)
        self.it.die()

    @precondition(lambda machine: dead(machine) and machine.losses < MOST_LOSSES)
    @rule(kind=st.sampled_from(LOSABLE), first=st.integers(0, 30), count=st.integers(1, 5))
    @told
    def loses(self, kind: PageClass, first: int, count: int) -> None:
        pages = self.it.losable(kind)
        chosen = [pages[(first + k) % len(pages)] for k in range(min(count, len(pages)))]
        self._event(f"it loses {', '.join(f'page {page.page_index} of {page.allocation}' for page in chosen) or 'nothing'}")
        self.it.lose(chosen)
        self.losses += 1

    @precondition(lambda machine: dead(machine) and not machine.it.rank.lost_mirrors)
    @rule(mirrors=st.sampled_from([(0,), (0, 1), (1, 2), (2,), (0, 2), (1,), (0, 1, 2)]))
    @told
    def loses_mirrors(self, mirrors: tuple[int, ...]) -> None:
        self._event(f"it loses mirrors {', '.join(map(str, mirrors))} of its marks")
        self.it.rank.lose_mirrors(mirrors)

    @precondition(dead)
    @rule()
    @told
    def recovers(self) -> None:
        self._event("it recovers")
        self._recovers()

    @precondition(lambda machine: dead(machine) and not machine.decided)
    @rule()
    @told
    def fails_before_anybody_attaches(self) -> None:
        self._event("it recovers, and fails before anybody attaches")
        self._decides()
        self.decided = True

    @precondition(lambda machine: dead(machine) and machine.it.lost)
    @rule(call=st.integers(0, 8), how=st.sampled_from(sorted(TORN)))
    @told
    def dies_rebuilding(self, call: int, how: str) -> None:
        self._event(f"it recovers, and dies in kernel call {call} of the rebuild, {how}")
        if not self._decides():
            return
        self._attaches()
        self.it.rebuild(KillInCall(call), TORN[how])
        if alive(self):
            self.it.die()

    @precondition(refused)
    @rule(shape=st.sampled_from(list(PROTECTIONS)))
    @told
    def starts_again(self, shape: str) -> None:
        self.it.close()
        self.starts(shape=shape)

    @invariant()
    @told
    def every_page_is_as_without_crashes(self) -> None:
        wrong = [] if refused(self) else self.it.wrong_pages()
        if wrong:
            raise AssertionError(f"other bytes than without crashes in {', '.join(wrong)}")

    def teardown(self) -> None:
        if not hasattr(self, "it"):
            return
        try:
            if not self.broken:
                self._ends()
        finally:
            self.it.close()

    @told
    def _ends(self) -> None:
        """Every story ends with a recovery and the rest of an iteration."""
        if dead(self):
            self.story.append("in the end it recovers")
            self._recovers()
        self.every_page_is_as_without_crashes()
        if alive(self):
            self.story.append(f"it finishes iteration {self._iteration}")
            self.it.finish_iteration()
            self.every_page_is_as_without_crashes()

    @property
    def _iteration(self) -> int:
        return self.it.account.iteration

    def _event(self, text: str) -> None:
        self.events += 1
        self.story.append(text)

    def _dies_in(self, lane: Lane, how: str) -> None:
        op = self.it.next_operation(lane)
        assert op is not None
        self._event(f"it dies in {op.describe()}, {how}")
        self._leave(op, how)
        self.it.die()

    def _leave(self, op: Operation, how: str) -> None:
        if how in TORN:
            self.it.leave_torn(op, TORN[how])
        else:
            self.it.leave_done(op, DONE[how])

    def _decides(self) -> bool:
        decision = self.it.decide()
        if decision is None:
            self.story.append(f"refused: {self.it.refused}")
            return False
        self.story.append(f"decided: {decision.action.value} {decision.iteration}, {decision.reason}")
        return True

    def _attaches(self) -> None:
        self.losses, self.decided, self.moved = 0, False, False
        self.it.attach()

    def _recovers(self) -> None:
        if not self._decides():
            return
        self._attaches()
        self.it.rebuild()
        if refused(self):
            self.story.append(f"refused: {self.it.refused}")
        else:
            self.it.resume()


def _dies_with(mirrors: int) -> str:
    return "" if mirrors == MIRRORS else f", and dies with the mark in {mirrors} of {MIRRORS} mirrors"


QUICK = settings(
    max_examples=200,
    stateful_step_count=25,
    derandomize=True,  # the same stories everywhere
    database=None,
    deadline=None,
    phases=(HypothesisPhase.generate, HypothesisPhase.shrink),
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=3000, stateful_step_count=50, derandomize=False)


def test_any_course_of_events_is_exact_or_refused() -> None:
    run_state_machine_as_test(RankMachine, settings=QUICK)


@pytest.mark.slow
def test_many_courses_of_events_drawn_at_random() -> None:
    number = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().getrandbits(32))
    print(f"repeat with {SEED_VARIABLE}={number}")
    run_state_machine_as_test(seed(number)(RankMachine), settings=LONG)
