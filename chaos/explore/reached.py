"""What an exploration must have seen. A mark that is never reached fails the command: the explorer was blind there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chaos.explore.losses import NONE, Loss
from leto.core.geometry import MOMENTUM_BUFFER, PIPELINED_SLOTS, CodedGeometry, Rule
from leto.core.layout import TIER2, UNDO, parity_slot
from leto.core.recovery import Action, Decision, Row
from leto.core.repair import CopyPages, EncodeRows, Reconstruct, RepairPlan, XorPages

if TYPE_CHECKING:
    from chaos.explore.cases import Again, Point
    from chaos.explore.explorer import Explorer, Mirrors
    from chaos.explore.job import Job
    from chaos.explore.tape import Frame

REFUSED = "refused at H1 + 1"
REFUSED_RECORDS = "refused without a record"
REFUSED_MIRRORS = "refused without any mirror of a rank"
LOST_MIRROR = "went on from the mirrors that were left"
LOST_NEWEST = "lost every mirror that had the newest mark"
TWO_SPEAK = "two parity slots spoke"
SKIPPED = "a skipped step was finished"
AGENT_IN_RECORD = "an agent died in a decision record"
AGENT_IN_CARRY = "an agent died with words half carried over"
REFUSED_BY_SPARE_ROW = "refused by a spare row"
TORN_CHUNK = "rolled back a torn chunk"
TORN_WITH_PARITY = "rolled back a chunk torn together with its parity"
TORN_MOMENTUM = "rolled back a torn chunk of Muon's momentum"
TORN_MASTERS = "rolled back a torn chunk of Muon's masters"
WITHIN_MATRIX = "went on with a matrix whose direction is computed again"
ONE_MIRROR = "a mark stood in one mirror only"
AGAIN_IN_REPAIR = "died again inside a repair"
AGAIN_IN_UPDATE = "died again inside the update"
AGAIN_RANK_1 = "the other rank died again"
AGAIN_LOST = "lost more pages before the first were rebuilt"
DIFFERENT_ROWS = "two ranks resumed in different rows"
SPEAKS = tuple(f"{parity_slot(slot)} spoke" for slot in range(PIPELINED_SLOTS))
ROW_BY_TIER2 = "rebuilt a tier-1 row from tier 2"
TIER2_BY_ROWS = "rebuilt tier 2 from its rows"
BY_SLOT = "rebuilt data from a parity slot"
BY_TIER1 = "rebuilt data from tier 1"
OF_UNDO = "rebuilt undo pages in the columns they stand for"
OF_MOMENTUM = "rebuilt Muon's momentum"
GRADIENTS = "rebuilt gradients"
ROWS_AGAIN = "encoded lost rows again"
FETCHED_COPY = "copied a fetched buffer again"
CHECKED = "checked by spare rows"
UNCHECKED = "solved with no spare row"
LEFT = "left lost pages of which nothing is needed"

_TORN = {
    "adam": TORN_CHUNK,
    "adam+rs-update": TORN_WITH_PARITY,
    "muon-momentum": TORN_MOMENTUM,
    "muon-apply": TORN_MASTERS,
}
"""By the step in which a chunk is torn."""

REPAIR_STEPS = ("reconstruct", "copy", "xor", "encode")
"""How the names of steps of a repair begin."""

REQUIRED = (
    *(f"decided {action.value}" for action in (Action.COLD, Action.RESTART, Action.FINISH, Action.ENDED)),
    *(f"resumed by {row.value}" for row in Row),
    *(TORN_CHUNK, TORN_WITH_PARITY, ONE_MIRROR, AGAIN_IN_REPAIR, AGAIN_IN_UPDATE, DIFFERENT_ROWS, *SPEAKS),
    *(ROW_BY_TIER2, TIER2_BY_ROWS, BY_SLOT, BY_TIER1, OF_UNDO, GRADIENTS, ROWS_AGAIN, FETCHED_COPY),
    *(CHECKED, UNCHECKED, LEFT, REFUSED, REFUSED_BY_SPARE_ROW, REFUSED_RECORDS, REFUSED_MIRRORS),
    *(TORN_MOMENTUM, TORN_MASTERS, WITHIN_MATRIX, OF_MOMENTUM),
    *(LOST_MIRROR, LOST_NEWEST, TWO_SPEAK, SKIPPED, AGENT_IN_RECORD, AGENT_IN_CARRY, AGAIN_RANK_1, AGAIN_LOST),
)


def at_crash(explorer: Explorer, points: tuple[Point, Point], mirrors: Mirrors, decision: Decision) -> set[str]:
    if decision.action is Action.CHECKPOINT:
        return {REFUSED_MIRRORS}
    marks = {f"decided {decision.action.value}"}
    for number, (point, lost) in enumerate(zip(points, mirrors, strict=True)):
        frame = explorer.frame(number, point)
        if decision.action is Action.FINISH:
            marks |= set(_torn(frame, point.state))
        marks |= {ONE_MIRROR for lane in frame.states[point.state] if lane.mirrors == 1}
        if lost:
            marks.add(LOST_MIRROR if frame.seen(point.state, lost) == point.state else LOST_NEWEST)
        if decision.action is Action.FINISH:
            account = explorer.job.invariants.accounts[number]
            marks |= {f"{slot} spoke" for slot in account.speaks.values()}
            marks |= {TWO_SPEAK} if len(account.speaks) > 1 else set()
            marks |= {WITHIN_MATRIX} if _within_matrix(explorer.plan.coded, account.in_flight) else set()
    if decision.action is Action.FINISH and decision.target in explorer.shape.skips:
        marks.add(SKIPPED)
    return marks


def _torn(frame: Frame, state: int) -> Iterator[str]:
    for name, lane in zip(frame.names, frame.states[state], strict=True):
        kernel = name.partition(" ")[0]
        if lane.progress is not None and kernel in _TORN:
            yield _TORN[kernel]


def _within_matrix(coded: CodedGeometry, in_flight: int | None) -> bool:
    """Whether masters of a matrix are committed up to the chunk in flight, and the rest of it is in that chunk."""
    if not coded.matrices or in_flight is None:
        return False
    region = coded.region_of(in_flight)
    first, _ = region.range_of(in_flight)
    return region.rule is Rule.MUON_APPLY and all(first != matrix.first for matrix in coded.matrices)


def at_hand_over(step: str) -> set[str]:
    return {AGENT_IN_RECORD if step.startswith("decision") else AGENT_IN_CARRY}


def at_refusal(loss: Loss) -> set[str]:
    if loss.corrupt is not None:
        return {REFUSED_BY_SPARE_ROW}
    return {REFUSED_RECORDS if str(loss.refused).endswith("no parity") else REFUSED}


def at_second_crash(again: Again, step: str) -> set[str]:
    marks = {AGAIN_RANK_1} if again.rank == 1 else set()
    if step.startswith(REPAIR_STEPS):
        return marks | {AGAIN_IN_REPAIR} | ({AGAIN_LOST} if again.loss != NONE else set())
    return marks | ({AGAIN_IN_UPDATE} if step.startswith(("adam", "muon", "undo-restore", "rs-update")) else set())


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
    if any(placed.page.allocation == MOMENTUM_BUFFER for placed in operation.target):
        yield OF_MOMENTUM
