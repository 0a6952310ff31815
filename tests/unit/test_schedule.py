import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.loading import parse_scenario
from chaos.loss import LossClass
from chaos.scenario import Scenario
from chaos.schedule import Injection, describe_time, draw, logical_time, plan_injections
from leto.core.failpoints import Kernel, Point

TEXT = (Path(__file__).parents[2] / "scenarios" / "update-phase.yaml").read_text()
EXTRA = """
  - id: another
    when: {iteration: 40, at: before-barrier}
    where: {rank: 1}
    do: [kill: {}]
control:"""


def scenario(text: str = TEXT, *overrides: str) -> Scenario:
    return parse_scenario(text, "f", overrides)


def test_every_counts_from_one_to_the_end_inclusive() -> None:
    assert [i.iteration for i in plan_injections(scenario())] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    shorter = scenario(TEXT, "workload.iterations=29", "expect.recoveries=2")
    assert [i.iteration for i in plan_injections(shorter)] == [10, 20]


def test_actions_take_turns() -> None:
    kernels = [i.kernel for i in plan_injections(scenario())]
    assert kernels[:4] == [Kernel.ADAM, Kernel.RS_UPDATE, Kernel.PARITY_WRITEBACK, Kernel.ADAM]
    fills = [i.fill_seed is not None for i in plan_injections(scenario())]
    assert fills[:4] == [False, False, True, False]


def test_tokens_are_unique_and_never_zero() -> None:
    tokens = [i.token for i in plan_injections(scenario(TEXT.replace("\ncontrol:", EXTRA)))]
    gates = [i.gate.token for i in plan_injections(scenario(TEXT.replace("\ncontrol:", EXTRA))) if i.gate]
    assert len({*tokens, *gates}) == 11 + 10
    assert 0 not in tokens


def test_adding_a_fault_moves_no_other() -> None:
    def without_token(i: Injection) -> Injection:
        assert i.gate is not None or i.fault_id == "another"
        return replace(i, token=0, gate=i.gate and replace(i.gate, token=0))

    before = plan_injections(scenario())
    after = plan_injections(scenario(TEXT.replace("\ncontrol:", EXTRA)))
    assert [without_token(i) for i in after if i.fault_id != "another"] == [without_token(i) for i in before]
    (added,) = (i for i in after if i.fault_id == "another")
    assert (added.iteration, added.rank, added.point, added.kernel) == (40, 1, Point.BEFORE_BARRIER, None)


def test_the_plan_is_a_function_of_the_scenario() -> None:
    assert plan_injections(scenario()) == plan_injections(scenario())


def test_the_seed_moves_ranks_and_places() -> None:
    plans = [plan_injections(scenario(TEXT, f"seed={seed}")) for seed in range(20)]
    assert len({tuple(i.rank for i in plan) for plan in plans}) > 10
    assert {i.rank for plan in plans for i in plan} == {0, 1}
    assert len({i.chunk_draw for plan in plans for i in plan}) == 200


def test_a_draw_is_pinned() -> None:
    """A change of the derivation would silently move every recorded scenario."""
    assert draw(42, "kill-in-update", 1, "group") == 5561072744736767081


@given(st.integers(0, 2**64), st.text(), st.integers(1, 10**6), st.text())
def test_draws_are_unsigned_64_bit_numbers(seed: int, fault: str, occurrence: int, purpose: str) -> None:
    assert 0 <= draw(seed, fault, occurrence, purpose) < 2**64


def test_json_leaves_out_what_is_unset() -> None:
    first = plan_injections(scenario())[0].to_json()
    assert first["kernel"] == "adam"
    assert not {"point", "group", "chunk", "fill_seed"} & set(first)


SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_injections_survive_json(path: Path) -> None:
    for injection in plan_injections(scenario(path.read_text())):
        assert Injection.from_json(json.loads(json.dumps(injection.to_json()))) == injection


def shipped(name: str, *overrides: str) -> tuple[Injection, ...]:
    return plan_injections(scenario((Path(__file__).parents[2] / "scenarios" / f"{name}.yaml").read_text(), *overrides))


def test_held_ranks_have_tokens_of_their_own_and_the_faults_iteration() -> None:
    plan = shipped("between-ranks")
    tokens = [place.token for injection in plan for place in injection.places]
    assert sorted(tokens) == list(range(1, len(tokens) + 1))
    assert {len(i.places) for i in plan} == {2}
    assert [(i.iteration, i.holds[0].iteration) for i in plan if i.fault_id == "one-has-its-header"] == [(7, 8)]
    assert all(i.holds[0].iteration == i.iteration for i in plan if i.fault_id != "one-has-its-header")
    assert [i.killed_rank for i in plan if i.fault_id == "both-have-completed"] == [1]
    described = "iteration 2 rank 0: kill at begin, rank 1 held at after-barrier, 16 coded pages per group lost"
    assert [i.describe() for i in plan[:1]] == [described]
    described = "iteration 4 rank {}: abort-kernel muon-apply at 0.5 in group 3 chunk 12, 16 coded pages per group lost"
    assert [i.describe() for i in shipped("muon")[2:3]] == [described.format(shipped("muon")[2].rank)]


def test_losses_have_draws_of_their_own_and_gates_are_at_the_boundary_of_the_faults_rank() -> None:
    plan = shipped("update-phase")
    seeds = [loss.seed for i in plan for loss in i.losses]
    assert len(set(seeds)) == len(seeds) == 2 * len(plan)
    assert {(loss.page_class, loss.per_group, loss.count) for loss in plan[0].losses} == {
        (LossClass.CODED, True, 16),
        (LossClass.TIER1, False, 1),
    }
    for i in plan:
        assert i.gate is not None
        assert (i.gate.point, i.gate.iteration, i.gate.rank) == (Point.HEADER, i.iteration, i.rank)
        assert i.gate not in i.places


def test_random_kills_have_distinct_iterations_before_the_last_and_park_nowhere() -> None:
    for seed in range(50):
        plan = shipped("random-kills", f"seed={seed}")
        iterations = [i.iteration for i in plan]
        assert len(plan) == 12
        assert iterations == sorted(set(iterations))
        assert set(iterations) <= set(range(1, 25))
        assert all(i.places == () and i.moment is not None and i.moment >> 24 == i.iteration for i in plan)


def test_random_kills_come_everywhere() -> None:
    plans = [shipped("random-kills", f"seed={seed}") for seed in range(50)]
    assert {i.iteration for plan in plans for i in plan} == set(range(1, 25))
    shares = [(i.moment & 0xFFFFFF) / 2**24 for plan in plans for i in plan if i.moment is not None]
    assert {int(10 * share) for share in shares} == set(range(10))


def test_more_random_kills_keep_the_times_of_fewer() -> None:
    few, many = (shipped("random-kills", f"faults.0.when.random={n}", f"expect.recoveries={n}") for n in (5, 12))
    assert {i.iteration for i in few} < {i.iteration for i in many}


@given(st.integers(0, 2**24 - 1), st.floats(0, 1), st.integers(0, 2**24 - 1), st.floats(0, 1))
def test_logical_time_is_ordered_by_iteration_then_share(t: int, share: float, u: int, other: float) -> None:
    if (t, share) <= (u, other):
        assert logical_time(t, share) <= logical_time(u, other)
    assert logical_time(t, share) < logical_time(t + 1, 0.0)
    assert 0 <= logical_time(t, share) < 2**48


def test_a_time_is_described() -> None:
    assert describe_time(logical_time(7, 0.25)) == "iteration 7 after 0.250 of its failpoints"
