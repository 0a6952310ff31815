"""How the figures of benchmarks/update.py are shown: tables in docs/coding.md and a picture.

Run: python -m benchmarks.update_report rewrites both from the recorded figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.bars import write_bars
from benchmarks.coding_report import DOCUMENT, document_with
from benchmarks.results import RESULTS

MOST = 2.4
"""The longest that an update may take, in times of the plain Adam; the paper's is 2.36."""

FIGURES = RESULTS / "update.json"
PICTURE = RESULTS / "update.svg"
COMMAND = "python -m benchmarks.update_report"

NAMES = {
    "plain": "plain: native Adam alone",
    "leto": "Leto: undo, update with parity, commit, write-back",
    "unfused": "Leto with update and parity as two operations",
    "torch": "torch's AdamW",
    "encode": "gradient parity",
}
OPERATIONS = {
    "save-undo": "undo copy",
    "update-and-parity": "update with parity",
    "fetch": "fetch",
    "write-back": "write-back",
    "tier2": "second tier",
    "commit": "commit",
    "marks": "marks",
}


def tables(figures: dict[str, Any], machine: dict[str, Any]) -> str:
    """The measured figures as Markdown."""
    conditions = (
        f"Measured on {machine['cpu_model']}, row {figures['row']}, one thread, {figures['state_bytes'] / 2**30:.2f} GiB of"
        f" state, pages of {figures['page_bytes'] >> 20} MiB, chunks of {figures['chunk_pages']} pages, medians of"
        f" {figures['rounds']} rounds. Wanted: at most {MOST} times the plain Adam."
    )
    seconds, times = figures["seconds"], figures["times_plain"]
    lines = [conditions, "", "| one iteration | CPU, ms | times plain |", "|---|---|---|"]
    lines += [f"| {text} | {seconds[name] * 1e3:.0f} | {times[name]:.2f} |" for name, text in NAMES.items()]
    lines += ["", "| of Leto's update | CPU, ms |", "|---|---|"]
    lines += [f"| {text} | {figures['operations'][kind] * 1e3:.1f} |" for kind, text in OPERATIONS.items()]
    return "\n".join(lines)


def write_report(recorded: Path) -> None:
    result = json.loads(recorded.read_text())
    figures = result["figures"]
    DOCUMENT.write_text(document_with(COMMAND, tables(figures, result["machine"]), DOCUMENT.read_text()))
    milliseconds = {text: figures["seconds"][name] * 1e3 for name, text in NAMES.items()}
    title = f"One update of {figures['state_bytes'] / 2**30:.2f} GiB of state, one thread"
    write_bars(PICTURE, title=title, unit="ms of CPU", series={"an iteration": milliseconds})


if __name__ == "__main__":
    write_report(FIGURES)
