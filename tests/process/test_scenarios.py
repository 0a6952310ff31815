"""Shipped scenarios from the command line to the verdict, and the verdict once more from the recorded files."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.offline import compare_recorded, rebuild_reports
from verify.history import read_journal

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0


@pytest.mark.parametrize("name", ["first-and-last", "between-ranks", "skipped-step"])
def test_a_scenario_passes_and_its_record_says_so_later(name: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "chaos", "run", "--plain", "--runs-dir", str(tmp_path), f"scenarios/{name}.yaml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / name / "latest"
    assert rebuild_reports(run).judged.conclusion.exit_code == 0
    assert compare_recorded(run / "ledger" / "reference", run).equal
    _check_that_held_ranks_stood_parked_at_every_kill(run)
    if name == "skipped-step":
        _check_that_nothing_is_redone_of_a_skipped_step(run)


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


def test_a_failure_that_comes_back_is_refused(tmp_path: Path) -> None:
    """U37: the fourth one without a completed iteration, the last inside a recovery."""
    argv = [sys.executable, "-m", "chaos", "run", "--plain", "--runs-dir", str(tmp_path), "scenarios/crash-loop.yaml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [e for e in read_journal(tmp_path / "crash-loop" / "latest" / "journal.jsonl") if e.job == "run"]
    assert [e.fields["action"] for e in entries if e.name == "decided"] == ["restart", "restart", "finish", "checkpoint"]


def _check_that_held_ranks_stood_parked_at_every_kill(run: Path) -> None:
    entries = [e for e in read_journal(run / "journal.jsonl") if e.job == "run"]
    planned = {e.fields["token"]: 1 + len(e.fields.get("holds", ())) for e in entries if e.name == "planned"}
    fired = {e.fields["token"]: len(e.fields["places"]) for e in entries if e.name == "fired"}
    assert fired == planned
    assert max(planned.values()) == 2
