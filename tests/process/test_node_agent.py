"""The node agent when its own processes end under it, and when its configuration names what there is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leto.core.config import JobConfig
from leto.runtime.process import wait_pidfd
from tests.process.jobs import PROTECTION, olmoe

pytestmark = pytest.mark.process

TIMEOUT_S = 60.0
KILL_AT = 2  # iteration
ITERATIONS = 12
Fields = dict[str, Any]


def config(output_dir: Path) -> JobConfig:
    return JobConfig(
        name="test",
        workload=olmoe(ITERATIONS),
        protection=PROTECTION,
        output_dir=str(output_dir),
    )


def train(job: JobConfig, directory: Path) -> subprocess.Popen[str]:
    """In ``directory``, as its console script would: without the working directory among the import paths."""
    path = directory / "job.json"
    path.write_text(job.to_json())
    argv = [sys.executable, "-P", "-m", "leto.cli", "train", str(path)]
    return subprocess.Popen(argv, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Job:
    """A real job whose processes are killed by name. ``events`` holds everything it said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[tuple[str, Fields]] = []
        self.pids: dict[str, int] = {"agent": process.pid}
        self.pidfds: list[int] = []
        self.folder = Path()

    def until(self, wanted: Callable[[str, Fields], bool]) -> None:
        """Read on to the first event that is wanted, or to the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            fields = json.loads(line)
            name = fields.pop("event")
            self.events.append((name, fields))
            if name == "job-started":
                self.folder = Path(fields["pool_sockets"][0]).parent
                self._meet(fields["services"])
            if name == "ready":
                self._meet({f"trainer {fields['rank']}": fields["pid"]})
            if wanted(name, fields):
                return

    def _meet(self, processes: dict[str, int]) -> None:
        self.pids |= processes
        self.pidfds += [os.pidfd_open(pid) for pid in processes.values()]

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def said(self, name: str) -> list[Fields]:
        return [fields for said, fields in self.events if said == name]

    def end(self) -> int:
        """Its exit code; asserts that nothing of it is left."""
        self.until(lambda name, fields: False)
        code = self.process.wait(TIMEOUT_S)
        assert all(wait_pidfd(pidfd, TIMEOUT_S) for pidfd in self.pidfds)
        assert not self.folder.exists()
        return code


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job of two ranks that has completed iteration KILL_AT, in a folder whose modules are not to be imported."""
    for package in ("leto", "verify"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported from the working directory')")
    with train(config(tmp_path), tmp_path) as process:
        job = Job(process)
        try:
            job.until(lambda name, fields: name == "iteration" and fields["iteration"] == KILL_AT)
            assert job.events[-1][0] == "iteration", job.events
            yield job
        finally:
            process.kill()
            for pidfd in job.pidfds:
                os.close(pidfd)


def test_a_killed_agent_takes_everything_with_it(job: Job) -> None:
    job.kill("agent")
    assert job.end() == -signal.SIGKILL


def test_without_its_fork_server_the_job_stops_and_says_so(job: Job) -> None:
    job.kill("fork server")
    assert job.end() == 1
    (ended,) = job.said("job-ended")
    assert ended["status"] == "failed"
    assert ended["reason"].startswith("JobError: the fork server was killed by SIGKILL; last log line: ")


def test_a_lost_state_manager_is_told_at_once_and_training_goes_on(job: Job) -> None:
    job.kill("state manager of rank 1")
    assert job.end() == 0
    (lost,) = job.said("service-ended")
    assert lost["service"] == "state manager of rank 1"
    assert lost["cause"].startswith("was killed by SIGKILL")
    assert max(fields["iteration"] for fields in job.said("iteration")) == ITERATIONS
    assert job.process.stderr is not None
    assert "leto: no longer protected: state manager of rank 1 was killed by SIGKILL" in job.process.stderr.read()


def test_without_a_state_manager_a_failure_cannot_be_recovered(job: Job) -> None:
    job.kill("state manager of rank 1")
    job.until(lambda name, fields: name == "service-ended")
    job.kill("trainer 0")
    assert job.end() == 1
    (ended,) = job.said("job-ended")
    assert ended["reason"].startswith("JobError: state manager of rank 1 was killed by SIGKILL; last log line: none")


def test_a_configuration_that_names_what_there_is_not_starts_nothing(tmp_path: Path) -> None:
    good = config(tmp_path / "out")
    (tmp_path / "file").write_text("")
    wrong = {
        "workload.model: unknown model 'olmo'; known: ": replace(good, workload=replace(good.workload, model="olmo")),
        "workload.data_parallel: 0 ranks cannot share": replace(good, workload=replace(good.workload, data_parallel=0)),
        f"output_dir: {tmp_path}/file/logs: Not a directory": replace(good, output_dir=str(tmp_path / "file")),
    }
    for message, job in wrong.items():
        out, error = train(job, tmp_path).communicate(timeout=TIMEOUT_S)
        assert (out, error.startswith(f"leto: {tmp_path / 'job.json'}: {message}"), error.count("\n")) == ("", True, 1), error
