"""Carries repair plans out: one function per kind of operation, no policy (``leto.core.repair``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from leto.core.geometry import CodedGeometry, GradientGeometry, Page
from leto.core.layout import PageClass
from leto.core.markers import Progress
from leto.core.recovery import Action, Decision
from leto.core.repair import (
    CopyPages,
    EncodeRows,
    Reconstruct,
    RepairOperation,
    RepairPlan,
    XorPages,
    plan_repair,
    refuse_lost_records,
)
from leto.device.base import CodeShape, Kernels
from leto.update.executor import RetainedAddresses
from leto.update.record_slots import RecordSlots
from leto.update.scratch import ScratchPages


def rebuild(
    retained: RetainedAddresses,
    kernels: Kernels,
    *,
    coded: CodedGeometry,
    gradients: GradientGeometry,
    classes: Mapping[str, PageClass],
    records: RecordSlots,
    decision: Decision,
    progress: Progress,
    lost: AbstractSet[Page],
    acknowledge: Callable[[], None],
) -> RepairPlan:
    """What ``decision`` needs of a rank's lost pages, then ``acknowledge``: marks go when all of it is done (U19, U36).

    Raises Unrecoverable, before anything is written, when more is lost than the parity solves.
    """
    plan = plan_repair(
        coded=coded,
        gradients=gradients,
        classes=classes,
        action=decision.action,
        target=decision.target,
        progress=progress,
        lost=lost,
        skipped=decision.action is Action.FINISH and _is_skipped(records, decision.target, classes, lost),
    )
    RepairExecutor(retained, kernels, CodeShape.of(coded.protection)).run(plan.operations)
    acknowledge()
    return plan


def _is_skipped(records: RecordSlots, target: int, classes: Mapping[str, PageClass], lost: AbstractSet[Page]) -> bool:
    refuse_lost_records(classes, lost)
    return records.read_post(target).values.skipped


class RepairExecutor:
    """Writes the lost pages of a plan, in its order, and nothing else.

    Raises Unrecoverable when a spare parity row contradicts what was solved (U16): the pages then stay marked as lost.
    Acknowledge them only when everything has run.
    """

    def __init__(self, retained: RetainedAddresses, kernels: Kernels, shape: CodeShape) -> None:
        self._retained = retained
        self._kernels = kernels
        self._shape = shape

    def run(self, operations: Iterable[RepairOperation]) -> None:
        for operation in operations:
            match operation:
                case XorPages():
                    self._xor(operation)
                case Reconstruct():
                    self._reconstruct(operation)
                case EncodeRows():
                    self._encode_rows(operation)
                case CopyPages():
                    self._kernels.copy_pages(
                        self._addresses(operation.source), self._addresses(operation.target), self._shape.page_bytes
                    )

    def _xor(self, op: XorPages) -> None:
        target = self._retained.page_address(op.target)
        self._kernels.xor_pages(self._addresses(op.sources), target, self._shape.page_bytes)

    def _reconstruct(self, op: Reconstruct) -> None:
        self._kernels.reconstruct(
            self._shape,
            [placed.column for placed in op.data],
            self._addresses([placed.page for placed in op.data]),
            [placed.column for placed in op.target],
            self._addresses([placed.page for placed in op.target]),
            op.rows,
            self._addresses(op.parity),
        )

    def _encode_rows(self, op: EncodeRows) -> None:
        """Through scratch memory: encoding writes all rows, and the intact ones must stay whole if it dies half-way."""
        rows = ScratchPages(self._shape.tier1_pages, self._shape.page_bytes)
        columns = [placed.column for placed in op.data]
        self._kernels.encode(self._shape, columns, self._addresses([placed.page for placed in op.data]), rows.addresses)
        source = [rows.addresses[row] for row in op.rows]
        self._kernels.copy_pages(source, self._addresses(op.target), self._shape.page_bytes)

    def _addresses(self, pages: Sequence[Page]) -> list[int]:
        return [self._retained.page_address(page) for page in pages]
