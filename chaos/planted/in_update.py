"""Planted bugs in the update itself: its plan, its operations, and when they are marked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from chaos.planted.planting import Patch, planted, skip
from leto.core import update_plan
from leto.core.geometry import CodedGeometry
from leto.core.markers import Phase
from leto.core.records import Post
from leto.core.update_plan import Operation, OpKind
from leto.device.base import AdamChunk
from leto.device.host_kernels import HostKernels
from leto.runtime.iteration import IterationRunner
from leto.update.executor import PlanExecutor
from leto.update.updater import ChunkUpdater

Steps = list[dict[str, Any]]


def _planned(patch: Patch, change: Callable[[Steps], Iterator[dict[str, Any]]]) -> None:
    """``change`` makes another plan of an update out of its steps."""
    patch.wrap(update_plan, "_remaining", lambda remaining: lambda *arguments: change(list(remaining(*arguments))))


def _marked(step: dict[str, Any], publish: object) -> dict[str, Any]:
    """A step that is nothing but a mark."""
    return {**step, "kind": OpKind.COMMIT, "publish": publish}


# The undo buffer (U2)


@planted("U2", explored="bytes", process="exact")
def no_undo(patch: Patch) -> None:
    """A chunk in flight is not restored from the undo buffer: what was half updated is updated again."""
    patch.set(PlanExecutor, "_restore", skip)


@planted("U2", explored="bytes")
def undo_refilled_in_recovery(patch: Patch) -> None:
    """A recovery saves the chunk in flight into the undo buffer again instead of restoring it."""
    patch.set(PlanExecutor, "_restore", PlanExecutor._save_undo)


@planted("U2", explored="INV-P")
def undo_refilled_early(patch: Patch) -> None:
    """The undo buffer is filled with the next chunk before the commit of the last one is durable."""

    def early(steps: Steps) -> Iterator[dict[str, Any]]:
        for before, step, after in zip([{}, *steps], steps, [*steps[1:], {}], strict=False):
            if _refills(step, after):
                yield {**after, "publish": None}
                yield step
            elif _refills(before, step):
                yield _marked(step, step["publish"])
            else:
                yield step

    _planned(patch, early)


def _refills(step: dict[str, Any], after: dict[str, Any]) -> bool:
    return (step.get("kind"), after.get("kind")) == (OpKind.COMMIT, OpKind.SAVE_UNDO)


@planted("U2", explored="INV-P")
def undo_not_saved(patch: Patch) -> None:
    """The undo buffer is marked as saved and was not written."""
    patch.set(PlanExecutor, "_save_undo", skip)


@planted("U1", explored="INV-P")
def marks_before_the_operation(patch: Patch) -> None:
    """Every operation of the update is marked as done before it begins."""

    def run_marked(self: PlanExecutor, op: Operation) -> None:
        if op.publish is not None:
            self._parts.marks.publish(op.publish.word, op.publish.mark)
        self.run_unmarked(op)

    patch.set(PlanExecutor, "run_marked", run_marked)


# Parity of the group being updated (INV-P, U10)


@planted("INV-P", explored="INV-P")
def commit_before_parity(patch: Patch) -> None:
    """A chunk is committed before its parity is updated: every one but the first."""

    def early(steps: Steps) -> Iterator[dict[str, Any]]:
        for step, after in zip(steps, [*steps[1:], {}], strict=True):
            if not step.get("chunk"):
                yield step
            elif step["kind"] is OpKind.PARITY:
                yield _marked(step, after["publish"])
                yield {**step, "publish": None}
            elif step["kind"] is not OpKind.COMMIT:
                yield step

    _planned(patch, early)


@planted("U15", explored="INV-P", kernel="update-parity")
def parity_of_the_wrong_column(patch: Patch) -> None:
    """Parity is updated in the columns that pages have in their chunk, not in those that they have in the group."""

    def first_columns(update: Any) -> Any:
        return lambda self, shape, columns, *rest: update(self, shape, list(range(len(columns))), *rest)

    patch.wrap(HostKernels, "update_parity", first_columns)


@planted("U10", explored="INV-P")
def parity_in_place(patch: Patch) -> None:
    """Parity is updated in the buffer that speaks, so that a torn update leaves none."""
    patch.wrap(update_plan, "speaking_slot", before_the_first_commit)


def before_the_first_commit(speaking_slot: Any) -> Any:
    """The slot that the group was fetched into, however many of its chunks are committed."""
    return lambda geometry, group, commits: speaking_slot(geometry, group, 0)


@planted("U10", explored="INV-P")
def swap_forgotten(patch: Patch) -> None:
    """Write-back takes parity from the buffer that the group was fetched into, whichever speaks."""

    def from_home(steps: Steps) -> Iterator[dict[str, Any]]:
        homes = {step["group"]: step["target_slot"] for step in steps if step["kind"] is OpKind.FETCH}
        for step in steps:
            moved = step["kind"] in (OpKind.WRITE_BACK, OpKind.TIER2) and step["group"] in homes
            yield {**step, "source_slot": homes[step["group"]]} if moved else step

    _planned(patch, from_home)


@planted("U13", explored="INV-P")
def fetch_skipped(patch: Patch) -> None:
    """The parity buffer is taken to hold the group's parity still, and is not fetched."""
    patch.set(PlanExecutor, "_fetch", skip)


@planted("U35", pipelined="lanes")
def lanes_left_unordered(patch: Patch) -> None:
    """The plan of two lanes does not say what an operation has to wait for in the other lane."""
    patch.wrap(update_plan, "_on_lanes", lambda on_lanes: lambda steps: (replace(op, depends_on=()) for op in on_lanes(steps)))


