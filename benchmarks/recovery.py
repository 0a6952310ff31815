"""How long a recovery takes on the demo model, from SIGKILL to every rank training again, by phase.

Run: python -m benchmarks.recovery [KILLS]. Every kill waits until shadows stand by. Phases are the system's own, of the slowest
rank; the outer times are measured from the kill. The parity audit of the bench lies between training and the next iteration.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import save
from chaos.schedule import Injection
from chaos.targets.base import RunSpec
from chaos.targets.leto import LetoJob, LetoTarget
from leto.core.config import Workload
from leto.core.failpoints import Kernel
from leto.core.geometry import Protection

DEADLINE_S = 300.0
EVERY = 5
KERNELS = (Kernel.ADAM, Kernel.RS_UPDATE, Kernel.PARITY_WRITEBACK)


def injections(kills: int) -> list[Injection]:
    return [
        Injection(
            fault_id="kill",
            occurrence=n,
            iteration=EVERY * n,
            rank=n % 2,
            action="abort-kernel",
            kernel=KERNELS[n % len(KERNELS)],
            progress=0.5,
            group_draw=n,
            chunk_draw=n,
            token=n,
        )
        for n in range(1, kills + 1)
    ]


def run(kills: int) -> tuple[list[dict[str, float]], list[str], list[float], list[float]]:
    """Phases of every recovery in seconds, the levels that took over, seconds to the next shadows, iteration times."""
    pending = injections(kills)
    recoveries: list[dict[str, float]] = []
    levels: list[str] = []
    shadows: list[float] = []
    iterations: list[float] = []
    killed_s: float | None = None
    recovered: dict[str, float] | None = None
    previous_s: float | None = None
    shadows_of = 0
    with tempfile.TemporaryDirectory(prefix="leto-bench-") as folder:
        job = start(Path(folder), tuple(pending))
        deadline = time.monotonic() + DEADLINE_S
        try:
            while time.monotonic() < deadline:
                event = job.next_event(0.001)
                now = time.monotonic()
                if event is not None and event.name == "job-ended":
                    break
                if event is not None and event.name == "shadows-ready":
                    shadows.append(event.fields["seconds"])
                    shadows_of = event.fields["epoch"]
                if event is not None and event.name == "recovered" and killed_s is not None:
                    phases: dict[str, float] = event.fields["phases"]
                    recovered = phases | {"kill_to_training_s": now - killed_s}
                    levels.append(event.fields["level"])
                if event is not None and event.name == "iteration" and event.fields["rank"] == 0:
                    if recovered is not None and killed_s is not None:
                        recoveries.append(recovered | {"kill_to_next_iteration_s": now - killed_s})
                        killed_s, recovered = None, None
                    elif previous_s is not None and killed_s is None:
                        iterations.append(now - previous_s)
                    previous_s = now
                if pending and job.parked(pending[0]) and shadows_of == len(recoveries) + 1:
                    injection = pending.pop(0)
                    job.disarm(injection)
                    killed_s = time.monotonic()
                    job.kill(injection)
        finally:
            job.close()
    return recoveries, levels, shadows, iterations


def start(folder: Path, kills: tuple[Injection, ...]) -> LetoJob:
    (folder / "ledger").mkdir()
    iterations = EVERY * (len(kills) + 1)
    return LetoTarget().start(
        RunSpec(
            name="recovery",
            workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=iterations),
            protection=Protection(page_bytes=65536, data_pages=60, chunk_pages=12),
            output_dir=folder,
            ledger_dir=folder / "ledger",
            injections=kills,
        )
    )


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    recoveries, levels, shadows, iterations = run(kills)
    names = sorted(set().union(*recoveries))
    save(
        "recovery",
        {
            "recoveries": len(recoveries),
            "levels": {level: levels.count(level) for level in sorted(set(levels))},
            "median_s": {name: statistics.median(r.get(name, 0.0) for r in recoveries) for name in names},
            "max_s": {name: max(r.get(name, 0.0) for r in recoveries) for name in names},
            "iteration_median_s": statistics.median(iterations),
            "shadows_ready_median_s": statistics.median(shadows),
            "shadows_ready_max_s": max(shadows),
            "targets": {"kill_to_next_iteration_s": 0.8, "shadows_ready_s": 2.0},
        },
    )


if __name__ == "__main__":
    main()
