"""Carries update plans out: one method per kind of operation, no policy (paper 5.2, Pseudocode 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from leto.core.failpoints import Failpoints, Kernel, Park, Site
from leto.core.geometry import CODED_ARRAYS, ELEMENT_BYTES, CodedGeometry, Page, PlacedPage, Rule, Segment
from leto.core.layout import TIER2, UNDO, parity_slot, tier1
from leto.core.records import UpdateValues
from leto.core.update_plan import Operation, OpKind
from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment, CodeShape, Kernels
from leto.update.marks import Marks
from leto.update.pieces import Matrices, Muon

ChunkAdam = Callable[[AdamChunk, Park | None], None]
"""Updates a chunk's three arrays in place; an armed one parks with the chunk torn."""


@dataclass(frozen=True, kw_only=True)
class AdamHyper:
    """What is uniform over a run; learning rate and weight decay come from POST with every update."""

    beta1: float
    beta2: float
    eps: float


class RetainedAddresses(Protocol):
    """Where retained allocations are in this process; implemented by the pool's client."""

    def address(self, name: str) -> int: ...
    def page_address(self, page: Page) -> int: ...


@dataclass(frozen=True, kw_only=True)
class UpdateParts:
    """Everything an updater works with. ``gradient_address`` gives the fp32 gradient of a segment's first element.

    ``fused`` says that ``adam`` is the kernels' own, so that they may update a chunk and its parity in one pass.
    ``muon`` may be absent where the rank has no matrices that it updates.
    """

    coded: CodedGeometry
    retained: RetainedAddresses
    kernels: Kernels
    adam: ChunkAdam
    hyper: AdamHyper
    marks: Marks
    failpoints: Failpoints
    gradient_address: Callable[[Segment], int]
    fused: bool = False
    muon: Muon | None = None

    @property
    def shape(self) -> CodeShape:
        return CodeShape.of(self.coded.protection)

    def rows(self, allocation: str) -> list[int]:
        """Addresses of the parity rows of an allocation."""
        p = self.coded.protection
        base = self.retained.address(allocation)
        return [base + row * p.page_bytes for row in range(p.tier1_pages)]

    def tier2_page(self, group: int) -> int:
        return self.retained.address(TIER2) + group * self.coded.protection.page_bytes

    def undo_pages(self) -> list[int]:
        p = self.coded.protection
        return [self.retained.address(UNDO) + k * p.page_bytes for k in range(p.chunk_pages)]

    def addresses(self, pages: Sequence[PlacedPage]) -> list[int]:
        return [self.retained.page_address(p.page) for p in pages]


