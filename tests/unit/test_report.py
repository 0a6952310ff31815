"""From the command line to the artefacts, with a scripted system in place of a real one."""

import ast
import io
import json
import re
import shutil
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from scripted_target import ManualClock, Script, ScriptedTarget
from test_engine import TEXT
from typer.testing import CliRunner, Result

import chaos.cli
from chaos.engine import CONTROL, Engine
from chaos.journal import Journal
from chaos.loading import load_scenario
from chaos.report.screen import LiveScreen
from chaos.runs import create_directory
from leto.core.errors import ConfigError
from verify.history import read_journal
from verify.ledger import read_ledgers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str, **scripts: Script) -> Result:
    target = ScriptedTarget(ManualClock(), {CONTROL: Script(diverge_after_fault=True), **scripts})
    monkeypatch.setattr(chaos.cli, "load_target", lambda path: target)
    return CliRunner().invoke(chaos.cli.app, ["run", "--runs-dir", str(tmp_path / "runs"), *words])


def test_a_pass_leaves_every_artefact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    done = invoke(monkeypatch, tmp_path, str(file))
    assert done.exit_code == 0, done.output
    latest = tmp_path / "runs" / "small" / "latest"
    assert re.fullmatch(r"\d{8}T\d{6}Z-42", latest.resolve().name)
    names = {p.name for p in latest.iterdir()}
    assert names >= {"scenario.yaml", "journal.jsonl", "fingerprint.json", "ledger", "report.html", "junit.xml", "verdict.json"}
    assert {p.name for p in (latest / "ledger").iterdir()} == {"reference", "reference-again", "control", "run"}
    assert sorted(read_ledgers(latest / "ledger" / "run")) == [0, 1]
    assert load_scenario(latest / "scenario.yaml") == load_scenario(file)
    verdict = json.loads((latest / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["exit_code"], verdict["first_divergence"]) == ("pass", 0, None)
    assert read_journal(latest / "journal.jsonl")[-1].fields["exit_code"] == 0
    fingerprint = json.loads((latest / "fingerprint.json").read_text())
    assert fingerprint["packages"]["numpy"]
    assert len(fingerprint["scenario_sha256"]) == 64
    assert f"{fingerprint['kernel_row']} kernels" in (latest / "report.html").read_text()


def test_plain_lines_are_stable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    lines = invoke(monkeypatch, tmp_path, "--plain", str(file)).stdout.splitlines()
    assert lines[:4] == [
        "reference: started, 9 iterations",
        "reference: completed",
        "reference-again: started, 9 iterations",
        "reference-again: completed",
    ]
    assert "run: fault kill #2: fired at iteration 6 rank 0: torn-copy parity-writeback at 0.5" in lines
    assert "run: recovered by finish in 0.50 s, epoch 2, L3" in lines
    assert "verdict: pass (0): loss exact at 9 of 9, state exact at 9 of 9" in lines
    assert lines[-1].startswith("report: ")


@pytest.mark.parametrize("row", ["", "portable"], ids=["best row", "forced row"])
def test_a_failure_prints_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path, row: str) -> None:
    if row:
        monkeypatch.setenv("LETO_KERNEL", row)
    else:
        monkeypatch.delenv("LETO_KERNEL", raising=False)
    done = invoke(monkeypatch, tmp_path, "--set", "seed=7", str(file), run=Script(diverge_from=6))
    assert done.exit_code == 1
    forced = f"LETO_KERNEL={row} " if row else ""
    assert done.stdout.splitlines()[-1] == f"repeat: {forced}leto-chaos run {file} --set seed=7"
    verdict = json.loads((tmp_path / "runs" / "small" / "latest" / "verdict.json").read_text())
    assert verdict["first_divergence"] == {"iteration": 6, "rank": 1, "tensor": "master/w"}


def test_the_report_is_offline_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    invoke(monkeypatch, tmp_path, str(file), run=Script(diverge_from=6))
    page = (tmp_path / "runs" / "small" / "latest" / "report.html").read_text()
    assert page.count("plotly.js v") >= 1
    # plotly's own source names addresses; outside of it nothing may be fetched
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", body)
    assert page.index("fail (exit code 1)") < page.index("<h2>Checks</h2>")
    assert "first divergence: iteration 6, rank 1, master/w" in body
    for text in ("kill #1", "filled 3 pages", "finish 3", "rank 0 has BEGIN", "small.yaml", "scenario_sha256"):
        assert text in body, text
    for curve in ("reference", "control", "run"):
        assert f'"name":"{curve}"' in page


def test_junit_has_a_case_per_fault_and_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    invoke(monkeypatch, tmp_path, str(file), run=Script(parks=False))
    suite = ET.parse(tmp_path / "runs" / "small" / "latest" / "junit.xml").getroot()
    assert suite.get("tests") == "12"
    assert len(suite.findall("testcase/error")) >= 4
    assert suite.find("testcase/skipped") is None


def test_all_files_run_and_the_first_code_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: 1\n")
    done = invoke(monkeypatch, tmp_path, str(bad), str(file), run=Script(diverge_from=6))
    assert done.exit_code == 2
    assert (tmp_path / "runs" / "small" / "latest" / "report.html").exists()


def test_a_planted_bug_is_reported_as_caught_or_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    caught = invoke(monkeypatch, tmp_path, "--mutant", "no-undo", str(file), run=Script(diverge_after_fault=True))
    assert caught.exit_code == 1
    assert "planted bug no-undo: caught" in caught.stdout
    missed = invoke(monkeypatch, tmp_path, "--mutant", "no-undo", str(file))
    assert missed.exit_code == 0
    assert "planted bug no-undo: NOT CAUGHT by exact\n" in missed.stdout


