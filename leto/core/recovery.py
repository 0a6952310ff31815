"""The decision of a failure: all ranks' progress in, one action with its reason out (U21 to U23, U5, U53).

Two questions, each answered by one table.

What does the job do? (``decide``; t is the highest iteration whose BEGIN is durable on any rank)

    some rank lacks HEADER(1), none is beyond    COLD        nothing was promised yet: start from the seed
    HEADER(T+1) on all ranks, T the last         ENDED T     nothing is left to train; derive, record T, audit
    COMPLETE(t) on all ranks                     RESTART t+1 nobody has begun t+1; its compute phase is redone
    BEGIN(t) on some, COMPLETE(t) not on all     FINISH t    committed chunks are kept, the rest is finished

Where does one rank resume? (``resume_row``; the crash-point table of docs/protocol.md, group i, chunk j)

    GRADS_PROTECTED(t), no BEGIN     RUN_WHOLE_UPDATE    somebody began, the values are in POST(t)
    BEGIN, fetch(i) not done         REDO_FETCH          H_i speaks; Q holds anything
    step = COMMITTED j-1 or none     REDO_SAVE_UNDO      C_j untouched, U may be half written
    step = UNDO_SAVED of j           RESTORE_AND_REDO    C_j unknown: C_j <- U, then 9 to 11
    step = UPDATED, PARITY_UPDATED   RESTORE_AND_REDO    the same one path; Q' does not speak
    all of i committed               REDO_WRITE_BACK     H_i, T_i may be torn; Q_i speaks until written back
    written_back = all groups        MARK_COMPLETE       only the COMPLETE mark is missing; so in a skipped step (U25)
    COMPLETE(t), HEADER(t+1) absent  KEEP_BUILD_HEADER   M_t+1 stands; HEADER(t+1) comes from POST(t)
    HEADER(t+1) present              KEEP_RELOAD_HEADER  reload it

i is the least group that is not written back. In a pipelined update (U35) the two groups after it may be under way as well;
what is done to them follows from the same words and the same plan, so they need no rows. A chunk in flight goes first,
whichever group it is of: only then do coded pages hold anything, and restoring it is what the computation begins with. That i
is committed and waits for its write-back is then said by the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from leto.core.errors import ProtocolViolation
from leto.core.geometry import CodedGeometry
from leto.core.markers import STEPS_PER_CHUNK, Phase, Progress, StepDone

MAX_FAILURES_WITHOUT_PROGRESS = 3
"""U37: a deterministic crash would loop for ever; after this many recoveries without a completed iteration, stop."""


class Action(Enum):
    COLD = "cold"
    RESTART = "restart"
    FINISH = "finish"
    ENDED = "ended"
    CHECKPOINT = "checkpoint"


class Row(Enum):
    """A row of the crash-point table: what one rank does first."""

    START_COLD = "start-cold"
    RUN_WHOLE_UPDATE = "run-whole-update"
    REDO_FETCH = "redo-fetch"
    REDO_SAVE_UNDO = "redo-save-undo"
    RESTORE_AND_REDO = "restore-and-redo"
    REDO_WRITE_BACK = "redo-write-back"
    MARK_COMPLETE = "mark-complete"
    KEEP_BUILD_HEADER = "keep-build-header"
    KEEP_RELOAD_HEADER = "keep-reload-header"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision a failure, durable in every rank's retained memory before anybody acts on it.

    ``iteration`` is t of FINISH t and of ENDED t, t+1 of RESTART t+1; 0 for COLD. ``carried`` holds, per rank, the progress
    that the fresh marker pages of the next epoch must say (U5).
    """

    action: Action
    iteration: int
    reason: str
    carried: tuple[Progress, ...]

    @property
    def target(self) -> int:
        """The iteration at whose end every rank stands when the decision is carried out; 0 before the first."""
        return self.iteration - 1 if self.action is Action.RESTART else self.iteration


def decide(ranks: Sequence[Progress], last_iteration: int) -> Decision:
    """Raises ProtocolViolation when the ranks' progress contradicts INV-1 or INV-G."""
    lacking = [r for r, p in enumerate(ranks) if p.phase is Phase.NONE]
    if lacking:
        _check_nobody_passed_the_first_barrier(ranks, lacking[0])
        fresh = tuple(Progress(phase=Phase.NONE, iteration=0) for _ in ranks)
        return Decision(action=Action.COLD, iteration=0, reason=f"rank {lacking[0]} lacks HEADER(1)", carried=fresh)
    _check_spread(ranks)
    begun = max(p.begun for p in ranks)
    if all(p.iteration == last_iteration + 1 for p in ranks):
        reason = f"HEADER({last_iteration + 1}) on all ranks"
        return Decision(action=Action.ENDED, iteration=last_iteration, reason=reason, carried=tuple(ranks))
    if all(p.completed >= begun for p in ranks):
        return Decision(
            action=Action.RESTART,
            iteration=begun + 1,
            reason=f"COMPLETE({begun}) on all ranks, BEGIN({begun + 1}) on none",
            carried=tuple(_carried_by_restart(p, begun) for p in ranks),
        )
    _check_gradients_protected(ranks, begun)
    first = next(r for r, p in enumerate(ranks) if p.begun == begun)
    behind = next(r for r, p in enumerate(ranks) if p.completed < begun)
    return Decision(
        action=Action.FINISH,
        iteration=begun,
        reason=f"rank {first} has BEGIN({begun}), rank {behind} is at {ranks[behind].describe()}",
        carried=tuple(_carried_by_finish(p, begun) for p in ranks),
    )


