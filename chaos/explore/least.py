"""Of every failure the least case that still fails, and cases in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos.explore.cases import Again, AgentDies, Case
from chaos.explore.explorer import Explorer
from chaos.explore.losses import NONE


@dataclass(frozen=True, kw_only=True)
class Failure:
    case: Case
    description: str
    message: str


_SIMPLER: tuple[Callable[[Case], Case], ...] = (
    lambda case: replace(case, then=None),
    lambda case: replace(case, then=replace(case.then, loss=NONE)) if isinstance(case.then, Again) else case,
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
        parts.append(f"rank {number} dies in step {point.step} ({frame.describe(point.state)}){lost}")
    if case.then is not None:
        parts.append(_then(case.then, explorer.died_again_in))
    return "; ".join(parts)


def _then(then: Again | AgentDies, step: str) -> str:
    where = f"({step}: state {then.point.state})"
    if isinstance(then, AgentDies):
        return f"the agent dies in step {then.point.step} of its hand-over {where}"
    lost = "" if then.loss == NONE else f", loses {then.loss}"
    return f"rank {then.rank} dies again in step {then.point.step} of its recovery {where}{lost}"
