"""Runs a plan on its lanes: the calling thread is COMPUTE, one more thread is COPY while ``run`` lasts (U35).

    enter      wait until the other lane has done what the operation depends on, and no halt is asked for
    perform    the operation and its mark; native kernels release the GIL, so the lanes really run beside each other
    leave      it is done: the other lane may wait for it

An operation for which a fault is armed halts the other lane first, at the boundary of an operation, until it returns: whoever
sees it parked reads marks that do not move (U50). The thread ends with the plan, so nothing forks and nothing detaches from
retained memory beside it (INV-F), and fencing needs no word about it: a process is gone when all its threads are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from leto.core.update_plan import Lane, Operation

LANE_TIMEOUT_S = 60.0
"""The longest that one operation may take while the other lane waits."""


class _OtherLaneFailed(BaseException):
    """Ends a lane at an operation that has written nothing yet."""


class Lanes:
    """One plan, once. A serial plan has one lane and makes no thread."""

    def __init__(self, plan: Sequence[Operation], *, timeout_s: float = LANE_TIMEOUT_S) -> None:
        self._queues = {lane: tuple(op for op in plan if op.lane is lane) for lane in Lane}
        self._count = len(plan)
        self._timeout_s = timeout_s
        self._changed = threading.Condition()  # guards everything below
        self._done: set[int] = set()
        self._inside: set[Lane] = set()  # lanes that are between enter and leave, and may write
        self._halts: set[Lane] = set()  # lanes whose operation wants the other one to stand still, until it returns
        self._failure: BaseException | None = None

    def run(self, perform: Callable[[Operation], None]) -> None:
        """Every operation once, in the order of its lane and after what it depends on.

        An exception of ``perform`` ends both lanes, each at the boundary of an operation, and is raised here. Raises
        TimeoutError when a lane waits for an operation that does not end; then a thread may be left inside one, and the process
        has to end.
        """
        copier = threading.Thread(target=self._lane, args=(Lane.COPY, perform), name="copy-lane", daemon=True)
        if self._queues[Lane.COPY]:
            copier.start()
        self._lane(Lane.COMPUTE, perform)
        if copier.ident is not None:
            copier.join(self._timeout_s)
        if copier.is_alive():
            raise TimeoutError(f"the copy lane did not end in {self._timeout_s:g} s") from self._failure
        if self._failure is not None:
            raise self._failure

    def halt(self, op: Operation) -> None:
        """Called by the thread that performs ``op``, before it has written anything: from now until ``op`` returns the other
        lane stands between two operations. Asking twice is asking once; if both lanes ask, one goes first."""
        with self._changed:
            self._halts.add(op.lane)
            self._inside.discard(op.lane)
            self._changed.notify_all()
            self._wait(op.lane, lambda: not self._inside)
            self._inside.add(op.lane)

    def _lane(self, lane: Lane, perform: Callable[[Operation], None]) -> None:
        try:
            for op in self._queues[lane]:
                self._enter(op)
                perform(op)
                self._leave(op)
            with self._changed:
                self._wait(lane, lambda: len(self._done) == self._count)
        except _OtherLaneFailed:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            self._stand_still(lane)

    def _enter(self, op: Operation) -> None:
        with self._changed:
            self._wait(op.lane, lambda: not self._halts and self._done.issuperset(op.depends_on))
            self._inside.add(op.lane)

    def _leave(self, op: Operation) -> None:
        with self._changed:
            self._done.add(op.index)
        self._stand_still(op.lane)

    def _stand_still(self, lane: Lane) -> None:
        with self._changed:
            self._inside.discard(lane)
            self._halts.discard(lane)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error

    def _wait(self, lane: Lane, ready: Callable[[], bool]) -> None:
        """The deadline starts again with every operation that ends. There is none while the other lane's is armed: it may stand
        parked, and whoever armed it holds it (``leto.update.parking``)."""
        done = len(self._done)
        while not self._changed.wait_for(lambda: self._failure is not None or ready(), self._timeout_s):
            if len(self._done) == done and not self._halts - {lane}:
                raise TimeoutError(f"no operation of the other lane ended in {self._timeout_s:g} s")
            done = len(self._done)
        if self._failure is not None:
            raise _OtherLaneFailed
