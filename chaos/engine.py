"""Runs one scenario: reference, reference again, control, run; then judges what was recorded.

The engine holds every deadline and decides when a fault fires; targets only carry out. Everything it sees or does is an entry
of the journal first, and the verdict is drawn from the journal and the ledgers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.journal import Journal
from chaos.scenario import Scenario
from chaos.schedule import Injection, plan_injections
from chaos.targets.base import FaultNotInjected, RunningJob, RunSpec, Target, Updater
from chaos.verdict import Conclusion, conclude
from leto.core.errors import JobError
from leto.core.events import Event
from verify import checkers
from verify.checkers import CheckResult
from verify.compare import Comparison, Divergence, compare_records, compare_runs
from verify.history import BENCH, SYSTEM
from verify.ledger import Ledger, LedgerError, LedgerReader, ledger_path, read_ledgers

REFERENCE, REFERENCE_AGAIN, CONTROL, RUN = "reference", "reference-again", "control", "run"
JOBS = (REFERENCE, REFERENCE_AGAIN, CONTROL, RUN)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Deadlines of the engine, in seconds; the scenario adds its own for each recovery."""

    poll_s: float = 0.005  # between two looks at the park words: nothing else can tell that a kernel has parked
    idle_s: float = 240.0  # without any event
    start_s: float = 300.0  # of the overall budget, for processes to come up
    iteration_s: float = 20.0  # of the overall budget, for each iteration
    finish_s: float = 60.0  # from job-ended to the orderly end


