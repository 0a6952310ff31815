"""The reference: it trains, equals itself bit for bit, and ends as a failure when a worker does."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from chaos.targets.base import Outcome, OutcomeStatus, RunSpec
from chaos.targets.plain import PlainJob, PlainTarget
from leto.core.config import Timeouts
from leto.core.errors import ConfigError, JobError
from leto.core.events import Event
from leto.core.geometry import Protection
from tests.process.jobs import olmoe
from verify.ledger import read_ledgers

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def spec(directory: Path, iterations: int) -> RunSpec:
    (directory / "ledger").mkdir(parents=True)
    return RunSpec(
        name="reference",
        workload=olmoe(iterations),
        protection=Protection(),
        output_dir=directory,
        ledger_dir=directory / "ledger",
    )


def next_event(job: PlainJob, name: str) -> Event:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        event = job.next_event(deadline - time.monotonic())
        if event is not None and event.name == name:
            return event
        assert event is None or event.name != "job-ended", f"the job ended before {name}: {event.fields}"
    raise AssertionError(f"no {name} in {DEADLINE_S} s")


def run(directory: Path, iterations: int) -> list[Event]:
    job = PlainTarget().start(spec(directory, iterations))
    events = []
    try:
        while not events or events[-1].name != "job-ended":
            event = job.next_event(DEADLINE_S)
            assert event is not None, f"silence after {[e.name for e in events]}"
            events.append(event)
        assert job.finish(DEADLINE_S) == Outcome(OutcomeStatus.COMPLETED)
        assert job.next_event(0.0) is None
    finally:
        residue = job.close()
    assert residue.leaks == ()
    return events


def test_two_runs_are_equal_in_every_bit(tmp_path: Path) -> None:
    events = run(tmp_path / "a", 3)
    run(tmp_path / "b", 3)
    a, b = (read_ledgers(tmp_path / name / "ledger") for name in "ab")
    assert a == b
    assert [e.fields["iteration"] for e in events if e.name == "iteration" and e.fields["rank"] == 1] == [1, 2, 3]
    losses = [a[0].records[t].result.loss for t in (1, 2, 3)]
    assert len(set(losses)) == 3
    assert losses == [a[1].records[t].result.loss for t in (1, 2, 3)]  # reduced over the ranks
    assert a[0].records[3].state != a[0].records[2].state


def test_private_memory_is_bounded_and_a_killed_worker_ends_the_job(tmp_path: Path) -> None:
    """Every iteration brings shapes of its own, for each of which code is generated and kept."""
    iterations, limit_bytes = 24, 650 << 20
    job = PlainTarget().start(spec(tmp_path, 1000))
    try:
        pids = {e.fields["rank"]: e.fields["pid"] for e in (next_event(job, "ready"), next_event(job, "ready"))}
        while next_event(job, "iteration").fields["iteration"] < iterations:
            continue
        assert psutil.Process(pids[0]).memory_full_info().uss < limit_bytes
        os.kill(pids[1], signal.SIGKILL)
        failure = next_event(job, "failure")
        assert failure.fields["rank"] == 1
        assert failure.fields["cause"].startswith("exit status -9")
        ended = next_event(job, "job-ended")
        assert ended.fields["status"] == "failed"
        assert job.finish(DEADLINE_S).status is OutcomeStatus.FAILED
    finally:
        assert job.close().leaks == ()


def test_a_silent_job_is_ended(tmp_path: Path) -> None:
    job = PlainTarget(Timeouts(start_s=0.001)).start(spec(tmp_path, 1))
    try:
        failure = next_event(job, "failure")
        assert failure.fields["cause"] == "no progress in time"
    finally:
        assert job.close().leaks == ()


def test_text_that_cannot_be_kept_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spec(tmp_path, 1)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LETO_CACHE_DIR", str(tmp_path / "file"))
    job = PlainTarget().start(wanted)
    try:
        cause = next_event(job, "failure").fields["cause"]
        assert cause.startswith(f"exit status 1: data: {tmp_path / 'file'}/shakespeare-")
        assert "cannot be made: File exists; set LETO_CACHE_DIR to" in cause
    finally:
        assert job.close().leaks == ()


def test_close_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    job = PlainTarget().start(spec(tmp_path, 1000))
    pids = [next_event(job, "ready").fields["pid"] for _ in range(2)]
    assert job.close().leaks == ()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_cannot_be_trained_is_refused_before_a_process_exists(tmp_path: Path) -> None:
    wanted = spec(tmp_path, 1)
    with pytest.raises(ConfigError, match="unknown model 'gpt'"):
        PlainTarget().start(replace(wanted, workload=replace(wanted.workload, model="gpt")))
    assert os.listdir(tmp_path) == ["ledger"]


def test_a_rank_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    wanted = spec(tmp_path, 1)
    (tmp_path / "rank1.log").mkdir()  # rank 0 starts, rank 1 cannot open its log
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JobError, match="rank 1 of the reference did not start"):
        PlainTarget().start(wanted)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert psutil.Process().children() == []
