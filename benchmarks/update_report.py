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

WANTED = 2.4
"""The longest that an update should take, in times of the plain Adam on as many threads; the paper's is 2.36, on GPUs.
docs/coding.md says what bounds it here."""

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


def times_plain(figures: dict[str, Any]) -> float:
    """What the gate looks at: wall time of Leto's update over that of the plain Adam, both on all threads of the mask."""
    most_threads = max(figures["threads"], key=int)
    times: float = figures["threads"][most_threads]["wall_times_plain"]["leto"]
    return times


def verdict(times: float) -> str:
    """Whether the update is as fast as wanted."""
    return f"{'reached' if times <= WANTED else 'missed'}: {times:.2f}"


def tables(figures: dict[str, Any], machine: dict[str, Any]) -> str:
    """The measured figures as Markdown."""
    conditions = (
        f"Measured on {machine['cpu_model']}, row {figures['row']}, {figures['state_bytes'] / 2**30:.2f} GiB of state, pages of"
        f" {figures['page_bytes'] >> 20} MiB, chunks of {figures['chunk_pages']} pages, medians of {figures['rounds']} rounds."
        f" Wanted: at most {WANTED} times the plain Adam in wall time, on all threads of the affinity mask;"
        f" {verdict(times_plain(figures))}."
    )
    columns = {f"{count} thread{'s' * (count != '1')}": of for count, of in figures["threads"].items()}
    lines = [conditions, "", _row(["one iteration", *(f"{n}: wall, ms | CPU, ms | times plain, wall (CPU)" for n in columns)])]
    lines.append("|---|" + "---|" * 3 * len(columns))
    lines += [_row([text, *(_times(of, name) for of in columns.values())]) for name, text in NAMES.items()]
    lines += ["", _row(["of Leto's update", *(f"{n}: CPU, ms" for n in columns)]), "|---|" + "---|" * len(columns)]
    for kind, text in OPERATIONS.items():
        lines.append(_row([text, *(f"{of['operations_cpu_seconds'][kind] * 1e3:.1f}" for of in columns.values())]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _times(of: dict[str, Any], name: str) -> str:
    wall_ms, cpu_ms = of["wall_seconds"][name] * 1e3, of["cpu_seconds"][name] * 1e3
    return f"{wall_ms:.0f} | {cpu_ms:.0f} | {of['wall_times_plain'][name]:.2f} ({of['cpu_times_plain'][name]:.2f})"


def write_report(recorded: Path) -> None:
    result = json.loads(recorded.read_text())
    figures = result["figures"]
    DOCUMENT.write_text(document_with(COMMAND, tables(figures, result["machine"]), DOCUMENT.read_text()))
    title = f"One update of {figures['state_bytes'] / 2**30:.2f} GiB of state"
    milliseconds = {
        f"on {count} thread{'s' * (count != '1')}": {text: of["wall_seconds"][name] * 1e3 for name, text in NAMES.items()}
        for count, of in figures["threads"].items()
    }
    write_bars(PICTURE, title=title, unit="ms", series=milliseconds)


if __name__ == "__main__":
    write_report(FIGURES)