class PlanExecutor:
    """Runs the operations of one update, each on the thread that asks for it.

    ``before_armed`` is called with an operation for which a fault is armed, before it writes anything: it parks with whatever
    runs beside it (U50).
    """

    def __init__(
        self, parts: UpdateParts, values: UpdateValues, *, before_armed: Callable[[Operation], None] | None = None
    ) -> None:
        self._parts = parts
        self._values = values
        self._before_armed = before_armed
        self._matrices = Matrices(parts.coded, parts.retained.address, parts.gradient_address)
        self._run = {
            OpKind.FETCH: self._fetch,
            OpKind.SAVE_UNDO: self._save_undo,
            OpKind.RESTORE: self._restore,
            OpKind.UPDATE: self._update,
            OpKind.PARITY: self._parity,
            OpKind.UPDATE_AND_PARITY: self._update_and_parity,
            OpKind.COMMIT: self._commit,
            OpKind.WRITE_BACK: self._write_back,
            OpKind.TIER2: self._tier2,
        }

    def run(self, plan: Sequence[Operation]) -> None:
        """One after the other, in the order given."""
        for operation in plan:
            self.run_marked(operation)

    def run_marked(self, operation: Operation) -> None:
        self.run_unmarked(operation)
        if operation.publish is not None:
            self._parts.marks.publish(operation.publish.word, operation.publish.mark)

    def run_unmarked(self, operation: Operation) -> None:
        """The operation itself, without its mark."""
        self._run[operation.kind](operation)

    def _armed(self, kernel: Kernel, op: Operation) -> Park | None:
        site = Site(iteration=self._values.iteration, group=op.group, chunk=op.chunk)
        park = self._parts.failpoints.arm(kernel, site)
        if park is not None and self._before_armed is not None:
            self._before_armed(op)
        return park

    def _copy(self, kernel: Kernel, op: Operation, source: Sequence[int], target: Sequence[int]) -> None:
        page_bytes = self._parts.coded.protection.page_bytes
        self._parts.kernels.copy_pages(source, target, page_bytes, self._armed(kernel, op))

    def _fetch(self, op: Operation) -> None:
        parts = self._parts
        self._copy(Kernel.PARITY_FETCH, op, parts.rows(tier1(op.group)), parts.rows(parity_slot(op.target_slot)))

    def _save_undo(self, op: Operation) -> None:
        self._copy(Kernel.UNDO_SAVE, op, self._chunk_pages(op), self._parts.undo_pages())

    def _restore(self, op: Operation) -> None:
        self._copy(Kernel.UNDO_RESTORE, op, self._parts.undo_pages(), self._chunk_pages(op))

    def _update(self, op: Operation) -> None:
        chunk = _chunk_of(op)
        rule = self._parts.coded.region_of(chunk).rule
        if rule is Rule.ADAMW:
            self._parts.adam(self._adam_chunk(chunk), self._armed(Kernel.ADAM, op))
        else:
            self._muon(rule, op)

    def _muon(self, rule: Rule, op: Operation) -> None:
        """Masters are applied from momentum that is committed: all of it lies in chunks before them (U32)."""
        muon, pieces = self._parts.muon, self._matrices.pieces(_chunk_of(op), self._values)
        assert muon is not None, op
        if rule is Rule.MUON_MOMENTUM:
            muon.momentum(pieces, self._armed(Kernel.MUON_MOMENTUM, op))
        else:
            muon.apply(pieces, self._armed(Kernel.MUON_APPLY, op))

    def _parity(self, op: Operation) -> None:
        parts = self._parts
        pages = parts.coded.chunk_pages(_chunk_of(op))
        parts.kernels.update_parity(
            parts.shape,
            [p.column for p in pages],
            parts.undo_pages(),
            parts.addresses(pages),
            parts.rows(parity_slot(op.source_slot)),
            parts.rows(parity_slot(op.target_slot)),
            self._armed(Kernel.RS_UPDATE, op),
        )

    def _update_and_parity(self, op: Operation) -> None:
        parts, chunk = self._parts, _chunk_of(op)
        parts.kernels.update_chunk(
            parts.shape,
            [p.column for p in parts.coded.chunk_pages(chunk)],
            self._adam_chunk(chunk),
            parts.rows(parity_slot(op.source_slot)),
            parts.rows(parity_slot(op.target_slot)),
            adam_park=self._armed(Kernel.ADAM, op),
            parity_park=self._armed(Kernel.RS_UPDATE, op),
        )

    def _commit(self, op: Operation) -> None:
        """Nothing to do: publishing the mark is the commit, and it makes the target slot speak."""

    def _write_back(self, op: Operation) -> None:
        parts = self._parts
        self._copy(Kernel.PARITY_WRITEBACK, op, parts.rows(parity_slot(op.source_slot)), parts.rows(tier1(op.group)))

    def _tier2(self, op: Operation) -> None:
        parts = self._parts
        if not parts.coded.protection.tier2_pages:
            return
        source = parts.rows(parity_slot(op.source_slot))  # Q, not H: a torn H must never reach tier 2 (U17)
        page_bytes = parts.coded.protection.page_bytes
        parts.kernels.xor_pages(source, parts.tier2_page(op.group), page_bytes, self._armed(Kernel.TIER2, op))

    def _chunk_pages(self, op: Operation) -> list[int]:
        return self._parts.addresses(self._parts.coded.chunk_pages(_chunk_of(op)))

    def _adam_chunk(self, chunk: int) -> AdamChunk:
        parts = self._parts
        first, _ = parts.coded.chunk_range(chunk)
        master, m, v = (parts.retained.address(name) + first * ELEMENT_BYTES for name in CODED_ARRAYS)
        return AdamChunk(
            master_address=master,
            exp_avg_address=m,
            exp_avg_sq_address=v,
            segments=tuple(self._adam_segment(s) for s in parts.coded.chunk_segments(chunk)),
        )

    def _adam_segment(self, segment: Segment) -> AdamSegment:
        values, hyper = self._values, self._parts.hyper
        lr, weight_decay = values.learning_rates[segment.optimizer][segment.param_group]
        return AdamSegment(
            count=segment.count,
            gradient_address=self._parts.gradient_address(segment),
            coefficients=AdamCoefficients(
                lr=lr,
                weight_decay=weight_decay,
                beta1=hyper.beta1,
                beta2=hyper.beta2,
                eps=hyper.eps,
                step=values.applied_step,
                clip=float.fromhex(values.clip) if values.clip else None,
            ),
        )


def _chunk_of(op: Operation) -> int:
    assert op.chunk is not None, op
    return op.chunk
