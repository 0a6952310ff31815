"""A system under test that follows a script: real ledgers and events, no processes and no time of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.loss import LostPages
from chaos.schedule import Injection, Place
from chaos.targets.base import FaultNotInjected, Outcome, OutcomeStatus, Residue, Resources, RunSpec
from chaos.targets.rank_geometry import RankGeometry
from leto.core.errors import ConfigError, JobError
from leto.core.events import Event
from leto.core.geometry import Page
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

    cannot: str = ""  # be started, and why
    diverge_from: int = NEVER  # this iteration and all later ones, on rank 1, in master/w
    diverge_in: str = "master/w"
    diverge_after_fault: bool = False
    skip_record: int = NEVER  # this iteration is never recorded on rank 0
    parks: bool = True
    never_parks: int = -1  # this rank never comes to its place
    parks_early: bool = False  # for the next fault, before the end of the recovery is told
    nested: bool = False  # of two faults in one iteration the second hits the recovery from the first
    overshoot: int = 0  # how far past its moment a free-running rank is when it is seen
    hang_at: int = NEVER
    recovers: bool = True
    rule: str = "finish"
    rules: dict[int, str] = field(default_factory=dict)  # by iteration, where it is another one
    wrong_tier1: tuple[int, ...] = ()
    audits: bool = True
    refuse: str = ""
    refuse_after_fault: str = ""  # the recovery is refused
    shadows: bool = True  # stand by from the second iteration on, and after every recovery
    level: str = "L3"  # of the trainers that take over
    passes_gates: bool = False
    touches_lost_pages: bool = True
    dies_of: str = "was killed by SIGBUS"  # a rank that was let go over lost pages
    localises: int = 0  # so many pages more than were lost
    repairs: bool = True
    geometries: dict[int, RankGeometry] = field(default_factory=dict)  # of ranks that say it
    growth: int = 0  # descriptors more with every look
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

    def check(self, spec: RunSpec) -> None:
        cannot = self.scripts.get(spec.name, Script()).cannot
        if cannot:
            raise ConfigError(cannot)

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
        self._lost: list[str] = []
        self._descriptors = 100
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

    def choose_losses(self, injection: Injection) -> tuple[LostPages, ...]:
        return tuple(
            LostPages(page_class=loss.page_class, pages=tuple(Page(loss.page_class.value, k) for k in range(loss.count)))
            for loss in injection.losses
        )

    def geometry(self, rank: int) -> RankGeometry | None:
        return self._script.geometries.get(rank)

    def lose(self, injection: Injection, lost: Sequence[LostPages]) -> None:
        self.steps.append("lose")
        self._lost = [f"{page.allocation}:{page.page_index}" for one in lost for page in one.pages]

    def resources(self) -> Resources:
        self._descriptors += self._script.growth
        fds = self._descriptors
        return Resources(
            processes=8, descriptors=fds, private_bytes=1 << 30, proportional_bytes=1 << 30, shm_files=0, shm_bytes=0
        )

    def open_gate(self, injection: Injection) -> None:
        self.steps.append("open")
        self._parked = []

    def release(self, injection: Injection) -> None:
        self.steps.append("release")
        self._parked, self._killed, self._hurt = [], injection, True

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
        refusal = self._script.refuse or self._script.refuse_after_fault
        if refusal:
            return Outcome(OutcomeStatus.REFUSED, refusal)
        return Outcome(OutcomeStatus.COMPLETED)

    def close(self) -> Residue:
        for writer in self._writers:
            writer.close()
        self._target.closed.append(self._spec.name)
        return Residue(self._script.leaks)

    # The script

    def _events(self) -> Iterator[Event | None]:
        yield Event("job-started")
        for rank in self._script.geometries:
            yield Event("ready", {"rank": rank, "pid": 0, "epoch": self._epoch})
        last = self._spec.workload.iterations
        for t in range(1, last + 1):
            if t == self._script.interrupt_at:
                raise SystemExit(130)  # as SIGINT does
            if t == self._script.hang_at:
                yield from _for_ever()
            if t == 2 and self._script.shadows:
                yield self._shadows_ready()
            armed = [i for i in self._armed if i.iteration == t and self._script.parks]
            for faults in [armed] if self._script.nested else [[i] for i in armed]:
                yield from self._recovery(faults, t)
                if self._script.refuse_after_fault:
                    yield Event("job-ended", {"status": "refused", "reason": self._script.refuse_after_fault})
                    return
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
            if injection.natural and not self._script.touches_lost_pages:
                return
            cause = self._script.dies_of if injection.natural else "was killed by SIGKILL"
            yield Event("failure", {"rank": injection.killed_rank, "cause": cause})
            if not self._script.recovers:
                yield from _for_ever()
            self._epoch += 1
            yield Event("fenced", {"epoch": self._epoch - 1, "seconds": 0.02})
            if self._lost:
                yield self._localised(injection.rank)
            decided = {"action": rule, "iteration": t, "reason": "rank 0 has BEGIN", "epoch": self._epoch}
            yield Event("decided", decided)
            yield Event("resumed", {"rank": injection.rank, "row": "restore-and-redo", "reason": "chunk 3"})
        if faults and not self._script.refuse_after_fault:
            if self._lost and self._script.repairs:
                yield self._repaired(faults[-1].rank)
            if self._script.parks_early:
                self._parked = [place for i in self._armed[:1] for place in i.places]
                yield from (None, None, None)
                self._parked = []
            yield Event("recovered", {"epoch": self._epoch, "seconds": 0.5, "action": rule, **self._taken_over()})
            yield from self._audit(t)
            if self._script.shadows:
                yield self._shadows_ready()

    def _taken_over(self) -> dict[str, Any]:
        phases = {"fence_s": 0.02, "localise_s": 0.01, "promote_s": 0.01, "attach_s": 0.01, "finish_s": 0.2}
        return {"level": self._script.level, "phases": phases}

    def _shadows_ready(self) -> Event:
        return Event("shadows-ready", {"epoch": self._epoch, "level": "L3", "seconds": 0.5})

    def _localised(self, rank: int) -> Event:
        pages = [*self._lost, *(f"coded:{1000 + k}" for k in range(self._script.localises))]
        counts = {"found": len(pages), "lost": len(pages)}
        return Event("localised", {"epoch": self._epoch - 1, "rank": rank, **counts, "pages": pages, "seconds": 0.01})

    def _repaired(self, rank: int) -> Event:
        pages, self._lost = len(self._lost), []
        budget = {"code_word": "group 0", "pages": 6, "lost_pages": pages, "lost_rows": 0, "rows": 4, "spare_rows": 4 - pages}
        counts = {"pages": pages, "rebuilt": pages, "budgets": [budget], "reconstruct_s": 0.01}
        return Event("repaired", {"rank": rank, "epoch": self._epoch, **counts})

    def _wait_for_the_kill(self, injection: Injection) -> Iterator[None]:
        if injection.moment is not None:
            self._time = injection.moment - 1
            yield None
            self._time = injection.moment + self._script.overshoot
        if injection.gate is not None and not self._script.passes_gates:
            self._parked = [injection.gate]
            while self._parked:
                yield None
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
