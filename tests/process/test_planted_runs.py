"""A planted bug in real trainers: as a user asks for it. The other ones are nightly."""

import subprocess
from pathlib import Path

import pytest

from chaos.loading import load_scenario
from chaos.planted.runs import SCENARIO
from tests.process.references import ROOT, TIMEOUT_S, References, replaying_bench

pytestmark = pytest.mark.process


def test_bugs_in_trainers_are_caught_by_the_check_named_for_them(references: References, tmp_path: Path) -> None:
    ledgers = references.directory(load_scenario(SCENARIO).workload.to_core())
    argv = replaying_bench(ledgers, "mutants", "--runs-dir", str(tmp_path), "--only", "data-cursor-one-off")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, last = done.stdout.splitlines()
    assert [tuple(row.split()[:3]) for row in rows] == [("data-cursor-one-off", "process", "exact")]
    assert last == "caught 1 / 1"
