"""Bar charts as SVG files: text, so that a change of figures is a change of lines, and nothing to load from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

WIDTH, LABELS, VALUES = 1000, 320, 70  # pixels: all of it, left of the bars, right of them
BAR, GAP, HEAD = 14, 12, 64
COLOURS = ("#2b6cb0", "#c05621", "#718096", "#2f855a", "#805ad5")

Series = Mapping[str, Mapping[str, float]]
"""Name of a series -> label of a group of bars -> value; a series may lack a label."""


def write_bars(path: Path, *, title: str, unit: str, series: Series) -> None:
    path.write_text(bars(title=title, unit=unit, series=series))


def bars(*, title: str, unit: str, series: Series) -> str:
    """Horizontal bars, grouped by label, on one scale from 0."""
    largest = max(value for values in series.values() for value in values.values())
    scale = (WIDTH - LABELS - VALUES) / largest
    labels = list(dict.fromkeys(label for values in series.values() for label in values))
    drawn, y = [_head(title, unit), *_legend(list(series))], HEAD
    for label in labels:
        present = [(n, values[label]) for n, values in enumerate(series.values()) if label in values]
        drawn.append(_text(LABELS - 8, y + BAR * (len(present) + 1) / 2 - 3, label, anchor="end"))
        for n, value in present:
            drawn.append(_bar(y, value * scale, COLOURS[n]))
            drawn.append(_text(LABELS + value * scale + 5, y + BAR - 3, f"{value:.3g}"))
            y += BAR
        y += GAP
    sheet = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="12">'
    return "\n".join([sheet, '<rect width="100%" height="100%" fill="white"/>', *drawn, "</svg>"]) + "\n"


def _head(title: str, unit: str) -> str:
    return f'<text x="12" y="22" font-size="16">{escape(title)} <tspan fill="#718096">({escape(unit)})</tspan></text>'


def _legend(names: list[str]) -> list[str]:
    drawn, x = [], 12.0
    for n, name in enumerate(names):
        drawn.append(f'<rect x="{x:.0f}" y="34" width="10" height="10" fill="{COLOURS[n]}"/>')
        drawn.append(_text(x + 15, 43, name))
        x += 35 + 7 * len(name)
    return drawn


def _bar(y: float, width: float, colour: str) -> str:
    return f'<rect x="{LABELS}" y="{y:.0f}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
