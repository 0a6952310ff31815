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
    assert decision.reason == "unrecoverable: all 3 mirrors are lost; no checkpoint configured"


def test_a_rank_that_is_not_there_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="1 ranks answered, the job has 2"):
        Coordinator(2, 100).decide([lambda: header(5)])
