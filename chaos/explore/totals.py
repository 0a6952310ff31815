"""How many cases the three products have, by arithmetic on the plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chaos.explore.cases import Point
from chaos.explore.expected import JobPlan, Planned
from chaos.explore.job import RANKS
from chaos.explore.steps import KEY_STATES
from leto.core.markers import Phase, Progress
from leto.core.recovery import Action, Decision, decide, resume_row


@dataclass(frozen=True)
class _Place:
    """Where a rank may die: its progress as marks say it, barriers it has surely passed, barriers it has come to."""

    progress: Progress
    passed: int
    come: int


@dataclass(frozen=True)
class PlannedRecovery:
    """Steps of each rank without losses, and those of rank 0's repair when it has lost the split set."""

    steps: tuple[tuple[str, ...], ...]
    split_repairs: int


class Totals:
    """``losses``, ``pairs`` and ``again`` as numbers. Ranks are alike, so one plan stands for all."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self.steps = plan.whole()
        cold = sum(1 for _ in plan.cold_start())
        begins = [n for n, step in enumerate(self.steps) if step.name.startswith("BEGIN(")]
        self._barriers = [cold, *begins]
        last = sum(1 for _ in plan.iteration(plan.iterations))
        self._window = [*range(cold + 1), *range(len(self.steps) - last, len(self.steps))]
        self._end = _Place(
            Progress(phase=Phase.HEADER, iteration=plan.iterations + 1), len(self._barriers), len(self._barriers)
        )

    @property
    def all(self) -> int:
        return self.losses + self.pairs + self.again

    def describe(self) -> str:
        return f"{self.losses} point x loss set + {self.pairs} point x point + {self.again} point x second point"

    @cached_property
    def losses(self) -> int:
        return RANKS * sum(self._loss_sets(place) for place in self._places(None))

    @cached_property
    def pairs(self) -> int:
        """Ranks between the same two barriers, and one that waits at a barrier which the other has passed."""
        places = self._places(KEY_STATES)
        inside = [sum(p.passed == k for p in places) for k in range(len(self._barriers) + 1)]
        waiting = [sum(p.passed == k < p.come for p in places) for k in range(len(self._barriers) + 1)]
        return sum(n**2 for n in inside) + 2 * sum(a * b for a, b in zip(inside[1:], waiting, strict=False))

    @cached_property
    def again(self) -> int:
        recoveries = (self._recovery(place) for place in self._places(KEY_STATES))
        return KEY_STATES * sum(sum(map(len, r.steps)) + r.split_repairs for r in recoveries)

    def recovery(self, point: Point) -> PlannedRecovery:
        """From a crash of rank 0 at ``point`` with the other rank as far ahead as barriers allow."""
        return self._recovery(self._place(point.step, point.state))

    def _places(self, most_states: int | None) -> list[_Place]:
        places = [
            self._place(n, state)
            for n in self._window
            for state in range(min(self.steps[n].states, most_states or self.steps[n].states))
        ]
        return [*places, self._end]

    def _place(self, step: int, state: int) -> _Place:
        if step == len(self.steps):
            return self._end
        come = sum(done <= step for done in self._barriers)
        waits = state == 0 and step in self._barriers
        return _Place(self.steps[step].progress(state), come - waits, come)

    def _beside(self, place: _Place) -> Progress:
        if place.come < len(self._barriers):
            return self.steps[self._barriers[place.come]].before
        return self._end.progress

    def _decision(self, place: _Place) -> Decision:
        return decide([place.progress, self._beside(place)], self._plan.iterations)

    def _loss_sets(self, place: _Place) -> int:
        decision = self._decision(place)
        return self._plan.loss_sets(place.progress, cold=decision.action is Action.COLD, updating=_updating(decision, place))

    def _recovery(self, place: _Place) -> PlannedRecovery:
        decision = self._decision(place)
        steps: list[tuple[Planned, ...]] = []
        for carried in decision.carried:
            row, _ = resume_row(self._plan.coded, decision, carried)
            steps.append(self._plan.recovery(decision, row, carried))
        repairs = 0 if decision.action is Action.COLD else self._plan.split_repairs(updating=_updating(decision, place))
        return PlannedRecovery(tuple(tuple(step.name for step in one) for one in steps), repairs)


def _updating(decision: Decision, place: _Place) -> bool:
    p = place.progress
    return decision.action is Action.FINISH and p.iteration == decision.target and p.phase < Phase.COMPLETE
