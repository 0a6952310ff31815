"""A recovery at the paper's geometry: 16 of the 1008 pages of 2 MiB of a group lost (run: python -m benchmarks.full_geometry).

Two ways of looking at the same work. In the job: scenarios/full-geometry.yaml from the command line to its verdict, with 2 GiB
of coded state on one rank; wall seconds of every recovery, as the system told them. By itself: the two parts beside one plain
read of the survivors, in one process, interleaved (``benchmarks.rebuild``); CPU seconds. Beside both stands what the paper
measured on its GPUs (paper 8.4).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory_read import memory_reader
from benchmarks.rebuild import SHAPE, measure
from benchmarks.results import save
from leto.core.geometry import Protection
from verify.history import Entry, read_journal

SCENARIO = Path(__file__).parents[1] / "scenarios" / "full-geometry.yaml"
TIMEOUT_S = 900.0
PAPER = {"localise_s": 0.036, "reconstruct_s": 0.140}
GROUP_PAGES = Protection().chunks_per_group * Protection().chunk_pages


def run_job(folder: Path) -> tuple[Entry, ...]:
    """The run's entries. Raises CalledProcessError when the scenario does not pass."""
    argv = [sys.executable, "-m", "chaos", "run", "--plain", "--runs-dir", str(folder), str(SCENARIO)]
    subprocess.run(argv, check=True, timeout=TIMEOUT_S, stdout=sys.stderr)
    entries = read_journal(folder / SCENARIO.stem / "latest" / "journal.jsonl")
    return tuple(e for e in entries if e.job == "run")


def recoveries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One a recovery; every one has lost pages."""
    found, repaired, recovered = ([e.fields for e in entries if e.name == n] for n in ("localised", "repaired", "recovered"))
    return [
        {
            "level": whole["level"],
            "lost_pages": repair["pages"],
            "rows_used": max(budget["lost_pages"] + budget["lost_rows"] for budget in repair["budgets"]),
            "localise_s": lost["seconds"],
            "reconstruct_s": repair["reconstruct_s"],
            "phases": whole["phases"],
            "failure_to_training_s": whole["seconds"],
        }
        for lost, repair, whole in zip(found, repaired, recovered, strict=True)
    ]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="leto-bench-") as name:
        folder = Path(name)
        job = recoveries(run_job(folder))
        by_itself = measure(GROUP_PAGES, memory_reader(folder, SHAPE.page_bytes))
    save("full_geometry", {"job": job, "by_itself": by_itself, "paper": PAPER})


if __name__ == "__main__":
    main()