def checkpoint(reason: str, ranks: Sequence[Progress]) -> Decision:
    """In place is not possible: leave it to the checkpoint (U54)."""
    return Decision(action=Action.CHECKPOINT, iteration=0, reason=reason, carried=tuple(ranks))


def crash_loop(failures_without_progress: int) -> str | None:
    """The reason to give up when failures repeat without a completed iteration between them (U37), else None."""
    if failures_without_progress <= MAX_FAILURES_WITHOUT_PROGRESS:
        return None
    return f"{failures_without_progress} failures without a completed iteration: a crash loop, not a fault to ride out"


def resume_row(geometry: CodedGeometry, decision: Decision, progress: Progress, *, skipped: bool = False) -> tuple[Row, str]:
    """The rank's row of the crash-point table with its reason. ``skipped`` is what POST says of the decision's update."""
    if decision.action is Action.COLD:
        return Row.START_COLD, "no promise was made: build the state from the seed"
    target = decision.target
    if progress.iteration > target:
        return Row.KEEP_RELOAD_HEADER, f"HEADER({target + 1}) is durable: reload it"
    if progress.phase >= Phase.COMPLETE:
        return (
            Row.KEEP_BUILD_HEADER,
            f"COMPLETE({target}) is durable: build HEADER({target + 1}) from POST({target})",
        )
    if progress.phase < Phase.BEGIN:
        return Row.RUN_WHOLE_UPDATE, f"{progress.describe()}: somebody began, its values are in POST({target})"
    if skipped:
        return Row.MARK_COMPLETE, f"the step of {target} is skipped: there is nothing to update"
    return _row_inside_update(geometry, progress)


def _row_inside_update(geometry: CodedGeometry, progress: Progress) -> tuple[Row, str]:
    group = progress.written_back
    if group >= geometry.group_count:
        return Row.MARK_COMPLETE, f"all {group} groups are written back"
    chunk = progress.committed_chunks
    committed = chunk >= geometry.chunks_of(group).stop
    write_back = f"group {group} is committed, its write-back is not durable: Q speaks"
    if progress.in_flight is not None:
        _, done = progress.in_flight
        reason = f"chunk {chunk} was in flight ({done.name}): restore it from undo"
        return Row.RESTORE_AND_REDO, f"{reason}; {write_back}" if committed else reason
    if committed:
        return Row.REDO_WRITE_BACK, write_back
    if progress.fetched <= group:
        return Row.REDO_FETCH, f"parity of group {group} was not fetched: H speaks"
    return Row.REDO_SAVE_UNDO, f"chunk {chunk} of group {group} is untouched"


def _check_nobody_passed_the_first_barrier(ranks: Sequence[Progress], lacking: int) -> None:
    """HEADER(1) is durable on all ranks before anybody computes, so beyond it a rank without one has lost its marker (U4)."""
    for p in ranks:
        if p.iteration > 1 or p.phase > Phase.HEADER:
            raise ProtocolViolation(f"rank {lacking} says that it lacks HEADER(1), but another is at {p.describe()}")


def _check_spread(ranks: Sequence[Progress]) -> None:
    iterations = [p.iteration for p in ranks]
    if max(iterations) - min(iterations) > 1:
        raise ProtocolViolation(f"INV-1: ranks are at iterations {iterations}, more than one apart")


def _check_gradients_protected(ranks: Sequence[Progress], begun: int) -> None:
    for rank, p in enumerate(ranks):
        if p.begun < begun and not (p.iteration == begun and p.phase >= Phase.GRADS_PROTECTED):
            raise ProtocolViolation(f"INV-G: BEGIN({begun}) is durable somewhere but rank {rank} is at {p.describe()}")


def _carried_by_restart(p: Progress, complete: int) -> Progress:
    """HEADER(t+1) where it is present, else COMPLETE(t); nothing that would speak of lent buffers."""
    if p.iteration > complete:
        return Progress(phase=Phase.HEADER, iteration=p.iteration)
    return Progress(phase=Phase.COMPLETE, iteration=p.iteration)


def _carried_by_finish(p: Progress, begun: int) -> Progress:
    """Everything; a chunk in flight is carried as UNDO_SAVED, so that words only grow within an epoch."""
    if p.iteration > begun:
        return Progress(phase=Phase.HEADER, iteration=p.iteration)
    if p.in_flight is None:
        return p
    chunk, _ = p.in_flight
    step = STEPS_PER_CHUNK * chunk + StepDone.UNDO_SAVED
    return Progress(phase=p.phase, iteration=p.iteration, step=step, fetched=p.fetched, written_back=p.written_back)
