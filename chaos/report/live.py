"""What the live screen knows of the job under way, folded from the journal's entries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from verify.checkers import ENDINGS
from verify.history import Entry

_PHASE_AFTER = {
    "killed": "detect",
    "released": "the rank goes on over lost pages",
    "failure": "fence",
    "fenced": "localise",
    "localised": "decide",
    "decided": "promote or fork",
    "ready": "reconstruct",
    "resumed": "finish",
}
"""The phase of a recovery that follows an entry."""


@dataclass
class Status:
    """One job, from its start. ``follow`` is its one writer; ``clock`` gives monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    loss: str = ""
    epoch: int = 0
    shadows: str = ""
    fault: str = ""
    faults: int = 0
    recovery: str = ""  # the phase under way, or how the last recovery went
    recoveries: int = 0
    _since_s: float | None = field(default=None)  # when the phase under way began

    def follow(self, entry: Entry) -> None:
        f = entry.fields
        if entry.name == "iteration":
            self.loss = f"{float.fromhex(f['loss']):.4f}"
        elif entry.name == "shadows-ready":
            self.shadows = f"{f['level']} stand by, made in {f['seconds']:.2f} s"
        elif entry.name in ("shadow-ended", "shadow-failed"):
            self.shadows = "lost, made again after a pause"
        elif entry.name == "recovered":
            self.recoveries += 1
            self.recovery, self._since_s = f"{f['action']} by {f['level']} in {1000 * f['seconds']:.0f} ms", None
            self.shadows = "being made"
        elif entry.name == "outcome" and self._since_s is not None:
            self.recovery, self._since_s = f["status"], None
        if entry.name == "fenced":
            self.shadows = ""  # they take over, or go with the rest
        self._follow_fault(entry)

    def _follow_fault(self, entry: Entry) -> None:
        if entry.name in ENDINGS:
            self.faults += 1
            self.fault = f"{entry.fields['label']}: {entry.fields['what']}"
        if entry.name == "ready":
            self.epoch = entry.fields["epoch"]
        under_way = self._since_s is not None or entry.name in ("failure", *ENDINGS)
        if entry.name in _PHASE_AFTER and under_way:
            self.recovery, self._since_s = _PHASE_AFTER[entry.name], self.clock()

    def table(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        recovery = Text(self.recovery)
        if self._since_s is not None:
            recovery.stylize("bold red")
            recovery.append(f" {self.clock() - self._since_s:.2f} s")
        for name, value in (
            ("loss", Text(self.loss)),
            ("epoch", Text(str(self.epoch) if self.epoch else "")),
            ("shadows", Text(self.shadows)),
            (f"fault {self.faults}", Text(self.fault)),
            (f"recovery {self.recoveries}", recovery),
        ):
            grid.add_row(Text(name, style="dim"), value)
        return grid
