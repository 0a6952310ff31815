"""One run on disk: its directory, everything the engine leaves in it, and the reports."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.engine import Engine
from chaos.fingerprint import fingerprint
from chaos.journal import Journal
from chaos.judging import Judged, Recorded
from chaos.report.files import write_reports
from chaos.report.screen import Screen
from chaos.scenario import Scenario
from chaos.targets.base import Target
from chaos.verdict import Conclusion, Verdict
from leto.core.errors import ConfigError
from verify.checkers import CheckResult, Judgement
from verify.history import BENCH

_MAX_RUNS_A_SECOND = 100
SCENARIO, JOURNAL, FINGERPRINT, VERDICT = "scenario.yaml", "journal.jsonl", "fingerprint.json", "verdict.json"
"""Files of a run's directory; the journal's first entry holds the words that asked for it."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to run, and the words that ask for it again."""

    scenario: Scenario
    file: Path
    overrides: tuple[str, ...] = ()
    mutant: str | None = None
    forced_row: str | None = None  # of kernels, where LETO_KERNEL names one
    runs_dir: Path

    @property
    def repeat(self) -> str:
        words = [f"LETO_KERNEL={self.forced_row}"] if self.forced_row else []
        words += ["leto-chaos", "run", str(self.file), *(w for o in self.overrides for w in ("--set", o))]
        return shlex.join([*words, *(("--mutant", self.mutant) if self.mutant else ())])


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that came to a verdict; without results when it broke."""

    directory: Path
    conclusion: Conclusion
    results: tuple[CheckResult, ...] = ()


def run_order(order: Order, target: Target, reference_target: Target, screen: Screen) -> Finished:
    """Run the scenario and leave every artefact. Our own mistakes end as the verdict ``internal``, their traceback in
    internal-error.txt.

    Raises ConfigError for what the targets do not have and for a directory that cannot be written, SystemExit with a note
    that names the unfinished run when a signal stops it; everything it started is closed then.
    """
    where = fingerprint(order.scenario.resolved_yaml())
    directory = create_directory(order.runs_dir, order.scenario.name, order.scenario.seed, datetime.now(UTC))
    journal = _begin(order, directory, where, screen)
    try:
        engine = Engine(
            order.scenario, directory, journal, target=target, reference_target=reference_target, mutant=order.mutant
        )
        judged = engine.run()
        record = Recorded(scenario=order.scenario, directory=directory, entries=journal.entries, mutant=order.mutant)
        write_reports(record, judged, fingerprint=where, repeat=order.repeat)
        _write_verdict(order, directory, judged.conclusion, judged)
        return Finished(directory=directory, conclusion=judged.conclusion, results=judged.results)
    except SystemExit as stop:  # a signal
        stop.add_note(f"unfinished run: {directory}")
        journal.append("", BENCH, "interrupted")
        raise
    except ConfigError:  # the person's mistake, not ours: what has been asked for cannot be run, so there is no run
        shutil.rmtree(directory)
        raise
    except Exception as error:
        return Finished(directory=directory, conclusion=_broken(order, directory, journal, error))
    finally:
        journal.close()


def _broken(order: Order, directory: Path, journal: Journal, error: Exception) -> Conclusion:
    """Our own mistake, with its traceback in internal-error.txt where that can be written: a full disk may be what broke us."""
    what = describe_error(error)
    try:
        path = directory / "internal-error.txt"
        path.write_text("".join(traceback.format_exception(error)))
        conclusion = Conclusion(Verdict.INTERNAL, f"{what}; see {path}")
        journal.append("", BENCH, "internal-error", reason=conclusion.reason)
        _write_verdict(order, directory, conclusion, None)
    except OSError as second:
        return Conclusion(Verdict.INTERNAL, f"{what}; it could not be recorded in {directory}: {describe_error(second)}")
    return conclusion


def describe_error(error: Exception) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _begin(order: Order, directory: Path, where: Mapping[str, Any], screen: Screen) -> Journal:
    try:
        (directory / SCENARIO).write_text(order.scenario.resolved_yaml())
        (directory / FINGERPRINT).write_text(json.dumps(where, indent=2) + "\n")
        journal = Journal(directory / JOURNAL, screen.listen)
        journal.append("", BENCH, "ordered", repeat=order.repeat, mutant=order.mutant)
    except OSError as error:
        raise ConfigError(f"--runs-dir {order.runs_dir}: {directory}: {error.strerror or error}") from None
    return journal


def create_directory(runs_dir: Path, name: str, seed: int, now: datetime) -> Path:
    """``runs_dir/<name>/<utc>-<seed>``, new. Raises ConfigError when it cannot be."""
    try:
        return _new_directory(runs_dir / name, f"{now:%Y%m%dT%H%M%SZ}-{seed}")
    except OSError as error:
        raise ConfigError(f"--runs-dir {runs_dir}: {error.filename}: {error.strerror}") from None


def _new_directory(parent: Path, stem: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_MAX_RUNS_A_SECOND):
        directory = parent / (f"{stem}.{attempt}" if attempt else stem)
        try:
            directory.mkdir()
            return directory
        except FileExistsError:
            continue
    raise ConfigError(f"{parent / stem}: {_MAX_RUNS_A_SECOND} runs of this second exist already")


def _point_latest_at(directory: Path) -> None:
    """``latest`` beside it names the last run that came to a verdict: none that was cut short or had a bug planted."""
    link = directory.with_name(f".latest-{os.getpid()}")
    link.unlink(missing_ok=True)
    link.symlink_to(directory.name)
    link.replace(directory.with_name("latest"))


def _write_verdict(order: Order, directory: Path, conclusion: Conclusion, judged: Judged | None) -> None:
    results = judged.results if judged else ()
    comparison = judged.comparison if judged else None
    wrong = any(r.name == "exact" and r.judgement is not Judgement.TRUE for r in results)
    first = comparison.first if comparison and wrong else None
    whole = {
        "verdict": conclusion.verdict.word,
        "exit_code": conclusion.exit_code,
        "reason": conclusion.reason,
        "mutant": order.mutant,
        "checks": [
            {"name": r.name, "judgement": r.judgement.value, "reason": r.reason, "details": dict(r.details)} for r in results
        ],
        "comparison": comparison.describe() if comparison else None,
        "first_divergence": {"iteration": first.iteration, "rank": first.rank, "tensor": first.name} if first else None,
        "repeat": order.repeat,
    }
    (directory / VERDICT).write_text(json.dumps(whole, indent=2) + "\n")
    if order.mutant is None:
        _point_latest_at(directory)