def test_a_failure_for_another_reason_is_no_catch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    done = invoke(monkeypatch, tmp_path, "--mutant", "no-undo", str(file), run=Script(rule="restart"))
    assert done.exit_code == 1
    assert "planted bug no-undo: NOT CAUGHT by exact, but recoveries failed\n" in done.stdout


def test_an_unknown_planted_bug_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    done = invoke(monkeypatch, tmp_path, "--mutant", "no-undoo", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith("--mutant no-undoo: no such planted bug; known: ")
    assert done.stderr.endswith(" (did you mean no-undo?)\n")


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    done = invoke(monkeypatch, tmp_path, str(file), run=Script(interrupt_at=5))
    assert done.exit_code == 130
    (run,) = (tmp_path / "runs" / "small").iterdir()  # no link names it: it came to no verdict
    assert done.stderr == f"interrupted; everything this run started is closed\nunfinished run: {run}\n"
    entries = read_journal(run / "journal.jsonl")
    assert [e.name for e in entries[-2:]] == ["residue", "interrupted"]


def test_what_the_target_does_not_have_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    def refuse(self: ScriptedTarget, spec: object) -> None:
        raise ConfigError("workload.model: 'toy' is unknown; known: olmoe-tiny")

    monkeypatch.setattr(ScriptedTarget, "start", refuse)
    done = invoke(monkeypatch, tmp_path, str(file))
    assert (done.exit_code, done.stderr) == (2, "workload.model: 'toy' is unknown; known: olmoe-tiny\n")


def test_our_own_mistake_is_70_with_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    def break_down(self: ScriptedTarget, spec: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(ScriptedTarget, "start", break_down)
    done = invoke(monkeypatch, tmp_path, str(file))
    assert done.exit_code == 70
    assert "Traceback" not in done.output
    assert "internal error: RuntimeError: boom" in done.stderr
    assert "boom" in (tmp_path / "runs" / "small" / "latest" / "internal-error.txt").read_text()


def test_our_own_mistake_is_70_even_when_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    def break_down(self: ScriptedTarget, spec: object) -> None:
        shutil.rmtree(tmp_path / "runs")
        raise RuntimeError("boom")

    monkeypatch.setattr(ScriptedTarget, "start", break_down)
    done = invoke(monkeypatch, tmp_path, str(file))
    assert done.exit_code == 70
    (line,) = done.stderr.splitlines()
    assert line.startswith("internal error: RuntimeError: boom; it could not be recorded in ")


def test_what_nobody_caught_is_70_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    def break_down(path: Path, overrides: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(chaos.cli, "load_scenario", break_down)
    monkeypatch.setattr(chaos.cli.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr("sys.argv", ["leto-chaos", "validate", str(file)])
    with pytest.raises(SystemExit) as stopped:
        chaos.cli.main()
    assert stopped.value.code == 70
    assert capsys.readouterr().err == "internal error: RuntimeError: boom\n"


@pytest.mark.parametrize("path", [*chaos.cli.SYSTEMS.values(), *chaos.cli.REFERENCES.values()])
def test_the_targets_exist_where_the_command_line_looks(path: str) -> None:
    """Read, not imported: this test must not need torch."""
    module, _, name = path.partition(":")
    source = Path(chaos.cli.__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    classes = {n.name: n for n in ast.parse(source.read_text()).body if isinstance(n, ast.ClassDef)}
    assert "start" in {f.name for f in classes[name].body if isinstance(f, ast.FunctionDef)}


def test_runs_that_cannot_be_kept_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    done = invoke(monkeypatch, tmp_path, str(file))
    assert done.exit_code == 2
    assert done.stderr == f"--runs-dir {tmp_path / 'runs'}: {tmp_path / 'runs' / 'small'}: Not a directory\n"


def test_a_target_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setitem(chaos.cli.SYSTEMS, "leto", "no_such_module:Target")
    done = CliRunner().invoke(chaos.cli.app, ["run", str(file)])
    assert done.exit_code == 2
    assert (
        done.stderr == "no_such_module:Target needs no_such_module, which is not installed: pip install 'leto-chaos[train]'\n"
    )


def test_latest_is_the_last_run_that_came_to_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path) -> None:
    latest = tmp_path / "runs" / "small" / "latest"
    for last in ({}, {"run": Script(interrupt_at=5)}):
        invoke(monkeypatch, tmp_path, str(file), **last)
        assert json.loads((latest / "verdict.json").read_text())["verdict"] == "pass"
    invoke(monkeypatch, tmp_path, str(file), run=Script(start_fails=True))
    assert json.loads((latest / "verdict.json").read_text())["verdict"] == "liveness"


def test_runs_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first, second = (create_directory(tmp_path, "small", 42, now) for _ in range(2))
    assert (first.name, second.name) == ("20260102T030405Z-42", "20260102T030405Z-42.1")


def test_the_live_screen_shows_the_same_lines_and_a_bar_a_job(tmp_path: Path, file: Path) -> None:
    out = io.StringIO()
    clock = ManualClock()
    target = ScriptedTarget(clock, {CONTROL: Script(diverge_after_fault=True)})
    with LiveScreen(Console(file=out, force_terminal=True, width=100)) as screen:
        journal = Journal(tmp_path / "journal.jsonl", screen.listen, clock=clock)
        Engine(load_scenario(file), tmp_path, journal, target=target, reference_target=target, clock=clock).run()
        journal.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "verdict: pass (0)" in shown
    assert "run: fault kill #3: fired at iteration 9" in shown
    for job in ("reference", "reference-again", "control", "run"):
        assert re.search(rf"^{job} +.*[0-9]+/9", shown, re.MULTILINE), job
