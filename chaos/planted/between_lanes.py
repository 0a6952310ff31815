"""What must hold between the two lanes of an update, tried with operations that only watch each other (U35, U50)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from leto.core.update_plan import Lane, Operation, OpKind
from leto.update.lanes import Lanes

SOON_S = 0.5
"""How long something that must not happen is waited for."""
_STEP_S = 0.002
_COPIES = 100


def _operation(index: int, lane: Lane, *depends_on: int) -> Operation:
    kind = OpKind.UPDATE if lane is Lane.COMPUTE else OpKind.WRITE_BACK
    return Operation(index=index, kind=kind, group=0, lane=lane, depends_on=depends_on)


def _an_operation_waits_for_the_other_lane() -> bool:
    """What it depends on takes its time, and it has not begun by then."""
    awaited, waiting = _operation(0, Lane.COPY), _operation(1, Lane.COMPUTE, 0)
    began = threading.Event()
    early: list[bool] = []

    def perform(op: Operation) -> None:
        if op is waiting:
            began.set()
        else:
            early.append(began.wait(SOON_S))

    Lanes((awaited, waiting)).run(perform)
    return early == [False]


def _an_armed_operation_stands_alone() -> bool:
    """No operation of the other lane begins while it stands parked."""
    armed = _operation(0, Lane.COMPUTE)
    copies = [_operation(1 + n, Lane.COPY) for n in range(_COPIES)]
    parked, gone, moved = threading.Event(), threading.Event(), threading.Event()
    lanes = Lanes((armed, *copies))

    def perform(op: Operation) -> None:
        if op is armed:
            lanes.halt(op)
            parked.set()
            moved.wait(SOON_S)
            gone.set()
        elif parked.wait(_STEP_S) and not gone.is_set():
            moved.set()

    lanes.run(perform)
    return not moved.is_set()


PROMISES: dict[str, Callable[[], bool]] = {
    "order of lanes": _an_operation_waits_for_the_other_lane,
    "halted lane": _an_armed_operation_stands_alone,
}
