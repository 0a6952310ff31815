"""CPU time of this process: what else the machine does weighs less on it than on wall time."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(job: Callable[[], object]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start
