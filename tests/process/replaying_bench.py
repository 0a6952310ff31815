"""The bench's command line with a reference that is replayed: training it twice again would add nothing to a test of a run.

    python replaying_bench.py LEDGERS ARGUMENTS OF LETO-CHAOS...

``LEDGERS`` is the directory of a reference of the same workload that was recorded before. FILE_BYTES in the environment is the
size beyond which no file can grow.
"""

from __future__ import annotations

from chaos.__main__ import leave_on_signals

leave_on_signals()  # as the command does, before anything else is imported

import os  # noqa: E402
import resource  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from collections import deque  # noqa: E402
from pathlib import Path  # noqa: E402

import chaos.cli  # noqa: E402
from chaos.targets.base import Outcome, OutcomeStatus, Residue, RunSpec  # noqa: E402
from leto.core.events import Event  # noqa: E402

LEDGERS = Path(sys.argv[1]).absolute()


class ReplayedJob:
    """Ended before it began. What the engine asks of a job without faults."""

    def __init__(self) -> None:
        self._events = deque([Event("job-started"), Event("job-ended", {"status": "completed", "reason": ""})])

    def next_event(self, timeout_s: float) -> Event | None:
        return self._events.popleft() if self._events else None

    def finish(self, timeout_s: float) -> Outcome:
        return Outcome(OutcomeStatus.COMPLETED)

    def close(self) -> Residue:
        return Residue()


class ReplayedReference:
    """A reference that has been trained before."""

    def start(self, spec: RunSpec) -> ReplayedJob:
        shutil.copytree(LEDGERS, spec.ledger_dir, dirs_exist_ok=True)
        return ReplayedJob()


if __name__ == "__main__":
    chaos.cli.REFERENCES["leto"] = "__main__:ReplayedReference"
    if limit := int(os.environ.get("FILE_BYTES", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["leto-chaos", *sys.argv[2:]]
    chaos.cli.main()