@planted("U35", explored="INV-P")
def slot_refilled_early(patch: Patch) -> None:
    """The parity of a group is fetched one group too early, into a buffer whose group is not written back yet."""

    def further_ahead(steps: Steps) -> Iterator[dict[str, Any]]:
        fetches = {step["group"]: step for step in steps if step["kind"] is OpKind.FETCH}
        for step in steps:
            if step["kind"] is not OpKind.FETCH or step["group"] == min(fetches):
                yield step
            if step["kind"] is OpKind.FETCH and step["group"] + 1 in fetches:
                yield fetches[step["group"] + 1]

    _planned(patch, further_ahead)


# Write-back of both tiers (U17)


@planted("U17", explored="INV-P")
def write_back_marked_before_the_copy(patch: Patch) -> None:
    """A group is marked as written back before tier 1 is copied."""

    def early(steps: Steps) -> Iterator[dict[str, Any]]:
        for step, after in zip(steps, [*steps[1:], {}], strict=True):
            if step["kind"] is OpKind.WRITE_BACK:
                yield _marked(step, after["publish"])
            yield {**step, "publish": None} if step["kind"] is OpKind.TIER2 else step

    _planned(patch, early)


@planted("U17", explored="bytes")
def write_back_marked_before_tier_2(patch: Patch) -> None:
    """A group is marked as written back when tier 1 is, before tier 2."""

    def early(steps: Steps) -> Iterator[dict[str, Any]]:
        for step, after in pairwise(steps):
            if step["kind"] is OpKind.WRITE_BACK:
                step["publish"], after["publish"] = after["publish"], None
        return iter(steps)

    _planned(patch, early)


@planted("U17", explored="INV-P")
def write_back_forgotten(patch: Patch) -> None:
    """Tier 1 is never written back."""
    patch.set(PlanExecutor, "_write_back", skip)


@planted("U17", explored="bytes or spare row")
def tier_2_forgotten(patch: Patch) -> None:
    """Tier 2 is never written back."""
    patch.set(PlanExecutor, "_tier2", skip)


@planted("U17", explored="INV-P", process="exact")
def stale_parity(patch: Patch) -> None:
    """The first write-back of the job does not reach tier 1.

    Parity is updated by differences, so the group's is wrong from then on; it shows only when a page is solved from it.
    """
    skipped: list[Operation] = []

    def all_but_the_first(write_back: Any) -> Any:
        def late(self: PlanExecutor, op: Operation) -> None:
            if skipped or self._parts.marks._epoch > 1:
                write_back(self, op)
            else:
                skipped.append(op)

        return late

    patch.wrap(PlanExecutor, "_write_back", all_but_the_first)


# What an update computes with (U12, U28, U29)


@planted("U12", explored="bytes or spare row", process="exact")
def clip_in_place(patch: Patch) -> None:
    """The clip factor is multiplied into the retained gradients, as Megatron's clipping does: redone, it applies twice."""

    def scaling(build: Any) -> Any:
        def scale_then_build(self: PlanExecutor, chunk: int) -> AdamChunk:
            values = self._values
            if values.clip:
                for segment in self._parts.coded.chunk_segments(chunk):
                    _scale(self._parts.gradient_address(segment), segment.count, float.fromhex(values.clip))
            self._values = replace(values, clip="")
            built: AdamChunk = build(self, chunk)
            self._values = values
            return built

        return scale_then_build

    patch.wrap(PlanExecutor, "_adam_chunk", scaling)


def _scale(address: int, count: int, factor: float) -> None:
    gradient = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    gradient *= np.float32(factor)


@planted("U28", process="exact")
def decay_of_the_first_parameter(patch: Patch) -> None:
    """A whole chunk is updated with the weight decay of its first parameter's group."""

    def one_group(segments: Any) -> Any:
        def of_the_first(self: Any, chunk: int) -> Any:
            found = segments(self, chunk)
            return tuple(replace(s, param_group=found[0].param_group, optimizer=found[0].optimizer) for s in found)

        return of_the_first

    patch.wrap(CodedGeometry, "chunk_segments", one_group)


@planted("U12", explored="INV-G")
def gradients_not_protected(patch: Patch) -> None:
    """The update begins without parity over the gradients it reads."""
    patch.set(ChunkUpdater, "protect_gradients", skip)


# Where the update begins and ends (U3, U13, U24)


@planted("INV-B", explored="INV-B", process="exact")
def begin_late(patch: Patch) -> None:
    """BEGIN is published after the first write of model state."""

    def update(self: IterationRunner, post: Post) -> None:
        self.updater.run(post.values, self.marks.progress())
        self.marks.phase(Phase.BEGIN, post.iteration)
        self.marks.phase(Phase.COMPLETE, post.iteration)

    patch.set(IterationRunner, "begin", skip)
    patch.set(IterationRunner, "update", update)


@planted("U24", explored="INV-G")
def barrier_skipped(patch: Patch) -> None:
    """A rank begins without having waited at the barrier, as nothing makes it wait where no norm is reduced."""

    def hurried(run: Any) -> Any:
        def without(self: IterationRunner, iteration: int) -> None:
            barrier, self.barrier = self.barrier, skip
            run(self, iteration)
            self.barrier = barrier

        return without

    patch.wrap(IterationRunner, "run", hurried)


@planted("U13", explored="spare row")
def lent_before_complete(patch: Patch) -> None:
    """The updater's buffers are lent before COMPLETE, while a recovery still counts on gradient parity."""

    def update(self: IterationRunner, post: Post) -> None:
        self.updater.run(post.values, self.marks.progress())
        self.updater.lend()
        self.marks.phase(Phase.COMPLETE, post.iteration)

    patch.set(IterationRunner, "update", update)
