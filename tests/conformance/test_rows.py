"""The suites of the code, in a process of its own for every instruction-set row that the default one is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leto import _kernels

TESTS = Path(__file__).parents[1]
SUITES = (
    "conformance/test_kernels.py",
    "property/test_code_reconstruct.py",
    "property/test_code_update.py",
    "unit/test_reed_solomon_api.py",
)
ROWS = ("portable", "avx2", "gfni")
TIMEOUT_S = 300.0


@pytest.mark.parametrize("row", ROWS)
def test_the_suites_hold_on_every_row(row: str) -> None:
    if row not in _kernels.supported_rows:
        pytest.skip(f"this processor has no {row} row; it has {', '.join(_kernels.supported_rows)}")
    if row == _kernels.row:
        pytest.skip(f"{row} is the row in use: the suites themselves run on it")
    suites = [str(TESTS / suite) for suite in SUITES]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-k",
        "not every_row and not a_row_that_is",
        *suites,
    ]
    done = subprocess.run(
        command, env=os.environ | {"LETO_KERNEL": row}, cwd=TESTS.parent, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
