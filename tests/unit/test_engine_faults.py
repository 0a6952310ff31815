"""Held ranks, free-running kills and faults that hit a recovery, against the scripted system."""

from pathlib import Path

import pytest
from scripted_target import Script
from test_engine import Bench

from chaos.engine import RUN
from chaos.loading import parse_scenario
from chaos.schedule import describe_time, logical_time, plan_injections

HEAD = """
schema: 1
name: small
claim: It recovers.
seed: 42
system: leto
workload: {model: olmoe-tiny, parallel: {dp: 2, ep: 1}, iterations: 9}
protection: {page: 4KiB, data_pages: 6, tier1: 4, tier2: 1, chunk_pages: 3}
"""
HELD = """
faults:
  - id: held
    when: {iteration: 3}
    where: {rank: 0}
    hold: {rank: 1, at: complete}
    do: [abort-kernel: {kernel: adam, progress: 0.5}]
expect: {recoveries: 1, deadline_s: 20}
"""
KILLS_THE_HELD = """
faults:
  - id: held
    when: {iteration: 3, at: cast}
    where: {rank: 0}
    hold: {rank: 1, at: complete}
    do: [kill: {rank: 1}]
expect: {recoveries: 1, deadline_s: 20}
"""
RANDOM = """
faults:
  - id: anywhere
    when: {random: 4}
    where: {rank: seeded}
    do: [kill: {}]
expect: {recoveries: 4, deadline_s: 20}
"""
NESTED = """
faults:
  - id: first
    when: {iteration: 3}
    where: {rank: 0}
    do: [abort-kernel: {kernel: adam, progress: 0.5}]
  - id: second
    when: {iteration: 3}
    where: {rank: 0}
    hold: {rank: 1, at: complete}
    do: [abort-kernel: {kernel: undo-restore, progress: 0.5}]
expect: {recoveries: 1, rules: {finish: 1}, deadline_s: 20}
"""


def bench_of(directory: Path, scenario: str) -> Bench:
    directory.mkdir(exist_ok=True)
    return Bench(directory, parse_scenario(HEAD + scenario, "small.yaml"))


def test_a_fault_fires_when_every_rank_it_names_stands_parked(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, HELD)
    judged = bench.run()
    assert judged.conclusion.exit_code == 0, judged.conclusion
    (fired,) = (e for e in bench.journal.of_job(RUN) if e.name == "fired")
    assert fired.fields["places"] == [
        {"token": 1, "rank": 0, "where": "adam at 0.5 group 0 chunk 2"},
        {"token": 2, "rank": 1, "where": "at complete"},
    ]
    (failure,) = (e for e in bench.journal.of_job(RUN) if e.name == "failure")
    assert failure.fields["rank"] == 0


def test_the_held_rank_can_be_the_one_that_is_killed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, KILLS_THE_HELD)
    assert bench.run().conclusion.exit_code == 0
    (failure,) = (e for e in bench.journal.of_job(RUN) if e.name == "failure")
    assert failure.fields["rank"] == 1


@pytest.mark.parametrize(
    ("absent", "late", "waiting"), [(1, "rank 1 did not come to at complete", "rank 0"), (0, "rank 0", "rank 1")]
)
def test_a_rank_that_never_comes_makes_the_run_invalid(tmp_path: Path, absent: int, late: str, waiting: str) -> None:
    bench = bench_of(tmp_path, HELD)
    judged = bench.run(run=Script(never_parks=absent))
    assert judged.conclusion.exit_code == 4, judged.conclusion
    assert late in judged.conclusion.reason
    assert f"within 30 s, {waiting} stood parked" in judged.conclusion.reason
    assert not [e for e in bench.journal.of_job(RUN) if e.name in ("fired", "killed")]


def test_a_fault_can_hit_the_recovery_from_another(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, NESTED)
    judged = bench.run(run=Script(nested=True))
    assert judged.conclusion.exit_code == 0, judged.conclusion
    names = [e.name for e in bench.journal.of_job(RUN) if e.name in ("killed", "decided", "recovered")]
    assert names == ["killed", "decided", "killed", "decided", "recovered"]


def test_a_fault_of_a_later_iteration_waits_until_the_recovery_before_it_is_told(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, HELD.replace("iteration: 3", "every: 3").replace("recoveries: 1", "recoveries: 3"))
    assert bench.run(run=Script(parks_early=True)).conclusion.exit_code == 0
    names = [e.name for e in bench.journal.of_job(RUN) if e.name in ("killed", "recovered")]
    assert names == ["killed", "recovered"] * 3


def test_a_hold_that_never_comes_in_a_recovery_is_the_benchs_fault_not_the_systems(tmp_path: Path) -> None:
    """The bench itself holds the recovery up, beyond its deadline."""
    bench = bench_of(tmp_path, NESTED)
    judged = bench.run(run=Script(nested=True, never_parks=1))
    assert judged.conclusion.exit_code == 4, judged.conclusion
    assert bench.check(judged, "deadline")[0] == "unknown"


@pytest.mark.parametrize("overshoot", [0, 1, 5 << 24])
def test_a_free_running_rank_is_killed_when_its_time_is_reached_or_passed(tmp_path: Path, overshoot: int) -> None:
    bench = bench_of(tmp_path, RANDOM)
    judged = bench.run(run=Script(overshoot=overshoot))
    assert judged.conclusion.exit_code == 0, judged.conclusion
    history = bench.journal.of_job(RUN)
    planned = [e.fields["moment"] for e in history if e.name == "planned"]
    fired = [e.fields for e in history if e.name == "fired"]
    assert [f["seen"] for f in fired] == [moment + overshoot for moment in planned]
    assert fired[0]["where"] == f"seen in {describe_time(planned[0] + overshoot)}"
    assert [e.name for e in history if e.name in ("parked", "fired", "killed")] == ["fired", "killed"] * 4


def test_a_free_running_kill_waits_for_the_end_of_a_recovery(tmp_path: Path) -> None:
    """So that each has a recovery of its own; a time that has passed meanwhile still counts."""
    bench = bench_of(tmp_path, RANDOM)
    bench.run(run=Script(overshoot=logical_time(9, 0.0)))
    names = [e.name for e in bench.journal.of_job(RUN) if e.name in ("killed", "recovered")]
    assert names == ["killed", "recovered"] * 4


def test_a_time_that_never_comes_makes_the_run_invalid(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, RANDOM)
    judged = bench.run(run=Script(parks=False))
    assert judged.conclusion.exit_code == 4
    assert "4 of 4 faults did not fire, first anywhere #1" in judged.conclusion.reason
    assert "the job ended before" in judged.conclusion.reason


def test_rules_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    mixed = RANDOM.replace("recoveries: 4,", "recoveries: 4, rules: {restart: 1, finish: 3},")
    bench = bench_of(tmp_path, mixed)
    second = plan_injections(bench.scenario)[1]
    assert bench.run(run=Script(rules={second.iteration: "restart"})).conclusion.exit_code == 0


def test_other_rules_than_expected_fail(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, RANDOM.replace("recoveries: 4,", "recoveries: 4, rules: {restart: 1, finish: 3},"))
    judged = bench.run()
    assert judged.conclusion.exit_code == 1
    assert "recoveries went by finish (4), expected restart (1), finish (3)" in judged.conclusion.reason
