"""report.html and junit.xml of a recorded run, drawn from its record and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.judging import CONTROL, REFERENCE, RUN, Judged, Recorded, ledger_directory
from chaos.report.html import write_report
from chaos.report.junit import write_junit
from chaos.report.summary import fault_rows
from chaos.schedule import plan_injections
from verify.ledger import LedgerError, ledger_path, read_ledger


def write_reports(record: Recorded, judged: Judged, *, fingerprint: Mapping[str, Any], repeat: str) -> None:
    """Into the run's directory, replacing what is there."""
    history = record.of_job(RUN)
    faults = fault_rows(plan_injections(record.scenario), history)
    write_junit(record.directory / "junit.xml", record.scenario.name, faults, judged.results)
    write_report(
        record.directory / "report.html",
        scenario=record.scenario,
        conclusion=judged.conclusion,
        results=judged.results,
        faults=faults,
        history=history,
        losses=_losses(record, (REFERENCE, CONTROL, RUN)),
        fingerprint=fingerprint,
        repeat=repeat,
        began=record.entries[0],
        planted=record.mutant,
    )


def _losses(record: Recorded, jobs: Sequence[str]) -> dict[str, dict[int, float]]:
    """Rank 0's loss by iteration, of the jobs that left any."""
    curves = {}
    for job in jobs:
        try:
            ledger = read_ledger(ledger_path(ledger_directory(record.directory, job), 0), cut_short=True)
        except LedgerError:
            continue  # the checks say why; there is nothing to draw
        curves[job] = {t: float.fromhex(r.result.loss) for t, r in ledger.records.items()}
    return curves
