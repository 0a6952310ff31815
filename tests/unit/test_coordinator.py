"""The coordinator gives up on crash loops and on lost markers, and on nothing else."""

import pytest

from leto.core.errors import ProtocolViolation, Unrecoverable
from leto.core.markers import Phase, Progress
from leto.core.recovery import Action
from leto.runtime.coordinator import Coordinator, cold_start


def header(t: int) -> Progress:
    return Progress(phase=Phase.HEADER, iteration=t)


def test_the_first_decision_is_cold() -> None:
    decision = cold_start(2)
    assert decision.action is Action.COLD
    assert decision.carried == (Progress(phase=Phase.NONE, iteration=0),) * 2


def test_failures_with_progress_between_them_never_add_up() -> None:
    coordinator = Coordinator(2, 100)
    for t in range(1, 50):
        assert coordinator.decide([lambda t=t: header(t)] * 2).action is Action.RESTART


def test_a_fourth_failure_in_the_same_iteration_is_a_crash_loop() -> None:
    coordinator = Coordinator(2, 100)
    actions = [coordinator.decide([lambda: header(5)] * 2).action for _ in range(4)]
    assert actions == [Action.RESTART] * 3 + [Action.CHECKPOINT]


def test_lost_markers_are_refused_with_their_reason() -> None:
    def lost() -> Progress:
        raise Unrecoverable("all 3 mirrors are lost")

    decision = Coordinator(2, 100).decide([lambda: header(5), lost])
    assert decision.action is Action.CHECKPOINT
    assert decision.reason == "unrecoverable: rank 1: all 3 mirrors are lost; no checkpoint configured"


def test_markers_that_fall_back_are_lost_even_when_all_ranks_agree() -> None:
    """Pages that are lost silently read as zeros; a job under way must not begin again from the seed."""
    coordinator = Coordinator(2, 100)
    coordinator.decide([lambda: header(5)] * 2)
    decision = coordinator.decide([lambda: header(5), lambda: Progress(phase=Phase.NONE, iteration=0)])
    assert decision.action is Action.CHECKPOINT
    assert decision.reason == "unrecoverable: the marker of rank 1 fell from HEADER(5) to NONE(0); no checkpoint configured"
    zeros = Coordinator(2, 100)
    zeros.decide([lambda: header(5)] * 2)
    assert zeros.decide([lambda: Progress(phase=Phase.NONE, iteration=0)] * 2).action is Action.CHECKPOINT


def test_a_rank_that_is_not_there_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="1 ranks answered, the job has 2"):
        Coordinator(2, 100).decide([lambda: header(5)])
