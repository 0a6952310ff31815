"""Preloading leaves one thread, or says what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from leto.megatron.preload import TRAINER_ENVIRONMENT

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def preload(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = f"{code}\nfrom leto.megatron.preload import preload\npreload()\n"
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **TRAINER_ENVIRONMENT, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_preloaded_process_says_nothing() -> None:
    done = preload("")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_second_thread_is_refused() -> None:
    done = preload("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    assert done.returncode != 0
    assert "JobError: 2 threads after the imports of a trainer, expected 1: start the process with OMP_NUM" in done.stderr
