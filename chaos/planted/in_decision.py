"""Planted bugs in records, in the decision of a failure and in how ranks carry it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from chaos.explore import memory
from chaos.planted.planting import Patch, planted, skip
from leto.core import recovery
from leto.core.markers import STEPS_PER_CHUNK, WORDS, Phase, Progress
from leto.core.records import Header, LiveState, Post
from leto.memory import control
from leto.runtime import coordinator
from leto.runtime.iteration import IterationRunner
from leto.update.record_slots import RecordSlots


def _read_posts(patch: Patch, change: Callable[[RecordSlots, Post], Post]) -> None:
    """Whoever goes on from a POST gets another one. The iteration that made it has its own values still."""

    def changed(read_post: Any) -> Any:
        return lambda self, iteration: change(self, read_post(self, iteration))

    patch.wrap(RecordSlots, "read_post", changed)


# What FINISH goes on from (U23, U27 to U29)


@planted("U27", explored="header", process="exact")
def header_rng(patch: Patch) -> None:
    """FINISH goes on with the generators of HEADER, from before the backward pass, instead of those of POST."""

    def stale(slots: RecordSlots, post: Post) -> Post:
        generators = slots.read_header(post.iteration).live.generators
        return replace(post, next_live=replace(post.next_live, generators=generators))

    _read_posts(patch, stale)


@planted("U28", explored="bytes", process="exact")
def lr_recomputed(patch: Patch) -> None:
    """A resumed update takes learning rates and weight decay from the scheduler's present state instead of POST."""
    _read_posts(patch, lambda _, post: _with_values(post, learning_rates=post.next_live.learning_rates))


@planted("U23", explored="protocol")
def clip_recomputed(patch: Patch) -> None:
    """A resumed update takes the clip factor from the norm of this rank's gradients instead of POST."""
    _read_posts(patch, lambda _, post: _with_values(post, clip=(1 / float.fromhex(post.result.grad_norm)).hex()))


@planted("U25", skipping="bytes")
def skipped_step_applied(patch: Patch) -> None:
    """A recovery applies the update of a step that was skipped."""
    _read_posts(patch, lambda _, post: _with_values(post, skipped=False))


@planted("U29", explored="bytes")
def adam_step_not_retained(patch: Patch) -> None:
    """A resumed update counts Adam's steps from the start of the process."""
    _read_posts(patch, lambda _, post: _with_values(post, applied_step=1))


def _with_values(post: Post, **values: Any) -> Post:
    return replace(post, values=replace(post.values, **values))


# Records and marks (U1, U3b, U4)


@planted("U4", explored="guess")
def lost_marker_read_as_nothing(patch: Patch) -> None:
    """A marker without a mirror that is left reads as one that was never written."""

    def guessing(read_mirrors: Any) -> Any:
        def read(epoch: int, mirrors: Any) -> Progress:
            found: Progress = read_mirrors(epoch, [[0] * WORDS] if all(m is None for m in mirrors) else mirrors)
            return found

        return read

    for module in (memory, control):
        patch.wrap(module, "read_mirrors", guessing)


@planted("U1", explored="protocol")
def header_marked_early(patch: Patch) -> None:
    """HEADER(t+1) is published before its record is written."""

    def record(self: IterationRunner, header: Header) -> None:
        self.derive(header.live, header.iteration - 1)
        self.tell(header)
        self.marks.phase(Phase.HEADER, header.iteration)
        self.records.write_header(header)
        self.updater.lend()

    patch.set(IterationRunner, "record", record)


@planted("U3", explored="protocol")
def post_written_late(patch: Patch) -> None:
    """POST(t) is written when the rank has left the barrier, after another may have begun."""
    late: WeakKeyDictionary[IterationRunner, Post] = WeakKeyDictionary()

    def postponed(protect: Any) -> Any:
        def without_record(self: IterationRunner, iteration: int) -> Post:
            records, self.records = self.records, _Unwritten(self.records)
            late[self] = protect(self, iteration)
            self.records = records
            return late[self]

        return without_record

    def written(begin: Any) -> Any:
        def write_then_begin(self: IterationRunner, iteration: int) -> None:
            if self in late:
                self.records.write_post(late.pop(self))
            begin(self, iteration)

        return write_then_begin

    patch.wrap(IterationRunner, "_protect", postponed)
    patch.wrap(IterationRunner, "begin", written)


