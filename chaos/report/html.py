"""report.html: one self-contained page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline

from chaos.report.figures import loss_figure, recovery_figure, resource_figure
from chaos.report.summary import PHASES, FaultRow, fact_words, loss_rows, recovery_rows, resource_rows, shadow_rows
from chaos.scenario import Scenario
from chaos.schedule import plan_injections
from chaos.verdict import Conclusion
from verify.checkers import CheckResult
from verify.history import Entry


def write_report(
    path: Path,
    *,
    scenario: Scenario,
    conclusion: Conclusion,
    results: Sequence[CheckResult],
    faults: Sequence[FaultRow],
    history: Sequence[Entry],
    losses: Mapping[str, Mapping[int, float]],
    fingerprint: Mapping[str, Any],
    repeat: str,
    began: Entry,
    planted: str | None,
) -> None:
    """``history`` is the run's journal; ``losses`` maps reference, control and run to rank 0's loss by iteration.

    ``began`` is the first entry of the whole journal, ``planted`` the name of a planted bug."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("chaos.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    recoveries, resources = recovery_rows(history), resource_rows(history)
    page = environment.get_template("report.html.j2").render(
        scenario=scenario,
        resolved=scenario.resolved_yaml(),
        conclusion=conclusion,
        results=results,
        faults=faults,
        recoveries=recoveries,
        phases=PHASES,
        lost=loss_rows(history),
        shadows=shadow_rows(history),
        resources=resources,
        plotly_js=plotly.offline.get_plotlyjs(),
        loss_figure=loss_figure(losses, faults_at=_fault_iterations(scenario)),
        recovery_figure=recovery_figure(recoveries) if recoveries else "",
        resource_figure=resource_figure(resources) if resources else "",
        fingerprint=json.dumps(fingerprint, indent=2),
        repeat=repeat,
        planted=planted,
        facts=fact_words(began, history, recoveries, fingerprint),
    )
    path.write_text(page, encoding="utf-8")


def _fault_iterations(scenario: Scenario) -> list[int]:
    return sorted({i.iteration for i in plan_injections(scenario)})
