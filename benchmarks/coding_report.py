"""What the figures of benchmarks/coding.py are held to, and how they are shown: the table in docs/coding.md and a picture.

Run: python -m benchmarks.coding_report rewrites both from the recorded figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from benchmarks.results import RESULTS

DOCUMENT = Path(__file__).parents[1] / "docs" / "coding.md"
FIGURES = RESULTS / "coding.json"
PICTURE = RESULTS / "coding.html"
BEGIN, END = "<!-- figures: python -m benchmarks.coding_report -->", "<!-- end of figures -->"

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
    Target(name="update of 1 page against ISA-L", row="gfni", operation="update", case="1", ratio="times_isal", at_least=0.95),
    Target(
        name="update of 64 pages against ISA-L", row="gfni", operation="update", case="64", ratio="times_isal", at_least=4.0
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


def picture(figures: Figures) -> go.Figure:
    """Speeds of all encodes of the best row: Leto, ISA-L and reading, grouped by code."""
    encodes = figures["rows"][figures["best_row"]]["encode"]
    names = {"leto_gb_s": "Leto", "isal_gb_s": f"ISA-L ({figures['isal']}), 32 pages a call", "read_gb_s": "reading memory"}
    figure = go.Figure(
        [go.Bar(name=name, x=list(encodes), y=[v[key] for v in encodes.values()]) for key, name in names.items()]
    )
    return figure.update_layout(
        title="Encoding a group, one thread", xaxis_title="data + parity pages of 2 MiB", yaxis_title="GB/s of data"
    )


def document_with(figures_text: str, document: str) -> str:
    """The document with its generated part replaced."""
    before, _, rest = document.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{DOCUMENT} lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{figures_text}\n{END}{after}"


def write_report(recorded: Path) -> None:
    result = json.loads(recorded.read_text())
    DOCUMENT.write_text(document_with(table(result["figures"], result["machine"]), DOCUMENT.read_text()))
    picture(result["figures"]).write_html(PICTURE, include_plotlyjs="cdn")


if __name__ == "__main__":
    write_report(FIGURES)
