"""The Leto target's part in proving a kill: who has ended already was not killed by the bench."""

import os
import subprocess
import sys
from typing import Any

import pytest

from chaos.schedule import Injection
from chaos.targets.base import FaultNotInjected
from chaos.targets.leto import LetoJob
from leto.core.failpoints import Point
from leto.runtime.process import wait_pidfd

INJECTION = Injection(
    fault_id="kill", occurrence=1, iteration=3, rank=0, action="kill", point=Point.BEGIN, group_draw=0, chunk_draw=0, token=1
)


def job_with(process: subprocess.Popen[bytes]) -> tuple[LetoJob, int]:
    unused: Any = None
    job = LetoJob(unused, unused, unused, unused)
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
