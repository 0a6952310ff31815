"""Gates, losses, ranks that die by themselves and expected refusals, against the scripted system."""

from pathlib import Path

import pytest
from scripted_target import Script
from test_engine import Bench
from test_engine_faults import bench_of

from chaos.engine import RUN

WAITING = """
faults:
  - id: waiting
    when: {iteration: 3, shadows: L3}
    where: {rank: 0}
    do:
      - abort-kernel: {kernel: adam, progress: 0.5}
      - lose-pages: {class: coded, per: group, count: 3}
      - lose-pages: {class: tier1, count: 1}
expect: {recoveries: 1, rule: finish, deadline_s: 20}
"""
NATURAL = """
faults:
  - id: sigbus
    when: {iteration: 3, at: begin}
    where: {rank: 0}
    do:
      - natural: {}
      - lose-pages: {class: coded, count: 2}
expect: {recoveries: 1, deadline_s: 20}
"""
REFUSED = """
faults:
  - id: too-many
    when: {iteration: 3, at: begin}
    where: {rank: 0}
    do:
      - kill: {}
      - lose-pages: {class: coded, per: group, count: 5}
expect: {recoveries: 0, fallback: refused, reason: "5 of . pages", deadline_s: 20}
"""
STEPS = ("gate-opened", "parked", "lose", "resources", "fired", "killed", "released", "recovered")


def steps_of(bench: Bench) -> list[str]:
    return [e.name for e in bench.journal.of_job(RUN) if e.name in STEPS]


def test_a_gate_opens_when_shadows_stand_by_and_losses_come_after_fired(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, WAITING)
    judged = bench.run()
    assert judged.conclusion.exit_code == 0, judged.conclusion
    assert steps_of(bench) == ["gate-opened", "parked", "lose", "lose", "resources", "fired", "killed", "recovered"]
    (fired,) = (e.fields for e in bench.journal.of_job(RUN) if e.name == "fired")
    assert fired["lost"] == {"coded": 3, "tier1": 1}
    assert judged.conclusion.reason == (
        "loss exact at 9 of 9, state exact at 9 of 9; 4 of 4 lost pages found and rebuilt;"
        " at most 4 of 4 rows of a code word used, no check possible in 1 of 1 code words"
    )


def test_shadows_that_never_stand_by_make_the_run_invalid(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, WAITING)
    judged = bench.run(run=Script(shadows=False))
    assert judged.conclusion.exit_code == 4, judged.conclusion
    assert "no shadows stood by within 45 s, rank 0 waited for them" in judged.conclusion.reason


def test_a_rank_that_passes_its_gate_makes_the_run_invalid(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, WAITING)
    judged = bench.run(run=Script(passes_gates=True))
    assert judged.conclusion.exit_code == 4, judged.conclusion
    assert "rank 0 came to adam at 0.5 without having waited for shadows" in judged.conclusion.reason


def test_another_level_than_the_one_waited_for_fails(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, WAITING)
    judged = bench.run(run=Script(level="L1"))
    assert judged.conclusion.exit_code == 1
    assert judged.conclusion.reason == "shadows: the recovery from waiting #1 went by L1, shadows of L3 stood by"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(localises=1), "losses: rank 0: 1 pages were found that are not lost, first coded:1000"),
        (Script(repairs=False), "losses: epoch 2 recovered before 4 lost pages of rank 0 were rebuilt"),
    ],
)
def test_losses_that_are_not_found_and_rebuilt_fail(tmp_path: Path, script: Script, reason: str) -> None:
    judged = bench_of(tmp_path, WAITING).run(run=script)
    assert (judged.conclusion.exit_code, judged.conclusion.reason) == (1, reason)


def test_a_job_that_grows_with_every_recovery_leaves_residue(tmp_path: Path) -> None:
    every = WAITING.replace("iteration: 3,", "every: 3,").replace("recoveries: 1", "recoveries: 3")
    assert bench_of(tmp_path / "same", every).run().conclusion.exit_code == 0
    judged = bench_of(tmp_path / "grows", every).run(run=Script(growth=1))
    assert judged.conclusion.exit_code == 6
    assert judged.conclusion.reason == "growth: 102 descriptors before waiting #2, 101 before waiting #1"


def test_a_natural_death_is_nobodys_kill(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, NATURAL)
    judged = bench.run()
    assert judged.conclusion.exit_code == 0, judged.conclusion
    assert steps_of(bench) == ["parked", "lose", "resources", "fired", "released", "recovered"]


def test_a_rank_that_touches_no_lost_page_makes_the_run_invalid(tmp_path: Path) -> None:
    judged = bench_of(tmp_path, NATURAL).run(run=Script(touches_lost_pages=False))
    assert judged.conclusion.exit_code == 4, judged.conclusion
    assert "rank 0 completed iteration 4 and touched none of the pages it had lost" in judged.conclusion.reason


def test_a_rank_that_dies_of_something_else_makes_the_run_invalid(tmp_path: Path) -> None:
    judged = bench_of(tmp_path, NATURAL).run(run=Script(dies_of="was killed by SIGSEGV"))
    assert judged.conclusion.exit_code == 4, judged.conclusion


def test_an_expected_refusal_passes_with_its_reason(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, REFUSED)
    judged = bench.run(run=Script(refuse_after_fault="unrecoverable: 5 of 6 pages"))
    assert judged.conclusion.exit_code == 0, judged.conclusion
    assert judged.conclusion.reason == (
        "loss exact at 2 of 9, state exact at 2 of 9, as far as it came; 5 of 5 lost pages found; the job refused before any"
        " was rebuilt; refused as expected: unrecoverable: 5 of 6 pages"
    )


def test_a_refused_run_with_a_hole_in_its_record_is_not_exact(tmp_path: Path) -> None:
    judged = bench_of(tmp_path, REFUSED).run(run=Script(refuse_after_fault="5 of 6 pages", skip_record=1))
    assert judged.conclusion.exit_code == 3, judged.conclusion


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(refuse_after_fault="a crash loop"), "refused: refused for another reason than '5 of . pages': a crash loop"),
        (Script(), "refused: expected was a refusal with '5 of . pages'; the run completed"),
        (Script(refuse_after_fault="5 of 6 pages", diverge_from=2), "exact: first divergence: iteration 2, rank 1, master/w"),
    ],
)
def test_anything_else_than_the_expected_refusal_fails(tmp_path: Path, script: Script, reason: str) -> None:
    judged = bench_of(tmp_path, REFUSED).run(run=script)
    assert judged.conclusion.exit_code == 1
    assert judged.conclusion.reason.startswith(reason)
