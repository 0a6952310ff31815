"""Planted bugs that live in a trainer: each is a plugin that breaks one answer of the protocol from outside."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from leto.core.hooks import TrainerContext
from leto.core.markers import Phase
from leto.core.records import LiveState, Post
from leto.core.repair import RepairOperation
from leto.core.update_plan import Operation
from leto.device.base import AdamChunk
from leto.runtime.iteration import IterationRunner
from leto.update.executor import PlanExecutor
from leto.update.record_slots import RecordSlots
from leto.update.repair import RepairExecutor


def no_undo(context: TrainerContext) -> None:
    """A chunk in flight is not restored: its half-updated elements are updated again."""

    def restore(self: PlanExecutor, op: Operation) -> None:
        return None

    PlanExecutor._restore = restore  # type: ignore[method-assign]


def header_rng(context: TrainerContext) -> None:
    """FINISH(t) goes on with the generators of HEADER(t), from before the backward pass (against U27)."""
    read_post = RecordSlots.read_post

    def stale(self: RecordSlots, iteration: int) -> Post:
        post = read_post(self, iteration)
        generators = self.read_header(iteration).live.generators
        return replace(post, next_live=replace(post.next_live, generators=generators))

    RecordSlots.read_post = stale  # type: ignore[method-assign]


def lr_recomputed(context: TrainerContext) -> None:
    """A resumed update takes learning rates and weight decay from the scheduler's present state (against U28)."""
    read_post = RecordSlots.read_post

    def recomputed(self: RecordSlots, iteration: int) -> Post:
        post = read_post(self, iteration)
        return replace(post, values=replace(post.values, learning_rates=post.next_live.learning_rates))

    RecordSlots.read_post = recomputed  # type: ignore[method-assign]


def begin_late(context: TrainerContext) -> None:
    """BEGIN(t) is published after the update instead of before its first write (against U3, INV-B)."""

    def begin(self: IterationRunner, iteration: int) -> None:
        return None

    def update(self: IterationRunner, post: Post) -> None:
        self.updater.run(post.values, self.marks.progress())
        self.marks.phase(Phase.BEGIN, post.iteration)
        self.marks.phase(Phase.COMPLETE, post.iteration)

    IterationRunner.begin = begin  # type: ignore[method-assign]
    IterationRunner.update = update  # type: ignore[method-assign]


def clip_in_place(context: TrainerContext) -> None:
    """The clip factor is multiplied into the retained gradients, as Megatron's clipping does: redone, it applies twice."""
    build = PlanExecutor._adam_chunk

    def scale_then_build(self: PlanExecutor, chunk: int) -> AdamChunk:
        if not self._values.clip:
            return build(self, chunk)
        for segment in self._parts.coded.chunk_segments(chunk):
            _scale(self._parts.gradient_address(segment), segment.count, float.fromhex(self._values.clip))
        values = self._values
        self._values = replace(values, clip="")
        built = build(self, chunk)
        self._values = values
        return built

    PlanExecutor._adam_chunk = scale_then_build  # type: ignore[method-assign]


def _scale(address: int, count: int, factor: float) -> None:
    gradient = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    gradient *= np.float32(factor)


def no_regather(context: TrainerContext) -> None:
    """A recovery does not gather derived parameters: the other ranks' shards stay as the attach left them (against U22)."""
    derive = IterationRunner.derive
    gathered: list[bool] = []

    def only_later(self: IterationRunner, live: LiveState, iteration: int) -> None:
        if context.epoch == 1 or gathered:
            derive(self, live, iteration)
            return
        gathered.append(False)
        self.session.set_applied_steps(live.applied_steps)
        self.session.cast_derived()

    IterationRunner.derive = only_later  # type: ignore[method-assign]


def zero_fill(context: TrainerContext) -> None:
    """Lost pages are acknowledged without being rebuilt: they stay the zeros that replaced them (against U19)."""

    def run(self: RepairExecutor, operations: Iterable[RepairOperation]) -> None:
        return None

    RepairExecutor.run = run  # type: ignore[method-assign]


def stale_parity(context: TrainerContext) -> None:
    """The first write-back of the job does not reach tier 1 (against U10, U17).

    Parity is updated by differences, so the group's parity is wrong from then on, and shows only when a page is solved from it.
    """
    if context.epoch > 1:
        return
    write_back = PlanExecutor._write_back
    skipped: list[Operation] = []

    def all_but_the_first(self: PlanExecutor, op: Operation) -> None:
        if skipped:
            write_back(self, op)
        else:
            skipped.append(op)

    PlanExecutor._write_back = all_but_the_first  # type: ignore[method-assign]
