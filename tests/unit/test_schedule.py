from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chaos.scenario import Scenario, parse_scenario
from chaos.schedule import draw, plan_injections
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
    shorter = scenario(TEXT, "workload.iterations=29")
    assert [i.iteration for i in plan_injections(shorter)] == [10, 20]


def test_actions_take_turns() -> None:
    kernels = [i.kernel for i in plan_injections(scenario())]
    assert kernels[:4] == [Kernel.ADAM, Kernel.RS_UPDATE, Kernel.PARITY_WRITEBACK, Kernel.ADAM]
    fills = [i.fill_seed is not None for i in plan_injections(scenario())]
    assert fills[:4] == [False, False, True, False]


def test_tokens_are_unique_and_never_zero() -> None:
    tokens = [i.token for i in plan_injections(scenario(TEXT.replace("\ncontrol:", EXTRA)))]
    assert len(set(tokens)) == 11
    assert 0 not in tokens


def test_adding_a_fault_moves_no_other() -> None:
    def without_token(i: object) -> dict[str, object]:
        return {k: v for k, v in vars(i).items() if k != "token"}

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
