"""The row of instructions: told by every run, refused in one line where it is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chaos.fingerprint import machine_fingerprint
from leto import _kernels


def test_a_run_says_which_row_computed() -> None:
    assert machine_fingerprint()["kernel_row"] == _kernels.row


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["chaos", "validate", "scenarios/muon.yaml"], ""),
        (["chaos", "compare", "a", "b"], ""),
        (["leto.cli", "train", "job.json"], "leto: "),
        (["leto.cli", "example"], "leto: "),
    ],
    ids=["validate", "compare", "train", "example"],
)
def test_a_row_that_is_not_there_is_one_line(command: list[str], says: str) -> None:
    argv = [sys.executable, "-P", "-m", *command]
    done = subprocess.run(argv, env=os.environ | {"LETO_KERNEL": "abacus"}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{says}LETO_KERNEL=abacus: this processor has {', '.join(_kernels.supported_rows)}\n"
