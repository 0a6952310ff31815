"""Planted bugs in the repair of lost pages: which parity speaks, in which columns, within which budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.explore import job
from chaos.planted.in_update import before_the_first_commit
from chaos.planted.planting import Patch, planted, skip
from leto.core import repair
from leto.core.geometry import CODED_ARRAYS, PlacedPage
from leto.core.layout import TIER2, parity_slot, tier1
from leto.device.host_kernels import HostKernels
from leto.update import repair as executed
from leto.update.repair import RepairExecutor


@planted("U10", explored="bytes or spare row")
def tier_1_trusted_after_a_commit(patch: Patch) -> None:
    """Lost pages are solved from tier 1 although a chunk of their group has been committed since."""

    def trusting(standing: Any) -> Any:
        return lambda coded, group, progress: replace(standing(coded, group, progress), speaking=tier1(group), tiers_hold=True)

    patch.wrap(repair, "_standing", trusting)


@planted("U10", explored="bytes or spare row")
def swap_forgotten_in_repair(patch: Patch) -> None:
    """Lost pages are solved from the buffer that the group was fetched into, whichever speaks."""
    patch.wrap(repair, "speaking_slot", before_the_first_commit)


@planted("U13", explored="bytes or spare row")
def lent_buffers_trusted(patch: Patch) -> None:
    """Between two updates lost pages are solved from the parity buffer, which is lent to the compute phase."""
    patch.wrap(repair, "_at_rest", lambda at_rest: lambda group: replace(at_rest(group), speaking=parity_slot(0)))


@planted("U19", explored="bytes", process="exact")
def zero_fill(patch: Patch) -> None:
    """A lost page is taken as zeros: repair acknowledges it without rebuilding it."""
    patch.set(RepairExecutor, "run", skip)


@planted("U36", explored="bytes or INV-P")
def marks_cleared_before_the_rebuild(patch: Patch) -> None:
    """Marks of lost pages are cleared before the pages are rebuilt, so that a second failure takes zeros for state."""

    def cleared(rebuild: Any) -> Any:
        def first(*arguments: Any, acknowledge: Callable[[], None], **options: Any) -> Any:
            acknowledge()
            return rebuild(*arguments, acknowledge=acknowledge, **options)

        return first

    patch.wrap(job, "rebuild", cleared)


@planted("U16", explored="refusal", kernel="spare rows")
def spare_rows_not_checked(patch: Patch) -> None:
    """Lost pages are solved from as many rows as are needed, and the others are not compared."""

    def fewest(reconstruct: Any) -> Any:
        def without_spare_rows(self: HostKernels, *arguments: Any) -> None:
            *before, target, rows, parity = arguments
            reconstruct(self, *before, target, rows[: len(target)], parity[: len(target)])

        return without_spare_rows

    patch.wrap(HostKernels, "reconstruct", fewest)


@planted("U6", explored="bytes or spare row")
def undo_in_other_columns(patch: Patch) -> None:
    """Pages of the undo buffer are solved in columns of other pages of their chunk."""

    def wrong(boundary: Any) -> Any:
        def turned(self: Any, group: int, standing: Any) -> tuple[PlacedPage, ...]:
            pages = boundary(self, group, standing)
            own = [n for n, placed in enumerate(pages) if placed.page.allocation not in CODED_ARRAYS]
            columns = {n: pages[own[-1 - k]].column for k, n in enumerate(own)}
            return tuple(PlacedPage(columns.get(n, placed.column), placed.page) for n, placed in enumerate(pages))

        return turned

    patch.wrap(repair._Planner, "_boundary_pages", wrong)


@planted("U6", explored="bytes or spare row")
def in_flight_solved_as_committed(patch: Patch) -> None:
    """Pages of the chunk in flight count as the last boundary, and those of the undo buffer as nothing."""
    patch.wrap(repair, "_standing", lambda standing: lambda *arguments: replace(standing(*arguments), in_flight=None))


@planted("U8", explored="bytes or spare row")
def rows_encoded_in_place(patch: Patch) -> None:
    """Lost parity rows are encoded over the intact ones, which a second crash then leaves torn."""

    def encode_rows(self: RepairExecutor, op: repair.EncodeRows) -> None:
        rows = [replace(op.target[0], page_index=row) for row in range(self._shape.tier1_pages)]
        columns = [placed.column for placed in op.data]
        data = self._addresses([placed.page for placed in op.data])
        self._kernels.encode(self._shape, columns, data, self._addresses(rows))

    patch.set(RepairExecutor, "_encode_rows", encode_rows)


@planted("U8", explored="refusal")
def one_page_too_many_is_tried(patch: Patch) -> None:
    """The budget allows one page more than the parity solves, where no row of it is lost."""
    patch.set(repair.Budget, "spare_rows", property(lambda b: b.rows - b.lost_rows - b.lost_pages + (not b.lost_rows)))


@planted("U16", explored="refused")
def last_row_kept_for_the_check(patch: Patch) -> None:
    """The budget keeps a row back to check the solution with, and refuses what the parity could solve."""
    patch.set(repair.Budget, "spare_rows", property(lambda b: b.rows - b.lost_rows - b.lost_pages - 1))


@planted("U18", explored="bytes")
def tier_2_not_rebuilt(patch: Patch) -> None:
    """A lost page of tier 2 stays zeros."""

    def only_rows(xor: Any) -> Any:
        return lambda self, op: None if op.target.allocation == TIER2 else xor(self, op)

    patch.wrap(RepairExecutor, "_xor", only_rows)


@planted("U8", explored="bytes")
def fetched_copy_not_restored(patch: Patch) -> None:
    """A fetched parity buffer that was lost is not fetched again."""
    patch.set(repair._Planner, "_copy_rows", skip)


@planted("U11", explored="bytes or INV-G")
def gradients_not_rebuilt(patch: Patch) -> None:
    """Lost gradients of an update that goes on are left as zeros."""
    patch.set(repair._Planner, "gradient_group", skip)


@planted("U25", skipping="refused")
def skipped_step_needs_gradients(patch: Patch) -> None:
    """Repair asks for the gradients of an update that was skipped, and refuses where they are gone."""
    patch.wrap(executed, "plan_repair", lambda plan: lambda **options: plan(**{**options, "skipped": False}))
