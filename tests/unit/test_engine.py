"""The engine against a scripted system: every verdict has a way to come about."""

import dataclasses
import json
from pathlib import Path

import pytest
from scripted_target import ManualClock, Script, ScriptedTarget

from chaos.engine import CONTROL, REFERENCE, REFERENCE_AGAIN, RUN, Engine, Judged
from chaos.journal import Journal
from chaos.loading import parse_scenario
from chaos.scenario import Scenario
from chaos.targets.base import Updater
from chaos.verdict import Verdict
from leto.core.errors import ConfigError
from verify.history import read_journal

TEXT = """
schema: 1
name: small
claim: It recovers.
seed: 42
system: leto
workload: {model: olmoe-tiny, parallel: {dp: 2, ep: 1}, iterations: 9}
protection: {page: 4KiB, data_pages: 6, tier1: 4, tier2: 1, chunk_pages: 3}
faults:
  - id: kill
    when: {every: 3, phase: update}
    where: {rank: seeded}
    do:
      - cycle:
          - abort-kernel: {kernel: adam, progress: 0.5}
          - torn-copy: {copy: parity-writeback, progress: 0.5, fill: random}
control: {updater: none, expect: diverges}
expect: {recoveries: 3, rule: finish, deadline_s: 30}
"""


@dataclasses.dataclass
class Bench:
    directory: Path
    scenario: Scenario

    def run(self, mutant: str | None = None, **scripts: Script) -> Judged:
        clock = ManualClock()
        self.reference = ScriptedTarget(clock, {REFERENCE_AGAIN: scripts.pop("again", Script())})
        named = {CONTROL: scripts.pop("control", Script(diverge_after_fault=True)), RUN: scripts.pop("run", Script())}
        self.target = ScriptedTarget(clock, named)
        assert not scripts
        self.journal = Journal(self.directory / "journal.jsonl", clock=clock)
        engine = Engine(
            self.scenario,
            self.directory,
            self.journal,
            target=self.target,
            reference_target=self.reference,
            mutant=mutant,
            clock=clock,
        )
        try:
            return engine.run()
        finally:
            self.journal.close()

    def check(self, judged: Judged, name: str) -> tuple[str, str]:
        result = next(r for r in judged.results if r.name == name)
        return result.judgement.value, result.reason


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, parse_scenario(TEXT, "small.yaml"))


def test_pass_needs_every_check(bench: Bench) -> None:
    judged = bench.run()
    assert judged.conclusion.verdict is Verdict.PASS
    assert judged.conclusion.reason == "loss exact at 9 of 9, state exact at 9 of 9"
    assert {r.name: r.judgement.value for r in judged.results} == dict.fromkeys(
        (
            "reference-equal",
            "control",
            "faults-fired",
            "completed",
            "recoveries",
            "deadline",
            "exact",
            "parity",
            "residue",
        ),
        "true",
    )


def test_what_the_system_cannot_do_is_refused_before_the_reference_is_trained(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="lose-pages: not here"):
        bench.run(run=Script(cannot="lose-pages: not here"))
    assert bench.reference.started == []


def test_every_started_job_is_closed_once(bench: Bench) -> None:
    bench.run()
    assert bench.reference.closed == [REFERENCE, REFERENCE_AGAIN]
    assert bench.target.closed == [CONTROL, RUN]


def test_the_control_gets_the_same_faults_without_the_updater(bench: Bench) -> None:
    bench.run()
    control, run = bench.target.started
    assert (control.updater, run.updater) == (Updater.NONE, Updater.CHUNKS)
    assert control.injections == run.injections != ()
    assert all(not spec.injections for spec in bench.reference.started)


def test_fired_is_recorded_between_parked_and_killed(bench: Bench) -> None:
    bench.run()
    names = ("parked", "damaged", "fired", "killed", "recovered")
    seen = [(e.name, e.fields.get("label")) for e in bench.journal.of_job(RUN) if e.name in names]
    assert seen[:4] == [("parked", "kill #1"), ("fired", "kill #1"), ("killed", "kill #1"), ("recovered", None)]
    assert seen[4:9] == [(n, "kill #2") for n in ("parked", "damaged", "fired", "killed")] + [("recovered", None)]


def test_the_control_stops_at_its_first_divergence(bench: Bench) -> None:
    judged = bench.run()
    iterations = [e.fields["iteration"] for e in bench.journal.of_job(CONTROL) if e.name == "iteration"]
    assert max(iterations) == 3
    assert bench.check(judged, "control")[1].startswith("without the updater it diverges: iteration 3, rank 1, master/w: 0000")


def test_divergence_fails_and_is_named(bench: Bench) -> None:
    judged = bench.run(run=Script(diverge_from=6))
    assert judged.conclusion.exit_code == 1
    assert "first divergence: iteration 6, rank 1, master/w: 00000" in judged.conclusion.reason
    assert "the fault before it is kill #2; loss exact at 9 of 9, state exact at 5 of 9" in judged.conclusion.reason


def test_divergence_of_the_last_state_alone_fails(bench: Bench) -> None:
    judged = bench.run(run=Script(diverge_from=9, diverge_in="param/w"))
    assert judged.conclusion.verdict is Verdict.FAIL
    assert "iteration 9, rank 1, param/w" in judged.conclusion.reason


def test_a_missing_record_fails(bench: Bench) -> None:
    judged = bench.run(run=Script(skip_record=4))
    assert judged.conclusion.verdict is Verdict.FAIL
    assert "the slot of iteration 4 was never written" in judged.conclusion.reason


