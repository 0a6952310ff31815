"""The figures of report.html, as fragments that need plotly.js beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from chaos.report.summary import PHASES, RecoveryRow, ResourceRow

_LINES = {
    "reference": {"width": 8, "color": "rgba(99,110,250,0.3)"},
    "control": {"width": 3, "color": "#ef553b", "dash": "dot"},
    "run": {"width": 1.5, "color": "#222"},
}
"""Curves that coincide must all stay visible: each is drawn inside the one before it."""
_LABEL_ROOM = {"l": 150, "t": 20, "r": 20}


def loss_figure(losses: Mapping[str, Mapping[int, float]], faults_at: Sequence[int]) -> str:
    figure = go.Figure()
    for name, curve in losses.items():
        points = {"x": list(curve), "y": list(curve.values())}
        figure.add_trace(go.Scatter(**points, name=name, mode="lines", line=_LINES[name]))
    for iteration in faults_at:
        figure.add_vline(x=iteration, line={"width": 1, "color": "rgba(200,40,40,0.35)"})
    figure.update_layout(xaxis_title="iteration", yaxis_title="loss", height=420, margin={"t": 20})
    return _fragment(figure)


def recovery_figure(recoveries: Sequence[RecoveryRow]) -> str:
    """One bar a recovery, from the end of the rank to the end of the recovery, stacked by phase."""
    figure = go.Figure()
    names = [f"{r.number}: {r.decided}, {r.level}" for r in recoveries]
    for phase in PHASES:
        milliseconds = [1000 * r.phases_s[phase] for r in recoveries]
        figure.add_trace(go.Bar(y=names, x=milliseconds, name=phase, orientation="h"))
    height = 120 + 26 * len(recoveries)
    figure.update_layout(barmode="stack", xaxis_title="ms since the rank ended", height=height, margin=_LABEL_ROOM)
    figure.update_layout(legend={"traceorder": "normal"})  # as the bars are read
    figure.update_yaxes(autorange="reversed")
    return _fragment(figure)


def resource_figure(resources: Sequence[ResourceRow]) -> str:
    figure = go.Figure()
    labels = [f"{n}: {r.label}" for n, r in enumerate(resources, start=1)]
    for name, values in (
        ("private (USS), MiB", [r.private_mib for r in resources]),
        ("shared once (PSS), MiB", [r.proportional_mib for r in resources]),
        ("descriptors", [r.descriptors for r in resources]),
    ):
        figure.add_trace(go.Scatter(x=labels, y=values, name=name, mode="lines+markers"))
    figure.update_layout(height=360, margin={"t": 20}, yaxis={"rangemode": "tozero"})
    return _fragment(figure)


def _fragment(figure: go.Figure) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False))
