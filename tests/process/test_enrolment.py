"""State that compute changes: enrolled it is exact across kills, not enrolled the job refuses to run (U30)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leto.core.config import JobConfig
from tests.process.jobs import PROTECTION, olmoe
from verify.compare import Comparison, compare_runs
from verify.ledger import Ledger, read_ledgers

pytestmark = pytest.mark.process

ITERATIONS = 8
KILLS = {3: 0, 5: 1}  # after this iteration is told: of this rank
TIMEOUT_S = 120.0
SCRIPT = Path(__file__).with_name("planted_state.py")


def train(directory: Path, plant: str, kills: dict[int, int]) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, stderr and events of a job whose ranks are killed on the way."""
    (directory / "ledger").mkdir(parents=True)
    job = JobConfig(
        name="test",
        workload=olmoe(ITERATIONS),
        protection=PROTECTION,
        output_dir=str(directory),
        plugins=("chaos.targets.leto_probe:install_ledger",),
        plugin_options={"ledger_dir": str(directory / "ledger")},
    )
    path = directory / "job.json"
    path.write_text(job.to_json())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    events = []
    with (directory / "stderr").open("w") as stderr:
        argv = [sys.executable, str(SCRIPT), plant, str(path)]
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        try:
            assert process.stdout is not None
            due, pids = dict(kills), {}
            for line in process.stdout:
                event = json.loads(line)
                events.append(event)
                if event["event"] == "ready":
                    pids[event["rank"]] = event["pid"]
                elif event["event"] == "iteration" and event["rank"] == due.get(event["iteration"]):
                    os.kill(pids[due.pop(event["iteration"])], signal.SIGKILL)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    return code, (directory / "stderr").read_text(), events


def ledgers_of(directory: Path, plant: str, kills: dict[int, int]) -> dict[int, Ledger]:
    code, stderr, events = train(directory, plant, kills)
    assert (code, stderr) == (0, "")
    assert sum(event["event"] == "recovered" for event in events) == len(kills)
    return read_ledgers(directory / "ledger")


def compared(directory: Path, plant: str) -> Comparison:
    """A job without kills and one with them."""
    expected = ledgers_of(directory / "undisturbed", plant, {})
    assert all("mutable/buffer/decoder.running_mean" in r.live for r in expected[0].records.values()) is (plant == "enrolled")
    return compare_runs(expected, ledgers_of(directory / "killed", plant, KILLS), ITERATIONS)


def test_enrolled_state_is_exact_across_kills(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "enrolled")
    assert comparison.first is None, comparison.first


def test_state_that_nobody_enrolled_and_nobody_saw_is_forgotten(tmp_path: Path) -> None:
    """Without the refusal the run goes wrong: what is refused above matters."""
    first = compared(tmp_path, "unguarded").first
    assert first is not None
    assert first.iteration > min(KILLS)


REFUSED = {
    "forgotten": (
        "the buffer decoder.running_mean, which no record holds, so no recovery could restore it; "
        "name it in the model's ModelSpec.mutable"
    ),
    "attribute": (
        "the attribute decoder.running_mean, which no record holds, so no recovery could restore it; "
        "make it a buffer and name that in the model's ModelSpec.mutable"
    ),
    "module_level": (
        "the module level megatron.core.transformer.transformer_block:RUNNING_MEANS, which no record holds, "
        "so no recovery could restore it; capture it in leto.megatron.live"
    ),
}


@pytest.mark.parametrize(
    "plant", ["forgotten", *(pytest.param(p, marks=pytest.mark.slow) for p in ("attribute", "module_level"))]
)
def test_state_that_is_not_enrolled_is_refused_in_one_line(plant: str, tmp_path: Path) -> None:
    code, stderr, events = train(tmp_path, plant, {})
    assert code == 1
    line = rf"leto: refused: rank [01]: state that is not enrolled: iteration 1 changed {re.escape(REFUSED[plant])}\n"
    assert re.fullmatch(line, stderr), stderr
    ended = events[-1]
    assert (ended["event"], ended["status"]) == ("job-ended", "refused")
    assert not [event for event in events if event["event"] in ("failure", "decided", "iteration")]
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert "Traceback" not in logs
