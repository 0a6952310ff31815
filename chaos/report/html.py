"""report.html: one self-contained page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
import plotly.offline

from chaos.report.summary import FaultRow, RecoveryRow
from chaos.scenario import Scenario
from chaos.schedule import plan_injections
from chaos.verdict import Conclusion
from verify.checkers import CheckResult

_DASHES = {"reference": "solid", "control": "dot", "run": "dash"}
"""Curves that coincide must all stay visible."""


def write_report(
    path: Path,
    *,
    scenario: Scenario,
    conclusion: Conclusion,
    results: Sequence[CheckResult],
    faults: Sequence[FaultRow],
    recoveries: Sequence[RecoveryRow],
    losses: Mapping[str, Mapping[int, float]],
    fingerprint: Mapping[str, Any],
    repeat: str,
) -> None:
    """``losses`` maps reference, control and run to rank 0's loss by iteration."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("chaos.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        scenario=scenario,
        resolved=scenario.resolved_yaml(),
        conclusion=conclusion,
        results=results,
        faults=faults,
        recoveries=recoveries,
        plotly_js=plotly.offline.get_plotlyjs(),
        loss_figure=_loss_figure(losses, faults_at=_fault_iterations(scenario)),
        fingerprint=json.dumps(fingerprint, indent=2),
        repeat=repeat,
    )
    path.write_text(page, encoding="utf-8")


def _fault_iterations(scenario: Scenario) -> list[int]:
    return sorted({i.iteration for i in plan_injections(scenario)})


def _loss_figure(losses: Mapping[str, Mapping[int, float]], faults_at: Sequence[int]) -> str:
    figure = go.Figure()
    for name, curve in losses.items():
        line = {"dash": _DASHES[name]}
        figure.add_trace(go.Scatter(x=list(curve), y=list(curve.values()), name=name, mode="lines", line=line))
    for iteration in faults_at:
        figure.add_vline(x=iteration, line={"width": 1, "color": "rgba(200,40,40,0.35)"})
    figure.update_layout(xaxis_title="iteration", yaxis_title="loss", height=420, margin={"t": 20})
    return str(figure.to_html(full_html=False, include_plotlyjs=False))
