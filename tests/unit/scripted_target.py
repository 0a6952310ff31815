"""A system under test that follows a script: real ledgers and events, no processes and no time of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.schedule import Injection, Place
from chaos.targets.base import FaultNotInjected, Outcome, OutcomeStatus, Residue, RunSpec
from leto.core.errors import JobError
from leto.core.events import Event
from leto.core.records import IterationResult
from verify.ledger import LedgerWriter, ledger_path

TENSORS = ("param/w", "master/w", "exp_avg/w", "exp_avg_sq/w", "step/w")
NEVER = 10**9


class ManualClock:
    """Seconds that pass only when nothing happens."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(kw_only=True)
class Script:
    """How one job misbehaves; the default is a job that recovers from everything."""

    diverge_from: int = NEVER  # this iteration and all later ones, on rank 1, in master/w
    diverge_in: str = "master/w"
    diverge_after_fault: bool = False
    skip_record: int = NEVER  # this iteration is never recorded on rank 0
    parks: bool = True
    never_parks: int = -1  # this rank never comes to its place
    nested: bool = False  # of two faults in one iteration the second hits the recovery from the first
    overshoot: int = 0  # how far past its moment a free-running rank is when it is seen
    hang_at: int = NEVER
    recovers: bool = True
    rule: str = "finish"
    rules: dict[int, str] = field(default_factory=dict)  # by iteration, where it is another one
    wrong_tier1: tuple[int, ...] = ()
    audits: bool = True
    refuse: str = ""
    kill_fails: bool = False
    start_fails: bool = False
    leaks: tuple[str, ...] = ()
    interrupt_at: int = NEVER


@dataclass
class ScriptedTarget:
    clock: ManualClock
    scripts: dict[str, Script] = field(default_factory=dict)  # by job name
    started: list[RunSpec] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def start(self, spec: RunSpec) -> ScriptedJob:
        self.started.append(spec)
        script = self.scripts.get(spec.name, Script())
        if script.start_fails:
            raise JobError("no fork server")
        return ScriptedJob(self, spec, script)


class ScriptedJob:
    def __init__(self, target: ScriptedTarget, spec: RunSpec, script: Script) -> None:
        self._target, self._spec, self._script = target, spec, script
        world = spec.workload.world_size
        self._writers = [LedgerWriter(ledger_path(spec.ledger_dir, r), r, world) for r in range(world)]
        self._armed = list(spec.injections)
        self._epoch = 1
        self._parked: list[Place] = []
        self._killed: Injection | None = None
        self._time = 0
        self._hurt = False
        self.steps: list[str] = []
        self._play = self._events()

    # RunningJob

    def next_event(self, timeout_s: float) -> Event | None:
        event = next(self._play, None)
        self._target.clock.now_s += 0.01 if event else 1.0
        return event

    def parked(self, place: Place) -> bool:
        return place in self._parked

    def locate(self, place: Place) -> str:
        return "group 0 chunk 2" if place.kernel else ""

    def time_of(self, rank: int) -> int | None:
        return self._time

    def damage(self, injection: Injection) -> str:
        self.steps.append("damage")
        return "filled 3 pages" if injection.fill_seed is not None else ""

    def disarm(self, injection: Injection) -> None:
        self.steps.append("disarm")
        self._armed.remove(injection)

    def kill(self, injection: Injection) -> None:
        if self._script.kill_fails:
            raise FaultNotInjected("no such process")
        assert self._parked == list(injection.places)
        self.steps.append("kill")
        self._parked, self._killed, self._hurt = [], injection, True

    def finish(self, timeout_s: float) -> Outcome:
        if self._script.refuse:
            return Outcome(OutcomeStatus.REFUSED, self._script.refuse)
        return Outcome(OutcomeStatus.COMPLETED)

    def close(self) -> Residue:
        for writer in self._writers:
            writer.close()
        self._target.closed.append(self._spec.name)
        return Residue(self._script.leaks)

    # The script

    def _events(self) -> Iterator[Event | None]:
        yield Event("job-started")
        last = self._spec.workload.iterations
        for t in range(1, last + 1):
            if t == self._script.interrupt_at:
                raise SystemExit(130)  # as SIGINT does
            if t == self._script.hang_at:
                yield from _for_ever()
            armed = [i for i in self._armed if i.iteration == t and self._script.parks]
            for faults in [armed] if self._script.nested else [[i] for i in armed]:
                yield from self._recovery(faults, t)
            for rank in range(self._spec.workload.world_size):
                if (t, rank) != (self._script.skip_record, 0):
                    self._record(t, rank)
                yield Event("iteration", {"rank": rank, "iteration": t, "loss": _loss(t)})
            if self._script.refuse:
                yield Event("job-ended", {"status": "refused", "reason": self._script.refuse})
                return
        yield from self._audit(last)
        yield Event("job-ended", {"status": "completed", "reason": ""})

    def _recovery(self, faults: list[Injection], t: int) -> Iterator[Event | None]:
        """Every fault after the first hits before the recovery from the one before it has ended."""
        rule = self._script.rules.get(t, self._script.rule)
        for injection in faults:
            yield from self._wait_for_the_kill(injection)
            yield Event("failure", {"rank": injection.killed_rank, "cause": "killed by signal 9"})
            if not self._script.recovers:
                yield from _for_ever()
            self._epoch += 1
            yield Event("fenced", {"epoch": self._epoch - 1, "seconds": 0.02})
            decided = {"action": rule, "iteration": t, "reason": "rank 0 has BEGIN", "epoch": self._epoch}
            yield Event("decided", decided)
            yield Event("resumed", {"rank": injection.rank, "row": "restore-and-redo", "reason": "chunk 3"})
        if faults:
            yield Event("recovered", {"epoch": self._epoch, "seconds": 0.5, "action": rule})
            yield from self._audit(t)

    def _wait_for_the_kill(self, injection: Injection) -> Iterator[None]:
        if injection.moment is not None:
            self._time = injection.moment - 1
            yield None
            self._time = injection.moment + self._script.overshoot
        for place in injection.places:
            if place.rank != self._script.never_parks:
                self._parked.append(place)
                yield None
        while self._killed is not injection:
            yield None

    def _audit(self, t: int) -> Iterator[Event]:
        for rank in range(self._spec.workload.world_size if self._script.audits else 0):
            wrong = list(self._script.wrong_tier1)
            fields = {"rank": rank, "epoch": self._epoch, "iteration": t, "groups": 4}
            yield Event("audit", {**fields, "tier1_wrong": wrong, "tier2_wrong": []})

    def _record(self, t: int, rank: int) -> None:
        state = {name: hashlib.sha256(f"{name} {t} {rank}".encode()).hexdigest()[:32] for name in TENSORS}
        s = self._script
        if rank == 1 and (t >= s.diverge_from or (s.diverge_after_fault and self._hurt)):
            state[s.diverge_in] = "0" * 32
        result = IterationResult(iteration=t, loss=_loss(t), grad_norm=(1.0).hex(), skipped=False, samples=(2 * t - 2 + rank,))
        self._writers[rank].write(result, state, {"data_cursor": f"{t:032x}"})


def _for_ever() -> Iterator[None]:
    while True:
        yield None


def _loss(t: int) -> str:
    return (5.0 / t).hex()
