"""The control: retained memory without the resumable updater (U52; the paper's RMP without RMU).

The update happens in place and parity is encoded afterwards; no undo, no marks inside the update, so a failure restarts the
iteration on whatever is there. A scenario that kills inside the update must catch this.
"""

from __future__ import annotations

from leto.core.failpoints import Kernel, Park, Site
from leto.core.geometry import GradientGeometry
from leto.core.hooks import TrainerContext
from leto.core.layout import tier1
from leto.core.markers import Progress
from leto.core.records import Post, UpdateValues
from leto.core.update_plan import OpKind, plan_update
from leto.runtime.iteration import IterationRunner
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.updater import ChunkUpdater


class InPlaceUpdater(ChunkUpdater):
    """Chunks are updated in place, then every group is encoded anew. Faults aimed at parity park in that encoding."""

    def __init__(self, parts: UpdateParts, gradients: GradientGeometry) -> None:
        super().__init__(parts, gradients)
        self._parts = parts

    def protect_gradients(self, iteration: int) -> None:
        """Without an updater nobody needs gradients to survive."""

    def run(self, values: UpdateValues, progress: Progress) -> None:
        whole = plan_update(self._parts.coded, values.iteration, progress, skipped=values.skipped)
        updates = [op for op in whole if op.kind is OpKind.UPDATE]
        executor = PlanExecutor(self._parts, values)
        for op in updates:
            executor.run_unmarked(op)
        for group in range(self._parts.coded.group_count if updates else 0):
            self._encode_afterwards(values.iteration, group)

    def _encode_afterwards(self, iteration: int, group: int) -> None:
        parts = self._parts
        pages = parts.coded.group_pages(group)
        park = self._armed(iteration, group)
        parts.kernels.encode(parts.shape, [p.column for p in pages], parts.addresses(pages), parts.rows(tier1(group)), park)
        if parts.coded.protection.tier2_pages:
            page_bytes = parts.coded.protection.page_bytes
            parts.kernels.xor_pages(parts.rows(tier1(group)), parts.tier2_page(group), page_bytes)

    def _armed(self, iteration: int, group: int) -> Park | None:
        """A fault aimed at any parity operation of the group."""
        failpoints = self._parts.failpoints
        for chunk in self._parts.coded.chunks_of(group):
            park = failpoints.arm(Kernel.RS_UPDATE, Site(iteration=iteration, group=group, chunk=chunk))
            if park is not None:
                return park
        return failpoints.arm(Kernel.PARITY_WRITEBACK, Site(iteration=iteration, group=group))


def restart_only(context: TrainerContext) -> None:
    """Plugin: neither BEGIN nor COMPLETE is published, so every failure restarts the iteration."""

    def begin(self: IterationRunner, iteration: int) -> None:
        return None

    def update(self: IterationRunner, post: Post) -> None:
        self.updater.run(post.values, self.marks.progress())

    IterationRunner.begin = begin  # type: ignore[method-assign]
    IterationRunner.update = update  # type: ignore[method-assign]


UPDATER = f"{__name__}:{InPlaceUpdater.__name__}"
PLUGIN = f"{__name__}:{restart_only.__name__}"
