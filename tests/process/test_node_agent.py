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

from leto.core.config import JobConfig, Timeouts, Workload
from leto.core.events import Event
from leto.core.geometry import Protection
from leto.memory.wire import Channel
from leto.runtime.fork_client import ForkedChild
from leto.runtime.fork_server import Exited
from leto.runtime.generation import Death, Generation, _Member, poll
from leto.runtime.messages import TRAINER_CODEC, Report
from leto.runtime.process import wait_pidfd
from leto.runtime.watch import Failure, Watch

pytestmark = pytest.mark.process

TIMEOUT_S = 60.0
KILL_AT = 2  # iteration
ITERATIONS = 12
Fields = dict[str, Any]


def config(output_dir: Path, **timeouts: float) -> JobConfig:
    return JobConfig(
        name="test",
        workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=ITERATIONS),
        protection=Protection(page_bytes=65536, data_pages=60, tier1_pages=16, tier2_pages=1, chunk_pages=12),
        output_dir=str(output_dir),
        timeouts=Timeouts(**timeouts),
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


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)


class ScriptedGeneration:
    """Every rank reports what it is told to; those in ``codes`` end, rank 1 is the first whose end is seen."""

    def __init__(self, *names: str, codes: dict[int, int] | None = None, log_path: Path = Path()) -> None:
        self.epoch = 1
        self.pids = {0: 10, 1: 11}
        self._codes = codes or {}
        self._log_path = log_path
        self.events: list[Report | Death] = [
            Report(epoch=1, name=name, fields={"rank": rank}) for name in names for rank in (0, 1)
        ]
        self.events += [Death(rank=1)] if self._codes else []

    def ended(self, rank: int, timeout_s: float) -> bool:
        return rank in self._codes

    def log_path(self, rank: int) -> Path:
        return self._log_path


class ScriptedServices:
    """The fork server of a scripted generation, and state managers that live."""

    def __init__(self, generation: ScriptedGeneration, codes: dict[int, int]) -> None:
        self.fork_server = self
        self._codes = {generation.pids[rank]: code for rank, code in codes.items()}

    def wait_exit(self, pid: int, timeout_s: float) -> Exited:
        return Exited(epoch=1, pid=pid, returncode=self._codes[pid])

    def newly_ended_managers(self) -> tuple[()]:
        return ()


def failure_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, codes: dict[int, int] | None = None
) -> tuple[Failure, list[str]]:
    """How a watch ends, and the names of the events it tells."""
    (tmp_path / "log").write_text("RuntimeError: reset by peer\n")
    scripted = ScriptedGeneration(*names, codes=codes, log_path=tmp_path / "log")
    heard = Heard()

    def poll(generations: object, timeout_s: float) -> list[tuple[object, Report | Death]]:
        events, scripted.events = scripted.events, []
        return [(scripted, event) for event in events]

    monkeypatch.setattr("leto.runtime.watch.poll", poll)
    generation: Any = scripted
    services: Any = ScriptedServices(scripted, codes or {})
    job = config(tmp_path, iteration_s=1e-9, ready_s=1e-9)
    failure = Watch(generation, recovery=None, services=services, standby=None, config=job, observer=heard).run()
    assert failure is not None
    return failure, [e.name for e in heard.events]


@pytest.mark.parametrize(
    ("codes", "rank", "cause"),
    [
        ({1: -9}, 1, "was killed by SIGKILL"),
        ({0: -9, 1: 1}, 0, "was killed by SIGKILL"),  # seen later, because a killed one takes longer to go
        ({0: 1, 1: 1}, 1, "ended with exit code 1: RuntimeError: reset by peer"),
        ({1: 3}, 1, "ended with exit code 3: RuntimeError: reset by peer"),
        ({1: -6}, 1, "was killed by SIGABRT: RuntimeError: reset by peer"),
    ],
)
def test_the_failure_is_the_trainer_that_was_killed_not_the_one_that_raised_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: dict[int, int], rank: int, cause: str
) -> None:
    failure, told = failure_of(monkeypatch, tmp_path, codes=codes)
    assert (failure.rank, failure.cause, told) == (rank, cause, ["failure"])


def test_trainers_that_finish_and_do_not_end_are_a_hang_with_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failure, told = failure_of(monkeypatch, tmp_path, "training", "finished")
    assert (failure.rank, failure.cause, told) == (0, "hang", ["failure"])


def test_a_shadow_that_died_while_the_others_prepared_does_not_hurt_the_agent() -> None:
    """Its death is an event of its own (U38)."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pidfd = os.pidfd_open(process.pid)
        process.wait(TIMEOUT_S)
    ours, theirs = Channel.pair(TRAINER_CODEC)
    theirs.close()
    child = ForkedChild(pid=process.pid, epoch=1, pidfd=pidfd, log_path=Path())
    shadows = Generation(1, [_Member(rank=0, child=child, channel=ours)])
    shadows.idle()
    assert [event for _, event in poll([shadows], TIMEOUT_S)] == [Death(rank=0)]
    ours.close()
    child.close()
