"""What there is to explore, computed from the plan alone: the steps of a job and of a recovery, and how many points they make.

The explorer enumerates what really ran; these numbers come from ``plan_update``, ``plan_repair`` and the decision table. Both
must agree, step by step and in the total, or something ran that no plan knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chaos.explore.steps import MARK_STATES, WRITE_STATES
from leto.core.failpoints import Kernel
from leto.core.geometry import CodedGeometry, GradientGeometry
from leto.core.layout import UNDO, gradient_parity, parity_slot, tier1
from leto.core.markers import STEPS_PER_CHUNK, Mark, Phase, Progress, StepDone, Word
from leto.core.recovery import Action, Decision, Row
from leto.core.update_plan import Operation, OpKind, Publish, plan_update

KERNEL_OF = {
    OpKind.FETCH: Kernel.PARITY_FETCH,
    OpKind.SAVE_UNDO: Kernel.UNDO_SAVE,
    OpKind.RESTORE: Kernel.UNDO_RESTORE,
    OpKind.UPDATE: Kernel.ADAM,
    OpKind.PARITY: Kernel.RS_UPDATE,
    OpKind.WRITE_BACK: Kernel.PARITY_WRITEBACK,
    OpKind.TIER2: Kernel.TIER2,
}
"""COMMIT has none: the mark is the operation."""

COMPUTE = "compute"
MIXED = ("split", "tier-by-tier", "corrupt", "unneeded")
"""Loss sets of more than one class."""


@dataclass(frozen=True)
class Planned:
    """A step with the rank's progress before it and, where it is a mark, after it."""

    name: str
    before: Progress
    after: Progress | None = None

    @property
    def states(self) -> int:
        return len(WRITE_STATES if self.after is None else MARK_STATES)

    def progress(self, state: int) -> Progress:
        """What a reader of the mirrors sees after a crash in this state: the maximum."""
        return self.before if self.after is None or state == 0 else self.after


