"""What an exploration must have seen. A mark that is never reached fails the command: the explorer was blind there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leto.core.geometry import SERIAL_SLOTS
from leto.core.layout import TIER2, UNDO, parity_slot
from leto.core.recovery import Action, Decision, Row
from leto.core.repair import CopyPages, EncodeRows, Reconstruct, RepairPlan, XorPages

if TYPE_CHECKING:
    from chaos.explore.cases import Case
    from chaos.explore.explorer import Explorer
    from chaos.explore.job import Job

REFUSED = "refused at H1 + 1"
REFUSED_BY_SPARE_ROW = "refused by a spare row"
TORN_CHUNK = "rolled back a torn chunk"
ONE_MIRROR = "a mark stood in one mirror only"
AGAIN_IN_REPAIR = "died again inside a repair"
AGAIN_IN_UPDATE = "died again inside the update"
DIFFERENT_ROWS = "two ranks resumed in different rows"
SPEAKS = tuple(f"{parity_slot(slot)} spoke" for slot in range(SERIAL_SLOTS))
ROW_BY_TIER2 = "rebuilt a tier-1 row from tier 2"
TIER2_BY_ROWS = "rebuilt tier 2 from its rows"
BY_SLOT = "rebuilt data from a parity slot"
BY_TIER1 = "rebuilt data from tier 1"
OF_UNDO = "rebuilt undo pages in the columns they stand for"
GRADIENTS = "rebuilt gradients"
ROWS_AGAIN = "encoded lost rows again"
FETCHED_COPY = "copied a fetched buffer again"
CHECKED = "checked by spare rows"
UNCHECKED = "solved with no spare row"
LEFT = "left lost pages of which nothing is needed"

REPAIR_STEPS = ("reconstruct", "copy", "xor", "encode")
"""How the names of steps of a repair begin."""

REQUIRED = (
    *(f"decided {action.value}" for action in (Action.COLD, Action.RESTART, Action.FINISH, Action.ENDED)),
    *(f"resumed by {row.value}" for row in Row),
    *(TORN_CHUNK, ONE_MIRROR, AGAIN_IN_REPAIR, AGAIN_IN_UPDATE, DIFFERENT_ROWS, *SPEAKS),
    *(ROW_BY_TIER2, TIER2_BY_ROWS, BY_SLOT, BY_TIER1, OF_UNDO, GRADIENTS, ROWS_AGAIN, FETCHED_COPY),
    *(CHECKED, UNCHECKED, LEFT, REFUSED, REFUSED_BY_SPARE_ROW),
)


def at_crash(explorer: Explorer, case: Case, decision: Decision) -> set[str]:
    marks = {f"decided {decision.action.value}"}
    for number, point in enumerate(case.points):
        frame = explorer.frame(number, point)
        state = frame.states[point.state]
        account = explorer.job.invariants.accounts[number]
        if frame.name.startswith("adam") and state.progress is not None and decision.action is Action.FINISH:
            marks.add(TORN_CHUNK)
        if state.mirrors == 1:
            marks.add(ONE_MIRROR)
        if decision.action is Action.FINISH:
            marks |= {f"{slot} spoke" for slot in account.speaks.values()}
    return marks


def at_second_crash(step: str) -> set[str]:
    if step.startswith(REPAIR_STEPS):
        return {AGAIN_IN_REPAIR}
    return {AGAIN_IN_UPDATE} if step.startswith(("adam", "undo-restore", "rs-update")) else set()


def at_the_end(job: Job) -> set[str]:
    rows = dict(job.rows)
    marks = {f"resumed by {row.value}" for row in rows.values()}
    if len(set(rows.values())) > 1:
        marks.add(DIFFERENT_ROWS)
    for _, plan in job.repairs:
        marks |= set(_of_repair(plan))
    return marks


def _of_repair(plan: RepairPlan) -> Iterator[str]:
    for budget in plan.budgets:
        yield CHECKED if budget.spare_rows else UNCHECKED
    if plan.left:
        yield LEFT
    for operation in plan.operations:
        match operation:
            case XorPages():
                yield TIER2_BY_ROWS if operation.target.allocation == TIER2 else ROW_BY_TIER2
            case EncodeRows():
                yield ROWS_AGAIN
            case CopyPages():
                yield FETCHED_COPY
            case Reconstruct() if operation.target:
                yield from _of_reconstruction(operation)


def _of_reconstruction(operation: Reconstruct) -> Iterator[str]:
    parity = operation.parity[0].allocation
    if parity.startswith("gradient-parity"):
        yield GRADIENTS
        return
    yield BY_TIER1 if parity.startswith("tier1") else BY_SLOT
    if any(placed.page.allocation == UNDO for placed in operation.target):
        yield OF_UNDO
