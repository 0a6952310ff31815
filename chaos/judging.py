"""What was recorded -> what it is worth. The engine judges a run with this when it ends, ``leto-chaos report`` later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.scenario import Scenario
from chaos.verdict import Conclusion, conclude
from verify import checkers
from verify.checkers import CheckResult, Judgement
from verify.compare import Comparison, compare_runs
from verify.growth import nothing_grows
from verify.history import Entry
from verify.ledger import Ledger, LedgerError, read_ledgers
from verify.losses import losses_repaired

REFERENCE, REFERENCE_AGAIN, CONTROL, RUN = "reference", "reference-again", "control", "run"
JOBS = (REFERENCE, REFERENCE_AGAIN, CONTROL, RUN)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A scenario run to its end, as the reports show it."""

    conclusion: Conclusion
    results: tuple[CheckResult, ...]
    comparison: Comparison | None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Everything a run left that is judged: its journal, and the ledgers below its directory."""

    scenario: Scenario
    directory: Path
    entries: tuple[Entry, ...]
    mutant: str | None = None  # a planted bug: it runs without the control

    def of_job(self, job: str) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.job == job)

    def ledgers(self, job: str) -> dict[int, Ledger]:
        """Raises LedgerError when a ledger of a completed job is not whole."""
        status, _ = checkers.outcome_in(self.of_job(job))
        return read_ledgers(ledger_directory(self.directory, job), cut_short=status != checkers.COMPLETED)

    def compare(self, job: str) -> Comparison | LedgerError:
        """The job with the reference, or why they cannot be compared."""
        try:
            return compare_runs(self.ledgers(REFERENCE), self.ledgers(job), self.scenario.workload.iterations)
        except LedgerError as error:
            return error


def ledger_directory(directory: Path, job: str) -> Path:
    return directory / "ledger" / job


def judge_reference(record: Recorded) -> CheckResult:
    first, again = record.of_job(REFERENCE), record.of_job(REFERENCE_AGAIN)
    return checkers.reference_equals_itself(first, again, record.compare(REFERENCE_AGAIN))


def judge(record: Recorded) -> Judged:
    """Every check that the record reaches far enough for, and the verdict."""
    results = [judge_reference(record)]
    comparison = None
    if results[0].judgement is Judgement.TRUE:
        if record.scenario.control is not None and record.mutant is None:
            results.append(checkers.control_diverged(record.of_job(CONTROL)))
        comparison = record.compare(RUN)
        results += _judge_run(record, comparison)
    results.append(checkers.no_residue(record.entries))
    compared = comparison if isinstance(comparison, Comparison) else None
    return Judged(conclusion=conclude(results), results=tuple(results), comparison=compared)


def _judge_run(record: Recorded, comparison: Comparison | LedgerError) -> Sequence[CheckResult]:
    history = record.of_job(RUN)
    scenario, expect, workload = record.scenario, record.scenario.expect, record.scenario.workload
    refusal = expect.refusal is not None
    results = [
        checkers.faults_fired(history),
        checkers.completed(history) if expect.refusal is None else checkers.refused(history, expect.refusal),
        checkers.recoveries_witnessed(history, expect.recoveries, expect.counted_rules),
        checkers.in_time(history, expect.deadline_s),
        checkers.exact(comparison, history, refusal=refusal),
        checkers.parity_equal(history, workload.to_core().world_size, workload.iterations, refusal=refusal),
    ]
    if expect.skipped is not None:
        results.append(checkers.steps_skipped(record.ledgers(REFERENCE), history, expect.skipped))
    if any(fault.when.shadows for fault in scenario.faults):
        results += [checkers.recovered_by_shadows(history), nothing_grows(history)]
    if any(fault.losses for fault in scenario.faults):
        results.append(losses_repaired(history, refusal=refusal))
    return results
