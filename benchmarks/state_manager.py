"""How light a state manager is: ready in <= 0.3 s, <= 40 MiB beyond what it owns (run: python -m benchmarks.state_manager)."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.results import save
from leto.memory.state_manager import ManagerSpec
from leto.runtime.state_managers import start_state_manager

ROUNDS = 15
MIB = 1 << 20


def measure() -> tuple[float, float]:
    """Seconds until it serves; its resident set in MiB, shared libraries included."""
    with tempfile.TemporaryDirectory(prefix="leto-bench-") as folder:
        started_s = time.perf_counter()
        manager = start_state_manager(
            Path(folder) / "r0",
            ManagerSpec(rank=0, device_bytes=1 << 33, host_bytes=1 << 30, page_bytes=1 << 16),
            log_path=Path(folder) / "log",
            timeout_s=10.0,
        )
        ready_s = time.perf_counter() - started_s
        rss_mib = psutil.Process(manager.pid).memory_full_info().rss / MIB
        manager.stop(10.0)
        manager.close()
    return ready_s, rss_mib


def main() -> None:
    rounds = [measure() for _ in range(ROUNDS)]
    ready, rss = zip(*rounds, strict=True)
    save(
        "state_manager",
        {
            "rounds": ROUNDS,
            "ready_s_median": statistics.median(ready),
            "ready_s_max": max(ready),
            "rss_mib_median": statistics.median(rss),
            "rss_mib_max": max(rss),
            "targets": {"ready_s": 0.3, "rss_mib": 40},
        },
    )


if __name__ == "__main__":
    main()
