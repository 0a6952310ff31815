"""What there is to explore, computed from the plan alone: the steps of a job and of a recovery, and how many points they make.

The explorer enumerates what really ran; these numbers come from ``plan_update``, ``plan_repair`` and the decision table. Both
must agree, step by step and in the total, or something ran that no plan knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from chaos.explore.lanes import Cut, Cuts, LaneStep, steps_of
from chaos.explore.names import mark_name
from chaos.explore.shapes import Shape
from chaos.explore.steps import MARK_STATES, WRITE_STATES, LaneStates, seen, together
from leto.core.geometry import CodedGeometry, GradientGeometry
from leto.core.layout import UNDO, gradient_parity, parity_slot, tier1
from leto.core.markers import Mark, Phase, Progress, Word
from leto.core.recovery import Action, Decision, Row
from leto.core.update_plan import Operation, Publish, plan_update

COMPUTE = "compute"
MIXED = ("split", "tier-by-tier", "corrupt", "unneeded")
"""Loss sets of more than one class."""
RECORDS = 2
"""Loss sets of records."""


@dataclass(frozen=True)
class Part:
    """The next step of one lane: a mark, or a write, which publishes nothing."""

    name: str
    publish: Publish | None = None
    may_begin: bool = True

    @property
    def states(self) -> LaneStates:
        states = WRITE_STATES if self.publish is None else MARK_STATES
        return states if self.may_begin else states[:1]


@dataclass(frozen=True)
class Planned:
    """A point of a job: the next step of every lane, and the rank's progress before them. ``on_path``: the plan's own order
    comes by; a serial plan has no other points."""

    parts: tuple[Part, ...]
    before: Progress
    on_path: bool = True

    @property
    def name(self) -> str:
        return " | ".join(part.name for part in self.parts)

    @cached_property
    def states(self) -> tuple[LaneStates, ...]:
        return together([part.states for part in self.parts])

    def progress(self, state: int, lost_mirrors: Collection[int] = ()) -> Progress:
        """What a reader of the mirrors sees after a crash in this state: the maximum of those that are left."""
        now = self.before
        for part, left in zip(self.parts, seen(self.states[state], lost_mirrors, self.states[0]), strict=True):
            if part.publish is not None and left.mirrors:
                now = published(now, part.publish)
        return now

    @property
    def after(self) -> Progress:
        """When the step of a serial plan is done."""
        (part,) = self.parts
        return self.before if part.publish is None else published(self.before, part.publish)


def published(now: Progress, publish: Publish) -> Progress:
    mark = publish.mark
    if publish.word is Word.PHASE:
        return Progress(phase=Phase(mark.ordinal), iteration=mark.iteration)
    field = {Word.STEP: "step", Word.FETCHED: "fetched", Word.WRITTEN_BACK: "written_back"}[publish.word]
    return replace(now, **{field: mark.ordinal})  # type: ignore[arg-type]


def _write(name: str, now: Progress) -> Planned:
    return Planned((Part(name),), now)


def _phase(phase: Phase, iteration: int, now: Progress) -> Planned:
    publish = Publish(Word.PHASE, Mark(iteration, phase))
    return Planned((Part(mark_name(publish), publish),), now)


def _part(step: LaneStep, *, may_begin: bool = True) -> Part:
    return Part(step.name, step.op.publish if step.is_mark else None, may_begin)


class JobPlan:
    """The steps of one rank."""

    def __init__(self, coded: CodedGeometry, gradients: GradientGeometry, shape: Shape) -> None:
        self.coded = coded
        self.shape = shape
        self._gradients = gradients
        self._tier2 = coded.protection.tier2_pages > 0

    def whole(self) -> tuple[Planned, ...]:
        """Of the job without crashes: every cut of the lanes in the iterations that are explored."""
        return (*self.cold_start(), *self._iterations_from(1))

    def cold_start(self) -> Iterator[Planned]:
        nothing = Progress(phase=Phase.NONE, iteration=0)
        names = ["initialise the state"]
        for group in range(self.coded.group_count):
            names += [f"encode {tier1(group)}", *(["xor tier2"] if self._tier2 else [])]
        yield from (_write(name, nothing) for name in names)
        yield from self._header(1, nothing)

    def iteration(self, t: int) -> Iterator[Planned]:
        now = Progress(phase=Phase.HEADER, iteration=t)
        yield _write(COMPUTE, now)
        owned = _phase(Phase.OWNED, t, now)
        yield owned
        yield from (_write(f"rs-encode of group {group}", owned.after) for group in range(self._gradients.group_count))
        yield _write(f"write POST({t})", owned.after)
        post = _phase(Phase.POST, t, owned.after)
        protected = _phase(Phase.GRADS_PROTECTED, t, post.after)
        yield from (post, protected)
        yield from self._begun_late(protected.after, cuts=t == self.shape.explored)

    def _begun_late(self, protected: Progress, *, cuts: bool) -> Iterator[Planned]:
        begin = _phase(Phase.BEGIN, protected.iteration, protected)
        yield begin
        yield from self._update(begin.after, cuts=cuts)

    def _update(self, progress: Progress, *, cuts: bool) -> Iterator[Planned]:
        """From any place inside the update to HEADER(t+1) and lending."""
        t = progress.iteration
        if cuts and self.coded.protection.pipelined and t not in self.shape.skips:
            yield from self._cuts(progress)
        else:
            yield from self._in_order(progress)
        complete = _phase(Phase.COMPLETE, t, self._updated(progress))
        yield complete
        yield from self._header(t + 1, complete.after)

    def _plan_steps(self, progress: Progress) -> Iterator[LaneStep]:
        return steps_of(self._plan(progress), self.coded)

    def _plan(self, progress: Progress) -> tuple[Operation, ...]:
        t, shape = progress.iteration, self.shape
        return plan_update(self.coded, t, progress, skipped=t in shape.skips, fused=shape.fused)

    def _in_order(self, progress: Progress) -> Iterator[Planned]:
        now = progress
        for step in self._plan_steps(progress):
            planned = Planned((_part(step),), now)
            now = planned.after
            yield planned

    def _updated(self, progress: Progress) -> Progress:
        return [progress, *(planned.after for planned in self._in_order(progress))][-1]

    def _cuts(self, progress: Progress) -> Iterator[Planned]:
        cuts = Cuts(self._plan(progress), self.coded)
        for cut in cuts:
            if not cut.is_end:
                yield _planned_cut(cuts, cut, progress)

    def recovery(self, decision: Decision, row: Row, progress: Progress) -> tuple[Planned, ...]:
        """What a rank without losses does after a decision, until it waits for the others to go on training."""
        target = decision.target
        steps: Iterator[Planned]
        if decision.action is Action.COLD:
            steps = self.cold_start()
        elif row is Row.RUN_WHOLE_UPDATE:
            steps = self._begun_late(progress, cuts=False)
        elif row is Row.KEEP_BUILD_HEADER:
            steps = self._header(target + 1, progress)
        elif row is Row.KEEP_RELOAD_HEADER:
            steps = self._lend(progress)
        else:
            steps = self._update(progress, cuts=False)
        return tuple(steps)

    def _iterations_from(self, first: int) -> Iterator[Planned]:
        for t in range(first, self.shape.iterations + 1):
            yield from self.iteration(t)

    def _header(self, t: int, now: Progress) -> Iterator[Planned]:
        yield _write(f"write HEADER({t})", now)
        header = _phase(Phase.HEADER, t, now)
        yield header
        yield from self._lend(header.after)

    def _lend(self, now: Progress) -> Iterator[Planned]:
        lent = [UNDO, *(parity_slot(slot) for slot in range(self.coded.protection.parity_slots))]
        lent += [gradient_parity(group) for group in range(self._gradients.group_count)]
        yield from (_write(f"fill {name}", now) for name in lent)

    def updating(self, decision: Decision, progress: Progress) -> bool:
        """Whether the decision makes a rank go on with an update that changes something."""
        target = decision.target
        unfinished = decision.action is Action.FINISH and progress.iteration == target and progress.phase < Phase.COMPLETE
        return unfinished and target not in self.shape.skips

    def split_repairs(self, *, updating: bool) -> int:
        """Steps that repair the split loss: data are solved and rows encoded again in every code word that is needed."""
        return 2 * (self.coded.group_count + self._gradients.group_count * updating)

    def loss_sets(self, progress: Progress, *, cold: bool, updating: bool) -> int:
        """How many loss sets a crash has, from the sizes of code words."""
        if cold:
            return 2
        p = self.coded.protection
        update = progress if updating else Progress(phase=Phase.COMPLETE, iteration=1)
        focus = min(update.written_back, self.coded.group_count - 1)
        speaking = self._speaking(update)
        flight = None if update.in_flight is None else update.in_flight[0]
        chunks = self.coded.chunks_of(focus)
        coded_pages = (len(chunks) - (flight in chunks)) * p.chunk_pages
        gradients = len(self._gradients.group_pages(0))
        h1 = p.tier1_pages
        rows = 1 + (h1 > 1) + 1
        return (
            1
            + _data_sets(coded_pages, h1)
            + (_free_sets(p.chunk_pages) if flight is None else _data_sets(p.chunk_pages, h1))
            + rows * len(speaking)
            + _free_sets(h1 * (p.parity_slots - len(speaking)))
            + (_data_sets(gradients, h1) if updating else _free_sets(gradients))
            + (rows if updating else _free_sets(h1))
            + (_free_sets(h1) if focus in speaking else rows)
            + (_free_sets(self.coded.group_count) if self._tier2 else 0)
            + RECORDS
            + len(MIXED)
        )

    def _speaking(self, update: Progress) -> list[int]:
        """Groups for which a parity slot speaks."""
        groups = range(update.written_back, self.coded.group_count)
        return [group for group in groups if update.commits_in(self.coded.chunks_of(group))]


def _planned_cut(cuts: Cuts, cut: Cut, progress: Progress) -> Planned:
    now = progress
    for lane, done in zip(cuts.lanes, cut.done, strict=True):
        for step in lane[:done]:
            if step.is_mark and step.op.publish is not None:
                now = published(now, step.op.publish)
    pairs = zip(cut.coming, cut.may_begin, strict=True)
    return Planned(tuple(_part(step, may_begin=begin) for step, begin in pairs if step is not None), now, cut.on_path)


def _data_sets(pages: int, budget: int) -> int:
    return _free_sets(min(pages, budget)) + (pages > budget)


def _free_sets(pages: int) -> int:
    """Without a page: the rank has nothing of the class to lose, but an empty set is counted all the same."""
    return 1 + (pages > 1)
