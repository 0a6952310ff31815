"""Which cases there are: products that are run in full, and the free product of everything, from which cases are drawn.

losses       (point x loss set) of rank 0, at every cut of its lanes; the other one is as far ahead as barriers allow. In the
             other products points are those by which the plan's own order comes
pairs        (point x point) of two ranks, wherever barriers allow both
again        (point of a rank x point of either one in the recovery from it), and every point of its repairs, with more losses;
             rank 1 dies half-way through its steps only, and after rank 0 has done its part of the recovery
handed_over  (point of rank 0, half-way through its steps, x step of the agent between the epochs)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product, zip_longest
from random import Random

from chaos.explore.agent import CARRY_STATES, RECORD_STATES
from chaos.explore.cases import Again, AgentDies, Case, Point
from chaos.explore.explorer import ALL_MIRRORS, Explorer, Failed
from chaos.explore.job import RANKS
from chaos.explore.losses import AGAIN, MIRROR_SETS, NONE, SPLIT, WITH_PAGES, with_mirrors
from chaos.explore.reached import REPAIR_STEPS
from chaos.explore.steps import KEY_PAIRS, KEY_STATES
from chaos.explore.tape import OFF_PATH_RANK

Points = tuple[Point, Point]


class Products:
    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._barriers = [tape.barriers for tape in explorer.tape.ranks]
        self._every = [self.points(number) for number in range(RANKS)]
        self._allowed: dict[tuple[int, int], list[Point]] = {}
        self._ends = [Point(len(tape.frames) - 1, 0) for tape in explorer.tape.ranks]

    def points(self, number: int, most_states: int | None = None) -> list[Point]:
        """Of the window, with all states of a step, or the first ones where the plan's own order comes by."""
        frames = self._explorer.tape.ranks[number].frames
        return [
            Point(step, state)
            for step in self._explorer.window
            if frames[step].on_path or (most_states is None and number == OFF_PATH_RANK)
            for state in range(len(frames[step].states[:most_states]))
            if frames[step].on_path or state < KEY_PAIRS
        ]

    def all(self) -> Iterator[Case]:
        return chain(self.losses(), self.pairs(), self.again(), self.handed_over())

    def losses(self) -> Iterator[Case]:
        for point in self.points(OFF_PATH_RANK):
            for name in self._loss_names(OFF_PATH_RANK, self._beside(OFF_PATH_RANK, point)):
                yield self._alone(OFF_PATH_RANK, point, name)

    def pairs(self) -> Iterator[Case]:
        for points in product(self.points(0, KEY_STATES), self.points(1, KEY_STATES)):
            if self._explorer.tape.together(points):
                yield Case(points)

    def again(self) -> Iterator[Case]:
        """Raises Failed when a recovery does other steps than the plan has for it."""
        for number in range(RANKS):
            for point in self.points(number, KEY_STATES) if number == 0 else self._half_done(number):
                points = self._beside(number, point)
                yield from self._again_without_losses(number, points)
                if SPLIT in self._page_losses(number, points):
                    yield from self._again_in_repair(number, points)

    def handed_over(self) -> Iterator[Case]:
        for point in self._half_done(0):
            points = self._beside(0, point)
            yield from (Case(points, then=AgentDies(step)) for step in _AGENT_POINTS)

    def _half_done(self, number: int) -> Iterator[Point]:
        return (point for point in self.points(number, KEY_STATES) if point.state > 0)

    def each_point_once(self, random: Random) -> Iterator[Case]:
        for number, point in self.alone():
            yield self._alone(number, point, random.choice(self._loss_names(number, self._beside(number, point))))

    def draw(self, random: Random) -> Case:
        """Two points, losses on both ranks within and beyond the budget, mirrors among them, and mostly somebody dies again."""
        first = random.choice(self._every[0])
        points = (first, random.choice(self._together_with(first)))
        mirrors = (_drawn_mirrors(random), _drawn_mirrors(random))
        decision = self._explorer.decide(points, mirrors)
        losses = [self._explorer.losses(n, decision) for n in range(RANKS)]
        one, other = (random.choice(list(names)) for names in losses)
        case = Case(points, (with_mirrors(mirrors[0], one), with_mirrors(mirrors[1], other)))
        if ALL_MIRRORS in mirrors or losses[0][one].refused or losses[1][other].refused:
            return case
        return self._drawn_again(case, random)

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
        names = [*self._page_losses(number, points), *(with_mirrors(mirrors) for mirrors in MIRROR_SETS)]
        if SPLIT in self._page_losses(number, points, WITH_PAGES):
            names.append(with_mirrors(WITH_PAGES, SPLIT))
        return names

    def _page_losses(self, number: int, points: Points, mirrors: tuple[int, ...] = ()) -> list[str]:
        lost = (mirrors, ()) if number == 0 else ((), mirrors)
        return list(self._explorer.losses(number, self._explorer.decide(points, lost)))

    def _again_without_losses(self, number: int, points: Points) -> Iterator[Case]:
        done = self._explorer.recovery_steps(points, (NONE, NONE))
        self._check(Case(points), done[number], done[1 - number], self._explorer.totals.recovery(points[number]).steps)
        for who in range(RANKS):
            yield from (Case(points, then=Again(who, point)) for point in _key_points(len(done[who])))

    def _again_in_repair(self, number: int, points: Points) -> Iterator[Case]:
        planned = self._explorer.totals.recovery(points[number])
        losses = (SPLIT, NONE) if number == 0 else (NONE, SPLIT)
        done = self._explorer.recovery_steps(points, losses)
        repaired = done[number][planned.split_repairs :]
        self._check(Case(points, losses), repaired, done[1 - number], planned.steps)
        for point, loss in product(_key_points(planned.split_repairs), AGAIN):
            yield Case(points, losses, Again(number, point, loss))

    def _check(self, case: Case, own: Names, other: Names, planned: tuple[Names, Names]) -> None:
        if (own, other) != planned:
            raise Failed(f"{case}: the recovery does not do what the plan says: {_difference((own, other), planned)}")

    def _drawn_again(self, case: Case, random: Random) -> Case:
        """Nobody, the agent, or a rank: every second time inside a repair, where there is one, since its steps are few."""
        chance = random.random()
        if chance < 0.4:
            return case
        if chance < 0.5:
            return replace(case, then=AgentDies(random.choice(_AGENT_POINTS)))
        done = self._explorer.recovery_steps(case.points, case.losses, to_the_end=True)
        steps = [(number, step) for number, names in enumerate(done) for step in range(len(names))]
        repairs = [(number, step) for number, step in steps if done[number][step].startswith(REPAIR_STEPS)]
        number, step = random.choice(repairs if repairs and random.random() < 0.5 else steps)
        loss = random.choice(AGAIN) if random.random() < 0.5 else NONE
        return replace(case, then=Again(number, Point(step, random.randrange(KEY_STATES)), loss))


Names = tuple[str, ...]
_AGENT_POINTS = tuple(
    Point(step, state) for step in range(2 * RANKS) for state in range(len(RECORD_STATES if step < RANKS else CARRY_STATES))
)


def _drawn_mirrors(random: Random) -> tuple[int, ...]:
    return random.choice(MIRROR_SETS) if random.random() < 0.2 else ()


def _key_points(steps: int) -> Iterator[Point]:
    return (Point(step, state) for step, state in product(range(steps), range(KEY_STATES)))


def _difference(done: tuple[Names, Names], planned: tuple[Names, Names]) -> str:
    for who, one, other in zip(("the rank", "the other rank"), done, planned, strict=True):
        for a, b in zip_longest(one, other, fillvalue="nothing"):
            if a != b:
                return f"{who}: {a} instead of {b}"
    raise AssertionError("the same steps")
