"""Of every failure the least case that still fails, and cases in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos.explore.cases import Case
from chaos.explore.explorer import Explorer
from chaos.explore.losses import NONE


@dataclass(frozen=True, kw_only=True)
class Failure:
    case: Case
    description: str
    message: str


_SIMPLER: tuple[Callable[[Case], Case], ...] = (
    lambda case: replace(case, again=None),
    lambda case: replace(case, losses=(case.losses[0], NONE)),
    lambda case: replace(case, losses=(NONE, case.losses[1])),
)


def least(explorer: Explorer, case: Case, message: str) -> Failure:
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
