"""How many cases the products have, by arithmetic on the plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chaos.explore.agent import CARRY_STATES, RECORD_STATES
from chaos.explore.cases import Point
from chaos.explore.expected import COMPUTE, JobPlan
from chaos.explore.losses import MIRROR_SETS, WITH_PAGES
from chaos.explore.steps import KEY_PAIRS, KEY_STATES
from leto.core.markers import Phase, Progress
from leto.core.recovery import Action, Decision, decide, resume_row

LOSSES_OF_A_REPAIR = 3
"""A repair that is interrupted loses nothing more, the rest of every budget, or a page beyond it."""


@dataclass(frozen=True)
class _Place:
    """Where a rank may die: its progress as marks say it, barriers it has surely passed, barriers it has come to."""

    progress: Progress
    passed: int
    come: int
    with_two_mirrors_lost: Progress


@dataclass(frozen=True)
class PlannedRecovery:
    """Steps of each rank without losses, that of the crash first, and those of its repair when it has lost the split set."""

    steps: tuple[tuple[str, ...], tuple[str, ...]]
    split_repairs: int


class Totals:
    """Each product as a number. Ranks are alike, so one plan stands for all.

    ``losses`` and ``pairs`` as ``chaos.explore.products`` draws them up; so are ``again`` and ``handed_over``.
    """

    def __init__(self, plan: JobPlan, ranks: int) -> None:
        self._plan = plan
        self._ranks = ranks
        self.steps = plan.whole()
        begins = [n for n, step in enumerate(self.steps) if step.name.startswith("BEGIN(")]
        cold = sum(1 for _ in plan.cold_start())
        self._barriers = [cold, *begins]
        computes = [n for n, step in enumerate(self.steps) if step.name == COMPUTE]
        first, stop = [*computes, len(self.steps)][plan.shape.explored - 1 :][:2]
        self._window = [*range(cold + 1), *range(first, stop)]
        end = Progress(phase=Phase.HEADER, iteration=plan.shape.iterations + 1)
        self._end = _Place(end, len(self._barriers), len(self._barriers), end)

    @property
    def all(self) -> int:
        return self.losses + self.pairs + self.again + self.handed_over

    def describe(self) -> str:
        products = f"{self.losses} point x loss set + {self.pairs} point x point + {self.again} point x second point"
        return f"{products} + {self.handed_over} point x step of the agent"

    @cached_property
    def losses(self) -> int:
        """Of one rank, at every cut of its lanes."""
        return sum(map(self._loss_sets, self._places(off_path=True)))

    @cached_property
    def pairs(self) -> int:
        """Ranks between the same two barriers, and one that waits at a barrier which the other has passed."""
        places = self._places(KEY_STATES)
        inside = [sum(p.passed == k for p in places) for k in range(len(self._barriers) + 1)]
        waiting = [sum(p.passed == k < p.come for p in places) for k in range(len(self._barriers) + 1)]
        return sum(n**2 for n in inside) + 2 * sum(a * b for a, b in zip(inside[1:], waiting, strict=False))

    @cached_property
    def again(self) -> int:
        """Of rank 0 from every key state, of the others from those that are not the first one."""
        every, half_done = (sum(map(self._again_from, self._places(KEY_STATES, first=first))) for first in (0, 1))
        return KEY_STATES * (every + (self._ranks - 1) * half_done)

    def _again_from(self, place: _Place) -> int:
        recovery = self._recovery(place)
        return sum(map(len, recovery.steps)) + LOSSES_OF_A_REPAIR * recovery.split_repairs

    @cached_property
    def handed_over(self) -> int:
        states = len(RECORD_STATES) + len(CARRY_STATES)
        return self._ranks * states * len(self._places(KEY_STATES, first=1))

    def recovery(self, point: Point) -> PlannedRecovery:
        """From a crash of a rank at ``point`` with the other one as far ahead as barriers allow."""
        return self._recovery(self._place(point.step, point.state))

    def _places(self, most_states: int | None = None, *, off_path: bool = False, first: int = 0) -> list[_Place]:
        places = [
            self._place(n, state)
            for n in self._window
            if off_path or self.steps[n].on_path
            for state in range(len(self.steps[n].states[:most_states]))
            if state >= first and (self.steps[n].on_path or state < KEY_PAIRS)
        ]
        to_the_end = self._plan.shape.explored == self._plan.shape.iterations
        return [*places, self._end] if to_the_end and first == 0 else places

    def _place(self, step: int, state: int) -> _Place:
        if step == len(self.steps):
            return self._end
        come = sum(done <= step for done in self._barriers)
        waits = state == 0 and step in self._barriers
        planned = self.steps[step]
        return _Place(planned.progress(state), come - waits, come, planned.progress(state, WITH_PAGES))

    def _beside(self, place: _Place) -> Progress:
        if place.come < len(self._barriers):
            return self.steps[self._barriers[place.come]].before
        return self._end.progress

    def _decision(self, progress: Progress, place: _Place) -> Decision:
        return decide([progress, self._beside(place)], self._plan.shape.iterations)

    def _loss_sets(self, place: _Place) -> int:
        """With every set of mirrors alone, and with the two that are lost beside pages where there is a split set."""
        decision = self._decision(place.progress, place)
        updating = self._plan.updating(decision, place.progress)
        pages = self._plan.loss_sets(place.progress, cold=decision.action is Action.COLD, updating=updating)
        beside = self._decision(place.with_two_mirrors_lost, place)
        return pages + len(MIRROR_SETS) + (beside.action is not Action.COLD)

    def _recovery(self, place: _Place) -> PlannedRecovery:
        decision = self._decision(place.progress, place)
        first, second = (self._steps(decision, carried) for carried in decision.carried)
        updating = self._plan.updating(decision, place.progress)
        repairs = 0 if decision.action is Action.COLD else self._plan.split_repairs(updating=updating)
        return PlannedRecovery((first, second), repairs)

    def _steps(self, decision: Decision, carried: Progress) -> tuple[str, ...]:
        row, _ = resume_row(self._plan.coded, decision, carried, skipped=decision.target in self._plan.shape.skips)
        return tuple(step.name for step in self._plan.recovery(decision, row, carried))
