"""How light a state manager is: ready in <= 0.3 s, <= 40 MiB beyond what it owns, all of a rank's memory attached in < 2 ms.

Run: python -m benchmarks.state_manager
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.results import save
from leto.core.layout import Allocation, PageClass
from leto.memory.client import Pool, PoolAgent
from leto.memory.regions import Regions
from leto.memory.state_manager import ManagerSpec
from leto.runtime.state_managers import start_state_manager

ROUNDS = 15
MIB = 1 << 20


ALLOCATIONS = tuple(
    Allocation(name=f"gradient-parity/{n}", page_class=PageClass.GRADIENT_PARITY, byte_count=16 * MIB) for n in range(40)
)


def attach_s(socket_path: Path) -> float:
    """Seconds to map 40 retained allocations over reserved addresses, on an open connection: the takeover."""
    agent = PoolAgent(socket_path, rank=0, epoch=0, timeout_s=10.0)
    agent.advance(1)
    active, shadow = Regions(1 << 16), Regions(1 << 16)
    shadow.reserve(ALLOCATIONS)
    with Pool(socket_path, rank=0, epoch=1, timeout_s=10.0) as pool:
        pool.obtain(active, ALLOCATIONS, "benchmark", create=True)
        started_s = time.perf_counter()
        pool.attach_all(shadow, "benchmark")
        seconds = time.perf_counter() - started_s
    for regions in (active, shadow):
        regions.close()
    agent.close()
    return seconds


def measure() -> tuple[float, float, float]:
    """Seconds until it serves; its resident set in MiB, shared libraries included; seconds to attach."""
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
        attached_s = attach_s(Path(folder) / "r0")
        manager.stop(10.0)
        manager.close()
    return ready_s, rss_mib, attached_s


def main() -> None:
    rounds = [measure() for _ in range(ROUNDS)]
    ready, rss, attached = zip(*rounds, strict=True)
    save(
        "state_manager",
        {
            "rounds": ROUNDS,
            "ready_s_median": statistics.median(ready),
            "ready_s_max": max(ready),
            "rss_mib_median": statistics.median(rss),
            "rss_mib_max": max(rss),
            "attach_40_s_median": statistics.median(attached),
            "attach_40_s_max": max(attached),
            "targets": {"ready_s": 0.3, "rss_mib": 40, "attach_40_s": 0.002},
        },
    )


if __name__ == "__main__":
    main()
