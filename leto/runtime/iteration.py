"""One iteration of one rank, in the order that makes it resumable (U49), and the tail that recovery shares with it.

HEADER(t) -> compute -> values -> OWNED -> R -> POST(t) -> GRADS_PROTECTED(t) -> barrier -> BEGIN(t)
          -> chunks, write-backs -> COMPLETE(t) -> step tensors, cast, gather -> ledger(t) -> HEADER(t+1) -> lend
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from leto.core.errors import ProtocolViolation
from leto.core.failpoints import Point, Site
from leto.core.hooks import ParityAudit, StateEntry, TrainerContext
from leto.core.markers import Phase, Progress
from leto.core.records import Header, IterationResult, LiveState, Post, UpdateValues
from leto.update.marks import Marks
from leto.update.record_slots import RecordSlots


class Session(Protocol):
    """What the iteration needs of one rank's training; ``leto.megatron.training`` is the one that trains."""

    def compute(self, iteration: int, *, before_forward: Callable[[], None], after_backward: Callable[[], None]) -> None: ...
    def prepare_update(self, iteration: int) -> tuple[UpdateValues, IterationResult]: ...
    def live_state(self) -> LiveState: ...
    def restore_live(self, state: LiveState) -> None: ...
    def set_applied_steps(self, applied_steps: int) -> None: ...
    def cast_derived(self) -> None: ...
    def gather_derived(self) -> None: ...
    def entries(self) -> Iterable[StateEntry]: ...


class Updater(Protocol):
    """What the iteration needs of an updater; ``JobConfig.updater`` names the class."""

    def protect_gradients(self, iteration: int) -> None: ...
    def run(self, values: UpdateValues, progress: Progress) -> None: ...
    def encode_state(self) -> None: ...
    def lend(self) -> None: ...
    def audit(self) -> ParityAudit: ...


@dataclass(frozen=True)
class View:
    """The state at the end of an iteration, as plugins see it."""

    result: IterationResult
    live: LiveState
    session: Session

    def entries(self) -> Iterable[StateEntry]:
        return self.session.entries()


class IterationRunner:
    """Runs iterations against retained memory; every durable step is a mark or a record."""

    def __init__(
        self,
        *,
        session: Session,
        updater: Updater,
        marks: Marks,
        records: RecordSlots,
        context: TrainerContext,
        layout_hash: str,
        barrier: Callable[[], None],
        on_result: Callable[[IterationResult], None],
    ) -> None:
        self.session = session
        self.updater = updater
        self.marks = marks
        self.records = records
        self._context = context
        self._layout_hash = layout_hash
        self.barrier = barrier
        self._on_result = on_result

    def run(self, iteration: int) -> None:
        """Iteration t from HEADER(t), which is durable, to HEADER(t+1)."""
        self._reach(Point.HEADER, iteration)
        self.session.compute(
            iteration,
            before_forward=lambda: self._reach(Point.FORWARD, iteration),
            after_backward=lambda: self._reach(Point.BACKWARD, iteration),
        )
        post = self._protect(iteration)
        self.barrier()  # INV-G: nobody writes model state before every rank's gradients are covered
        self._reach(Point.AFTER_BARRIER, iteration)
        self.begin(iteration)
        self.update(post)
        self.record(post.next_header())

    def _protect(self, iteration: int) -> Post:
        """The values of the update and gradient parity become durable: GRADS_PROTECTED(t)."""
        values, result = self.session.prepare_update(iteration)
        self._mark(Phase.OWNED, iteration, Point.OWNED)
        self.updater.protect_gradients(iteration)
        self._reach(Point.GRADIENT_PARITY, iteration)
        post = Post(
            iteration=iteration,
            layout_hash=self._layout_hash,
            next_live=self.session.live_state(),
            values=values,
            result=result,
        )
        self.records.write_post(post)
        self._mark(Phase.POST, iteration, Point.POST)
        self._mark(Phase.GRADS_PROTECTED, iteration, Point.BEFORE_BARRIER)
        return post

    def begin(self, iteration: int) -> None:
        """BEGIN(t) is durable before this rank's first write of model state (INV-B)."""
        self._mark(Phase.BEGIN, iteration, Point.BEGIN)

    def update(self, post: Post) -> None:
        """What is left of the update, from the marks; then COMPLETE(t)."""
        self.updater.run(post.values, self.marks.progress())
        self._mark(Phase.COMPLETE, post.iteration, Point.COMPLETE)

    def derive(self, live: LiveState, iteration: int) -> None:
        """Step tensors and derived parameters from the masters: after every update, and in every recovery (U22). Collective."""
        self.session.set_applied_steps(live.applied_steps)
        self.session.cast_derived()
        self._reach(Point.CAST, iteration)
        self.session.gather_derived()
        self._reach(Point.GATHER, iteration)

    def record(self, header: Header) -> None:
        """From COMPLETE(t) to HEADER(t+1): derive, ledger(t), HEADER(t+1), lend. ``header`` is HEADER(t+1)."""
        iteration = header.iteration - 1
        self.derive(header.live, iteration)
        self.tell(header)
        self._reach(Point.LEDGER, iteration)
        self.records.write_header(header)
        self._reach(Point.NEXT_HEADER, iteration)
        self.marks.phase(Phase.HEADER, header.iteration)
        self.updater.lend()

    def tell(self, header: Header) -> None:
        """Record the results of t = header.iteration - 1. Idempotent: a recovery records the same t again (U28)."""
        if header.previous is None:
            return
        live = self.session.live_state()
        if live != header.live:
            raise ProtocolViolation(f"live state moved between POST({header.iteration - 1}) and HEADER({header.iteration})")
        view = View(result=header.previous, live=live, session=self.session)
        for listen in self._context.on_iteration:
            listen(view)
        self._on_result(header.previous)

    def _mark(self, phase: Phase, iteration: int, point: Point) -> None:
        self.marks.phase(phase, iteration)
        self._reach(point, iteration)

    def _reach(self, point: Point, iteration: int) -> None:
        self._context.failpoints.reach(point, Site(iteration=iteration))
