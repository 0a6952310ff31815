"""Bugs planted in the protocol must be found by the explorer within seconds: one that passes unseen means it is blind.

A bug that the job without crashes already betrays (an invariant does not hold on the way) counts as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from chaos.explore import job
from chaos.explore.campaign import Result, run_campaign
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.shapes import SHAPES
from chaos.targets import planted
from leto.core import recovery, repair, update_plan
from leto.core.geometry import CODED_ARRAYS, PlacedPage
from leto.core.layout import PageClass, tier1
from leto.core.markers import Phase, Progress
from leto.core.records import Header
from leto.core.update_plan import OpKind
from leto.device.host_kernels import HostKernels
from leto.runtime.iteration import IterationRunner
from leto.update.executor import PlanExecutor
from leto.update.record_slots import RecordSlots
from leto.update.repair import RepairExecutor
from leto.update.updater import ChunkUpdater

Patch = pytest.MonkeyPatch
CASES = 800


def explored() -> Result:
    try:
        explorer = Explorer(SHAPES["narrow"])
    except Failed as failure:
        return Result(shape="narrow", formula="", total=0, unlike_plan=str(failure))
    return run_campaign(explorer, exhaustive=False, points=CASES, seed=0, tick=lambda result: None)


def planted_in(patch: Patch, owner: type, names: tuple[str, ...], bug: Callable[[Any], None]) -> None:
    """A bug of ``chaos.targets.planted`` replaces these methods; they are put back when the test ends."""
    for name in names:
        patch.setattr(owner, name, getattr(owner, name))
    bug(None)


def undo_not_restored(patch: Patch) -> None:
    planted_in(patch, PlanExecutor, ("_restore",), planted.no_undo)


def undo_saved_again_when_resuming(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_restore", PlanExecutor._save_undo)


def undo_not_saved(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_save_undo", lambda self, op: None)


def commit_before_parity(patch: Patch) -> None:
    chunk = update_plan._chunk

    def reordered(*arguments: Any) -> Iterator[dict[str, object]]:
        *before, parity, commit = chunk(*arguments)
        yield from (*before, {**commit, "publish": None}, {**parity, "publish": commit["publish"]})

    def early(self: PlanExecutor, op: update_plan.Operation) -> None:
        if op.publish is not None:
            self._parts.marks.publish(op.publish.word, op.publish.mark)
        update_parity(self, op)

    update_parity = PlanExecutor._parity
    patch.setattr(update_plan, "_chunk", reordered)
    patch.setattr(PlanExecutor, "_parity", early)


def parity_in_place(patch: Patch) -> None:
    patch.setattr(update_plan, "speaking_slot", lambda *place: 0)


def swap_forgotten_in_write_back(patch: Patch) -> None:
    for name in ("_write_back", "_tier2"):
        patch.setattr(PlanExecutor, name, from_first_slot(getattr(PlanExecutor, name)))


def from_first_slot(write: Callable[..., None]) -> Callable[..., None]:
    return lambda self, op: write(self, replace(op, source_slot=0))


def swap_forgotten_in_repair(patch: Patch) -> None:
    patch.setattr(repair, "speaking_slot", lambda *place: 0)


def written_back_marked_before_tier_2(patch: Patch) -> None:
    remaining = update_plan._remaining

    def moved(*arguments: Any) -> Iterator[dict[str, object]]:
        steps = list(remaining(*arguments))
        for step, following in pairwise(steps):
            if step["kind"] is OpKind.WRITE_BACK:
                step["publish"], following["publish"] = following["publish"], None
        return iter(steps)

    patch.setattr(update_plan, "_remaining", moved)


def write_back_forgotten(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_write_back", lambda self, op: None)


def tier_2_forgotten(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_tier2", lambda self, op: None)


def tier_1_trusted_after_the_first_commit(patch: Patch) -> None:
    standing = repair._standing

    def trusting(coded: Any, group: int, progress: Progress) -> repair._Standing:
        return replace(standing(coded, group, progress), speaking=tier1(group), tiers_hold=True)

    patch.setattr(repair, "_standing", trusting)


def begin_late(patch: Patch) -> None:
    planted_in(patch, IterationRunner, ("begin", "update"), planted.begin_late)


def marks_before_the_operation(patch: Patch) -> None:
    def run_marked(self: PlanExecutor, op: update_plan.Operation) -> None:
        if op.publish is not None:
            self._parts.marks.publish(op.publish.word, op.publish.mark)
        self.run_unmarked(op)

    patch.setattr(PlanExecutor, "run_marked", run_marked)


def marks_of_lost_pages_cleared_before_the_rebuild(patch: Patch) -> None:
    rebuild = job.rebuild

    def cleared(*arguments: Any, acknowledge: Callable[[], None], **options: Any) -> Any:
        acknowledge()
        return rebuild(*arguments, acknowledge=acknowledge, **options)

    patch.setattr(job, "rebuild", cleared)


def lost_pages_taken_as_zeros(patch: Patch) -> None:
    patch.setattr(RepairExecutor, "run", lambda self, operations: None)


def spare_rows_not_checked(patch: Patch) -> None:
    reconstruct = HostKernels.reconstruct

    def without_spare_rows(self: HostKernels, *arguments: Any) -> None:
        *before, target, rows, parity = arguments
        reconstruct(self, *before, target, rows[: len(target)], parity[: len(target)])

    patch.setattr(HostKernels, "reconstruct", without_spare_rows)


def undo_pages_in_columns_of_their_own(patch: Patch) -> None:
    boundary = repair._Planner._boundary_pages

    def wrong(self: Any, group: int, standing: Any) -> tuple[PlacedPage, ...]:
        pages = boundary(self, group, standing)
        own = [n for n, placed in enumerate(pages) if placed.page.allocation not in CODED_ARRAYS]
        columns = {n: pages[own[-1 - k]].column for k, n in enumerate(own)}
        return tuple(PlacedPage(columns.get(n, placed.column), placed.page) for n, placed in enumerate(pages))

    patch.setattr(repair._Planner, "_boundary_pages", wrong)


def pages_of_the_chunk_in_flight_solved_as_if_committed(patch: Patch) -> None:
    standing = repair._standing
    patch.setattr(repair, "_standing", lambda *arguments: replace(standing(*arguments), in_flight=None))


def rows_encoded_in_place(patch: Patch) -> None:
    """A crash inside it tears the rows that were intact."""

    def encode_rows(self: RepairExecutor, op: repair.EncodeRows) -> None:
        rows = op.target[0].allocation
        addresses = self._addresses([replace(op.target[0], page_index=row) for row in range(self._shape.tier1_pages)])
        assert rows
        columns = [placed.column for placed in op.data]
        self._kernels.encode(self._shape, columns, self._addresses([placed.page for placed in op.data]), addresses)

    patch.setattr(RepairExecutor, "_encode_rows", encode_rows)


def one_page_too_many_is_tried(patch: Patch) -> None:
    patch.setattr(repair.Budget, "spare_rows", property(lambda b: b.rows - b.lost_rows - b.lost_pages + 1))


def fetch_skipped(patch: Patch) -> None:
    patch.setattr(PlanExecutor, "_fetch", lambda self, op: None)


def chunk_in_flight_not_carried(patch: Patch) -> None:
    def dropped(progress: Progress, begun: int) -> Progress:
        if progress.iteration > begun:
            return Progress(phase=Phase.HEADER, iteration=progress.iteration)
        return replace(progress, step=progress.step - progress.step % 4)

    patch.setattr(recovery, "_carried_by_finish", dropped)


def rank_that_completed_updates_again(patch: Patch) -> None:
    carried = recovery._carried_by_finish

    def again(progress: Progress, begun: int) -> Progress:
        completed = progress.iteration == begun and progress.phase is Phase.COMPLETE
        return Progress(phase=Phase.BEGIN, iteration=begun) if completed else carried(progress, begun)

    patch.setattr(recovery, "_carried_by_finish", again)


def finish_goes_on_with_the_header(patch: Patch) -> None:
    planted_in(patch, RecordSlots, ("read_post",), planted.header_rng)


def rates_recomputed(patch: Patch) -> None:
    planted_in(patch, RecordSlots, ("read_post",), planted.lr_recomputed)


def clip_in_place(patch: Patch) -> None:
    planted_in(patch, PlanExecutor, ("_adam_chunk",), planted.clip_in_place)


def header_marked_before_it_is_written(patch: Patch) -> None:
    def record(self: IterationRunner, header: Header) -> None:
        self.derive(header.live, header.iteration - 1)
        self.tell(header)
        self.marks.phase(Phase.HEADER, header.iteration)
        self.records.write_header(header)
        self.updater.lend()

    patch.setattr(IterationRunner, "record", record)


def gradients_not_protected(patch: Patch) -> None:
    patch.setattr(ChunkUpdater, "protect_gradients", lambda self, iteration: None)


def barrier_skipped(patch: Patch) -> None:
    run = IterationRunner.run

    def hurried(self: IterationRunner, iteration: int) -> None:
        barrier, self.barrier = self.barrier, lambda: None
        run(self, iteration)
        self.barrier = barrier

    patch.setattr(IterationRunner, "run", hurried)


def tier_2_not_rebuilt(patch: Patch) -> None:
    xor = RepairExecutor._xor

    def only_rows(self: RepairExecutor, op: repair.XorPages) -> None:
        if op.target.allocation != PageClass.TIER2.value:
            xor(self, op)

    patch.setattr(RepairExecutor, "_xor", only_rows)


def derived_parameters_not_cast(patch: Patch) -> None:
    from chaos.explore.session import Session

    patch.setattr(Session, "cast_derived", cast_once(Session.cast_derived))


def cast_once(cast: Callable[[Any], None]) -> Callable[[Any], None]:
    """Not in a recovery: there the cursor has moved."""
    return lambda self: cast(self) if self._cursor == 0 or self._derived.any() else None


class TestPlantedBugs:
    BUGS: ClassVar[list[Callable[[Patch], None]]] = [
        undo_not_restored,
        undo_saved_again_when_resuming,
        undo_not_saved,
        commit_before_parity,
        parity_in_place,
        swap_forgotten_in_write_back,
        swap_forgotten_in_repair,
        written_back_marked_before_tier_2,
        write_back_forgotten,
        tier_2_forgotten,
        tier_1_trusted_after_the_first_commit,
        begin_late,
        marks_before_the_operation,
        marks_of_lost_pages_cleared_before_the_rebuild,
        lost_pages_taken_as_zeros,
        spare_rows_not_checked,
        undo_pages_in_columns_of_their_own,
        pages_of_the_chunk_in_flight_solved_as_if_committed,
        rows_encoded_in_place,
        one_page_too_many_is_tried,
        fetch_skipped,
        chunk_in_flight_not_carried,
        rank_that_completed_updates_again,
        finish_goes_on_with_the_header,
        rates_recomputed,
        clip_in_place,
        header_marked_before_it_is_written,
        gradients_not_protected,
        barrier_skipped,
        tier_2_not_rebuilt,
        derived_parameters_not_cast,
    ]

    @pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
    def test_is_found(self, bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
        bug(monkeypatch)
        result = explored()
        for failure in result.failures[:1]:
            print(f"{bug.__name__} after {result.explored + result.drawn} cases: {failure.description}: {failure.message}")
        print(result.unlike_plan)
        assert not result.passed


def test_without_a_bug_nothing_is_found() -> None:
    result = explored()
    assert result.passed, (result.failures, result.unlike_plan)
    assert result.drawn == CASES
