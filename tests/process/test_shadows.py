"""Shadows that take over from killed trainers, and a failure before there are any."""

import signal
import time
from pathlib import Path

import pytest

from chaos.targets.base import RunSpec
from chaos.targets.leto import LetoJob, LetoTarget
from leto.core.events import Event
from tests.process.jobs import PROTECTION, olmoe

pytestmark = pytest.mark.process

DEADLINE_S = 120.0


def start(directory: Path) -> LetoJob:
    """With more iterations than any test waits for."""
    (directory / "ledger").mkdir()
    return LetoTarget().start(
        RunSpec(
            name="shadows",
            workload=olmoe(iterations=500),
            protection=PROTECTION,
            output_dir=directory,
            ledger_dir=directory / "ledger",
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


def test_shadows_take_over_as_soon_as_they_are_ready_and_the_next_ones_are_made(tmp_path: Path) -> None:
    """A failure before that takes the cold path."""
    job = start(tmp_path)
    events: list[Event] = []
    try:
        wait_for(job, "iteration", events)
        assert "shadows-ready" not in {e.name for e in events}
        kill_trainer(job, 1)
        assert wait_for(job, "recovered", events).fields["level"] == "L1"
        wait_for(job, "iteration", events)
        for rank in (0, 1):
            wait_for(job, "shadows-ready", events)
            kill_trainer(job, rank)
            recovered = wait_for(job, "recovered", events)
            assert recovered.fields["level"] == "L3"
            assert set(recovered.fields["phases"]) == {"fence_s", "localise_s", "promote_s", "attach_s", "finish_s"}
        wait_for(job, "iteration", events)
    finally:
        assert job.close().leaks == ()
