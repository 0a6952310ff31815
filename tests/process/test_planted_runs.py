"""A planted bug in real trainers: as a user asks for it. The other ones are nightly."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0


def test_bugs_in_trainers_are_caught_by_the_check_named_for_them(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "chaos", "mutants", "--runs-dir", str(tmp_path)]
    argv += ["--only", "data-cursor-one-off"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, last = done.stdout.splitlines()
    assert [tuple(row.split()[:3]) for row in rows] == [("data-cursor-one-off", "process", "exact")]
    assert last == "caught 1 / 1"
