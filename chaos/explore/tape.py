"""The tape: one crash-free job, with an image of a rank for every step and every state a crash can leave it in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.explore.cases import Point
from chaos.explore.job import RANKS, Job, RankImage
from chaos.explore.lanes import Cut, Cuts, LaneStep, Plan
from chaos.explore.shapes import Shape
from chaos.explore.steps import END, MARK_STATES, WRITE_STATES, Crash, LaneStates, Step, seen, together
from leto.core.layout import HEADER_RECORDS
from leto.core.records import RECORD_SLOTS, IterationResult, encode_record
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.record_slots import RECORD_SLOT_BYTES, RecordSlots


@dataclass(frozen=True)
class Frame:
    """A point of one rank: its next step, one a lane, and by state the rank's image after a crash there.

    Images of cuts off the plan's own order are kept of one rank; the other frames of such cuts have none.
    """

    names: tuple[str, ...]
    states: tuple[LaneStates, ...]
    images: tuple[RankImage, ...]
    on_path: bool = True

    @property
    def name(self) -> str:
        return " | ".join(self.names)

    def describe(self, state: int) -> str:
        return f"{self.name}: {' | '.join(lane.name for lane in self.states[state])}"

    def seen(self, state: int, lost_mirrors: Collection[int]) -> int:
        """The state that the marks tell of when these mirrors are lost."""
        return self.states.index(seen(self.states[state], lost_mirrors, self.states[0]))


@dataclass
class RankTape:
    """``barriers`` are the numbers of steps a rank has done when it comes to each barrier. The last frame is the end."""

    frames: list[Frame] = field(default_factory=list)
    barriers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """What a job without crashes leaves behind: coded state, both tiers, the slots of the last HEADER, and the results."""

    contents: tuple[Mapping[str, bytes], ...]
    headers: tuple[bytes, ...]
    told: Mapping[tuple[int, int], IterationResult]


class StopAt:
    """Crashes at one step, in one state. ``reached`` is the name of that step."""

    def __init__(self, at: int, state: int) -> None:
        self._at = at
        self._state = state
        self.reached = ""

    def take(self, index: int, step: Step) -> None:
        if index != self._at:
            step.do()
            return
        self.reached = step.name
        step.leave(step.states[self._state])
        raise Crash


class Names:
    """Does every step and keeps its name."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def take(self, index: int, step: Step) -> None:
        self.names.append(step.name)
        step.do()


class _Recorder:
    """Leaves a step in each of its states, one after the other, then does it. INV-P must hold in all of them."""

    def __init__(self, job: Job, number: int, tape: RankTape) -> None:
        self._job = job
        self._number = number
        self._tape = tape
        self._within_cut: Callable[[Step], None] | None = None  # what becomes of a step while cuts are recorded

    def take(self, index: int, step: Step) -> None:
        if self._within_cut is not None:
            self._within_cut(step)
            return
        before = self._job.image(self._number)
        images = [before]
        for state in step.states[1:]:
            step.leave(state)
            self._job.ranks[self._number].memory.wrote(step.touched)
            images.append(self.image())
            self._job.restore(self._number, before)
        self._tape.frames.append(Frame((step.name,), together([step.states]), tuple(images)))
        step.do()

    def end(self) -> None:
        self._tape.frames.append(Frame(("the end",), ((END,),), (self.image(),)))

    def image(self) -> RankImage:
        self._job.invariants.parity_speaks(self._number)
        return self._job.image(self._number)

    def run_plan(self, executor: PlanExecutor, parts: UpdateParts, plan: Plan) -> None:
        """Every cut of a plan with two lanes becomes a frame, and the plan is done; a serial plan is recorded step by step."""
        rank, iteration = self._job.ranks[self._number], self._job.invariants.accounts[self._number].iteration
        if not rank.coded.protection.pipelined or iteration != self._job.shape.explored:
            executor.run(plan)
            return

        def perform(step: LaneStep, within_cut: Callable[[Step], None]) -> None:
            self._within_cut = within_cut
            try:
                if not step.is_mark:
                    executor.run_unmarked(step.op)
                elif step.op.publish is not None:
                    parts.marks.publish(step.op.publish.word, step.op.publish.mark)
            finally:
                self._within_cut = None

        with rank.memory.sharing():
            walk = _CutWalk(self._job, self._number, Cuts(plan, rank.coded), perform, self.image)
            self._tape.frames += walk.frames(off_path=self._number == OFF_PATH_RANK)


OFF_PATH_RANK = 0
"""The rank of which images are kept at every cut of its lanes."""


