"""The Resumable Model Updater of one rank (paper 5.2): gradient parity, the update, lending, and the parity audit.

Order of one update (U49): protect_gradients -> POST, GRADS_PROTECTED, barrier, BEGIN (the trainer's) -> run -> COMPLETE.
"""

from __future__ import annotations

from leto.core.failpoints import Kernel, Site
from leto.core.geometry import GradientGeometry
from leto.core.hooks import ParityAudit
from leto.core.layout import UNDO, gradient_parity, parity_slot, tier1
from leto.core.markers import Progress
from leto.core.records import UpdateValues
from leto.core.update_plan import plan_update
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.lanes import Lanes
from leto.update.scratch import ScratchPages

LENT_PATTERN = 0xDEADBEEF
"""Lent buffers are scribbled over, so that a recovery that trusts them is caught (U47)."""


class ChunkUpdater:
    """Chunk transactions that commit model state and parity together."""

    def __init__(self, parts: UpdateParts, gradients: GradientGeometry) -> None:
        self._parts = parts
        self._gradients = gradients

    def protect_gradients(self, iteration: int) -> None:
        """R_i <- RS(G) for every gradient group (lines 2-3). Before GRADS_PROTECTED(t) (U3b)."""
        parts = self._parts
        for group in range(self._gradients.group_count):
            pages = self._gradients.group_pages(group)
            parts.kernels.encode(
                parts.shape,
                [p.column for p in pages],
                parts.addresses(pages),
                parts.rows(gradient_parity(group)),
                parts.failpoints.arm(Kernel.RS_ENCODE, Site(iteration=iteration, group=group)),
            )

    def run(self, values: UpdateValues, progress: Progress) -> None:
        """Everything that is still to do of the update, from where ``progress`` says it stopped (lines 5-12)."""
        parts = self._parts
        plan = plan_update(parts.coded, values.iteration, progress, skipped=values.skipped, fused=parts.fused)
        lanes = Lanes(plan)
        lanes.run(PlanExecutor(parts, values, before_armed=lanes.halt).run_marked)

    def encode_state(self) -> None:
        """Both tiers from the data, for a cold start (U53)."""
        parts = self._parts
        for group in range(parts.coded.group_count):
            self._encode_group(group, parts.rows(tier1(group)))
            if parts.coded.protection.tier2_pages:
                page_bytes = parts.coded.protection.page_bytes
                parts.kernels.xor_pages(parts.rows(tier1(group)), parts.tier2_page(group), page_bytes)

    def lend(self) -> None:
        """From HEADER(t+1) to OWNED(t+1) the buffers belong to the compute phase (U13); the host scribbles over them (U47)."""
        p = self._parts.coded.protection
        rows_bytes = p.tier1_pages * p.page_bytes
        sizes = {UNDO: p.chunk_pages * p.page_bytes}
        sizes |= {parity_slot(slot): rows_bytes for slot in range(p.parity_slots)}
        sizes |= {gradient_parity(group): rows_bytes for group in range(self._gradients.group_count)}
        for name, byte_count in sizes.items():
            self._parts.kernels.fill(self._parts.retained.address(name), byte_count, LENT_PATTERN)

    def audit(self) -> ParityAudit:
        """Compare both tiers with a re-encoding of the data (U55). Valid between updates, when H speaks for every group."""
        parts = self._parts
        p = parts.coded.protection
        scratch = ScratchPages(p.tier1_pages + 1, p.page_bytes)
        *rows, tier2 = scratch.addresses
        tier1_wrong, tier2_wrong = [], []
        for group in range(parts.coded.group_count):
            self._encode_group(group, rows)
            if parts.kernels.equal_pages(rows, parts.rows(tier1(group)), p.page_bytes):
                tier1_wrong.append(group)
            if p.tier2_pages:
                parts.kernels.xor_pages(rows, tier2, p.page_bytes)
                if parts.kernels.equal_pages([tier2], [parts.tier2_page(group)], p.page_bytes):
                    tier2_wrong.append(group)
        return ParityAudit(groups=parts.coded.group_count, tier1_wrong=tuple(tier1_wrong), tier2_wrong=tuple(tier2_wrong))

    def _encode_group(self, group: int, target: list[int]) -> None:
        parts = self._parts
        pages = parts.coded.group_pages(group)
        parts.kernels.encode(parts.shape, [p.column for p in pages], parts.addresses(pages), target)
