"""Which cases there are: three products that are run in full, and the free product of everything, from which cases are drawn.

losses     (point x loss set) of each rank; the other one is as far ahead as barriers allow
pairs      (point x point) of two ranks, wherever barriers allow both
again      (point of rank 0 x point of either rank in the recovery from it), and every point of rank 0's repairs
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product, zip_longest
from random import Random

from chaos.explore.cases import Case, Point
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.job import RANKS
from chaos.explore.losses import NONE
from chaos.explore.reached import REPAIR_STEPS
from chaos.explore.steps import KEY_STATES

SPLIT = "split"
"""The loss set whose repair is interrupted: it has something of everything."""

Points = tuple[Point, Point]


class Products:
    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._barriers = [tape.barriers for tape in explorer.tape.ranks]
        self._every = [self.points(number) for number in range(RANKS)]
        self._allowed: dict[tuple[int, int], list[Point]] = {}
        self._ends = [Point(len(tape.frames) - 1, 0) for tape in explorer.tape.ranks]

    def points(self, number: int, most_states: int | None = None) -> list[Point]:
        """Of the window, with all states of a step or the first ones."""
        frames = self._explorer.tape.ranks[number].frames
        return [Point(step, state) for step in self._explorer.window for state in range(len(frames[step].states[:most_states]))]

    def losses(self) -> Iterator[Case]:
        for number, point in self.alone():
            for name in self._loss_names(number, self._beside(number, point)):
                yield self._alone(number, point, name)

    def pairs(self) -> Iterator[Case]:
        for points in product(self.points(0, KEY_STATES), self.points(1, KEY_STATES)):
            if self._explorer.tape.together(points):
                yield Case(points)

    def again(self) -> Iterator[Case]:
        """Raises Failed when a recovery does other steps than the plan has for it."""
        for point in self.points(0, KEY_STATES):
            points = self._beside(0, point)
            yield from self._again_without_losses(points)
            if SPLIT in self._loss_names(0, points):
                yield from self._again_in_repair(points)

    def each_point_once(self, random: Random) -> Iterator[Case]:
        for number, point in self.alone():
            yield self._alone(number, point, random.choice(self._loss_names(number, self._beside(number, point))))

    def draw(self, random: Random) -> Case:
        """Two points, losses on both ranks within and beyond the budget, and half of the time a second crash."""
        first = random.choice(self._every[0])
        points = (first, random.choice(self._together_with(first)))
        decision = self._explorer.decide(points)
        names = tuple(random.choice(list(self._explorer.losses(n, decision))) for n in range(RANKS))
        refused = any(self._explorer.losses(n, decision)[name].refused for n, name in enumerate(names))
        case = Case(points, (names[0], names[1]))
        return case if refused or random.random() < 0.5 else self._drawn_again(case, random)

    def _together_with(self, first: Point) -> list[Point]:
        """Where rank 1 can be while rank 0 is there: the same for every point between two barriers."""
        place = self._explorer.tape.at_barriers(0, first)
        if place not in self._allowed:
            self._allowed[place] = [point for point in self._every[1] if self._explorer.tape.together((first, point))]
        return self._allowed[place]

    def alone(self) -> Iterator[tuple[int, Point]]:
        return ((number, point) for number in range(RANKS) for point in self.points(number))

    def _beside(self, number: int, point: Point) -> Points:
        """The other rank waits at the first barrier to which this one has not come, or at the end."""
        other = 1 - number
        _, come = self._explorer.tape.at_barriers(number, point)
        ahead = self._ends[other]
        if come < len(self._barriers[other]):
            ahead = Point(self._barriers[other][come], 0)
        return (point, ahead) if number == 0 else (ahead, point)

    def _alone(self, number: int, point: Point, name: str) -> Case:
        return Case(self._beside(number, point), (name, NONE) if number == 0 else (NONE, name))

    def _loss_names(self, number: int, points: Points) -> list[str]:
        return list(self._explorer.losses(number, self._explorer.decide(points)))

    def _again_without_losses(self, points: Points) -> Iterator[Case]:
        planned = self._explorer.totals.recovery(points[0]).steps
        done = self._explorer.recovery_steps(points, (NONE, NONE))
        if done != planned:
            raise Failed(f"{Case(points)}: the recovery does not do what the plan says: {_difference(done, planned)}")
        for number in range(RANKS):
            yield from (Case(points, again=(number, point)) for point in _key_points(len(done[number])))

    def _again_in_repair(self, points: Points) -> Iterator[Case]:
        planned = self._explorer.totals.recovery(points[0])
        done = self._explorer.recovery_steps(points, (SPLIT, NONE))
        if done[0][planned.split_repairs :] != planned.steps[0]:
            raise Failed(f"{Case(points, (SPLIT, NONE))}: the repair does not do what the plan says")
        for point in _key_points(planned.split_repairs):
            yield Case(points, (SPLIT, NONE), (0, point))

    def _drawn_again(self, case: Case, random: Random) -> Case:
        """Every second time inside a repair, where there is one: its steps are few."""
        done = self._explorer.recovery_steps(case.points, case.losses)
        steps = [(number, step) for number, names in enumerate(done) for step in range(len(names))]
        repairs = [(number, step) for number, step in steps if done[number][step].startswith(REPAIR_STEPS)]
        number, step = random.choice(repairs if repairs and random.random() < 0.5 else steps)
        return Case(case.points, case.losses, (number, Point(step, random.randrange(KEY_STATES))))


def _key_points(steps: int) -> Iterator[Point]:
    return (Point(step, state) for step, state in product(range(steps), range(KEY_STATES)))


def _difference(done: tuple[tuple[str, ...], ...], planned: tuple[tuple[str, ...], ...]) -> str:
    for number, (one, other) in enumerate(zip(done, planned, strict=True)):
        for a, b in zip_longest(one, other, fillvalue="nothing"):
            if a != b:
                return f"rank {number}: {a} instead of {b}"
    raise AssertionError("the same steps")
