"""How long a recovery takes on the demo model, from SIGKILL to every rank training again, by phase.

Run: python -m benchmarks.recovery [KILLS]. Phases are intervals between what the agent reports; the engine's clock stamps them.
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
from chaos.targets.leto import LetoTarget
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


def run(kills: int) -> tuple[list[dict[str, float]], list[float]]:
    """Phases of every recovery in seconds, and the times of fault-free iterations."""
    pending = injections(kills)
    recoveries: list[dict[str, float]] = []
    iterations: list[float] = []
    stamps: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="leto-bench-") as folder:
        (Path(folder) / "ledger").mkdir()
        spec = RunSpec(
            name="recovery",
            workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=EVERY * kills + EVERY),
            protection=Protection(page_bytes=65536, data_pages=60, chunk_pages=12),
            output_dir=Path(folder),
            ledger_dir=Path(folder) / "ledger",
            injections=tuple(pending),
        )
        job = LetoTarget().start(spec)
        deadline = time.monotonic() + DEADLINE_S
        last_iteration_s = None
        try:
            while time.monotonic() < deadline:
                event = job.next_event(0.001)
                now = time.monotonic()
                if event is not None and event.name == "job-ended":
                    break
                if event is not None and event.name in ("failure", "fenced", "decided", "resumed", "recovered"):
                    stamps[event.name] = now
                if event is not None and event.name == "iteration" and event.fields["rank"] == 0:
                    if stamps.get("recovered"):
                        recoveries.append(_phases(stamps, now))
                        stamps = {}
                    elif last_iteration_s is not None and "killed" not in stamps:
                        iterations.append(now - last_iteration_s)
                    last_iteration_s = now
                if pending and job.parked(pending[0]):
                    injection = pending.pop(0)
                    job.disarm(injection)
                    stamps = {"killed": time.monotonic()}
                    job.kill(injection)
        finally:
            job.close()
    return recoveries, iterations


def _phases(stamps: dict[str, float], first_iteration_s: float) -> dict[str, float]:
    order = ("killed", "failure", "fenced", "decided", "resumed", "recovered")
    names = ("detect", "fence", "decide", "fork_and_attach", "finish")
    phases = {name: stamps[b] - stamps[a] for name, a, b in zip(names, order[:-1], order[1:], strict=True)}
    return phases | {
        "kill_to_training": stamps["recovered"] - stamps["killed"],
        "kill_to_next_iteration": first_iteration_s - stamps["killed"],
    }


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    recoveries, iterations = run(kills)
    names = recoveries[0].keys()
    save(
        "recovery",
        {
            "recoveries": len(recoveries),
            "median_s": {name: statistics.median(r[name] for r in recoveries) for name in names},
            "max_s": {name: max(r[name] for r in recoveries) for name in names},
            "iteration_median_s": statistics.median(iterations),
            "targets": {"kill_to_training_s": 2.0},
        },
    )


if __name__ == "__main__":
    main()
