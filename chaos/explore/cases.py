"""A case: where every rank is when the job fails, what is lost, and where a rank dies again while it recovers.

As text, for a command line: ``102.2,97.0/coded-budget,none`` and ``102.2,97.0/none,none/0:5.1``: rank 0 dies in step 102 in
state 2, rank 1 in step 97 in state 0; in the second case rank 0 dies again in step 5 of its recovery, in state 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaos.explore.losses import NONE
from leto.core.errors import ConfigError


@dataclass(frozen=True, order=True)
class Point:
    """A step of a rank and the number of the state it is left in."""

    step: int
    state: int

    def __str__(self) -> str:
        return f"{self.step}.{self.state}"


@dataclass(frozen=True)
class Case:
    points: tuple[Point, Point]
    losses: tuple[str, str] = (NONE, NONE)
    again: tuple[int, Point] | None = None  # the rank that dies again, and where in its recovery

    def __str__(self) -> str:
        text = f"{self.points[0]},{self.points[1]}/{self.losses[0]},{self.losses[1]}"
        return text if self.again is None else f"{text}/{self.again[0]}:{self.again[1]}"


_POINT = r"(\d+)\.(\d+)"
_CASE = re.compile(rf"{_POINT},{_POINT}/([a-z0-9-]+),([a-z0-9-]+)(?:/([01]):{_POINT})?")


def parse_case(text: str) -> Case:
    """Raises ConfigError."""
    match = _CASE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--case {text}: not like 102.2,97.0/coded-budget,none or 102.2,97.0/none,none/0:5.1")
    a, b, c, d, first, second, rank, step, state = match.groups()
    again = None if rank is None else (int(rank), Point(int(step), int(state)))
    return Case((Point(int(a), int(b)), Point(int(c), int(d))), (first, second), again)
