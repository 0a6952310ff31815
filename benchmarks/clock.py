"""CPU time of this process: what else the machine does weighs less on it than on wall time, which shows what threads win."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of all threads together, and seconds that passed."""

    cpu_s: float
    wall_s: float


def spent(job: Callable[[], object]) -> Spent:
    wall = time.perf_counter()
    cpu_s = cpu_seconds(job)
    return Spent(cpu_s=cpu_s, wall_s=time.perf_counter() - wall)


def cpu_seconds(job: Callable[[], object]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start
