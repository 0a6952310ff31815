"""One case after the other: crash, read mirrors, decide, repair, resume, complete on all ranks, and compare every bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

from chaos.explore import reached
from chaos.explore.cases import Again, AgentDies, Case, Point
from chaos.explore.expected import COMPUTE, JobPlan
from chaos.explore.job import RANKS, Job
from chaos.explore.losses import MIRROR_SETS, NONE, Loss, losses_of, lost_beside, split_name
from chaos.explore.shapes import Shape
from chaos.explore.steps import Crash, Driver, Through
from chaos.explore.tape import Frame, Names, StopAt, Tape, ends_with_header, record
from chaos.explore.totals import Totals
from leto.core.errors import ConfigError, Unrecoverable
from leto.core.markers import MIRRORS, Phase, Progress
from leto.core.recovery import Action, Decision

Mirrors = tuple[tuple[int, ...], tuple[int, ...]]
"""The mirrors that each rank loses."""
NO_MIRRORS: Mirrors = ((), ())
ALL_MIRRORS = MIRROR_SETS[-1]


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
        self.plan = JobPlan(rank.coded, rank.gradients, shape)
        self.totals = Totals(self.plan, RANKS)
        self._losses: dict[tuple[str, bool, bool], Mapping[str, Loss]] = {}
        self.died_again_in = ""  # the step, in the last case in which somebody died again
        self._through = [Through() for _ in range(RANKS)]

    @cached_property
    def window(self) -> list[int]:
        """The steps that are explored (``Shape``)."""
        tape = self.tape.ranks[0]
        computes = [n for n, frame in enumerate(tape.frames) if frame.name == COMPUTE]
        first, stop = [*computes, len(tape.frames)][self.shape.explored - 1 :][:2]
        return [*range(tape.barriers[0] + 1), *range(first, stop)]

    def frame(self, number: int, point: Point) -> Frame:
        frames = self.tape.ranks[number].frames
        if point.step >= len(frames) or point.state >= len(frames[point.step].images):
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

    def decide(self, points: tuple[Point, Point], mirrors: Mirrors = NO_MIRRORS, agent: Driver | None = None) -> Decision:
        """The job stands where its ranks have died, without these mirrors of each one's marker page, and the next epoch is
        open, unless the decision is to give up. Raises ConfigError when that cannot be."""
        frames = [self.frame(number, point) for number, point in enumerate(points)]
        if not self.tape.together(points):
            raise ConfigError(f"a barrier keeps the ranks from being at {points[0]} and {points[1]} together")
        self.job.forget()
        for number, (frame, point, lost) in enumerate(zip(frames, points, mirrors, strict=True)):
            self.job.restore(number, frame.images[point.state])
            if lost:
                self.job.lose_mirrors(number, lost, frame.images[frame.seen(point.state, lost)].account)
        with _failing(f"{Case(points)}: "):
            decision = self.job.fail(agent)
        if decision.action is Action.CHECKPOINT and ALL_MIRRORS not in mirrors:
            raise Failed(f"{Case(points)}: gave up: {decision.reason}")
        return decision

    def losses(self, number: int, decision: Decision) -> Mapping[str, Loss]:
        """What the rank can lose where it stands. Ranks are alike, so what the account says is all that matters."""
        if decision.action is Action.CHECKPOINT:
            return {NONE: Loss()}
        cold, updating = self._needs(number, decision)
        key = (repr(self.job.invariants.accounts[number]), cold, updating)
        if key not in self._losses:
            account = self.job.invariants.accounts[number]
            self._losses[key] = losses_of(self.job.ranks[number], account, cold=cold, updating=updating)
        return self._losses[key]

    def _needs(self, number: int, decision: Decision) -> tuple[bool, bool]:
        """Whether the decision is a cold start, and whether it makes the rank go on with an update."""
        account = self.job.invariants.accounts[number]
        progress = Progress(phase=account.phase, iteration=account.iteration)
        return decision.action is Action.COLD, self.plan.updating(decision, progress)

    def recovery_steps(
        self, points: tuple[Point, Point], losses: tuple[str, str], *, to_the_end: bool = False
    ) -> tuple[tuple[str, ...], ...]:
        """Names of what each rank does in a recovery that nothing interrupts; ``to_the_end`` of the job, or until it goes on
        training."""
        decision = self._lose(points, losses)
        drivers = [Names() for _ in range(RANKS)]
        with _failing(f"{Case(points, losses)}: "):
            train = self.job.recover(decision, drivers)
            if to_the_end:
                train()
        return tuple(tuple(driver.names) for driver in drivers)

    def _lose(self, points: tuple[Point, Point], losses: tuple[str, str]) -> Decision:
        """Losses that are not refused."""
        (first, one), (second, other) = (split_name(name) for name in losses)
        decision = self.decide(points, (first, second))
        for number, name in enumerate((one, other)):
            self.job.lose(number, self._loss(number, name, decision).pages)
        return decision

    def _run(self, case: Case) -> set[str]:
        (first, one), (second, other) = (split_name(name) for name in case.losses)
        mirrors = (first, second)
        if isinstance(case.then, AgentDies):
            agent = StopAt(case.then.point.step, case.then.point.state)
            decision = self.decide(case.points, mirrors, agent)
            self.died_again_in = agent.reached
            marks = reached.at_hand_over(agent.reached)
        else:
            decision = self.decide(case.points, mirrors)
            marks = set()
        marks |= reached.at_crash(self, case.points, mirrors, decision)
        if ALL_MIRRORS in mirrors:
            self._gave_up(mirrors, decision)
            return marks
        for number, name in enumerate((one, other)):
            loss = self._loss(number, name, decision)
            self.job.lose(number, loss.pages)
            if loss.refused is not None:
                self._refused(number, loss, decision)
                return marks | reached.at_refusal(loss)
        if isinstance(case.then, Again):
            decision = self._dies_again(case.then, decision)
            marks |= reached.at_second_crash(case.then, self.died_again_in)
            loss = self._lost_beside(case.then, decision)
            if loss.refused is not None:
                self._refused(case.then.rank, loss, decision)
                return marks | reached.at_refusal(loss)
        self.job.run(decision, self._through)
        self._check_ending(decision)
        return marks | reached.at_the_end(self.job)

    def _gave_up(self, mirrors: Mirrors, decision: Decision) -> None:
        """Without any mirror of a rank nothing is guessed: the whole job stops with its reason (U4, U54)."""
        reason = f"all {MIRRORS} mirrors"
        if decision.action is not Action.CHECKPOINT or reason not in decision.reason:
            raise Failed(f"decided {decision.action.value} ({decision.reason}) without any marker of a rank")

    def _lost_beside(self, again: Again, decision: Decision) -> Loss:
        cold, updating = self._needs(again.rank, decision)
        account = self.job.invariants.accounts[again.rank]
        loss = lost_beside(self.job.ranks[again.rank], account, again.loss, cold=cold, updating=updating)
        self.job.lose(again.rank, loss.pages)
        return loss

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

    def _dies_again(self, again: Again, decision: Decision) -> Decision:
        """A second crash, inside the recovery; INV-P holds there as well, but for ranks that still have pages to rebuild."""
        stop = StopAt(again.point.step, again.point.state)
        drivers: list[Driver] = [Through() for _ in range(RANKS)]
        drivers[again.rank] = stop
        try:
            self.job.run(decision, drivers)
        except Crash:
            self.died_again_in = stop.reached
            for n, rank in enumerate(self.job.ranks):
                if not rank.lost:
                    self.job.invariants.parity_speaks(n)
            after = self.job.fail()
            if after.action is Action.CHECKPOINT:
                raise Failed(f"gave up after the second crash: {after.reason}") from None
            return after
        raise ConfigError(f"the recovery of rank {again.rank} has no step {again.point.step}")

    def _check_ending(self, decision: Decision) -> None:
        right = self.tape.ending
        for number in range(RANKS):
            found = self.job.ranks[number].durable()
            wrong = [name for name, content in right.contents[number].items() if found[name] != content]
            if wrong:
                raise Failed(f"rank {number} ends with other bytes in {', '.join(wrong)}")
            if not ends_with_header(self.job, number, right.headers[number]):
                raise Failed(f"rank {number} ends with another HEADER({self.shape.iterations + 1})")
            for t in range(max(decision.target, 1), self.shape.iterations + 1):
                if self.job.told.get((number, t)) != right.told[number, t]:
                    raise Failed(f"rank {number} tells other results of iteration {t}, or none")
            rank = self.job.ranks[number]
            progress = rank.markers.read_progress(rank.epoch)
            if (progress.phase, progress.iteration) != (Phase.HEADER, self.shape.iterations + 1):
                raise Failed(f"rank {number} ends at {progress.describe()}")
