"""Shipped scenarios from the command line to the verdict, and the verdict once more from the recorded files."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.offline import compare_recorded, rebuild_reports
from tests.process.references import AS_LONG_AS_ONE_CLASS, ROOT, TIMEOUT_S, References, run_scenario
from verify.history import read_journal

pytestmark = pytest.mark.process


def test_a_scenario_passes_and_its_record_says_so_later(tmp_path: Path) -> None:
    """With everything that a user's command does, its references among it."""
    argv = [sys.executable, "-m", "chaos", "run", "--plain", "--runs-dir", str(tmp_path), "scenarios/first-and-last.yaml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    _check(done, tmp_path / "first-and-last" / "latest")


@pytest.mark.slow
def test_kills_around_skipped_steps_change_no_bit(references: References, tmp_path: Path) -> None:
    done, run = run_scenario(references, tmp_path, "skipped-step")
    _check(done, run)
    _check_that_nothing_is_redone_of_a_skipped_step(run)


@pytest.mark.slow
def test_kills_between_what_two_ranks_do_change_no_bit(references: References, tmp_path: Path) -> None:
    _check(*run_scenario(references, tmp_path, "between-ranks"))


def _check(done: subprocess.CompletedProcess[str], run: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert rebuild_reports(run).judged.conclusion.exit_code == 0
    assert compare_recorded(run / "ledger" / "reference", run).equal
    _check_that_held_ranks_stood_parked_at_every_kill(run)


def _check_that_nothing_is_redone_of_a_skipped_step(run: Path) -> None:
    """U25: iterations 10 and 11 are finished by ranks in every state, one of which lost more gradients than can be solved."""
    entries = [e.fields for e in read_journal(run / "journal.jsonl") if e.job == "run" and e.name in ("decided", "resumed")]
    epochs = {f["epoch"]: f["iteration"] for f in entries if f.get("action") == "finish" and f["iteration"] in (10, 11)}
    resumed = {(epochs[f["epoch"]], f["rank"]): f["row"] for f in entries if "row" in f and f["epoch"] in epochs}
    assert resumed == {
        (10, 0): "mark-complete",
        (10, 1): "run-whole-update",
        (11, 0): "mark-complete",
        (11, 1): "keep-build-header",
    }


def test_a_failure_that_comes_back_is_refused(references: References, tmp_path: Path) -> None:
    """U37: the fourth one without a completed iteration, the last inside a recovery."""
    done, run = run_scenario(references, tmp_path, "crash-loop", [AS_LONG_AS_ONE_CLASS])
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [e for e in read_journal(run / "journal.jsonl") if e.job == "run"]
    assert [e.fields["action"] for e in entries if e.name == "decided"] == ["restart", "restart", "finish", "checkpoint"]


def test_of_two_ranks_parked_at_once_the_second_is_hit_in_the_recovery_from_the_first(
    references: References, tmp_path: Path
) -> None:
    """Whoever stands parked when the other is killed is fenced with it, and no target for a fault any more."""
    faults = ", ".join(
        f"{{id: rank-{rank}, when: {{iteration: 4, phase: update}}, where: {{rank: {rank}}},"
        " do: [abort-kernel: {kernel: adam, progress: 0.5, group: 0, chunk: 1}]}"
        for rank in (0, 1)
    )
    expect = "expect={recoveries: 1, rule: finish, fallback: none, deadline_s: 30, compare: exact}"
    done, run = run_scenario(references, tmp_path, "one-class", [f"faults=[{faults}]", expect])
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [e for e in read_journal(run / "journal.jsonl") if e.job == "run"]
    assert len([e for e in entries if e.name == "killed"]) == 2
    assert [e.fields["action"] for e in entries if e.name == "decided"] == ["finish", "finish"]


def _check_that_held_ranks_stood_parked_at_every_kill(run: Path) -> None:
    entries = [e for e in read_journal(run / "journal.jsonl") if e.job == "run"]
    planned = {e.fields["token"]: 1 + len(e.fields.get("holds", ())) for e in entries if e.name == "planned"}
    fired = {e.fields["token"]: len(e.fields["places"]) for e in entries if e.name == "fired"}
    assert fired == planned
    assert max(planned.values()) == 2