@dataclass(frozen=True)
class Ending:
    """Why the engine stopped watching a job. Status: an Outcome's, or hang, missed, diverged (the control only)."""

    status: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A scenario run to its end, as the reports show it."""

    conclusion: Conclusion
    results: tuple[CheckResult, ...]
    comparison: Comparison | None


@dataclass
class _Watch:
    """One job under way: what is still to fire, and since when the engine waits for what."""

    job: RunningJob
    name: str
    pending: list[Injection]
    started_s: float
    last_event_s: float
    recovering_since_s: float | None = None
    last_fault: str = ""
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

    def run(self) -> Judged:
        """Raises ConfigError when a target does not have what the scenario names."""
        self._run_job(REFERENCE, self._reference_target)
        self._run_job(REFERENCE_AGAIN, self._reference_target)
        reference = self._ledgers(REFERENCE)
        self._reference = reference or {}
        same = None if reference is None else self._compare(REFERENCE_AGAIN)
        first, again = self._journal.of_job(REFERENCE), self._journal.of_job(REFERENCE_AGAIN)
        results = [checkers.reference_equals_itself(first, again, same)]
        comparison = None
        if results[0].judgement is checkers.Judgement.TRUE:
            if self._scenario.control is not None and self._mutant is None:
                self._run_job(CONTROL, self._target, self._injections, updater=Updater.NONE)
                self._judge_whole_control()
                results.append(checkers.control_diverged(self._journal.of_job(CONTROL)))
            self._run_job(RUN, self._target, self._injections, mutant=self._mutant)
            comparison = self._compare(RUN)
            results += self._judge_run(comparison)
        results.append(checkers.no_residue(self._journal.entries))
        conclusion = conclude(results)
        for r in results:
            self._say("", "check", check=r.name, judgement=r.judgement.value, reason=r.reason)
        self._say("", "verdict", verdict=conclusion.verdict.word, exit_code=conclusion.exit_code, reason=conclusion.reason)
        return Judged(conclusion=conclusion, results=tuple(results), comparison=comparison)

    def _judge_run(self, comparison: Comparison | None) -> list[CheckResult]:
        history = self._journal.of_job(RUN)
        expect, workload = self._scenario.expect, self._scenario.workload
        return [
            checkers.faults_fired(history),
            checkers.completed(history),
            checkers.recoveries_witnessed(history, expect.recoveries, expect.rule),
            checkers.in_time(history, expect.deadline_s),
            checkers.exact(comparison, history),
            checkers.parity_equal(history, workload.to_core().world_size, workload.iterations),
        ]

    # One job

    def _run_job(
        self,
        name: str,
        target: Target,
        injections: Sequence[Injection] = (),
        updater: Updater = Updater.CHUNKS,
        mutant: str | None = None,
    ) -> None:
        spec = RunSpec(
            name=name,
            workload=self._scenario.workload.to_core(),
            protection=self._scenario.protection.to_core(),
            output_dir=self._new_directory("jobs", name),
            ledger_dir=self._new_directory("ledger", name),
            injections=tuple(injections),
            updater=updater,
            mutant=mutant,
        )
        self._say(name, "started", iterations=spec.workload.iterations)
        for injection in injections:
            self._say(name, "planned", **injection.to_json())
        try:
            job = target.start(spec)
        except JobError as error:
            self._say(name, "outcome", status="failed", reason=f"the job did not start: {error}")
            return
        self._watch_and_close(name, job, list(injections))

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
            ending = self._fire_what_is_parked(watch) if event is None else self._on_event(watch, event)
            ending = ending or self._overdue(watch)
            if ending is not None:
                return ending

    def _on_event(self, watch: _Watch, event: Event) -> Ending | None:
        watch.last_event_s = self._clock()
        self._journal.append(watch.name, SYSTEM, event.name, **event.fields)
        if event.name == "recovered":
            watch.recovering_since_s = None
        if event.name == "iteration":
            rank, iteration = event.fields["rank"], event.fields["iteration"]
            return self._control_diverged(watch, rank, iteration) or self._miss(watch, rank, iteration)
        return self._ended(watch) if event.name == "job-ended" else None

    def _ended(self, watch: _Watch) -> Ending:
        for injection in watch.pending:
            self._say(watch.name, "missed", token=injection.token, reason="the job ended before")
        try:
            outcome = watch.job.finish(self._limits.finish_s)
        except TimeoutError:
            return Ending("hang", f"the job said it ended, but did not within {self._limits.finish_s:g} s")
        return Ending(outcome.status.value, outcome.reason)

    def _miss(self, watch: _Watch, rank: int, iteration: int) -> Ending | None:
        """A rank that completed a later iteration did not park where it should have. The control goes on without."""
        missed = [i for i in watch.pending if i.rank == rank and i.iteration < iteration]
        for injection in missed:
            reason = f"rank {rank} completed iteration {iteration} without parking"
            self._say(watch.name, "missed", token=injection.token, reason=reason)
            watch.pending.remove(injection)
        if missed and watch.name == RUN:
            return Ending("missed", f"{missed[0].label} did not fire: {missed[0].describe()}")
        return None

    # Parked kills (U50)

    def _fire_what_is_parked(self, watch: _Watch) -> Ending | None:
        if not watch.pending:
            return None
        due = watch.pending[0].iteration
        for injection in [i for i in watch.pending if i.iteration == due]:
            if watch.job.parked(injection):
                return self._fire(watch, injection)
        return None

    def _fire(self, watch: _Watch, injection: Injection) -> Ending | None:
        """Damage and disarm while the rank stands still, make FIRED durable, and only then kill."""
        about = {"token": injection.token, "label": injection.label, "what": injection.describe()}
        self._say(watch.name, "parked", **about)
        try:
            damage = watch.job.damage(injection)
            if damage:
                self._say(watch.name, "damaged", **{**about, "what": damage})
            watch.job.disarm(injection)
            self._journal.durable(watch.name, BENCH, "fired", **about)
            watch.job.kill(injection)
        except FaultNotInjected as error:
            self._say(watch.name, "missed", token=injection.token, reason=str(error))
            return Ending("missed", f"{injection.label} was parked but not carried out: {error}")
        self._say(watch.name, "killed", **about)
        watch.pending.remove(injection)
        watch.recovering_since_s, watch.last_fault = self._clock(), injection.label
        return None

    def _overdue(self, watch: _Watch) -> Ending | None:
        now, limits, deadline_s = self._clock(), self._limits, self._scenario.expect.deadline_s
        if watch.recovering_since_s is not None and now - watch.recovering_since_s > deadline_s:
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
                watch.readers[rank] = LedgerReader(ledger_path(self._directory / "ledger" / watch.name, rank))
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
            comparison = self._compare(CONTROL)
            if comparison is not None and comparison.first is not None:
                self._say_diverged(comparison.first)

    def _say_diverged(self, divergence: Divergence) -> None:
        d = divergence
        self._say(CONTROL, "diverged", what=d.describe(), iteration=d.iteration, rank=d.rank, tensor=d.name)

    def _ledgers(self, name: str) -> dict[int, Ledger] | None:
        """None, and an entry that says why, when a ledger of a completed job is not whole."""
        status, _ = checkers.outcome_in(self._journal.of_job(name))
        try:
            return read_ledgers(self._directory / "ledger" / name, cut_short=status != checkers.COMPLETED)
        except LedgerError as error:
            self._say(name, "ledger-unreadable", reason=str(error))
            return None

    def _compare(self, name: str) -> Comparison | None:
        ledgers = self._ledgers(name)
        return None if ledgers is None else compare_runs(self._reference, ledgers, self._scenario.workload.iterations)

    def _new_directory(self, *parts: str) -> Path:
        path = self._directory.joinpath(*parts)
        path.mkdir(parents=True)
        return path

    def _say(self, job: str, name: str, /, **fields: object) -> None:
        self._journal.append(job, BENCH, name, **fields)
