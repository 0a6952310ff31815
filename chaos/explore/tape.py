"""The tape: one crash-free job, with an image of a rank for every step and every state a crash can leave it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.explore.cases import Point
from chaos.explore.job import RANKS, Job, RankImage, Shape
from chaos.explore.steps import END, Crash, State, Step
from leto.core.geometry import CODED_ARRAYS
from leto.core.layout import TIER2, tier1
from leto.core.records import Header, IterationResult
from leto.update.record_slots import RecordSlots


@dataclass(frozen=True)
class Frame:
    """One step of one rank: its name, and by state the rank's image after a crash there."""

    name: str
    states: tuple[State, ...]
    images: tuple[RankImage, ...]


@dataclass
class RankTape:
    """``barriers`` are the numbers of steps a rank has done when it comes to each barrier. The last frame is the end."""

    frames: list[Frame] = field(default_factory=list)
    barriers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """What a job without crashes leaves behind: coded state, both tiers, the last HEADER of every rank, and the results."""

    contents: tuple[Mapping[str, bytes], ...]
    headers: tuple[Header, ...]
    told: Mapping[tuple[int, int], IterationResult]


class Through:
    """Every step is done."""

    def take(self, index: int, step: Step) -> None:
        step.do()


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

    def take(self, index: int, step: Step) -> None:
        before = self._job.image(self._number)
        images = [before]
        for state in step.states[1:]:
            step.leave(state)
            self._job.ranks[self._number].memory.wrote(step.touched)
            images.append(self._image())
            self._job.restore(self._number, before)
        self._tape.frames.append(Frame(step.name, step.states, tuple(images)))
        step.do()

    def end(self) -> None:
        self._tape.frames.append(Frame("the end", (END,), (self._image(),)))

    def _image(self) -> RankImage:
        self._job.invariants.parity_speaks(self._number)
        return self._job.image(self._number)


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
    job.at_barrier = lambda number: tapes[number].barriers.append(len(tapes[number].frames))
    job.run(job.start(), recorders)
    for recorder in recorders:
        recorder.end()
    return Tape(tapes, ending_of(job))


def ending_of(job: Job) -> Ending:
    numbers = range(RANKS)
    return Ending(tuple(contents(job, n) for n in numbers), tuple(last_header(job, n) for n in numbers), dict(job.told))


def contents(job: Job, number: int) -> dict[str, bytes]:
    rank = job.ranks[number]
    return rank.memory.contents([*CODED_ARRAYS, *(tier1(group) for group in range(rank.coded.group_count)), TIER2])


def last_header(job: Job, number: int) -> Header:
    """Raises ProtocolViolation when the slot does not hold it."""
    return RecordSlots(job.ranks[number].memory).read_header(job.shape.iterations + 1)
