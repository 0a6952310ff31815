"""The cases of a campaign in blocks of fixed size, so that any number of processes runs the same cases and finds the same.

Blocks are handed out in order and every one that was handed out is run, so what is merged up to the last failure that is kept
does not depend on who ran what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from random import Random

from chaos.explore.cases import Case
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.least import Failure, least
from chaos.explore.products import Products

BLOCK_CASES = 64
MOST_FAILURES = 3
"""After so many the rest is not explored: one bug fails thousands of cases."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a campaign explores: the products in full, or every point once with a loss set of its own; then ``points`` cases
    drawn from everything by ``seed``."""

    exhaustive: bool
    points: int
    seed: int


class Part(IntEnum):
    PLANNED = 0
    DRAWN = 1


@dataclass(frozen=True, order=True)
class Place:
    """A block's place in the order of all."""

    part: Part
    number: int


@dataclass(kw_only=True)
class Block:
    """What its cases did. ``ends`` says that the enumeration has no block behind this one."""

    place: Place
    cases: int = 0
    ends: bool = False
    reached: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    unlike_plan: str | None = None


class Share:
    """One process's share of a campaign: blocks in any growing order."""

    def __init__(self, explorer: Explorer, order: Order) -> None:
        self._explorer = explorer
        self._order = order
        self._products = Products(explorer)
        self._planned = self._enumerated()
        self._next = 0  # the block of the enumeration that comes next

    def run(self, place: Place) -> Block:
        block = Block(place=place)
        try:
            cases = self._planned_cases(place.number) if place.part is Part.PLANNED else self._drawn_cases(place.number)
            block.ends = place.part is Part.PLANNED and len(cases) < BLOCK_CASES
            for case in cases:
                self._explore(case, block)
                if len(block.failures) >= MOST_FAILURES:
                    break
        except Failed as difference:
            block.unlike_plan, block.ends = str(difference), True
        return block

    def _enumerated(self) -> Iterator[Case]:
        products = self._products
        if self._order.exhaustive:
            return products.all()
        return products.each_point_once(Random(self._order.seed))

    def _planned_cases(self, number: int) -> list[Case]:
        """Raises Failed where a recovery does not do what the plan says, in this block or one that is passed over."""
        skipped = (number - self._next) * BLOCK_CASES
        assert skipped >= 0, "blocks of a share only grow"
        self._next = number + 1
        return list(islice(self._planned, skipped, skipped + BLOCK_CASES))

    def _drawn_cases(self, number: int) -> list[Case]:
        first = number * BLOCK_CASES
        stop = min(first + BLOCK_CASES, self._order.points)
        return [self._products.draw(Random(f"{self._order.seed} {n}")) for n in range(first, stop)]

    def _explore(self, case: Case, block: Block) -> None:
        block.cases += 1
        try:
            block.reached.update(self._explorer.run(case))
        except Failed as failure:
            block.failures.append(least(self._explorer, case, str(failure)))


class Schedule:
    """Hands blocks out, takes them back, and says when it is enough."""

    def __init__(self, order: Order) -> None:
        self._drawn_blocks = -(-order.points // BLOCK_CASES)
        self._part, self._number = Part.PLANNED, 0
        self._failures = 0
        self._enough = False

    def next(self) -> Place | None:
        """None when no block is left to hand out."""
        if self._enough or (self._part is Part.DRAWN and self._number >= self._drawn_blocks):
            return None
        place = Place(self._part, self._number)
        self._number += 1
        return place

    def done(self, block: Block) -> None:
        self._failures += len(block.failures)
        self._enough = self._enough or self._failures >= MOST_FAILURES or block.unlike_plan is not None
        if block.ends and self._part is Part.PLANNED:
            self._part, self._number = Part.DRAWN, 0
