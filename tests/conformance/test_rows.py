"""Every instruction-set row gives the same bits: the suites of the code run in a process of its own for each that is not the
default one. What calls no kernel says the same on every row and is left out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_chunks import adam_arrays, adam_chunk

from leto import _kernels
from leto.device.host_kernels import HostKernels

TESTS = Path(__file__).parents[1]
SUITES = (
    "conformance/test_bytes.py",
    "conformance/test_code.py",
    "conformance/test_one_pass.py",
    "conformance/test_torn_adam.py",
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
        "not reference]",
        *suites,
    ]
    done = subprocess.run(
        command, env=os.environ | {"LETO_KERNEL": row}, cwd=TESTS.parent, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def digest_of_adam() -> str:
    """What adam makes of one chunk, fused and separate, with the instruction-set row in use."""
    digest = hashlib.sha256()
    for fused in (False, True):
        arrays = adam_arrays(3001)
        HostKernels(fused_multiply_add=fused).adam(adam_chunk(arrays, [1000, 3001]))
        for array in arrays:
            digest.update(array.tobytes())
    return digest.hexdigest()


def in_row(row: str, expression: str) -> subprocess.CompletedProcess[str]:
    """Evaluates an expression of this module in a process that is told to use ``row``."""
    program = f"import test_rows as t; print({expression})"
    path = os.pathsep.join(sys.path)
    environment = os.environ | {"LETO_KERNEL": row, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("row", _kernels.supported_rows)
def test_every_row_gives_the_same_bits(row: str) -> None:
    done = in_row(row, "t._kernels.row, t.digest_of_adam()")
    assert done.stdout.split() == [row, digest_of_adam()], done.stderr


def test_a_row_that_is_not_there_is_refused() -> None:
    done = in_row("abacus", "t._kernels.row")
    assert done.returncode != 0
    assert "LETO_KERNEL=abacus: this processor has portable" in done.stderr
