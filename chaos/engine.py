"""Runs one scenario: reference, reference again, control, run; then judges what was recorded.

The engine holds every deadline and decides when a fault fires; targets only carry out. Everything it sees or does is an entry
of the journal first, and the verdict is drawn from the journal and the ledgers alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.feasible import beyond_geometry
from chaos.journal import Journal
from chaos.judging import CONTROL, REFERENCE, REFERENCE_AGAIN, RUN, Judged, Recorded, judge, judge_reference, ledger_directory
from chaos.mistakes import Infeasible
from chaos.scenario import Scenario
from chaos.schedule import Injection, Place, describe_time, plan_injections
from chaos.targets.base import FaultNotInjected, RunningJob, RunSpec, Target, Updater
from chaos.targets.rank_geometry import RankGeometry
from leto.core.errors import JobError
from leto.core.events import Event
from verify import checkers
from verify.checkers import Judgement
from verify.compare import Comparison, Divergence, compare_records
from verify.history import BENCH, SYSTEM
from verify.ledger import Ledger, LedgerError, LedgerReader, ledger_path

_END_OF_SHADOWS = ("fenced", "shadow-ended", "shadow-failed")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Deadlines of the engine, in seconds; the scenario adds its own for each recovery."""

    poll_s: float = 0.005  # between two looks at the park words: nothing else can tell that a kernel has parked
    idle_s: float = 240.0  # without any event
    hold_s: float = 30.0  # between the first and the last of the places of a fault to be parked
    gate_s: float = 45.0  # for shadows to stand by, while a rank waits for them; below the system's own patience with a rank
    start_s: float = 300.0  # of the overall budget, for processes to come up
    iteration_s: float = 20.0  # of the overall budget, for each iteration
    finish_s: float = 60.0  # from job-ended to the orderly end


@dataclass(frozen=True)
class Ending:
    """Why the engine stopped watching a job. Status: an Outcome's, or hang, missed, diverged (the control only)."""

    status: str
    reason: str = ""


@dataclass
class _Watch:
    """One job under way: what is still to fire, and since when the engine waits for what."""

    job: RunningJob
    name: str
    pending: list[Injection]
    started_s: float
    last_event_s: float
    recovering_since_s: float | None = None
    parked_since_s: dict[int, float] = field(default_factory=dict)  # by token: some of its places are parked, not all
    last_fault: str = ""
    last_iteration: int = 0  # of that fault
    shadows: str | None = None  # level of those that stand by
    opened: set[int] = field(default_factory=set)  # tokens of injections whose gate is passed
    released: Injection | None = None  # its rank goes on over lost pages, and must die of one
    readers: dict[int, LedgerReader] = field(default_factory=dict)


