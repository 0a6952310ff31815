"""One case after the other: crash, read mirrors, decide, repair, resume, complete on all ranks, and compare every bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

from chaos.explore import reached
from chaos.explore.cases import Case, Point
from chaos.explore.expected import COMPUTE, JobPlan
from chaos.explore.job import RANKS, Job, Shape
from chaos.explore.losses import NONE, Loss, losses_of
from chaos.explore.steps import Crash
from chaos.explore.tape import Frame, Names, StopAt, Tape, Through, contents, last_header, record
from chaos.explore.totals import Totals
from leto.core.errors import ConfigError, Unrecoverable
from leto.core.markers import Phase
from leto.core.recovery import Action, Decision


class Failed(Exception):
    """A case did not end as it must. The message says how."""


@contextmanager
def _failing(where: str = "") -> Iterator[None]:
    """Whatever the judged code raises is a failure of the case; a case that cannot be is a person's mistake."""
    try:
        yield
    except (Failed, ConfigError):
        raise
    except Exception as error:
        raise Failed(f"{where}{type(error).__name__}: {error}") from error


class Explorer:
    """Runs cases on one shape. Raises Failed when the job without crashes breaks an invariant."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        with _failing("the job without crashes: "):
            self.tape: Tape = record(shape)
        self.job = Job(shape)
        rank = self.job.ranks[0]
        self.totals = Totals(JobPlan(rank.coded, rank.gradients, shape.iterations))
        self._losses: dict[tuple[str, bool, bool], Mapping[str, Loss]] = {}
        self.died_again_in = ""  # the step, in the last case that had a second crash
        self._through = [Through() for _ in range(RANKS)]

    @cached_property
    def window(self) -> list[int]:
        """The steps that are explored: the cold start, and the last iteration to the end of the job. The iterations between
        leave old marks, records and parity behind."""
        tape = self.tape.ranks[0]
        computes = [n for n, frame in enumerate(tape.frames) if frame.name == COMPUTE]
        return [*range(tape.barriers[0] + 1), *range(computes[-1], len(tape.frames))]

    def frame(self, number: int, point: Point) -> Frame:
        frames = self.tape.ranks[number].frames
        if point.step >= len(frames) or point.state >= len(frames[point.step].states):
            raise ConfigError(f"rank {number} has no point {point}")
        return frames[point.step]

    def run(self, case: Case) -> frozenset[str]:
        """One complete course of events; what it reached (``reached.REQUIRED``). Raises Failed."""
        with _failing():
            return frozenset(self._run(case))

    def fails(self, case: Case) -> str | None:
        """How, or None when it ends as it must. A case that another one's point does not exist in does not fail."""
        try:
            self.run(case)
        except Failed as failure:
            return str(failure)
        except ConfigError:
            return None
        return None

    def decide(self, points: tuple[Point, Point]) -> Decision:
        """The job stands where its ranks have died, and the next epoch is open. Raises ConfigError when that cannot be."""
        images = [self.frame(number, point).images[point.state] for number, point in enumerate(points)]
        if not self.tape.together(points):
            raise ConfigError(f"a barrier keeps the ranks from being at {points[0]} and {points[1]} together")
        self.job.forget()
        for number, image in enumerate(images):
            self.job.restore(number, image)
        with _failing(f"{Case(points)}: "):
            return self.job.fail()

    def losses(self, number: int, decision: Decision) -> Mapping[str, Loss]:
        """What the rank can lose where it stands. Ranks are alike, so what the account says is all that matters."""
        account = self.job.invariants.accounts[number]
        updating = decision.action is Action.FINISH and account.iteration == decision.target and account.phase < Phase.COMPLETE
        cold = decision.action is Action.COLD
        key = (repr(account), cold, updating)
        if key not in self._losses:
            self._losses[key] = losses_of(self.job.ranks[number], account, cold=cold, updating=updating)
        return self._losses[key]

    def recovery_steps(self, points: tuple[Point, Point], losses: tuple[str, str]) -> tuple[tuple[str, ...], ...]:
        """Names of what each rank does in a recovery that nothing interrupts."""
        decision = self.decide(points)
        for number, name in enumerate(losses):
            self.job.lose(number, self.losses(number, decision)[name].pages)
        drivers = [Names() for _ in range(RANKS)]
        with _failing(f"{Case(points, losses)}: "):
            self.job.run(decision, drivers)
        return tuple(tuple(driver.names) for driver in drivers)

    def _run(self, case: Case) -> set[str]:
        decision = self.decide(case.points)
        marks = reached.at_crash(self, case, decision)
        for number, name in enumerate(case.losses):
            loss = self._loss(number, name, decision)
            self.job.lose(number, loss.pages)
            if loss.refused is not None:
                self._refused(number, loss, decision)
                return marks | {reached.REFUSED if loss.corrupt is None else reached.REFUSED_BY_SPARE_ROW}
        if case.again is not None:
            decision = self._dies_again(case.again, decision)
            marks |= reached.at_second_crash(self.died_again_in)
        self.job.run(decision, self._through)
        self._check_ending(decision)
        return marks | reached.at_the_end(self.job)

    def _loss(self, number: int, name: str, decision: Decision) -> Loss:
        if name == NONE:
            return Loss()
        losses = self.losses(number, decision)
        if name not in losses:
            raise ConfigError(f"rank {number} cannot lose {name} here; it can lose {', '.join(losses)}")
        return losses[name]

    def _refused(self, number: int, loss: Loss, decision: Decision) -> None:
        """The rank with the losses refuses with the counts, before it writes anything but lost pages (U54)."""
        rank = self.job.ranks[number]
        if loss.corrupt is not None:
            rank.memory.flip_bit(loss.corrupt)
        before = self.job.image(number).memory
        names = Names()
        try:
            self.job.run(decision, [names] * RANKS, first=number)
        except Unrecoverable as refusal:
            if not str(refusal).startswith(str(loss.refused)):
                raise Failed(f"refused with {str(refusal)!r}, not with {loss.refused!r}") from None
        else:
            raise Failed(f"went on although it had to refuse: {loss.refused}")
        if loss.corrupt is not None:
            rank.memory.lose(loss.pages)
        elif names.names:
            raise Failed(f"wrote before it refused: {', '.join(names.names)}")
        if self.job.image(number).memory != before:
            raise Failed("changed pages that were not lost before it refused")

    def _dies_again(self, again: tuple[int, Point], decision: Decision) -> Decision:
        """A second crash, inside the recovery; INV-P holds there as well, but for ranks that still have pages to rebuild."""
        number, point = again
        stop = StopAt(point.step, point.state)
        drivers = [stop if n == number else self._through[n] for n in range(RANKS)]
        try:
            self.job.run(decision, drivers)
        except Crash:
            self.died_again_in = stop.reached
            for n, rank in enumerate(self.job.ranks):
                if not rank.lost:
                    self.job.invariants.parity_speaks(n)
            return self.job.fail()
        raise ConfigError(f"the recovery of rank {number} has no step {point.step}")

    def _check_ending(self, decision: Decision) -> None:
        right = self.tape.ending
        for number in range(RANKS):
            found = contents(self.job, number)
            wrong = [name for name, content in right.contents[number].items() if found[name] != content]
            if wrong:
                raise Failed(f"rank {number} ends with other bytes in {', '.join(wrong)}")
            if last_header(self.job, number) != right.headers[number]:
                raise Failed(f"rank {number} ends with another HEADER({self.shape.iterations + 1})")
            for t in range(max(decision.target, 1), self.shape.iterations + 1):
                if self.job.told.get((number, t)) != right.told[number, t]:
                    raise Failed(f"rank {number} tells other results of iteration {t}, or none")
            rank = self.job.ranks[number]
            progress = rank.markers.read_progress(rank.epoch)
            if (progress.phase, progress.iteration) != (Phase.HEADER, self.shape.iterations + 1):
                raise Failed(f"rank {number} ends at {progress.describe()}")
