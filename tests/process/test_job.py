"""Whole jobs of real processes: forked trainers equal fresh plain Megatron, and a killed one continues exactly."""

import time
from pathlib import Path

import pytest

from chaos.schedule import Injection
from chaos.targets.base import OutcomeStatus, RunningJob, RunSpec, Target, Updater
from chaos.targets.leto import LetoTarget
from chaos.targets.plain import PlainTarget
from leto.core.config import Workload
from leto.core.events import Event
from leto.core.failpoints import Kernel
from leto.core.geometry import Protection
from verify.compare import compare_runs
from verify.ledger import Ledger, read_ledgers

pytestmark = pytest.mark.process

ITERATIONS = 4
WORKLOAD = Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=ITERATIONS)
PROTECTION = Protection(page_bytes=65536, data_pages=60, tier1_pages=16, tier2_pages=1, chunk_pages=12)
DEADLINE_S = 120.0


def kill_in(kernel: Kernel, iteration: int, rank: int = 0, token: int = 1) -> Injection:
    return Injection(
        fault_id="kill",
        occurrence=token,
        iteration=iteration,
        rank=rank,
        action="abort-kernel",
        kernel=kernel,
        progress=0.5,
        group_draw=1,
        chunk_draw=1,
        token=token,
    )


def run_job(
    target: Target,
    directory: Path,
    injections: tuple[Injection, ...] = (),
    *,
    workload: Workload = WORKLOAD,
    protection: Protection = PROTECTION,
    updater: Updater = Updater.CHUNKS,
    mutant: str | None = None,
) -> tuple[list[Event], dict[int, Ledger]]:
    """Run to the end, killing where injections park or their moment is passed; the job must complete and leave nothing."""
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


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ledger]:
    """Plain Megatron in fresh processes."""
    return run_job(PlainTarget(), tmp_path_factory.mktemp("reference"))[1]


def test_forked_trainers_equal_fresh_ones_bit_for_bit(reference: dict[int, Ledger], tmp_path: Path) -> None:
    events, ledgers = run_job(LetoTarget(), tmp_path)
    comparison = compare_runs(reference, ledgers, ITERATIONS)
    assert comparison.first is None, comparison
    assert not [e for e in events if e.name == "failure"]


def test_killed_inside_the_update_on_both_ranks_it_continues_bit_for_bit(reference: dict[int, Ledger], tmp_path: Path) -> None:
    kills = (kill_in(Kernel.ADAM, 2, rank=0, token=1), kill_in(Kernel.UNDO_SAVE, 4, rank=1, token=2))
    events, ledgers = run_job(LetoTarget(), tmp_path, kills)
    assert compare_runs(reference, ledgers, ITERATIONS).first is None
    decided = [(e.fields["action"], e.fields["iteration"]) for e in events if e.name == "decided"]
    assert decided == [("finish", 2), ("finish", 4)]
    audits = [e for e in events if e.name == "audit"]
    assert len(audits) == 2 * 3  # each rank: at the start and after each recovery, the second of which is the end
    assert all(not e.fields["tier1_wrong"] and not e.fields["tier2_wrong"] for e in audits)


def test_without_undo_it_diverges(reference: dict[int, Ledger], tmp_path: Path) -> None:
    _, ledgers = run_job(LetoTarget(), tmp_path, (kill_in(Kernel.ADAM, 2),), mutant="no-undo")
    first = compare_runs(reference, ledgers, ITERATIONS).first
    assert first is not None
    assert first.iteration == 2


def test_the_control_without_an_updater_diverges(reference: dict[int, Ledger], tmp_path: Path) -> None:
    events, ledgers = run_job(LetoTarget(), tmp_path, (kill_in(Kernel.ADAM, 2),), updater=Updater.NONE)
    assert compare_runs(reference, ledgers, ITERATIONS).first is not None
    assert [e.fields["action"] for e in events if e.name == "decided"] == ["restart"]
