"""Bugs planted in lanes and slots must be caught by the walk over every cut (tests/crash/test_lanes.py)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from chaos.mutants import MUTANTS
from chaos.planted.planting import Patch, Plant
from leto.core import update_plan
from leto.core.geometry import CodedGeometry
from leto.core.update_plan import Operation, OpKind
from tests.crash.test_lanes import every_cut, finish, load, rank_of, run_uninterrupted


def unawaited(kind: OpKind) -> Plant:
    def plant(patch: Patch) -> None:
        def without(steps: Iterable[dict[str, object]]) -> Iterator[Operation]:
            for op in on_lanes(steps):
                yield replace(op, depends_on=() if op.kind is kind else op.depends_on)

        on_lanes = update_plan._on_lanes
        patch.set(update_plan, "_on_lanes", without)

    plant.__name__ = f"{kind.value}-does-not-wait"
    return plant


def a_slot_too_few(patch: Patch) -> None:
    def three(geometry: CodedGeometry, group: int, commits: int) -> int:
        return (group + commits) % 3

    patch.set(update_plan, "speaking_slot", three)


def resumed_from_the_group_under_way(patch: Patch) -> None:
    """A recovery forgets groups that were committed and not written back."""
    remaining = update_plan._remaining

    def later(geometry: CodedGeometry, t: int, progress: Any) -> Iterator[dict[str, object]]:
        under_way = min(progress.committed_chunks // geometry.protection.chunks_per_group, geometry.group_count)
        return remaining(geometry, t, replace(progress, written_back=max(progress.written_back, under_way)))

    patch.set(update_plan, "_remaining", later)


BUGS = [
    unawaited(OpKind.PARITY),
    unawaited(OpKind.WRITE_BACK),
    pytest.param(MUTANTS["slot-refilled-early"].plant, id="slot-refilled-early"),
    a_slot_too_few,
    resumed_from_the_group_under_way,
]


def caught(expected: dict[str, bytes]) -> bool:
    walked, crashed = rank_of(6, 1), rank_of(6, 1)
    try:
        for _, saved in every_cut(walked):
            load(crashed, saved)
            if finish(crashed) != expected:
                return True
    except AssertionError:  # two ways to a cut left different bytes
        return True
    return False


@pytest.fixture
def expected() -> dict[str, bytes]:
    return run_uninterrupted(rank_of(6, 1, pipelined=False))


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_planted_bugs_of_lanes_are_caught(plant: Plant, expected: dict[str, bytes]) -> None:
    with Patch() as patch:
        plant(patch)
        assert caught(expected)


def test_without_a_bug_nothing_is_caught(expected: dict[str, bytes]) -> None:
    assert not caught(expected)
