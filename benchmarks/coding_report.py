"""What the figures of benchmarks/coding.py are held to, and how they are shown: the table in docs/coding.md and a picture.

Run: python -m benchmarks.coding_report rewrites both from the recorded figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import write_bars
from benchmarks.results import RESULTS

DOCUMENT = Path(__file__).parents[1] / "docs" / "coding.md"
FIGURES = RESULTS / "coding.json"
PICTURE = RESULTS / "coding.svg"
COMMAND = "python -m benchmarks.coding_report"

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ratio that must be reached: ``row`` is a name, or None for the best row this processor has."""

    name: str
    row: str | None
    operation: str
    case: str
    ratio: str
    at_least: float

    def reached(self, figures: Figures) -> float | None:
        """The measured ratio; None when the row was not measured because the processor lacks it."""
        rows = figures["rows"]
        row = self.row or figures["best_row"]
        value: float | None = rows[row][self.operation][self.case][self.ratio] if row in rows else None
        return value


TARGETS = (
    Target(name="encode against ISA-L", row="gfni", operation="encode", case="1024+16", ratio="times_isal", at_least=3.5),
    Target(name="encode against reading", row="gfni", operation="encode", case="1024+16", ratio="times_read", at_least=0.45),
    Target(
        name="update of 1 page against ISA-L, the old parity kept",
        row="gfni",
        operation="update",
        case="1",
        ratio="times_isal",
        at_least=0.95,
    ),
    Target(
        name="update of 64 pages against ISA-L, the old parity kept",
        row="gfni",
        operation="update",
        case="64",
        ratio="times_isal",
        at_least=4.0,
    ),
    Target(
        name="reconstruct 16 against reading the survivors",
        row="gfni",
        operation="reconstruct",
        case="16",
        ratio="times_read",
        at_least=0.45,
    ),
    Target(name="second tier against reading", row=None, operation="second_tier", case="16", ratio="times_read", at_least=0.9),
    Target(name="AVX2 encode against ISA-L", row="avx2", operation="encode", case="1024+16", ratio="times_isal", at_least=1.5),
)


def missed_targets(figures: Figures) -> list[str]:
    """One line a target that was not reached; a row that the processor lacks misses nothing, and the table shows it."""
    lines = []
    for target in TARGETS:
        reached = target.reached(figures)
        if reached is not None and reached < target.at_least:
            lines.append(f"missed: {target.name} is {reached:.2f}, at least {target.at_least} wanted")
    return lines


def table(figures: Figures, machine: Figures) -> str:
    """The measured figures as Markdown."""
    best = figures["rows"][figures["best_row"]]
    conditions = (
        f"Measured on {machine['cpu_model']}, row {figures['best_row']}, {figures['isal']}, one thread, pages of "
        f"{figures['page_bytes'] >> 20} MiB, medians of {figures['rounds']} rounds."
    )
    lines = [
        conditions,
        "",
        "| operation | Leto, GB/s | against ISA-L | against reading memory |",
        "|---|---|---|---|",
        *(_line(f"encode, D = {c.replace('+', ', H = ')}", v) for c, v in best["encode"].items()),
        *(_line(f"update of {c} page{'s' if c != '1' else ''}, H = 16", v) for c, v in best["update"].items()),
        *(_line(f"reconstruct {c} of 1024, H = 16", v) for c, v in best["reconstruct"].items()),
        _line("second tier: xor of 16", best["second_tier"]["16"]),
        *(
            _line(f"encode, D = {c.replace('+', ', H = ')}, row {row}", v)
            for row, measured in figures["rows"].items()
            if row != figures["best_row"]
            for c, v in measured["encode"].items()
        ),
        "",
        "| target | wanted | reached |",
        "|---|---|---|",
        *(f"| {t.name} | {t.at_least} | {_number(t.reached(figures))} |" for t in TARGETS),
    ]
    return "\n".join(lines)


def _line(name: str, values: dict[str, float]) -> str:
    against_isal = _number(values.get("times_isal"))
    if "times_isal_in_place" in values:
        against_isal += f" ({values['times_isal_in_place']:.2f} of its update in place)"
    return f"| {name} | {values['leto_gb_s']:.1f} | {against_isal} | {_number(values.get('times_read'))} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def speeds(figures: Figures) -> dict[str, dict[str, float]]:
    """GB/s of all encodes of the best row: Leto, ISA-L and reading, by code."""
    encodes = figures["rows"][figures["best_row"]]["encode"]
    names = {"leto_gb_s": "Leto", "isal_gb_s": f"ISA-L ({figures['isal']}), 32 pages a call", "read_gb_s": "reading memory"}
    return {name: {code: values[key] for code, values in encodes.items()} for key, name in names.items()}


def document_with(command: str, figures_text: str, document: str) -> str:
    """The document with the part that ``command`` generates replaced."""
    begin, end = f"<!-- figures: {command} -->", "<!-- end of figures -->"
    before, _, rest = document.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{DOCUMENT} lacks the lines {begin!r} and {end!r}")
    return f"{before}{begin}\n{figures_text}\n{end}{after}"


def write_report(recorded: Path) -> None:
    result = json.loads(recorded.read_text())
    DOCUMENT.write_text(document_with(COMMAND, table(result["figures"], result["machine"]), DOCUMENT.read_text()))
    title = "Encoding a group, one thread; data + parity pages of 2 MiB"
    write_bars(PICTURE, title=title, unit="GB/s of data", series=speeds(result["figures"]))


if __name__ == "__main__":
    write_report(FIGURES)
