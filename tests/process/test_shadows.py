"""Shadows that take over from killed trainers, and a job that has none."""

import signal
import time
from pathlib import Path

import pytest

from chaos.targets.base import RunSpec, Updater
from chaos.targets.leto import LetoJob, LetoTarget
from leto.core.config import Workload
from leto.core.events import Event
from leto.core.failpoints import Kernel
from tests.process.test_job import PROTECTION, kill_in

pytestmark = pytest.mark.process

DEADLINE_S = 120.0


def start(directory: Path, iterations: int, *kills: int) -> LetoJob:
    (directory / "ledger").mkdir()
    injections = tuple(kill_in(Kernel.ADAM, t, rank=t % 2, token=n) for n, t in enumerate(kills, start=1))
    return LetoTarget().start(
        RunSpec(
            name="shadows",
            workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=iterations),
            protection=PROTECTION,
            output_dir=directory,
            ledger_dir=directory / "ledger",
            injections=injections,
            updater=Updater.CHUNKS,
        )
    )


def wait_for(job: LetoJob, name: str, events: list[Event]) -> Event:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        event = job.next_event(0.05)
        if event is not None:
            events.append(event)
            if event.name == name:
                return event
            assert event.name != "job-ended", f"the job ended before {name}: {event.fields}"
    raise AssertionError(f"no {name} within {DEADLINE_S} s")


def kill_trainer(job: LetoJob, rank: int) -> None:
    _, pidfd = job._trainers[rank]
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def test_ready_shadows_take_over_and_the_next_ones_are_made(tmp_path: Path) -> None:
    job = start(tmp_path, 500)
    events: list[Event] = []
    try:
        for rank in (0, 1):
            wait_for(job, "shadows-ready", events)
            kill_trainer(job, rank)
            recovered = wait_for(job, "recovered", events)
            assert recovered.fields["level"] == "L3"
            assert set(recovered.fields["phases"]) == {"fence_s", "localise_s", "promote_s", "attach_s", "finish_s"}
        wait_for(job, "iteration", events)
    finally:
        assert job.close().leaks == ()


def test_a_failure_before_shadows_are_ready_takes_the_cold_path(tmp_path: Path) -> None:
    job = start(tmp_path, 500)
    events: list[Event] = []
    try:
        wait_for(job, "iteration", events)
        assert "shadows-ready" not in {e.name for e in events}
        kill_trainer(job, 1)
        recovered = wait_for(job, "recovered", events)
        assert recovered.fields["level"] == "L1"
        wait_for(job, "iteration", events)
    finally:
        assert job.close().leaks == ()
