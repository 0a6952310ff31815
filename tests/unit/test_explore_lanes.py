"""Cuts of a plan with two lanes: which there are, and that lanes which may run together never touch the same page."""

from dataclasses import replace

import pytest

from chaos.explore.explorer import Explorer
from chaos.explore.lanes import Cut, Cuts
from chaos.explore.shapes import SHAPES
from leto.core.geometry import CodedGeometry
from leto.core.markers import Phase, Progress
from leto.core.update_plan import Operation, OpKind, plan_update
from tests.unit.test_explore import explorer_of

SHAPE = SHAPES["pipelined"]
CODED = CodedGeometry(protection=SHAPE.protection, segments=SHAPE.segments)


def plan(*, fused: bool = False) -> tuple[Operation, ...]:
    return plan_update(CODED, 2, Progress(phase=Phase.BEGIN, iteration=2), fused=fused)


def done_of(cut: Cut, cuts: Cuts) -> set[int]:
    """Operations that are done, marks included."""
    done = set[int]()
    for lane, count in zip(cuts.lanes, cut.done, strict=True):
        pending = {step.op.index for step in lane[count:]}
        done |= {step.op.index for step in lane[:count]} - pending
    return done


in_one_pass = pytest.mark.parametrize("fused", [False, True])


@in_one_pass
def test_every_cut_can_be_come_to_and_begins_nothing_too_early(fused: bool) -> None:
    cuts = Cuts(plan(fused=fused), CODED)
    found = list(cuts)
    places = {cut.done for cut in found}
    for cut in found:
        done = done_of(cut, cuts)
        before = [(cut.done[0] - 1, cut.done[1]), (cut.done[0], cut.done[1] - 1)]
        assert cut.done == (0, 0) or places & set(before)
        for step, begin in zip(cut.coming, cut.may_begin, strict=True):
            if step is not None:
                assert begin == (set(step.op.depends_on) <= done)
    assert found[-1].is_end
    assert sum(cut.is_end for cut in found) == 1


@in_one_pass
def test_the_plans_own_order_is_a_path_of_single_steps(fused: bool) -> None:
    cuts = Cuts(plan(fused=fused), CODED)
    path = [cut.done for cut in cuts if cut.on_path]
    steps = sum(map(len, cuts.lanes))
    assert sorted(sum(done) for done in path) == list(range(steps + 1))


@pytest.mark.parametrize("kind", [OpKind.PARITY, OpKind.UPDATE_AND_PARITY, OpKind.WRITE_BACK])
def test_a_plan_that_forgets_to_wait_is_found_to_race(kind: OpKind) -> None:
    right = plan(fused=kind is OpKind.UPDATE_AND_PARITY)
    hasty = tuple(replace(op, depends_on=()) if op.kind is kind else op for op in right)
    assert hasty != right
    with pytest.raises(AssertionError, match="may run together and touch"):
        list(Cuts(hasty, CODED))


def test_two_groups_are_under_way_at_once_and_both_their_slots_speak() -> None:
    explorer = explorer_of("pipelined")
    speaks = {tuple(sorted(image.account.speaks.items())) for frame in explorer.tape.ranks[0].frames for image in frame.images}
    assert max(map(len, speaks)) == 3  # two groups wait to be written back, and one is being updated


def test_a_race_between_lanes_is_a_failure_of_the_job_without_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos.explore import lanes
    from chaos.explore.explorer import Failed

    def hasty(*arguments: object, **options: object) -> tuple[Operation, ...]:
        return tuple(replace(op, depends_on=()) for op in plan_update(*arguments, **options))  # type: ignore[arg-type]

    monkeypatch.setattr(lanes, "plan_update", hasty)
    with pytest.raises(Failed, match="may run together and touch"):
        Explorer(SHAPE)
