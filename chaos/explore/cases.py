"""A case: where every rank is when the job fails, what is lost, and who dies again on the way back.

As text, for a command line:

    102.2,97.0/coded-budget,none             rank 0 dies in step 102 in state 2 and loses pages, rank 1 in 97
    102.2,97.0/mirrors-02+split,none         rank 0 also loses two mirrors of its marker page
    102.2,97.0/split,none/0:5.1              rank 0 dies again in step 5 of its recovery, in state 1
    102.2,97.0/split,none/0:5.1+top-up       and loses more pages
    102.2,97.0/none,none/agent:3.1           the agent dies in step 3 of handing the job over to the next epoch
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaos.explore.losses import AGAIN, NONE
from leto.core.errors import ConfigError


@dataclass(frozen=True, order=True)
class Point:
    """A step and the number of the state it is left in."""

    step: int
    state: int

    def __str__(self) -> str:
        return f"{self.step}.{self.state}"


@dataclass(frozen=True)
class Again:
    """A rank dies again: where in its recovery, and what it loses then (``losses.AGAIN``)."""

    rank: int
    point: Point
    loss: str = NONE

    def __str__(self) -> str:
        return f"{self.rank}:{self.point}" + ("" if self.loss == NONE else f"+{self.loss}")


@dataclass(frozen=True)
class AgentDies:
    """The agent dies while it hands the job over, and another one decides again."""

    point: Point

    def __str__(self) -> str:
        return f"agent:{self.point}"


@dataclass(frozen=True)
class Case:
    points: tuple[Point, Point]
    losses: tuple[str, str] = (NONE, NONE)
    then: Again | AgentDies | None = None

    def __str__(self) -> str:
        text = f"{self.points[0]},{self.points[1]}/{self.losses[0]},{self.losses[1]}"
        return text if self.then is None else f"{text}/{self.then}"


_POINT = r"(\d+)\.(\d+)"
_LOSS = r"(mirrors-[0-2]+(?:\+[a-z][a-z0-9-]*)?|(?!mirrors-)[a-z][a-z0-9-]*)"
_CASE = re.compile(rf"{_POINT},{_POINT}/{_LOSS},{_LOSS}(?:/(?:agent:{_POINT}|([01]):{_POINT}(?:\+({'|'.join(AGAIN)}))?))?")


def parse_case(text: str) -> Case:
    """Raises ConfigError."""
    match = _CASE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--case {text}: not like 102.2,97.0/coded-budget,none or 102.2,97.0/none,none/0:5.1")
    a, b, c, d, first, second, agent_step, agent_state, who, step, state, loss = match.groups()
    then: Again | AgentDies | None = None
    if agent_step is not None:
        then = AgentDies(Point(int(agent_step), int(agent_state)))
    elif who is not None:
        then = Again(int(who), Point(int(step), int(state)), loss or NONE)
    return Case((Point(int(a), int(b)), Point(int(c), int(d))), (first, second), then)
