"""The agent's hand-over between two epochs, as steps: the decision becomes durable in every rank's control arena, then its
words are carried into fresh marker pages (U5, U21).

An agent that dies on the way leaves a torn record or a marker page half carried over. Nobody has trained in the new epoch, and
the pages of the old one are as they were, so the next agent decides from them again and does all of it once more (U36).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from chaos.explore.memory import MarkerImage, Markers, words_after
from chaos.explore.steps import WRITE_STATES, Driver, State, garbage_of, view
from leto.core.markers import MIRRORS, WORDS
from leto.core.recovery import Decision

RECORD_STATES = WRITE_STATES
CARRY_STATES = tuple(State(f"{n} of {MIRRORS * WORDS} words carried") for n in range(MIRRORS * WORDS))


@dataclass(frozen=True)
class DecisionRecord:
    """Torn, a prefix of what changes in its slot is new, and the rest old or garbage."""

    name: str
    markers: Markers
    write: Callable[[], None]
    touched: tuple[str, ...] = ()
    states: tuple[State, ...] = RECORD_STATES

    def do(self) -> None:
        self.write()

    def leave(self, state: State) -> None:
        if state.progress is None:
            return
        slots = view(self.markers.decision_slots)
        old = slots.copy()
        self.write()
        changed = np.flatnonzero(slots != old)
        missing = changed[int(state.progress * changed.size) :]
        slots[missing] = garbage_of(slots.size)[missing] if state.garbage else old[missing]


@dataclass(frozen=True)
class CarryOver:
    """Word by word; a word never tears."""

    name: str
    markers: Markers
    epoch: int
    carry: Callable[[], None]
    touched: tuple[str, ...] = ()
    states: tuple[State, ...] = CARRY_STATES

    def do(self) -> None:
        self.carry()

    def leave(self, state: State) -> None:
        old: MarkerImage = self.markers.image(self.epoch)
        self.carry()
        self.markers.restore(words_after(old, self.markers.image(self.epoch), self.states.index(state)))


def hand_over(ranks: Sequence[Markers], epoch: int, decision: Decision, driver: Driver) -> None:
    """As the agent opens ``epoch``: the decision is durable everywhere before any word of it is."""
    for number, markers in enumerate(ranks):
        write = partial(markers.write_decision, epoch, decision)
        driver.take(number, DecisionRecord(f"decision record of rank {number}", markers, write))
    for number, (markers, carried) in enumerate(zip(ranks, decision.carried, strict=True)):
        carry = partial(markers.carry, epoch, carried)
        driver.take(len(ranks) + number, CarryOver(f"carry-over of rank {number}", markers, epoch, carry))