class _CutWalk:
    """Comes to each cut from one before it, by one step of one lane."""

    def __init__(
        self,
        job: Job,
        number: int,
        cuts: Cuts,
        perform: Callable[[LaneStep, Callable[[Step], None]], None],
        image: Callable[[], RankImage],
    ) -> None:
        self._job = job
        self._number = number
        self._cuts = cuts
        self._perform = perform
        self._image = image
        self._reached: dict[tuple[int, int], RankImage] = {}

    def frames(self, *, off_path: bool) -> Iterator[Frame]:
        for cut in self._cuts:
            if cut.on_path or off_path:
                self._come_to(cut)
            if not cut.is_end:
                yield self._frame(cut, kept=cut.on_path or off_path)

    def _come_to(self, cut: Cut) -> None:
        computed, copied = cut.done
        compute, copy = self._cuts.lanes
        if (computed - 1, copied) in self._reached:
            self._do(compute[computed - 1], self._reached[computed - 1, copied])
        elif (computed, copied - 1) in self._reached:
            self._do(copy[copied - 1], self._reached[computed, copied - 1])
        self._reached[cut.done] = self._image()

    def _do(self, step: LaneStep, before: RankImage) -> None:
        self._job.restore(self._number, before)
        self._perform(step, lambda done: done.do())

    def _frame(self, cut: Cut, *, kept: bool) -> Frame:
        lanes = [(step, begin) for step, begin in zip(cut.coming, cut.may_begin, strict=True) if step is not None]
        states = together([states_of(step, may_begin=begin) for step, begin in lanes])
        images: list[RankImage] = []
        for lefts in states if kept else ():
            self._job.restore(self._number, self._reached[cut.done])
            for (step, _), left, untouched in zip(lanes, lefts, states[0], strict=True):
                if left != untouched:
                    self._perform(step, lambda begun, left=left: begun.leave(left))  # type: ignore[misc]
            images.append(self._image())
        return Frame(tuple(step.name for step, _ in lanes), states, tuple(images), cut.on_path)


def states_of(step: LaneStep, *, may_begin: bool) -> LaneStates:
    states = MARK_STATES if step.is_mark else WRITE_STATES
    return states if may_begin else states[:1]


@dataclass(frozen=True)
class Tape:
    ranks: tuple[RankTape, ...]
    ending: Ending

    def together(self, points: Sequence[Point]) -> bool:
        """Nobody has passed a barrier to which another rank has not come."""
        places = [self.at_barriers(n, point) for n, point in enumerate(points)]
        return max(passed for passed, _ in places) <= min(come for _, come in places)

    def at_barriers(self, number: int, point: Point) -> tuple[int, int]:
        """How many barriers a rank has surely passed and how many it has come to. Before the step after a barrier it may
        still wait there."""
        barriers = self.ranks[number].barriers
        come = sum(done <= point.step for done in barriers)
        waits = point.state == 0 and point.step in barriers
        return come - waits, come


def record(shape: Shape) -> Tape:
    """Raises Violated when an invariant does not hold on the way."""
    job = Job(shape)
    tapes = tuple(RankTape() for _ in range(RANKS))
    recorders = [_Recorder(job, n, tape) for n, tape in enumerate(tapes)]
    job.run_plan = lambda number, executor, parts, plan: recorders[number].run_plan(executor, parts, plan)
    job.at_barrier = lambda number: tapes[number].barriers.append(len(tapes[number].frames))
    job.run(job.start(), recorders)
    for recorder in recorders:
        recorder.end()
    return Tape(tapes, ending_of(job))


def ending_of(job: Job) -> Ending:
    numbers = range(RANKS)
    return Ending(tuple(job.ranks[n].durable() for n in numbers), tuple(_last_header(job, n) for n in numbers), dict(job.told))


def _last_header(job: Job, number: int) -> bytes:
    header = RecordSlots(job.ranks[number].memory).read_header(job.shape.iterations + 1)
    return encode_record(header, RECORD_SLOT_BYTES)


def ends_with_header(job: Job, number: int, right: bytes) -> bool:
    """Whether the slot of the last HEADER holds the right one. Raises ProtocolViolation when it holds none."""
    memory, t = job.ranks[number].memory, job.shape.iterations + 1
    first = t % RECORD_SLOTS * RECORD_SLOT_BYTES
    if memory.bytes(HEADER_RECORDS)[first : first + len(right)].tobytes() == right:
        return True
    RecordSlots(memory).read_header(t)
    return False