class JobPlan:
    """The steps of one rank."""

    def __init__(self, coded: CodedGeometry, gradients: GradientGeometry, iterations: int) -> None:
        self.coded = coded
        self._gradients = gradients
        self.iterations = iterations

    def whole(self) -> tuple[Planned, ...]:
        return (*self.cold_start(), *self._iterations_from(1))

    def cold_start(self) -> Iterator[Planned]:
        nothing = Progress(phase=Phase.NONE, iteration=0)
        names = ["initialise the state"]
        for group in range(self.coded.group_count):
            names += [f"encode {tier1(group)}", "xor tier2"]
        yield from (Planned(name, nothing) for name in names)
        yield from self._header(1, nothing)

    def iteration(self, t: int) -> Iterator[Planned]:
        now = Progress(phase=Phase.HEADER, iteration=t)
        yield Planned(COMPUTE, now)
        owned = replace(now, phase=Phase.OWNED)
        yield Planned(f"OWNED({t})", now, owned)
        yield from (Planned(f"rs-encode of group {group}", owned) for group in range(self._gradients.group_count))
        yield Planned(f"write POST({t})", owned)
        post, protected = replace(now, phase=Phase.POST), replace(now, phase=Phase.GRADS_PROTECTED)
        yield Planned(f"POST({t})", owned, post)
        yield Planned(f"GRADS_PROTECTED({t})", post, protected)
        yield from self.begun_late(protected)

    def begun_late(self, protected: Progress) -> Iterator[Planned]:
        begun = replace(protected, phase=Phase.BEGIN)
        yield Planned(f"BEGIN({begun.iteration})", protected, begun)
        yield from self.update(begun)

    def update(self, progress: Progress) -> Iterator[Planned]:
        """From any place inside the update to HEADER(t+1) and lending."""
        t, now = progress.iteration, progress
        for op in plan_update(self.coded, t, progress):
            if op.kind in KERNEL_OF:
                yield Planned(_name(op), now)
            if op.publish is not None:
                then = _published(now, op.publish.word, op.publish.mark)
                yield Planned(_mark_name(op.publish), now, then)
                now = then
        complete = Progress(phase=Phase.COMPLETE, iteration=t)
        yield Planned(f"COMPLETE({t})", now, complete)
        yield from self._header(t + 1, complete)

    def recovery(self, decision: Decision, row: Row, progress: Progress) -> tuple[Planned, ...]:
        """What a rank without losses does after a decision, to the end of the job."""
        target = decision.target
        steps: Iterator[Planned]
        if decision.action is Action.COLD:
            return self.whole()
        if row is Row.RUN_WHOLE_UPDATE:
            steps = self.begun_late(progress)
        elif row is Row.KEEP_BUILD_HEADER:
            steps = self._header(target + 1, progress)
        elif row is Row.KEEP_RELOAD_HEADER:
            steps = self._lend(progress)
        else:
            steps = self.update(progress)
        return (*steps, *self._iterations_from(target + 1))

    def _iterations_from(self, first: int) -> Iterator[Planned]:
        for t in range(first, self.iterations + 1):
            yield from self.iteration(t)

    def _header(self, t: int, now: Progress) -> Iterator[Planned]:
        header = Progress(phase=Phase.HEADER, iteration=t)
        yield Planned(f"write HEADER({t})", now)
        yield Planned(f"HEADER({t})", now, header)
        yield from self._lend(header)

    def _lend(self, now: Progress) -> Iterator[Planned]:
        lent = [UNDO, *(parity_slot(slot) for slot in range(self.coded.protection.parity_slots))]
        lent += [gradient_parity(group) for group in range(self._gradients.group_count)]
        yield from (Planned(f"fill {name}", now) for name in lent)

    def split_repairs(self, *, updating: bool) -> int:
        """Steps that repair the split loss: data are solved and rows encoded again in every code word that is needed."""
        return 2 * (self.coded.group_count + updating)

    def loss_sets(self, progress: Progress, *, cold: bool, updating: bool) -> int:
        """How many loss sets a crash has, from the sizes of code words."""
        if cold:
            return 2
        p = self.coded.protection
        update = progress if updating else Progress(phase=Phase.COMPLETE, iteration=1)
        focus = min(update.written_back, self.coded.group_count - 1)
        chunks = self.coded.chunks_of(focus)
        committed = min(max(update.committed_chunks - chunks.start, 0), len(chunks))
        slot_speaks = committed > 0 and update.written_back <= focus
        in_flight = p.chunk_pages if update.in_flight is not None else 0
        h1 = p.tier1_pages
        rows = 1 + (h1 > 1) + 1
        return (
            1
            + _data_sets(len(chunks) * p.chunk_pages - in_flight, h1)
            + (_data_sets(p.chunk_pages, h1) if in_flight else _free_sets(p.chunk_pages))
            + (rows if slot_speaks else 0)
            + _free_sets(h1 * (p.parity_slots - slot_speaks))
            + (_data_sets(len(self._gradients.group_pages(0)), h1) if updating else _free_sets(len(self._gradients.pages)))
            + (rows if updating else _free_sets(h1))
            + (_free_sets(h1) if slot_speaks else rows)
            + _free_sets(self.coded.group_count)
            + len(MIXED)
        )


def _data_sets(pages: int, budget: int) -> int:
    return _free_sets(min(pages, budget)) + (pages > budget)


def _free_sets(pages: int) -> int:
    return 1 + (pages > 1)


def _name(op: Operation) -> str:
    chunk = "" if op.chunk is None else f" chunk {op.chunk}"
    return f"{KERNEL_OF[op.kind].value} of group {op.group}{chunk}"


def _mark_name(publish: Publish) -> str:
    ordinal = publish.mark.ordinal
    if publish.word is not Word.STEP:
        return f"{publish.word.name.lower()} {ordinal}"
    chunk = (ordinal - 1) // STEPS_PER_CHUNK
    return f"{StepDone(ordinal - chunk * STEPS_PER_CHUNK).name} of chunk {chunk}"


def _published(now: Progress, word: Word, mark: Mark) -> Progress:
    field = {Word.STEP: "step", Word.FETCHED: "fetched", Word.WRITTEN_BACK: "written_back"}[word]
    return replace(now, **{field: mark.ordinal})  # type: ignore[arg-type]
