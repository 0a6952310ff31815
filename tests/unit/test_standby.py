"""Shadows stand by all together or not at all, and are made again with growing pauses (U38)."""

from collections.abc import Mapping

from leto.core.errors import JobError
from leto.core.events import Event
from leto.runtime.generation import Death, Generation
from leto.runtime.messages import Report
from leto.runtime.standby import Standby


class FakeGeneration(Generation):
    """Two shadows without processes."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch, ())
        self.fenced = False
        self.idled = False

    @property
    def pids(self) -> dict[int, int]:
        return {0: 100, 1: 101}

    def idle(self) -> None:
        self.idled = True

    def fence(self, timeout_s: float) -> None:
        self.fenced = True


class Bench:
    """A standby with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.forked: list[FakeGeneration] = []
        self.events: list[Event] = []
        self.standby = Standby(self._fork, self, 1.0, lambda: self.now_s)

    def _fork(self, epoch: int) -> Generation:
        self.forked.append(FakeGeneration(epoch))
        return self.forked[-1]

    def observe(self, event: Event) -> None:
        self.events.append(event)

    def prepare(self, *ranks: int) -> None:
        for rank in ranks:
            fields: Mapping[str, object] = {"rank": rank, "level": "L3", "seconds": 0.5}
            self.standby.handle(Report(epoch=1, name="prepared", fields=fields))


def test_it_is_ready_when_every_rank_is() -> None:
    bench = Bench()
    bench.standby.start_if_due(3)
    bench.prepare(0)
    assert not bench.standby.ready
    assert not bench.forked[0].idled
    bench.prepare(1)
    assert bench.standby.ready
    assert bench.forked[0].idled
    assert [e.name for e in bench.events] == ["shadows-ready"]


def test_a_generation_that_is_not_ready_is_discarded_at_takeover() -> None:
    bench = Bench()
    bench.standby.start_if_due(3)
    bench.prepare(1)
    assert bench.standby.take() is None
    assert bench.forked[0].fenced
    assert bench.standby.generation is None


def test_a_ready_generation_is_handed_over_once() -> None:
    bench = Bench()
    bench.standby.start_if_due(3)
    bench.prepare(0, 1)
    assert bench.standby.take() is bench.forked[0]
    assert not bench.forked[0].fenced
    assert bench.standby.take() is None


def test_nothing_is_started_while_one_exists() -> None:
    bench = Bench()
    bench.standby.start_if_due(3)
    bench.standby.start_if_due(3)
    assert len(bench.forked) == 1
    assert bench.standby.seconds_to_start is None


def test_one_death_ends_the_generation_and_the_pauses_double_up_to_a_minute() -> None:
    bench = Bench()
    pauses = []
    for _ in range(9):
        bench.standby.start_if_due(3)
        bench.prepare(0)
        bench.standby.handle(Death(rank=1))
        assert bench.forked[-1].fenced
        pause = bench.standby.seconds_to_start
        assert pause is not None
        pauses.append(pause)
        bench.standby.start_if_due(3)  # too early
        assert bench.standby.generation is None
        bench.now_s += pause
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_generation_that_came_up_ends_the_pauses() -> None:
    bench = Bench()
    bench.standby.start_if_due(3)
    bench.standby.handle(Death(rank=0))
    bench.now_s += 1.0
    bench.standby.start_if_due(3)
    bench.prepare(0, 1)
    bench.standby.handle(Death(rank=0))
    assert bench.standby.seconds_to_start == 1.0


def test_a_refused_fork_costs_no_training_and_is_tried_again() -> None:
    bench = Bench()

    def refuse(epoch: int) -> Generation:
        raise JobError("the fork server has 2 threads")

    standby = Standby(refuse, bench, 1.0, lambda: bench.now_s)
    standby.start_if_due(3)
    assert standby.generation is None
    assert standby.seconds_to_start == 1.0
    assert [(e.name, e.fields["reason"]) for e in bench.events] == [("shadow-failed", "the fork server has 2 threads")]
