"""Groups, chunks and pages that a scenario aims at and its ranks do not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_target import ManualClock, Script, ScriptedTarget

from chaos.engine import Engine
from chaos.feasible import beyond_geometry
from chaos.journal import Journal
from chaos.loading import open_scenario, parse_scenario
from chaos.mistakes import ScenarioError
from chaos.scenario import Scenario
from chaos.schedule import plan_injections
from chaos.targets.aims import aim_of
from chaos.targets.rank_geometry import RankGeometry
from leto.core.failpoints import Kernel
from leto.core.geometry import CodedGeometry, GradientGeometry, Matrix, Page, Protection, Segment

HEAD = """\
schema: 1
name: aims
claim: Every aim exists.
seed: 42
system: leto
workload: {model: olmoe-tiny, parallel: {dp: 2}, optimizer: muon, iterations: 9}
protection: {page: 4KiB, data_pages: 12, tier1: 4, tier2: 1, chunk_pages: 3}
"""
TAIL = "expect: {recoveries: 1, deadline_s: 30}\n"
PROTECTION = Protection(page_bytes=4096, data_pages=12, tier1_pages=4, chunk_pages=3)


def geometry(*, elements: int, pages: int) -> RankGeometry:
    """Four chunks a group: one for every 1024 ``elements`` of AdamW, then two of momentum and two of masters."""
    adamw = Segment(name="w", first=0, count=elements, optimizer=1, param_group=0)
    matrix = Matrix(name="m", first=0, count=2 * 3072, optimizer=0, param_group=0, rows=64)
    return RankGeometry(
        coded=CodedGeometry(protection=PROTECTION, segments=(adamw,), matrices=(matrix,)),
        gradients=GradientGeometry(protection=PROTECTION, pages=tuple(Page("gradients/dense0", k) for k in range(pages))),
    )


RANKS = {0: geometry(elements=5000, pages=15), 1: geometry(elements=900, pages=9)}
"""9 chunks in 3 groups, the last of one chunk, and 5 chunks in 2 groups; 2 groups of gradients and 1."""


def scenario(*, rank: int, do: str, hold: str = "") -> Scenario:
    fault = f"{{id: a, when: {{iteration: 3}}, where: {{rank: {rank}}}, {hold} do: [{do}]}}"
    return parse_scenario(f"{HEAD}faults: [{fault}]\n{TAIL}", "f")


def kernel(name: str, **where: int) -> str:
    return f"abort-kernel: {{kernel: {name}, progress: 0.5{''.join(f', {k}: {v}' for k, v in where.items())}}}"


IN_LOSS = "faults[0].do[1].lose-pages"
MISTAKES = [
    (0, kernel("adam", group=2), "abort-kernel.group: rank 0: 'adam' does not run in group 2, it does in groups 0 to 1"),
    (1, kernel("adam", group=1), "abort-kernel.group: rank 1: 'adam' does not run in group 1, it does in group 0 only"),
    (
        0,
        kernel("muon-apply", group=0),
        "abort-kernel.group: rank 0: 'muon-apply' does not run in group 0, it does in groups 1 to 2",
    ),
    (
        0,
        kernel("muon-momentum", group=1, chunk=3),
        "abort-kernel.chunk: rank 0: 'muon-momentum' does not run in chunk 3 of group 1, it does in chunks 1 to 2",
    ),
    (
        0,
        kernel("rs-update", group=2, chunk=1),
        "abort-kernel.chunk: rank 0: 'rs-update' does not run in chunk 1 of group 2, it does in chunk 0 only",
    ),
    (
        0,
        kernel("parity-fetch", group=3),
        "abort-kernel.group: rank 0: 'parity-fetch' does not run in group 3, it does in groups 0 to 2",
    ),
    (
        1,
        kernel("rs-encode", group=1),
        "abort-kernel.group: rank 1: 'rs-encode' does not run in group 1, it does in group 0 only",
    ),
]


@pytest.mark.parametrize(("rank", "do", "says"), MISTAKES)
def test_a_kernel_is_aimed_where_it_runs(rank: int, do: str, says: str) -> None:
    ((path, what),) = beyond_geometry(scenario(rank=rank, do=do), RANKS)
    assert path[:3] == ("faults", 0, "do")
    assert f"{path[4]}.{path[5]}: {what}" == says


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (
            "class: coded, per: group, group: 3, count: 1",
            "group: rank 0: there is no group 3 of class 'coded', there are groups 0 to 2",
        ),
        ("class: coded, per: group, count: 4", "count: rank 0: group 2 has 3 pages of class 'coded', 4 are to be lost"),
        ("class: coded, per: group, group: 1, count: 4", ""),
        ("class: gradients, per: group, count: 4", "count: rank 0: group 1 has 3 pages of class 'gradients', 4 are to be lost"),
        ("class: tier2, count: 4", "count: rank 0: has 3 pages of class 'tier2', 4 are to be lost"),
        ("class: tier1, count: 12", ""),
    ],
)
def test_a_loss_is_of_pages_that_are_there(loss: str, says: str) -> None:
    found = beyond_geometry(scenario(rank=0, do=f"{kernel('adam')}, lose-pages: {{{loss}}}"), RANKS)
    assert [f"{path[-1]}: {what}" for path, what in found] == ([says] if says else [])


def test_what_is_left_to_the_seed_is_always_somewhere() -> None:
    for seed in range(30):
        drawn = scenario(rank=0, do=kernel("muon-apply")).model_copy(update={"seed": seed})
        (injection,) = plan_injections(drawn)
        assert aim_of(injection, RANKS[0])[1] in (7, 8)
        assert not list(beyond_geometry(drawn, RANKS))


def test_a_held_rank_has_a_geometry_of_its_own() -> None:
    held = scenario(rank=0, do=kernel("adam"), hold="hold: {rank: 1, kernel: adam, progress: 0, group: 1},")
    ((path, what),) = beyond_geometry(held, RANKS)
    assert (path, what[:7]) == (("faults", 0, "hold", 0, "group"), "rank 1:")


def test_a_restore_of_whatever_was_in_flight_is_anywhere() -> None:
    whole = f"{HEAD}faults:\n" + "".join(
        f"  - {{id: {name}, when: {{iteration: 3}}, where: {{rank: 0}}, do: [{kernel(k)}]}}\n"
        for name, k in (("a", "adam"), ("b", Kernel.UNDO_RESTORE.value))
    )
    assert not list(beyond_geometry(parse_scenario(whole + TAIL, "f"), RANKS))


def test_the_engine_stops_at_the_first_job_whose_ranks_say_what_they_have(tmp_path: Path) -> None:
    file = tmp_path / "aims.yaml"
    file.write_text(f"{HEAD}faults:\n  - id: a\n    when: {{iteration: 3}}\n    where: {{rank: 0}}\n    do:\n")
    with file.open("a") as text:
        text.write(f"      - {kernel('adam', group=7)}\n{TAIL}")
    read, origin = open_scenario(file)
    clock, journal = ManualClock(), Journal(tmp_path / "journal.jsonl")
    reference, target = ScriptedTarget(clock, {"reference": Script(geometries=RANKS)}), ScriptedTarget(clock)
    engine = Engine(read, tmp_path, journal, target=target, reference_target=reference, clock=clock)
    with pytest.raises(ScenarioError) as caught, origin.placing():
        engine.run()
    journal.close()
    what = "rank 0: 'adam' does not run in group 7, it does in groups 0 to 1"
    assert caught.value.lines == (f"{file}:13: faults[0].do[0].abort-kernel.group: {what}",)
    assert (reference.closed, target.closed) == (["reference"], [])
