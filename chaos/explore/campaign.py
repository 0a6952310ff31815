"""A campaign: many cases of one shape, what they reached, and of every failure the least that still fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from random import Random

from chaos.explore import reached
from chaos.explore.cases import Case
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.losses import NONE
from chaos.explore.products import Products

MOST_FAILURES = 3
"""After so many the rest is not explored: one bug fails thousands of cases."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    case: Case
    description: str
    message: str


@dataclass(kw_only=True)
class Result:
    """``total`` is the size of the products that are run in full, from the plan; ``explored`` counts cases of them, and
    ``drawn`` those beyond. ``unlike_plan`` says what the enumeration did that the plan does not know."""

    shape: str
    formula: str
    total: int
    explored: int = 0
    drawn: int = 0
    seconds: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    unlike_plan: str | None = None

    @property
    def passed(self) -> bool:
        return not self.failures and self.unlike_plan is None

    @property
    def cases_a_minute(self) -> float:
        return 60 * (self.explored + self.drawn) / self.seconds if self.seconds else 0.0


def run_campaign(explorer: Explorer, *, exhaustive: bool, points: int, seed: int, tick: Callable[[Result], None]) -> Result:
    """The products in full, or every point once with a loss set of its own; then ``points`` cases drawn from everything."""
    totals, products, random = explorer.totals, Products(explorer), Random(seed)
    result = Result(shape=explorer.shape.name, formula=totals.describe(), total=totals.all)
    started_s = time.monotonic()
    planned = chain(products.losses(), products.pairs(), products.again()) if exhaustive else products.each_point_once(random)
    try:
        for case in _until_failed(planned, explorer, result):
            result.explored += 1
            tick(result)
            _explore(explorer, case, result)
        for case in _until_failed(islice(products.drawn(random), points), explorer, result):
            result.drawn += 1
            tick(result)
            _explore(explorer, case, result)
    except Failed as difference:
        result.unlike_plan = str(difference)
    result.seconds = time.monotonic() - started_s
    if exhaustive and not result.failures and result.unlike_plan is None and result.explored != result.total:
        result.unlike_plan = f"{result.explored} points were enumerated, the plan has {result.total}"
    return result


def _until_failed(cases: Iterable[Case], explorer: Explorer, result: Result) -> Iterator[Case]:
    for case in cases:
        if len(result.failures) >= MOST_FAILURES:
            return
        yield case


def _explore(explorer: Explorer, case: Case, result: Result) -> None:
    try:
        result.reached.update(explorer.run(case))
    except Failed as failure:
        result.failures.append(_least(explorer, case, str(failure)))


_SIMPLER: tuple[Callable[[Case], Case], ...] = (
    lambda case: replace(case, again=None),
    lambda case: replace(case, losses=(case.losses[0], NONE)),
    lambda case: replace(case, losses=(NONE, case.losses[1])),
)


def _least(explorer: Explorer, case: Case, message: str) -> Failure:
    """Without the second crash, without losses: whatever still fails without it."""
    for simpler in _SIMPLER:
        candidate = simpler(case)
        failure = explorer.fails(candidate) if candidate != case else None
        if failure is not None:
            case, message = candidate, failure
    explorer.fails(case)
    return Failure(case=case, description=describe(explorer, case), message=message)


def describe(explorer: Explorer, case: Case) -> str:
    """The case that ran last, in words: where every rank died, what it lost, where it died again."""
    parts = []
    for number, (point, loss) in enumerate(zip(case.points, case.losses, strict=True)):
        frame = explorer.frame(number, point)
        lost = "" if loss == NONE else f", loses {loss}"
        parts.append(f"rank {number} dies in step {point.step} ({frame.name}: {frame.states[point.state].name}){lost}")
    if case.again is not None:
        number, point = case.again
        name = explorer.died_again_in
        parts.append(f"rank {number} dies again in step {point.step} of its recovery ({name}: state {point.state})")
    return "; ".join(parts)


def never_reached(results: Iterable[Result]) -> list[str]:
    seen = Counter[str]()
    for result in results:
        seen += result.reached
    return [mark for mark in reached.REQUIRED if not seen[mark]]
