"""Plain Megatron's records, and leto-chaos comparing with them instead of training its reference twice each time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.loading import load_scenario
from chaos.targets.plain import PlainTarget
from leto.core.config import Workload
from tests.process.jobs import run_job
from verify.ledger import Ledger, read_ledgers

ROOT = Path(__file__).parents[2]
REPLAYING_BENCH = Path(__file__).with_name("replaying_bench.py")
TIMEOUT_S = 300.0
AS_LONG_AS_ONE_CLASS = "workload.iterations=11"
"""An override: longer than most scenarios, some of which end before, so that the reference of one-class serves them all."""


class References:
    """What plain Megatron does with a workload, in fresh processes, once a session for all who compare with it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trained: dict[Workload, Path] = {}

    def directory(self, workload: Workload) -> Path:
        """Of its ledgers, which nobody may write."""
        if workload not in self._trained:
            directory = self._directory / str(len(self._trained))
            run_job(PlainTarget(), directory, workload)
            self._trained[workload] = directory / "ledger"
        return self._trained[workload]

    def ledgers(self, workload: Workload) -> dict[int, Ledger]:
        return read_ledgers(self.directory(workload))


def replaying_bench(ledgers: Path, *words: str) -> list[str]:
    """Command line of leto-chaos with a reference that was trained before."""
    return [sys.executable, "-P", str(REPLAYING_BENCH), str(ledgers), *words]


def run_scenario(
    references: References, runs_dir: Path, name: str, overrides: Sequence[str] = (), mutant: str | None = None
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One of scenarios/ with another value here and there: how the command ended, and the directory of its run."""
    ledgers = references.directory(load_scenario(ROOT / "scenarios" / f"{name}.yaml", overrides).workload.to_core())
    words = [word for override in overrides for word in ("--set", override)]
    words += ["--mutant", mutant] if mutant else []
    argv = replaying_bench(ledgers, "run", "--plain", "--runs-dir", str(runs_dir), f"scenarios/{name}.yaml", *words)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done, runs_dir / name / "latest"