class Engine:
    """Drives ``target`` and ``reference_target`` through one scenario inside ``directory``, which exists."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        journal: Journal,
        *,
        target: Target,
        reference_target: Target,
        mutant: str | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scenario, self._directory, self._journal = scenario, directory, journal
        self._target, self._reference_target, self._mutant = target, reference_target, mutant
        self._limits, self._clock = limits or Limits(), clock
        self._injections = plan_injections(scenario)
        self._reference: dict[int, Ledger] = {}
        self._geometry: dict[int, RankGeometry] = {}  # by rank, as the first job that says it does

    def run(self) -> Judged:
        """Raises ConfigError when a target does not have what the scenario names, Infeasible when its faults cannot happen."""
        self._target.check(self._spec(RUN, self._injections, mutant=self._mutant))
        self._run_job(REFERENCE, self._reference_target)
        self._run_job(REFERENCE_AGAIN, self._reference_target)
        if judge_reference(self._recorded).judgement is Judgement.TRUE:
            self._reference = self._recorded.ledgers(REFERENCE)
            if self._scenario.control is not None and self._mutant is None:
                self._run_job(CONTROL, self._target, self._injections, updater=Updater.NONE)
                self._judge_whole_control()
            self._run_job(RUN, self._target, self._injections, mutant=self._mutant)
        judged = judge(self._recorded)
        conclusion = judged.conclusion
        for r in judged.results:
            self._say("", "check", check=r.name, judgement=r.judgement.value, reason=r.reason)
        self._say("", "verdict", verdict=conclusion.verdict.word, exit_code=conclusion.exit_code, reason=conclusion.reason)
        return judged

    @property
    def _recorded(self) -> Recorded:
        """What has been recorded so far."""
        entries = self._journal.entries
        return Recorded(scenario=self._scenario, directory=self._directory, entries=entries, mutant=self._mutant)

    # One job

    def _run_job(
        self,
        name: str,
        target: Target,
        injections: Sequence[Injection] = (),
        updater: Updater = Updater.CHUNKS,
        mutant: str | None = None,
    ) -> None:
        spec = self._spec(name, injections, updater, mutant)
        for directory in (spec.output_dir, spec.ledger_dir):
            directory.mkdir(parents=True)
        self._say(name, "started", iterations=spec.workload.iterations)
        for injection in injections:
            self._say(name, "planned", **injection.to_json())
        try:
            job = target.start(spec)
        except JobError as error:
            self._say(name, "outcome", status=checkers.NEVER_STARTED, reason=f"the job did not start: {error}")
            return
        self._watch_and_close(name, job, list(injections))

    def _spec(
        self, name: str, injections: Sequence[Injection], updater: Updater = Updater.CHUNKS, mutant: str | None = None
    ) -> RunSpec:
        return RunSpec(
            name=name,
            workload=self._scenario.workload.to_core(),
            protection=self._scenario.protection.to_core(),
            output_dir=self._directory / "jobs" / name,
            ledger_dir=ledger_directory(self._directory, name),
            injections=tuple(injections),
            updater=updater,
            mutant=mutant,
        )

    def _watch_and_close(self, name: str, job: RunningJob, pending: list[Injection]) -> None:
        now = self._clock()
        watch = _Watch(job=job, name=name, pending=pending, started_s=now, last_event_s=now)
        try:
            ending = self._watch(watch)
            self._say(name, "outcome", status=ending.status, reason=ending.reason)
        finally:
            self._say(name, "residue", leaks=list(job.close().leaks))

    def _watch(self, watch: _Watch) -> Ending:
        """Every pass either sees an event or looks at the park words, and comes closer to a deadline.

        Events first: whoever is parked has been introduced by its ready event before.
        """
        while True:
            event = watch.job.next_event(self._limits.poll_s)
            ending = self._fire_what_is_due(watch) if event is None else self._on_event(watch, event)
            ending = ending or self._overdue(watch)
            if ending is not None:
                return ending

    def _on_event(self, watch: _Watch, event: Event) -> Ending | None:
        watch.last_event_s = self._clock()
        self._journal.append(watch.name, SYSTEM, event.name, **event.fields)
        if event.name == "ready":
            self._meet(watch.job, event.fields["rank"])
        elif event.name == "recovered":
            watch.recovering_since_s = None
        elif event.name == "failure":
            watch.released = None
        elif event.name == "shadows-ready":
            watch.shadows = event.fields["level"]
        elif event.name in _END_OF_SHADOWS:
            watch.shadows = None
        elif event.name == "iteration":
            rank, iteration = event.fields["rank"], event.fields["iteration"]
            return self._control_diverged(watch, rank, iteration) or self._miss(watch, rank, iteration)
        return self._ended(watch) if event.name == "job-ended" else None

    def _meet(self, job: RunningJob, rank: int) -> None:
        """Nobody has to wait for a fault that is aimed at nothing: the ranks of the reference know."""
        geometry = None if rank in self._geometry else job.geometry(rank)
        if geometry is None:
            return
        self._geometry[rank] = geometry
        if len(self._geometry) == self._scenario.workload.parallel.dp:
            mistakes = list(beyond_geometry(self._scenario, self._geometry))
            if mistakes:
                raise Infeasible(mistakes)

    def _ended(self, watch: _Watch) -> Ending:
        for injection in tuple(watch.pending):
            self._say_missed(watch, injection, "the job ended before")
        try:
            outcome = watch.job.finish(self._limits.finish_s)
        except TimeoutError:
            return Ending("hang", f"the job said it ended, but did not within {self._limits.finish_s:g} s")
        return Ending(outcome.status.value, outcome.reason)

    def _miss(self, watch: _Watch, rank: int, iteration: int) -> Ending | None:
        """A rank that completed a later iteration did not park where it should have. The control goes on without."""
        alive = watch.released
        if alive is not None and alive.rank == rank and alive.iteration < iteration:
            reason = f"rank {rank} completed iteration {iteration} and touched none of the pages it had lost"
            self._say(watch.name, "missed", token=alive.token, reason=reason)
            return Ending(checkers.MISSED, f"{alive.label}: {reason}")
        missed = [i for i in watch.pending if any(p.rank == rank and p.iteration < iteration for p in i.places)]
        for injection in missed:
            self._say_missed(watch, injection, f"rank {rank} completed iteration {iteration} without parking")
        if missed and watch.name == RUN:
            return Ending(checkers.MISSED, f"{missed[0].label} did not fire: {missed[0].describe()}")
        return None

    def _say_missed(self, watch: _Watch, injection: Injection, reason: str) -> None:
        self._say(watch.name, "missed", token=injection.token, reason=reason)
        watch.pending.remove(injection)

    # Faults: parked ones (U50) and free-running ones

    def _fire_what_is_due(self, watch: _Watch) -> Ending | None:
        if not watch.pending:
            return None
        due = watch.pending[0].iteration
        if watch.recovering_since_s is not None and due > watch.last_iteration:
            return None  # its rank may park before the end of the recovery is told; only one of the same iteration hits that
        for injection in [i for i in watch.pending if i.iteration == due]:
            if injection.moment is not None:
                ending = self._fire_if_passed(watch, injection, injection.moment)
            elif injection.gate is not None and injection.token not in watch.opened:
                ending = self._open_gate(watch, injection, injection.gate)
            else:
                ending = self._fire_if_parked(watch, injection)
            if ending is not None or injection not in watch.pending:
                return ending
        return None

    def _open_gate(self, watch: _Watch, injection: Injection, gate: Place) -> Ending | None:
        """The rank waits at the boundary of its iteration until shadows stand by, but not for ever."""
        if watch.job.parked(injection):  # a recovery goes on inside an iteration and passes no boundary
            reason = f"rank {gate.rank} came to {injection.site} without having waited for shadows"
            self._say_missed(watch, injection, reason)
            return Ending(checkers.MISSED, f"{injection.label} did not fire: {reason}")
        if not watch.job.parked(gate):
            watch.parked_since_s.pop(gate.token, None)
            return None
        since_s = watch.parked_since_s.setdefault(gate.token, self._clock())
        if watch.shadows is None:
            if self._clock() - since_s <= self._limits.gate_s:
                return None
            reason = f"no shadows stood by within {self._limits.gate_s:g} s, rank {gate.rank} waited for them"
            self._say_missed(watch, injection, reason)
            return Ending(checkers.MISSED, f"{injection.label} did not fire: {reason}")
        self._say(watch.name, "gate-opened", **_about(injection), level=watch.shadows)
        watch.job.open_gate(injection)
        watch.opened.add(injection.token)
        watch.parked_since_s.pop(gate.token)
        return None

    def _fire_if_parked(self, watch: _Watch, injection: Injection) -> Ending | None:
        """All of its places, or none: ranks that stand parked wait for the others, but not for ever."""
        parked = [place for place in injection.places if watch.job.parked(place)]
        if len(parked) == len(injection.places):
            return self._fire_parked(watch, injection)
        if not parked:
            watch.parked_since_s.pop(injection.token, None)
            return None
        since_s = watch.parked_since_s.setdefault(injection.token, self._clock())
        if self._clock() - since_s <= self._limits.hold_s:
            return None
        late = next(place for place in injection.places if place not in parked)
        waiting = " and ".join(f"rank {place.rank}" for place in parked)
        reason = f"rank {late.rank} did not come to {late.site} within {self._limits.hold_s:g} s, {waiting} stood parked"
        self._say_missed(watch, injection, reason)
        return Ending(checkers.MISSED, f"{injection.label} did not fire: {reason}")

    def _fire_parked(self, watch: _Watch, injection: Injection) -> Ending | None:
        """Damage and disarm while the ranks stand still, make FIRED durable, and only then lose pages and kill."""
        about = _about(injection)
        try:
            where = {place.token: watch.job.locate(place) for place in injection.places}
            places = [
                {"token": p.token, "rank": p.rank, "where": f"{p.site} {where[p.token]}".strip()} for p in injection.places
            ]
            self._say(watch.name, "parked", **about, places=places)
            damage = watch.job.damage(injection)
            if damage:
                self._say(watch.name, "damaged", **{**about, "what": damage})
            lost = watch.job.choose_losses(injection)
            for one in lost:
                pages = [f"{page.allocation}:{page.page_index}" for page in one.pages]
                self._say(watch.name, "lose", **about, rank=injection.rank, page_class=one.page_class.value, pages=pages)
            self._say(watch.name, "resources", **about, **asdict(watch.job.resources()))
            watch.job.disarm(injection)
            counts = dict(sum((Counter({one.page_class.value: len(one.pages)}) for one in lost), Counter[str]()))
            self._journal.durable(watch.name, BENCH, "fired", **about, places=places, lost=counts)
            if lost:
                watch.job.lose(injection, lost)
            if injection.natural:
                watch.job.release(injection)
                watch.released = injection
            else:
                watch.job.kill(injection)
        except FaultNotInjected as error:
            self._say_missed(watch, injection, str(error))
            return Ending(checkers.MISSED, f"{injection.label} was parked but not carried out: {error}")
        self._ends(watch, injection, "released" if injection.natural else "killed")
        return None

    def _fire_if_passed(self, watch: _Watch, injection: Injection, moment: int) -> Ending | None:
        """The rank is not stopped: it is killed wherever it has come to when the signal arrives.

        Not while a recovery is under way, so that every such kill has a recovery of its own.
        """
        seen = watch.job.time_of(injection.rank)
        if seen is None or seen < moment or watch.recovering_since_s is not None:
            return None
        about = _about(injection)
        try:
            watch.job.disarm(injection)
            where = f"seen in {describe_time(seen)}"
            self._journal.durable(watch.name, BENCH, "fired", **about, seen=seen, where=where)
            watch.job.kill(injection)
        except FaultNotInjected as error:
            self._say_missed(watch, injection, str(error))
            return Ending(checkers.MISSED, f"{injection.label} came too late: {error}")
        self._ends(watch, injection, "killed", where=where)
        return None

    def _ends(self, watch: _Watch, injection: Injection, how: str, **seen: str) -> None:
        self._say(watch.name, how, **_about(injection), **seen)
        watch.pending.remove(injection)
        watch.recovering_since_s = self._clock()
        watch.last_fault, watch.last_iteration = injection.label, injection.iteration

    def _overdue(self, watch: _Watch) -> Ending | None:
        now, limits, deadline_s = self._clock(), self._limits, self._scenario.expect.deadline_s
        held = bool(watch.parked_since_s)  # by the bench itself: no deadline of the system runs meanwhile
        if watch.recovering_since_s is not None and not held and now - watch.recovering_since_s > deadline_s:
            return Ending("hang", f"no recovery within {deadline_s:g} s of {watch.last_fault}")
        if now - watch.last_event_s > limits.idle_s:
            return Ending("hang", f"nothing happened for {limits.idle_s:g} s")
        budget_s = limits.start_s + limits.iteration_s * self._scenario.workload.iterations + deadline_s * len(self._injections)
        if now - watch.started_s > budget_s:
            return Ending("hang", f"not done after {budget_s:g} s")
        return None

    # Ledgers

    def _control_diverged(self, watch: _Watch, rank: int, iteration: int) -> Ending | None:
        """The control stops at its first divergence: what comes later is a consequence."""
        if watch.name != CONTROL:
            return None
        try:
            if rank not in watch.readers:
                watch.readers[rank] = LedgerReader(ledger_path(ledger_directory(self._directory, watch.name), rank))
            actual = watch.readers[rank].record(iteration)
        except LedgerError:
            return None  # being written again by a recovery; what diverged stays so and is seen at the next iteration
        expected = self._reference[rank].records.get(iteration)
        divergence = next(compare_records(expected, actual, iteration, rank), None)
        if divergence is None:
            return None
        self._say_diverged(divergence)
        return Ending("diverged", divergence.describe())

    def _judge_whole_control(self) -> None:
        """A control that went through without a divergence on the way is compared once more as a whole."""
        if checkers.outcome_in(self._journal.of_job(CONTROL))[0] == checkers.COMPLETED:
            comparison = self._recorded.compare(CONTROL)
            if isinstance(comparison, Comparison) and comparison.first is not None:
                self._say_diverged(comparison.first)

    def _say_diverged(self, divergence: Divergence) -> None:
        d = divergence
        self._say(CONTROL, "diverged", what=d.describe(), iteration=d.iteration, rank=d.rank, tensor=d.name)

    def _say(self, job: str, name: str, /, **fields: object) -> None:
        self._journal.append(job, BENCH, name, **fields)


def _about(injection: Injection) -> dict[str, object]:
    return {"token": injection.token, "label": injection.label, "what": injection.describe()}
