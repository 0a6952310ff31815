"""How the watch of a generation ends: whose failure it is, and what of it is told."""

from __future__ import annotations

import os
import subprocess
import sys
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
from leto.runtime.watch import Failure, Watch

TIMEOUT_S = 60.0
IMPATIENT = JobConfig(
    name="test",
    workload=Workload(model="olmoe-tiny", data_parallel=2, iterations=1),
    protection=Protection(),
    output_dir="",
    timeouts=Timeouts(iteration_s=1e-9, ready_s=1e-9),
)


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
    watch = Watch(generation, recovery=None, services=services, standby=None, config=IMPATIENT, observer=heard)
    failure = watch.run()
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
