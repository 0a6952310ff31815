"""Judging what was recorded, without running anything: ``leto-chaos report`` and ``leto-chaos compare``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos.judging import RUN, Judged, Recorded, judge, ledger_directory
from chaos.loading import load_scenario
from chaos.report.files import write_reports
from chaos.runs import FINGERPRINT, JOURNAL, SCENARIO
from chaos.verdict import Conclusion, Verdict
from leto.core.errors import ConfigError
from verify.compare import Comparison, compare_runs
from verify.history import Entry, read_journal
from verify.ledger import Ledger, LedgerError, read_ledgers


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """``recorded`` is the verdict that the run itself wrote into its journal, None when it did not come to one."""

    judged: Judged
    recorded: str | None


def rebuild_reports(directory: Path) -> Rebuilt:
    """Judge a run's directory again and write its report.html and junit.xml anew. Raises ConfigError."""
    entries = _journal(directory)
    ordered = next((e for e in entries if e.name == "ordered"), None)
    if ordered is None:
        raise ConfigError(f"{directory / JOURNAL}: does not say what was ordered; it is no journal of 'leto-chaos run'")
    record = Recorded(
        scenario=load_scenario(directory / SCENARIO),
        directory=directory,
        entries=entries,
        mutant=ordered.fields["mutant"],
    )
    judged = _cut_short(judge(record), entries)
    fingerprint = _json(directory / FINGERPRINT)
    try:
        write_reports(record, judged, fingerprint=fingerprint, repeat=ordered.fields["repeat"])
    except OSError as error:
        raise ConfigError(f"{directory}: cannot write reports: {error.strerror}") from None
    said = next((str(e.fields["verdict"]) for e in entries if e.name == "verdict"), None)
    return Rebuilt(judged=judged, recorded=said)


def _cut_short(judged: Judged, entries: tuple[Entry, ...]) -> Judged:
    """A run that broke by the bench's own mistake, or was stopped, stays one, whatever it had recorded until then."""
    last = entries[-1]
    if last.name == "internal-error":
        return replace(judged, conclusion=Conclusion(Verdict.INTERNAL, last.fields["reason"]))
    if last.name == "interrupted":
        return replace(judged, conclusion=Conclusion(Verdict.UNKNOWN, "the run was interrupted"))
    if last.name != "verdict":
        return replace(judged, conclusion=Conclusion(Verdict.UNKNOWN, "the run was killed before its verdict"))
    return judged


def _journal(directory: Path) -> tuple[Entry, ...]:
    path = directory / JOURNAL
    try:
        return read_journal(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the directory of a run, like runs/update-phase/latest") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a whole journal: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return raw


def compare_recorded(expected: Path, actual: Path) -> Comparison:
    """Two runs (their ``run`` ledgers), or any two directories of ledgers.

    Raises ConfigError when there is nothing whole, or when the runs trained different workloads.
    """
    _check_same_workload(expected, actual)
    left, right = _ledgers(expected), _ledgers(actual)
    iterations = max(t for run in (left, right) for ledger in run.values() for t in ledger.records)
    return compare_runs(left, right, iterations)


def rows_of(*runs: Path) -> tuple[str, ...]:
    """The kernel rows that computed these runs, each once; of those that say it. Raises ConfigError."""
    told = [_json(run / FINGERPRINT).get("kernel_row") for run in runs if (run / FINGERPRINT).is_file()]
    return tuple(dict.fromkeys(row for row in told if row is not None))


def _check_same_workload(expected: Path, actual: Path) -> None:
    if not all((run / SCENARIO).is_file() for run in (expected, actual)):
        return  # ledgers alone do not say what was trained
    left, right = (load_scenario(run / SCENARIO).workload.model_dump() for run in (expected, actual))
    for key, value in left.items():
        if right[key] != value:
            raise ConfigError(f"{actual}: another workload: workload.{key} is {right[key]!r} there, {value!r} in {expected}")


def _ledgers(directory: Path) -> dict[int, Ledger]:
    of_run = ledger_directory(directory, RUN)
    place = of_run if of_run.is_dir() else directory
    try:
        ledgers = read_ledgers(place)
    except LedgerError as error:
        raise ConfigError(f"{directory}: cannot be compared: {error}") from None
    if not any(ledger.records for ledger in ledgers.values()):
        raise ConfigError(f"{directory}: no ledgers; name a run, like runs/update-phase/latest, or a directory of rank*.ledger")
    return ledgers
