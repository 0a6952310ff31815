"""The coordinator: one decision a failure, for the whole job (U21). It decides; the agent acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leto.core.errors import ProtocolViolation, Unrecoverable
from leto.core.markers import Phase, Progress
from leto.core.recovery import Action, Decision, checkpoint, crash_loop, decide

ReadProgress = Callable[[], Progress]


def cold_start(world_size: int) -> Decision:
    """The decision that opens the first epoch."""
    carried = tuple(Progress(phase=Phase.NONE, iteration=0) for _ in range(world_size))
    return Decision(action=Action.COLD, iteration=0, reason="the job starts", carried=carried)


class Coordinator:
    """Remembers only what decides when to give up: failures since the last completed iteration (U37)."""

    def __init__(self, world_size: int, last_iteration: int) -> None:
        self._world_size = world_size
        self._last_iteration = last_iteration
        self._completed = -1
        self._failures = 0

    def decide(self, readers: Sequence[ReadProgress]) -> Decision:
        """All ranks are fenced. Raises ProtocolViolation when an invariant is broken; then nothing may be repaired."""
        try:
            ranks = [read() for read in readers]
        except Unrecoverable as error:
            nothing = Progress(phase=Phase.NONE, iteration=0)
            return checkpoint(f"unrecoverable: {error}; no checkpoint configured", [nothing] * self._world_size)
        if len(ranks) != self._world_size:
            raise ProtocolViolation(f"{len(ranks)} ranks answered, the job has {self._world_size}")
        reason = self._count(ranks)
        if reason is not None:
            return checkpoint(f"{reason}; no checkpoint configured", ranks)
        return decide(ranks, self._last_iteration)

    def _count(self, ranks: Sequence[Progress]) -> str | None:
        completed = min(p.completed for p in ranks)
        self._failures = 1 if completed > self._completed else self._failures + 1
        self._completed = max(completed, self._completed)
        return crash_loop(self._failures)
