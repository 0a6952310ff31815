"""Real jobs without the engine: started, killed where a fault is due, and run to their end."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.schedule import Injection
from chaos.targets.base import OutcomeStatus, RunningJob, RunSpec, Target, Updater
from leto.core.config import Workload
from leto.core.events import Event
from leto.core.geometry import Protection
from verify.ledger import Ledger, read_ledgers

PROTECTION = Protection(page_bytes=65536, data_pages=60, tier1_pages=16, tier2_pages=1, chunk_pages=12)
DEADLINE_S = 240.0


def olmoe(iterations: int, optimizer: str = "adam") -> Workload:
    """That of most scenarios, two ranks."""
    return Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=iterations, optimizer=optimizer)


def run_job(
    target: Target,
    directory: Path,
    workload: Workload,
    injections: tuple[Injection, ...] = (),
    *,
    protection: Protection = PROTECTION,
    updater: Updater = Updater.CHUNKS,
    mutant: str | None = None,
) -> tuple[list[Event], dict[int, Ledger]]:
    """Run to the end, killing where injections park or their moment is passed; the job must complete and leave nothing.

    Ledgers are written to ``directory / "ledger"``.
    """
    ledger_dir = directory / "ledger"
    ledger_dir.mkdir(parents=True)
    spec = RunSpec(
        name="test",
        workload=workload,
        protection=protection,
        output_dir=directory,
        ledger_dir=ledger_dir,
        injections=injections,
        updater=updater,
        mutant=mutant,
    )
    job = target.start(spec)
    try:
        events = drive(job, list(injections))
        outcome = job.finish(10.0)
    finally:
        residue = job.close()
    assert outcome.status is OutcomeStatus.COMPLETED, outcome
    assert residue.leaks == ()
    return events, read_ledgers(ledger_dir)


def drive(job: RunningJob, pending: list[Injection]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        event = job.next_event(0.005)
        if event is not None:
            events.append(event)
            if event.name == "job-ended":
                assert not pending, "the job ended before every fault fired"
                return events
        if pending and is_due(job, pending[0]):
            injection = pending.pop(0)
            job.damage(injection)
            job.disarm(injection)
            job.kill(injection)
    raise AssertionError(f"no end within {DEADLINE_S} s; last events: {events[-5:]}")


def is_due(job: RunningJob, injection: Injection) -> bool:
    if injection.moment is None:
        return job.parked(injection)
    return (job.time_of(injection.rank) or 0) >= injection.moment