class _Unwritten(RecordSlots):
    """The same slots, read-only."""

    def __init__(self, slots: RecordSlots) -> None:
        self._headers, self._posts = slots._headers, slots._posts

    def write_post(self, post: Post) -> None:
        return None


# One decision for the whole job (U5, U21, U22)


@planted("U5", explored="bytes")
def chunk_in_flight_not_carried(patch: Patch) -> None:
    """The next epoch does not know of the chunk that was in flight."""

    def dropped(carried: Any) -> Any:
        def without(progress: Progress, begun: int) -> Progress:
            found: Progress = carried(progress, begun)
            return replace(found, step=found.step - found.step % STEPS_PER_CHUNK)

        return without

    patch.wrap(recovery, "_carried_by_finish", dropped)


@planted("U22", explored="bytes")
def completed_rank_updates_again(patch: Patch) -> None:
    """A rank that has completed the update repeats it, because the others finish theirs."""

    def again(carried: Any) -> Any:
        def begun_anew(progress: Progress, begun: int) -> Progress:
            completed = progress.iteration == begun and progress.phase is Phase.COMPLETE
            return Progress(phase=Phase.BEGIN, iteration=begun) if completed else carried(progress, begun)

        return begun_anew

    patch.wrap(recovery, "_carried_by_finish", again)


@planted("U22", explored="INV-G")
def one_rank_restarts_while_another_finishes(patch: Patch) -> None:
    """A rank that has not begun is carried over as if the job restarted, while another rank finishes the update."""

    def apart(carried: Any) -> Any:
        def alone(progress: Progress, begun: int) -> Progress:
            if progress.begun < begun:
                return Progress(phase=Phase.HEADER, iteration=begun)
            found: Progress = carried(progress, begun)
            return found

        return alone

    patch.wrap(recovery, "_carried_by_finish", apart)


@planted("U22", explored="bytes")
def finished_by_the_slowest(patch: Patch) -> None:
    """The target is what all ranks have begun, not what any has."""

    def slowest(decide: Any) -> Any:
        def late(ranks: Any, last_iteration: int) -> Any:
            least = min(p.begun for p in ranks)
            return decide([_not_begun(p) if p.begun > least else p for p in ranks], last_iteration)

        return late

    patch.wrap(coordinator, "decide", slowest)


def _not_begun(progress: Progress) -> Progress:
    return Progress(phase=Phase.GRADS_PROTECTED, iteration=progress.begun)


# What a recovery brings back beside coded memory (U22, U27)


@planted("U22", process="exact")
def no_regather(patch: Patch) -> None:
    """A recovery does not gather derived parameters: shards of other ranks stay as the attach left them."""

    def without(self: IterationRunner, live: LiveState, iteration: int) -> None:
        self.session.set_applied_steps(live.applied_steps)
        self.session.cast_derived()

    _derive_in_recovery(patch, without)


@planted("U22", explored="bytes", process="exact")
def no_recast(patch: Patch) -> None:
    """A recovery does not make derived parameters from the masters again."""

    def without(self: IterationRunner, live: LiveState, iteration: int) -> None:
        self.session.set_applied_steps(live.applied_steps)
        self.session.gather_derived()

    _derive_in_recovery(patch, without)


def _derive_in_recovery(patch: Patch, bug: Callable[[IterationRunner, LiveState, int], None]) -> None:
    """In place of the first derivation of every epoch but the first."""
    derived: WeakSet[IterationRunner] = WeakSet()

    def only_later(derive: Any) -> Any:
        def first(self: IterationRunner, live: LiveState, iteration: int) -> None:
            if self._context.epoch == 1 or self in derived:
                derive(self, live, iteration)
                return
            derived.add(self)
            bug(self, live, iteration)

        return first

    patch.wrap(IterationRunner, "derive", only_later)


# Training itself: these need torch, and are planted where it is imported already


@planted("U27", process="protocol")
def rng_not_restored(patch: Patch) -> None:
    """A recovery leaves the generators as a new process has them."""
    from leto.megatron import live

    patch.set(live, "restore_generators", skip)


@planted("U28", process="exact")
def data_cursor_one_off(patch: Patch) -> None:
    """After a recovery every sample is read one further on, while the cursor counts on rightly."""
    from leto.megatron import training

    def moved(restore_live: Any) -> Any:
        def restore_then_move(self: Any, state: LiveState) -> None:
            restore_live(self, state)
            patch.wrap(training, "sample_index", lambda index: lambda cursor, **where: index(cursor + 1, **where))

        return restore_then_move

    patch.wrap(training.TrainingSession, "restore_live", moved)
