"""A campaign: many cases of one shape, on one process or several, and what they reached."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from chaos.explore import reached
from chaos.explore.blocks import MOST_FAILURES, Block, Order, Part, Schedule, Share
from chaos.explore.explorer import Explorer
from chaos.explore.least import Failure


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

    def add(self, block: Block) -> None:
        if block.place.part is Part.PLANNED:
            self.explored += block.cases
        else:
            self.drawn += block.cases
        self.reached += block.reached
        self.failures += block.failures
        self.unlike_plan = self.unlike_plan or block.unlike_plan


Tick = Callable[[Result], None]
"""Is told how far the campaign is, after every block."""


class Campaign:
    """Collects the blocks of one shape."""

    def __init__(self, explorer: Explorer, order: Order, tick: Tick) -> None:
        totals = explorer.totals
        self._plan = {"shape": explorer.shape.name, "formula": totals.describe(), "total": totals.all}
        self._order = order
        self._tick = tick
        self._schedule = Schedule(order)
        self._blocks: list[Block] = []
        self._so_far = self._empty()
        self._started_s = time.monotonic()
        self.next_place = self._schedule.next

    def done(self, block: Block) -> None:
        self._schedule.done(block)
        self._blocks.append(block)
        self._so_far.add(block)
        self._tick(self._so_far)

    def result(self) -> Result:
        """Of the blocks in their order, up to the last failure that is kept; what was run beyond it says nothing new."""
        result = self._empty()
        for block in sorted(self._blocks, key=lambda block: block.place):
            result.add(block)
            if len(result.failures) >= MOST_FAILURES or result.unlike_plan is not None:
                del result.failures[MOST_FAILURES:]
                break
        result.seconds = time.monotonic() - self._started_s
        if self._order.exhaustive and result.passed and result.explored != result.total:
            result.unlike_plan = f"{result.explored} points were enumerated, the plan has {result.total}"
        return result

    def _empty(self) -> Result:
        return Result(**self._plan)  # type: ignore[arg-type]


def run_campaign(explorer: Explorer, *, exhaustive: bool, points: int, seed: int, tick: Tick) -> Result:
    """In this process; ``chaos.explore.crew`` runs the same on several."""
    order = Order(exhaustive=exhaustive, points=points, seed=seed)
    campaign, share = Campaign(explorer, order, tick), Share(explorer, order)
    while (place := campaign.next_place()) is not None:
        campaign.done(share.run(place))
    return campaign.result()


def never_reached(results: Iterable[Result]) -> list[str]:
    seen = Counter[str]()
    for result in results:
        seen += result.reached
    return [mark for mark in reached.REQUIRED if not seen[mark]]
