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
    """Remembers only what decides when to give up: failures since the last completed iteration (U37), and the marks that
    this epoch began with."""

    def __init__(self, world_size: int, last_iteration: int) -> None:
        self._world_size = world_size
        self._last_iteration = last_iteration
        self._carried = cold_start(world_size).carried
        self._completed = -1
        self._failures = 0

    def decide(self, readers: Sequence[ReadProgress]) -> Decision:
        """All ranks are fenced. Raises ProtocolViolation when an invariant is broken; then nothing may be repaired."""
        try:
            ranks = [_read(rank, read) for rank, read in enumerate(readers)]
        except Unrecoverable as error:
            nothing = Progress(phase=Phase.NONE, iteration=0)
            return checkpoint(f"unrecoverable: {error}; no checkpoint configured", [nothing] * self._world_size)
        if len(ranks) != self._world_size:
            raise ProtocolViolation(f"{len(ranks)} ranks answered, the job has {self._world_size}")
        reason = self._fallen_back(ranks) or self._count(ranks)
        if reason is not None:
            return checkpoint(f"{reason}; no checkpoint configured", ranks)
        decision = decide(ranks, self._last_iteration)
        self._carried = decision.carried
        return decision

    def _fallen_back(self, ranks: Sequence[Progress]) -> str | None:
        """Marks only grow within an epoch, so a rank that says less than was carried into it has lost them (U4)."""
        for rank, (now, carried) in enumerate(zip(ranks, self._carried, strict=True)):
            if (now.iteration, now.phase) < (carried.iteration, carried.phase):
                return f"unrecoverable: the marker of rank {rank} fell from {carried.describe()} to {now.describe()}"
        return None

    def _count(self, ranks: Sequence[Progress]) -> str | None:
        completed = min(p.completed for p in ranks)
        self._failures = 1 if completed > self._completed else self._failures + 1
        self._completed = max(completed, self._completed)
        return crash_loop(self._failures)


def _read(rank: int, read: ReadProgress) -> Progress:
    try:
        return read()
    except Unrecoverable as error:
        raise Unrecoverable(f"rank {rank}: {error}") from None
