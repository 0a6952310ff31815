"""The Leto target's part in proving a kill: who has ended already was not killed by the bench."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.faults import hand_over
from chaos.faults.hand_over import HandOver
from chaos.loss import Loss, LossClass, LostPages
from chaos.schedule import Injection
from chaos.targets import leto
from chaos.targets.base import FaultNotInjected, RunSpec
from chaos.targets.leto import LetoJob, LetoTarget
from leto.core.config import Workload
from leto.core.errors import ConfigError
from leto.core.failpoints import Point
from leto.core.geometry import Page, Protection
from leto.runtime.process import wait_pidfd

LOST = (LostPages(page_class=LossClass.CODED, pages=(Page("master", 1),)),)
INJECTION = Injection(
    fault_id="kill", occurrence=1, iteration=3, rank=0, action="kill", point=Point.BEGIN, group_draw=0, chunk_draw=0, token=1
)


def spec_of(directory: Path, *injections: Injection) -> RunSpec:
    workload = Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=3)
    return RunSpec(
        name="unit",
        workload=workload,
        protection=Protection(page_bytes=4096, data_pages=6, chunk_pages=3),
        output_dir=directory,
        ledger_dir=directory,
        injections=injections,
    )


def job_with(process: subprocess.Popen[bytes], spec: RunSpec | None = None) -> tuple[LetoJob, int]:
    unused: Any = None
    job = LetoJob(unused, unused, spec or unused, unused)
    pidfd = os.pidfd_open(process.pid)
    job._trainers[0] = (process.pid, pidfd)
    return job, pidfd


def test_a_trainer_that_ended_by_itself_is_not_killed() -> None:
    """It is a zombie: the signal would be accepted."""
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        job, pidfd = job_with(process)
        assert wait_pidfd(pidfd, 20.0)
        with pytest.raises(FaultNotInjected, match=r"kill #1: rank 0 \(pid \d+\) has ended already"):
            job.kill(INJECTION)
    os.close(pidfd)
    assert process.returncode == 3


def test_a_trainer_that_runs_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        job, pidfd = job_with(process)
        job.kill(INJECTION)
        assert process.wait(20.0) == -9
    os.close(pidfd)


def test_pages_of_a_process_that_is_no_trainer_any_more_are_not_lost(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        job, pidfd = job_with(process, spec_of(tmp_path))
        with pytest.raises(FaultNotInjected, match=r"manager-0\.json"):
            job.lose(INJECTION, LOST)
        HandOver(pid=process.pid, userfaultfd=3).write(hand_over.manager_path(tmp_path, 0))
        HandOver(pid=process.pid, userfaultfd=3).write(hand_over.agent_path(tmp_path, 0))
        HandOver(pid=process.pid + 1, userfaultfd=3).write(hand_over.trainer_path(tmp_path, 0))
        with pytest.raises(FaultNotInjected, match=f"rank 0 handed over its memory as process {process.pid + 1}"):
            job.lose(INJECTION, LOST)
        process.kill()
    os.close(pidfd)


def test_a_machine_that_cannot_lose_pages_is_one_line_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leto, "can_poison", lambda: "Operation not permitted")
    loss = Loss(page_class=LossClass.CODED, per_group=False, count=1, seed=0)
    with pytest.raises(ConfigError, match="lose-pages: pages cannot be lost on this machine: Operation not permitted;"):
        LetoTarget().start(spec_of(tmp_path, replace(INJECTION, losses=(loss,))))
    assert list(tmp_path.iterdir()) == []


def test_only_jobs_that_lose_pages_hand_over_their_memory(tmp_path: Path) -> None:
    loss = Loss(page_class=LossClass.CODED, per_group=False, count=1, seed=0)
    losing, whole = (
        leto._job_config(spec_of(tmp_path, injection), tmp_path / "armed")
        for injection in (replace(INJECTION, losses=(loss,)), INJECTION)
    )
    assert (losing.manager_plugins, whole.manager_plugins) == ((hand_over.MANAGER_PLUGIN,), ())
    assert (losing.agent_plugins, whole.agent_plugins) == ((hand_over.AGENT_PLUGIN,), ())
    assert hand_over.TRAINER_PLUGIN in losing.plugins
    assert hand_over.TRAINER_PLUGIN not in whole.plugins
