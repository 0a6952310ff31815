"""Pages lost in real jobs, from the command line to the verdict: rebuilt, died of, refused, and two planted bugs caught."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chaos.faults.memory import can_poison
from chaos.offline import rebuild_reports
from chaos.targets.rank_geometry import RankGeometry, geometry_path
from leto.core.geometry import CODED_ARRAYS
from tests.process.references import AS_LONG_AS_ONE_CLASS, References, run_scenario
from verify.history import Entry, read_journal

Run = Callable[..., tuple[subprocess.CompletedProcess[str], Path]]
Passed = Callable[..., list[Entry]]

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(can_poison() is not None, reason=f"pages cannot be poisoned here: {can_poison()}"),
]


@pytest.fixture
def run(references: References, tmp_path: Path) -> Run:
    """leto-chaos with a scenario, its values replaced as given: how it ended, and the directory of its run."""
    return partial(run_scenario, references, tmp_path)


@pytest.fixture
def passed(run: Run) -> Passed:
    """Entries of a run that passes; its record judged again says what it said itself."""

    def passed(name: str, *overrides: str) -> list[Entry]:
        done, directory = run(name, overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        assert rebuild_reports(directory).judged.conclusion.exit_code == 0
        return [e for e in read_journal(directory / "journal.jsonl") if e.job == "run"]

    return passed


def test_each_class_of_pages_is_rebuilt_or_not_needed(passed: Passed) -> None:
    entries = passed("one-class")
    lost = [e.fields["page_class"] for e in entries if e.name == "lose"]
    assert lost == ["coded", "undo", "parity", "scratch", "gradients", "gradient-parity", "tier1", "tier2", "derived"]
    repaired = [e.fields for e in entries if e.name == "repaired"]
    assert all(r["pages"] > 0 for r in repaired)
    rebuilt = dict(zip(lost, [r["rebuilt"] for r in repaired], strict=True))
    assert [page_class for page_class in lost if not rebuilt[page_class]] == ["scratch", "derived"]


@pytest.mark.slow
def test_with_parity_copied_beside_the_computation_every_group_under_way_is_rebuilt(passed: Passed) -> None:
    entries = passed("pipelined")
    lost = [page for e in entries if e.name == "lose" for page in e.fields["pages"]]
    slots = {page.rpartition(":")[0] for page in lost if page.startswith("parity/")}
    assert 2 < len(slots) <= 4, "more than a serial update has; which ones are under way, the lanes' pace decides"
    assert len([e for e in entries if e.name == "repaired"]) == 8


def test_both_transactions_of_muon_are_resumed_wherever_they_cut_matrices(passed: Passed, tmp_path: Path) -> None:
    entries = passed("muon")
    geometry = RankGeometry.read(geometry_path(tmp_path / "muon" / "latest" / "jobs" / "run", 0)).coded
    adamw, momentum, masters = (region.chunks for region in geometry.regions)
    groups = [geometry.chunks_of(group) for group in range(geometry.group_count)]
    kinds = [sum(bool(set(group) & set(chunks)) for chunks in (adamw, momentum, masters)) for group in groups]
    assert kinds == [1, 2, 1, 2, 1, 1, 1]
    # What scenarios/muon.yaml says of the chunks it hits.
    first_momentum, of_three, first_masters = groups[1][1], groups[1][6], groups[3][12]
    of_two, in_the_middle, of_an_expert = groups[3][13], groups[3][15], groups[4][7]
    assert (first_momentum, first_masters) == (momentum[0], masters[0])
    assert of_three in momentum and {of_two, in_the_middle, of_an_expert} < set(masters)
    assert [len(geometry.chunk_segments(chunk)) for chunk in (of_three, of_two, in_the_middle, of_an_expert)] == [3, 2, 1, 1]
    assert "experts" in geometry.chunk_segments(of_an_expert)[0].name
    (inside,) = geometry.chunk_segments(in_the_middle)
    (whole,) = (matrix for matrix in geometry.matrices if matrix.name == inside.name)
    assert whole.first < inside.first and inside.stop < whole.stop
    lost = {page.rpartition(":")[0] for e in entries if e.name == "lose" for page in e.fields["pages"]}
    assert {"momentum_buffer", "muon_master", "master", "undo"} <= lost
    assert [e.fields["level"] for e in entries if e.name == "recovered"].count("L3") >= 11


def test_a_trainer_that_dies_of_a_lost_page_is_nobodys_kill(passed: Passed) -> None:
    entries = passed("natural-sigbus", AS_LONG_AS_ONE_CLASS)
    assert not [e for e in entries if e.name == "killed"]
    failures = [e.fields["cause"] for e in entries if e.name == "failure"]
    assert failures == ["was killed by SIGBUS"] * 4
    for fired, released in zip(*([e for e in entries if e.name == n] for n in ("fired", "released")), strict=True):
        assert fired.number < released.number


def test_more_than_the_code_solves_is_refused_before_anything_is_written(passed: Passed) -> None:
    entries = passed("beyond-budget", AS_LONG_AS_ONE_CLASS)
    (outcome,) = (e.fields for e in entries if e.name == "outcome")
    assert outcome["status"] == "refused"
    assert "17 of 60 pages of group 0 are lost, 16 solvable; no checkpoint configured" in outcome["reason"]
    assert not [e for e in entries if e.name in ("repaired", "recovered")]


@pytest.mark.slow
def test_data_without_the_parity_that_speaks_are_refused_though_the_tiers_are_whole(run: Run) -> None:
    """U9: what tier 1 holds is of before the first commit of the group."""
    losses = ("{class: parity, count: 16}", "{class: in-flight, count: 12}", "{class: coded, per: group, group: 0, count: 1}")
    steps = ["{abort-kernel: {kernel: adam, progress: 0.5, group: 0, chunk: 3}}", *(f"{{lose-pages: {x}}}" for x in losses)]
    fault = f"{{id: no-row-left, when: {{iteration: 4, phase: update}}, where: {{rank: 0}}, do: [{', '.join(steps)}]}}"
    reason = "1 of 60 pages of group 0 are lost, 0 solvable .16 of 16 parity rows are lost."
    done, _ = run("beyond-budget", [AS_LONG_AS_ONE_CLASS, f"faults=[{fault}]", f"expect.reason={reason}"])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unchecked"), [("pages-in-undo", 9), ("pages-in-parity", 9)])
def test_the_whole_budget_is_used_wherever_the_pages_lie(name: str, unchecked: int, passed: Passed) -> None:
    entries = passed(name)
    budgets = [budget for e in entries if e.name == "repaired" for budget in e.fields["budgets"]]
    used = [budget["lost_pages"] + budget["lost_rows"] for budget in budgets]
    assert max(used) == 16
    assert used.count(16) == unchecked


@pytest.mark.slow
def test_two_gibibytes_at_the_geometry_of_the_paper(passed: Passed, tmp_path: Path) -> None:
    entries = passed("full-geometry")
    geometry = RankGeometry.read(geometry_path(tmp_path / "full-geometry" / "latest" / "jobs" / "run", 0)).coded
    assert geometry.group_count == 2
    assert len(CODED_ARRAYS) * geometry.regions[0].array_bytes >= 2 << 30
    assert [e.fields["level"] for e in entries if e.name == "recovered"][-1] == "L3"
    budgets = [budget for e in entries if e.name == "repaired" for budget in e.fields["budgets"]]
    assert max(budget["lost_pages"] for budget in budgets) == 16


def test_one_mirror_of_a_marker_is_enough(passed: Passed) -> None:
    """The agent reads it, dies of no other one, and carries its words into the next epoch."""
    entries = passed("markers-lost", AS_LONG_AS_ONE_CLASS)
    carried = [e.fields["pages"] for e in entries if e.name == "carried"]
    lost = [e.fields["pages"] for e in entries if e.name == "lose" and e.fields["page_class"] == "markers"]
    assert carried == lost
    assert {len(pages) for pages in lost} == {1, 2}
    causes = [e.fields["cause"] for e in entries if e.name == "failure"]
    assert causes.count("was killed by SIGBUS") == 1
    assert causes.count("was killed by SIGKILL") == 7


@pytest.mark.slow
def test_a_marker_without_a_mirror_is_refused_for_the_job(passed: Passed) -> None:
    entries = passed("markers-all-lost", AS_LONG_AS_ONE_CLASS)
    (outcome,) = (e.fields for e in entries if e.name == "outcome")
    assert outcome["status"] == "refused"
    assert outcome["reason"].startswith("unrecoverable: rank 1: all 3 mirrors of the epoch 1 marker are lost")
    assert not [e for e in entries if e.name in ("carried", "recovered")]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["zero-fill", "stale-parity"])
def test_planted_bugs_of_repair_are_caught(mutant: str, run: Run) -> None:
    done, _ = run("update-phase", ["workload.iterations=11", "expect.recoveries=1"], mutant)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"planted bug {mutant}: caught by exact" in done.stdout


def test_shadows_take_over_with_pages_lost_and_nothing_grows(passed: Passed) -> None:
    short = ("workload.iterations=26", "faults.0.when.every=5", "expect.recoveries=5", "control=null")
    entries = passed("update-phase", *short)
    assert [e.fields["level"] for e in entries if e.name == "recovered"] == ["L3"] * 5
    held = [(e.fields["processes"], e.fields["descriptors"]) for e in entries if e.name == "resources"]
    assert len(held) == 5
    assert len(set(held)) == 1, held
