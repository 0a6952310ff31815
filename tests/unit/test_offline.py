"""``leto-chaos report`` and ``leto-chaos compare``: recorded runs, judged again from their files alone."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from scripted_target import Script
from test_engine import TEXT
from test_report import invoke
from typer.testing import CliRunner, Result

import chaos.cli
from leto import _kernels

NewRun = Callable[..., Path]


def ask(*words: str | Path) -> Result:
    return CliRunner().invoke(chaos.cli.app, [str(word) for word in words])


@pytest.fixture
def new_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NewRun:
    """Runs the small scenario with a script and returns the run's directory."""
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)

    def run(*words: str, **scripts: Script) -> Path:
        invoke(monkeypatch, tmp_path, *words, str(file), **scripts)
        runs = [path for path in (tmp_path / "runs" / "small").iterdir() if not path.is_symlink()]
        return max(runs, key=lambda path: path.stat().st_mtime_ns)

    return run


@pytest.mark.parametrize(
    "script",
    [
        Script(),
        Script(diverge_from=6),
        Script(parks=False),
        Script(refuse="17 of 60 pages"),
        Script(skip_record=4),
        Script(leaks=("process 1",)),
    ],
    ids=["pass", "divergence", "not fired", "refusal", "hole", "residue"],
)
def test_the_same_reports_come_out_of_the_files_alone(new_run: NewRun, script: Script) -> None:
    directory = new_run(run=script)
    reports = [directory / name for name in ("report.html", "junit.xml")]
    before = [_without_figure_ids(path.read_text()) for path in reports]
    for path in reports:
        path.unlink()
    done = ask("report", directory)
    verdict = json.loads((directory / "verdict.json").read_text())
    assert done.exit_code == verdict["exit_code"], done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"verdict: {verdict['verdict']} ({verdict['exit_code']}): {verdict['reason']}"
    assert lines[1:] == [f"report: {directory / 'report.html'}"]
    assert [_without_figure_ids(path.read_text()) for path in reports] == before


def _without_figure_ids(page: str) -> str:
    """plotly names each figure anew."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", page)


def test_a_run_moved_elsewhere_can_be_reported(new_run: NewRun, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(new_run(), moved)
    assert ask("report", moved).stdout.startswith("verdict: pass (0)")


def test_a_ledger_that_was_changed_afterwards_is_seen(new_run: NewRun) -> None:
    directory = new_run()
    ledger = directory / "ledger" / "run" / "rank1.ledger"
    ledger.write_bytes(ledger.read_bytes().replace(b'"digests":["', b'"digests":["0', 1).replace(b"  \n", b" \n", 1))
    done = ask("report", directory)
    assert done.stdout.startswith("verdict: fail (1): exact: first divergence: iteration 1, rank 1")
    assert "recorded verdict: pass" in done.stdout


def test_an_interrupted_run_can_be_reported(new_run: NewRun) -> None:
    directory = new_run(run=Script(interrupt_at=5))
    assert not (directory / "report.html").exists()
    done = ask("report", directory)
    assert done.stdout.startswith("verdict: unknown (3): the run was interrupted\n")
    assert done.exit_code == 3, done.output
    assert "recorded verdict: none, the run did not end" in done.stdout
    assert (directory / "report.html").exists()


def test_a_run_with_a_planted_bug_is_judged_as_one(new_run: NewRun) -> None:
    directory = new_run("--mutant", "no-undo", run=Script(diverge_after_fault=True))
    done = ask("report", directory)
    assert done.stdout.startswith("verdict: fail (1): exact: first divergence")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "journal.jsonl").unlink(), "journal.jsonl: No such file or directory; name the directory of a run"),
        (lambda d: (d / "journal.jsonl").write_text('{"number": 1'), "journal.jsonl: not a whole journal"),
        (lambda d: (d / "journal.jsonl").write_text(""), "journal.jsonl: does not say what was ordered"),
        (lambda d: (d / "scenario.yaml").unlink(), "scenario.yaml: No such file or directory"),
        (lambda d: (d / "fingerprint.json").write_text("{"), "fingerprint.json: not JSON"),
    ],
    ids=["no journal", "torn journal", "empty journal", "no scenario", "torn fingerprint"],
)
def test_what_is_no_recorded_run_is_one_line(new_run: NewRun, damage: Callable[[Path], object], message: str) -> None:
    directory = new_run()
    damage(directory)
    done = ask("report", directory)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_faults_of_a_run_that_never_started_are_cases_too(new_run: NewRun) -> None:
    directory = new_run(**{"reference-again": Script(diverge_from=7)})
    suite = ET.parse(directory / "junit.xml").getroot()
    faults = [case for case in suite if str(case.get("classname")).endswith(".faults")]
    assert [str(case.get("name")).partition(":")[0] for case in faults] == ["kill #1", "kill #2", "kill #3"]
    assert all(case.find("error") is not None for case in faults)


def test_two_equal_runs_compare_equal(new_run: NewRun) -> None:
    first, second = new_run(), new_run("--set", "seed=7")
    done = ask("compare", first, second)
    assert (done.exit_code, done.stdout) == (0, "loss exact at 9 of 9, state exact at 9 of 9\n")


def test_runs_of_different_kernels_are_compared_and_say_so(new_run: NewRun) -> None:
    first, second = new_run(), new_run("--set", "seed=7")
    path = second / "fingerprint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kernel_row": "abacus"}))
    done = ask("compare", first, second)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == f"computed by different kernels: {_kernels.row}, abacus"


def test_runs_of_different_workloads_are_not_compared(new_run: NewRun) -> None:
    first, second = new_run(), new_run("--set", "workload.seed=7")
    done = ask("compare", first, second)
    assert (done.exit_code, done.stderr) == (2, f"{second}: another workload: workload.seed is 7 there, 42 in {first}\n")


def test_a_divergent_run_is_named_first(new_run: NewRun) -> None:
    first, second = new_run(), new_run(run=Script(diverge_from=6))
    done = ask("compare", first, second)
    assert done.exit_code == 1
    assert done.stdout.startswith("divergent: first at iteration 6, rank 1, master/w: 00000")
    assert done.stdout.endswith("loss exact at 9 of 9, state exact at 5 of 9\n")


def test_any_directories_of_ledgers_can_be_compared(new_run: NewRun) -> None:
    ledger = new_run() / "ledger"
    assert ask("compare", ledger / "reference", ledger / "run").exit_code == 0
    assert ask("compare", ledger / "reference", ledger / "control").exit_code == 1
    (ledger / "run" / "rank1.ledger").unlink()
    done = ask("compare", ledger / "run", ledger / "run")
    assert done.exit_code == 1
    assert "iteration 1, rank 1, record: no record" in done.stdout


def test_what_cannot_be_compared_is_a_usage_error(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    done = ask("compare", run, tmp_path / "nothing")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{tmp_path / 'nothing'}: no ledgers; name a run")
    ledger = run / "ledger" / "run" / "rank0.ledger"
    ledger.write_bytes(ledger.read_bytes()[:-700])
    done = ask("compare", run, run)
    assert done.exit_code == 2
    assert done.stderr == f"{run}: cannot be compared: {ledger}: the slot of iteration 9 is torn\n"


@pytest.mark.parametrize("command", [c.name or c.callback.__name__ for c in chaos.cli.app.registered_commands])
def test_every_command_and_option_says_what_it_is(command: str) -> None:
    found = typer.main.get_command(chaos.cli.app).commands[command]  # type: ignore[attr-defined]
    assert found.help
    for parameter in found.params:
        assert getattr(parameter, "help", None), parameter.name
    done = ask(command, "--help")
    assert done.exit_code == 0