def test_a_fault_that_never_fires_is_invalid_and_stops_the_run(bench: Bench) -> None:
    judged = bench.run(run=Script(parks=False))
    assert judged.conclusion.exit_code == 4
    assert "3 of 3 faults did not fire, first kill #1 (iteration 3 rank" in judged.conclusion.reason
    assert bench.check(judged, "exact")[0] == "unknown"
    assert max(e.fields["iteration"] for e in bench.journal.of_job(RUN) if e.name == "iteration") == 4


def test_a_divergence_before_a_fault_that_never_fired_still_fails(bench: Bench) -> None:
    judged = bench.run(run=Script(parks=False, diverge_from=2))
    assert judged.conclusion.verdict is Verdict.FAIL
    assert "iteration 2, rank 1, master/w" in judged.conclusion.reason


def test_a_fault_that_cannot_be_carried_out_is_invalid(bench: Bench) -> None:
    judged = bench.run(run=Script(kill_fails=True))
    assert judged.conclusion.verdict is Verdict.INVALID
    assert "no such process" in judged.conclusion.reason


def test_a_hang_in_training_is_liveness(bench: Bench) -> None:
    judged = bench.run(run=Script(hang_at=5))
    assert judged.conclusion.exit_code == 5
    assert judged.conclusion.reason == "completed: hang: nothing happened for 240 s"


def test_a_hang_in_recovery_is_liveness_within_the_deadline(bench: Bench) -> None:
    judged = bench.run(run=Script(recovers=False))
    assert judged.conclusion.exit_code == 5
    assert "no recovery within 30 s of kill #1" in judged.conclusion.reason
    assert bench.check(judged, "deadline")[0] == "false"


def test_a_refusal_that_nobody_expects_is_liveness(bench: Bench) -> None:
    judged = bench.run(run=Script(refuse="unrecoverable: 17 of 60 pages of group 3"))
    assert judged.conclusion.verdict is Verdict.LIVENESS
    assert "refused: unrecoverable: 17 of 60 pages" in judged.conclusion.reason


def test_a_job_that_does_not_start_is_liveness(bench: Bench) -> None:
    judged = bench.run(run=Script(start_fails=True))
    assert judged.conclusion.verdict is Verdict.LIVENESS
    assert "the job did not start: no fork server" in judged.conclusion.reason


def test_leaks_of_any_job_are_residue(bench: Bench) -> None:
    judged = bench.run(run=Script(leaks=("process 4711",)))
    assert judged.conclusion.exit_code == 6
    assert judged.conclusion.reason == "residue: 1 left behind, first run: process 4711"


def test_an_unequal_reference_is_unknown_and_nothing_else_runs(bench: Bench) -> None:
    judged = bench.run(again=Script(diverge_from=7))
    assert judged.conclusion.exit_code == 3
    assert "the reference does not equal itself: iteration 7, rank 1, master/w" in judged.conclusion.reason
    assert bench.target.started == []


def test_a_reference_that_hangs_is_unknown(bench: Bench) -> None:
    judged = bench.run(again=Script(hang_at=2))
    assert judged.conclusion.verdict is Verdict.UNKNOWN
    assert "the second reference did not complete: hang" in judged.conclusion.reason


def test_a_control_that_does_not_diverge_makes_the_scenario_invalid(bench: Bench) -> None:
    judged = bench.run(control=Script())
    assert judged.conclusion.exit_code == 4
    assert judged.conclusion.reason.startswith("control: the control equals the reference")


def test_a_control_whose_faults_never_fire_runs_on_and_is_judged(bench: Bench) -> None:
    judged = bench.run(control=Script(parks=False))
    assert judged.conclusion.verdict is Verdict.INVALID
    assert sum(e.name == "missed" for e in bench.journal.of_job(CONTROL)) == 3


def test_the_wrong_rule_fails(bench: Bench) -> None:
    judged = bench.run(run=Script(rule="restart"))
    assert judged.conclusion.exit_code == 1
    assert "recovery 1 went by restart, expected finish: rank 0 has BEGIN" in judged.conclusion.reason


def test_stale_parity_fails(bench: Bench) -> None:
    judged = bench.run(run=Script(wrong_tier1=(2,)))
    assert judged.conclusion.exit_code == 1
    assert "stale parity on rank 0 after iteration 3: tier 1 of groups [2]" in judged.conclusion.reason


def test_parity_that_nobody_audited_is_unknown(bench: Bench) -> None:
    judged = bench.run(run=Script(audits=False))
    assert judged.conclusion.exit_code == 3
    assert "rank 0 did not audit its parity after the recovery of epoch 2" in judged.conclusion.reason


def test_a_mutant_runs_without_control_and_is_caught(bench: Bench) -> None:
    judged = bench.run(mutant="no-undo", run=Script(diverge_after_fault=True))
    assert [spec.name for spec in bench.target.started] == [RUN]
    assert bench.target.started[0].mutant == "no-undo"
    assert judged.conclusion.verdict is Verdict.FAIL


def test_interruption_closes_the_job_under_way(bench: Bench) -> None:
    with pytest.raises(SystemExit):
        bench.run(run=Script(interrupt_at=5))
    assert bench.target.closed == [CONTROL, RUN]


def test_the_journal_on_disk_is_what_was_judged(bench: Bench) -> None:
    bench.run()
    entries = read_journal(bench.directory / "journal.jsonl")
    assert entries == tuple(dataclasses.replace(e, fields=json.loads(json.dumps(e.fields))) for e in bench.journal.entries)
    assert entries[-1].name == "verdict"
