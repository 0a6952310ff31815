"""The state machine: which events can happen to a rank, and how they are told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chaos.explore.rank import gradients_of
from chaos.explore.shapes import SHAPES
from leto.core.geometry import CodedGeometry
from leto.core.layout import PageClass
from leto.core.markers import MIRRORS, Phase
from leto.core.update_plan import Lane, Operation
from tests.machine.crash_free import CrashFree
from tests.machine.observed_rank import ObservedRank
from tests.machine.peer import WHERE
from tests.machine.pooled_rank import PooledRank
from tests.machine.torn import KillInCall, Torn

TORN = {
    "torn at 0.3": Torn(0.3, garbage=False),
    "torn at 0.8": Torn(0.8, garbage=False),
    "torn at 0.3, the rest garbage": Torn(0.3, garbage=True),
    "torn at 0.8, the rest garbage": Torn(0.8, garbage=True),
    "torn at 0.3 of its parity": Torn(0.3, garbage=False, in_parity=True),
}
DONE = {"done, not marked": 0, "marked in 1 of 3 mirrors": 1, "marked in 2 of 3 mirrors": 2}
MOST_LOSSES = 3
"""One after the other; with more hardly a story is left that is not refused."""
CODED_OR_NOT = [k for k in PageClass if k not in (PageClass.DERIVED, PageClass.MARKERS, PageClass.RECORDS)]
LOSABLE = [*CODED_OR_NOT, *CODED_OR_NOT, PageClass.RECORDS]
"""Records are always refused, so they are lost less often."""


@dataclass(frozen=True)
class Event:
    """``possible`` says in which states of the machine it may happen; ``arguments`` are drawn."""

    run: Callable[..., None]
    possible: Callable[[RankMachine], bool]
    arguments: Mapping[str, st.SearchStrategy[Any]]

    def __repr__(self) -> str:
        return self.run.__name__


EVENTS: list[Event] = []
"""Those that make the stories worth telling are in it more than once."""


def event(possible: Callable[[RankMachine], bool], *, weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Any:
    def listed(run: Callable[..., None]) -> Callable[..., None]:
        EVENTS.extend([Event(run, possible, arguments)] * weight)
        return run

    return listed


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
peer = st.sampled_from(WHERE)
START = {"shape": st.sampled_from(list(PROTECTIONS)), "fused": st.booleans(), "twice": st.booleans()}


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

    @initialize(**START)
    @told
    def starts(self, shape: str, fused: bool, twice: bool) -> None:
        """Where the stories begin that are worth telling: in an update."""
        again = ", dies before HEADER(1), starts from the seed again" if twice else ""
        self._event(f"a job of shape {shape}{_fused(fused)} starts{again} and begins update 1")
        self.losses, self.decided, self.moved = 0, False, False
        self.it = ObservedRank(PooledRank(coded_of(shape)), crash_free(shape), fused=fused, twice=twice)
        self.it.begin()

    @rule(data=st.data())
    def happens(self, data: st.DataObject) -> None:
        """One rule for all events. Few are possible in each state, and rules of their own would be switched off in swarms."""
        event = data.draw(st.sampled_from(EVENTS).filter(lambda event: event.possible(self)), "event")
        arguments = data.draw(st.fixed_dictionaries(dict(event.arguments)), "its arguments")
        told(event.run)(self, **arguments)

    @event(in_phase(Phase.HEADER), until=st.sampled_from([Phase.GRADS_PROTECTED, Phase.POST, Phase.OWNED]))
    def computes(self, until: Phase) -> None:
        self._event(f"it computes iteration {self._iteration} and comes to {until.name}")
        self.it.compute(until)
        self.moved = True

    @event(in_phase(Phase.HEADER, Phase.OWNED, Phase.POST, Phase.GRADS_PROTECTED), mirrors=mirrors, weight=3)
    def begins(self, mirrors: int) -> None:
        self._event(f"it begins update {self._iteration}{_dies_with(mirrors)}")
        self.it.begin(mirrors)
        self.moved = True

    @event(can_go_on(Lane.COMPUTE), count=st.integers(1, 20), weight=3)
    def operates(self, count: int) -> None:
        self._event("it does")
        self.story[-1] += f" {', '.join(self.it.operate(count, Lane.COMPUTE))}"
        self.moved = True

    @event(can_go_on(Lane.COPY), count=st.integers(1, 8), weight=2)
    def copies(self, count: int) -> None:
        self._event("its copy lane does")
        self.story[-1] += f" {', '.join(self.it.operate(count, Lane.COPY))}"
        self.moved = True

    @event(in_phase(Phase.BEGIN), mirrors=mirrors, by_updater=st.booleans())
    def completes(self, mirrors: int, by_updater: bool) -> None:
        lanes = ", its lanes run freely" if by_updater else ""
        self._event(f"it completes update {self._iteration}{lanes}{_dies_with(mirrors)}")
        self.it.complete(mirrors, by_updater=by_updater)
        self.moved = True

    @event(in_phase(Phase.COMPLETE), mirrors=mirrors, weight=2)
    def comes_to_the_next_header(self, mirrors: int) -> None:
        self._event(f"it comes to HEADER({self._iteration + 1}){_dies_with(mirrors)}")
        self.it.next_header(mirrors)
        self.moved = True

    @event(lambda machine: alive(machine) and machine.moved)
    def dies(self) -> None:
        self._event("it dies")
        self.it.die()

    @event(can_go_on(Lane.COMPUTE), how=st.sampled_from([*DONE, *TORN]), weight=3)
    def dies_in_an_operation(self, how: str) -> None:
        self._dies_in(Lane.COMPUTE, how)

    @event(can_go_on(Lane.COPY), how=st.sampled_from([*DONE, *TORN]))
    def dies_in_its_copy_lane(self, how: str) -> None:
        self._dies_in(Lane.COPY, how)

    @event(
        lambda machine: can_go_on(Lane.COMPUTE)(machine) and can_go_on(Lane.COPY)(machine),
        how=st.sampled_from([*DONE, *TORN]),
        beside=st.sampled_from([*DONE, *TORN]),
    )
    def dies_in_both_lanes(self, how: str, beside: str) -> None:
        op, copy = self.it.next_operation(Lane.COMPUTE), self.it.next_operation(Lane.COPY)
        assert op is not None and copy is not None
        self._event(f"it dies in {op.describe()}, {how}, and in {copy.describe()}, {beside}")
        self._leave(copy, beside)
        self._leave(op, how)
        self.it.die()

    @event(
        lambda machine: dead(machine) and machine.losses < MOST_LOSSES,
        kind=st.sampled_from(LOSABLE),
        first=st.integers(0, 30),
        count=st.integers(1, 5),
        weight=5,
    )
    def loses(self, kind: PageClass, first: int, count: int) -> None:
        pages = self.it.losable(kind)
        chosen = [pages[(first + k) % len(pages)] for k in range(min(count, len(pages)))]
        self._event(f"it loses {', '.join(f'page {page.page_index} of {page.allocation}' for page in chosen) or 'nothing'}")
        self.it.lose(chosen)
        self.losses += 1

    @event(
        lambda machine: dead(machine) and not machine.it.rank.lost_mirrors,
        mirrors=st.sampled_from([(0,), (0, 1), (1, 2), (2,), (0, 2), (1,), (0, 1, 2)]),
    )
    def loses_mirrors(self, mirrors: tuple[int, ...]) -> None:
        self._event(f"it loses mirrors {', '.join(map(str, mirrors))} of its marks")
        self.it.rank.lose_mirrors(mirrors)

    @event(dead, peer=peer, fused=st.booleans(), weight=3)
    def recovers(self, peer: str, fused: bool) -> None:
        self._event(f"it recovers{_fused(fused)}, the other rank is {peer}")
        self._recovers(peer, fused)

    @event(lambda machine: dead(machine) and not machine.decided, peer=peer)
    def fails_before_anybody_attaches(self, peer: str) -> None:
        self._event(f"it recovers, the other rank is {peer}, and fails before anybody attaches")
        self._decides(peer)
        self.decided = True

    @event(
        lambda machine: dead(machine) and machine.it.seen.lost,
        peer=peer,
        call=st.integers(0, 8),
        how=st.sampled_from(sorted(TORN)),
        weight=2,
    )
    def dies_rebuilding(self, peer: str, call: int, how: str) -> None:
        self._event(f"it recovers, the other rank is {peer}, and dies in kernel call {call} of the rebuild, {how}")
        if not self._decides(peer):
            return
        self._attaches(False)
        self.it.rebuild(KillInCall(call), TORN[how])
        if alive(self):
            self.it.die()

    @event(refused, **START)
    def starts_again(self, **arguments: Any) -> None:
        self.it.close()
        self.starts(**arguments)

    @invariant()
    @told
    def every_page_is_as_without_crashes(self) -> None:
        wrong = [] if refused(self) else self.it.seen.wrong_pages()
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
            self._recovers("level", False)
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

    def _decides(self, peer: str) -> bool:
        decision = self.it.decide(peer)
        if decision is None:
            self.story.append(f"refused: {self.it.refused}")
            return False
        self.story.append(f"decided: {decision.action.value} {decision.iteration}, {decision.reason}")
        return True

    def _attaches(self, fused: bool) -> None:
        self.losses, self.decided, self.moved = 0, False, False
        self.it.attach(fused=fused)

    def _recovers(self, peer: str, fused: bool) -> None:
        if not self._decides(peer):
            return
        self._attaches(fused)
        self.it.rebuild()
        if refused(self):
            self.story.append(f"refused: {self.it.refused}")
        else:
            self.it.resume()


def _fused(fused: bool) -> str:
    return " with fused updates" if fused else ""


def _dies_with(mirrors: int) -> str:
    return "" if mirrors == MIRRORS else f", and dies with the mark in {mirrors} of {MIRRORS} mirrors"
