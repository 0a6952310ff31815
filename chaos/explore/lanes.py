"""The cuts of a plan with two lanes: how far each lane is when the rank dies (U35).

A cut is a pair of frontiers, one a lane. It can be where everything that was begun had its dependencies marked before. The next
step of each lane is left untouched, torn or half marked, by itself, wherever it may have begun. Lanes touch disjoint pages
between two dependencies, so the memory at a cut does not depend on the order that led there; that is asserted of every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chaos.explore.names import mark_name, operation_name
from leto.core.geometry import CodedGeometry, GradientGeometry, Page
from leto.core.layout import TIER2, UNDO, parity_slot, tier1
from leto.core.markers import Progress
from leto.core.records import UpdateValues
from leto.core.update_plan import Lane, Operation, OpKind, plan_update
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.updater import ChunkUpdater

Plan = tuple[Operation, ...]


@dataclass(frozen=True)
class LaneStep:
    """The kernel of an operation, or its mark."""

    op: Operation
    name: str
    is_mark: bool


def steps_of(plan: Sequence[Operation], coded: CodedGeometry) -> Iterator[LaneStep]:
    """Everything that a plan does to retained memory, in its order."""
    for op in plan:
        name = operation_name(op, coded)
        if name is not None and (coded.protection.tier2_pages or op.kind is not OpKind.TIER2):
            yield LaneStep(op, name, is_mark=False)
        if op.publish is not None:
            yield LaneStep(op, mark_name(op.publish), is_mark=True)


@dataclass(frozen=True)
class Cut:
    """``done`` steps of each lane, its next step (None at its end), and whether that step may have begun. ``on_path``: the
    plan's own order comes by."""

    done: tuple[int, int]
    coming: tuple[LaneStep | None, LaneStep | None]
    may_begin: tuple[bool, bool]
    on_path: bool

    @property
    def is_end(self) -> bool:
        return self.coming == (None, None)


class Cuts:
    """Of one plan. ``lanes`` are the steps of the computation and those of the copies."""

    def __init__(self, plan: Plan, coded: CodedGeometry) -> None:
        self._coded = coded
        steps = list(steps_of(plan, coded))
        self.lanes = tuple(tuple(step for step in steps if step.op.lane is lane) for lane in (Lane.COMPUTE, Lane.COPY))
        self._marked = {step.op.index: n for lane in self.lanes for n, step in enumerate(lane, 1)}
        self._path = set(self._along(steps))

    def __iter__(self) -> Iterator[Cut]:
        """By the copies that are done, then by the computation; the last one is the end of the update."""
        compute, copy = self.lanes
        for copied in range(len(copy) + 1):
            for computed in range(len(compute) + 1):
                if self._consistent(computed, copied):
                    yield self._cut((computed, copied))

    def _consistent(self, computed: int, copied: int) -> bool:
        compute, copy = self.lanes
        begun = ((compute[:computed], copied), (copy[:copied], computed))
        return all(self._needs(step) <= done for steps, done in begun for step in steps)

    def _needs(self, step: LaneStep) -> int:
        """How many steps of the other lane must be done before it begins."""
        return max((self._marked[index] for index in step.op.depends_on), default=0)

    def _cut(self, done: tuple[int, int]) -> Cut:
        compute, copy = (next(iter(lane[count:]), None) for lane, count in zip(self.lanes, done, strict=True))
        begin = (
            compute is not None and self._needs(compute) <= done[1],
            copy is not None and self._needs(copy) <= done[0],
        )
        if all(begin):
            assert compute is not None
            assert copy is not None
            self._check_disjoint(compute.op, copy.op)
        return Cut(done, (compute, copy), begin, done in self._path)

    def _along(self, steps: Sequence[LaneStep]) -> Iterator[tuple[int, int]]:
        computed = copied = 0
        yield computed, copied
        for step in steps:
            computed += step.op.lane is Lane.COMPUTE
            copied += step.op.lane is Lane.COPY
            yield computed, copied

    def _check_disjoint(self, one: Operation, other: Operation) -> None:
        (read, written), (read_too, written_too) = (touched_by(op, self._coded) for op in (one, other))
        shared = (written & (read_too | written_too)) | (written_too & read)
        assert not shared, f"{one.describe()} and {other.describe()} may run together and touch {sorted(shared)[0]}"


def touched_by(op: Operation, coded: CodedGeometry) -> tuple[set[Page], set[Page]]:
    """The pages an operation reads and those it writes."""
    source, target = _rows(parity_slot(op.source_slot), coded), _rows(parity_slot(op.target_slot), coded)
    chunk = set() if op.chunk is None else {placed.page for placed in coded.chunk_pages(op.chunk)}
    undo = {Page(UNDO, k) for k in range(coded.protection.chunk_pages)}
    tiers = _rows(tier1(op.group), coded)
    match op.kind:
        case OpKind.FETCH:
            return tiers, target
        case OpKind.SAVE_UNDO:
            return chunk, undo
        case OpKind.RESTORE:
            return undo, chunk
        case OpKind.UPDATE:
            return chunk, chunk
        case OpKind.PARITY:
            return undo | chunk | source, target
        case OpKind.UPDATE_AND_PARITY:
            return chunk | source, chunk | target
        case OpKind.COMMIT:
            return set(), set()
        case OpKind.WRITE_BACK:
            return source, tiers
        case OpKind.TIER2:
            return source, {Page(TIER2, op.group)}


def _rows(allocation: str, coded: CodedGeometry) -> set[Page]:
    return {Page(allocation, row) for row in range(coded.protection.tier1_pages)}


RunPlan = Callable[[PlanExecutor, UpdateParts, Plan], None]
"""Carries out a plan, all of it, on the calling thread."""


class OneThreadUpdater(ChunkUpdater):
    """Runs both lanes of a plan on the calling thread, in an order that ``run_plan`` chooses."""

    def __init__(self, parts: UpdateParts, gradients: GradientGeometry, run_plan: RunPlan) -> None:
        super().__init__(parts, gradients)
        self._run_plan = run_plan

    def run(self, values: UpdateValues, progress: Progress) -> None:
        parts = self._parts
        plan = plan_update(parts.coded, values.iteration, progress, skipped=values.skipped, fused=parts.fused)
        self._run_plan(PlanExecutor(parts, values), parts, plan)
