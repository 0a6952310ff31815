"""Lanes: who runs what on which thread, what waits for what, and how it ends."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from leto.core.geometry import CodedGeometry, Protection, Segment
from leto.core.markers import Phase, Progress
from leto.core.update_plan import Lane, Operation, OpKind, plan_update
from leto.update.lanes import Lanes

DEADLINE_S = 20.0
SOON_S = 0.05
"""A deadline that a test waits for."""


def plan_of(chunks: int, *, pipelined: bool) -> tuple[Operation, ...]:
    protection = Protection(page_bytes=4096, data_pages=6, tier1_pages=4, chunk_pages=3, pipelined=pipelined)
    segment = Segment(name="w", first=0, count=1024 * chunks, optimizer=0, param_group=0)
    coded = CodedGeometry(protection=protection, segments=(segment,))
    return plan_update(coded, 1, Progress(phase=Phase.BEGIN, iteration=1))


PLAN = plan_of(9, pipelined=True)  # groups of 2, 2, 2, 2 and 1 chunks


def place(kind: OpKind, group: int) -> int:
    return next(op.index for op in PLAN if op.kind is kind and op.group == group)


def await_(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


class Recorder:
    """What began and ended, in the order in which it was seen, and on which thread."""

    def __init__(self, during: Callable[[Operation], None] = lambda op: None) -> None:
        self._during = during
        self._lock = threading.Lock()
        self.seen: list[tuple[str, int]] = []
        self.threads: dict[int, threading.Thread] = {}

    def perform(self, op: Operation) -> None:
        self._see("begins", op)
        self.threads[op.index] = threading.current_thread()
        self._during(op)
        self._see("ends", op)

    def _see(self, what: str, op: Operation) -> None:
        with self._lock:
            self.seen.append((what, op.index))

    def when(self, what: str, index: int) -> int:
        return self.seen.index((what, index))


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def test_a_serial_plan_runs_on_the_calling_thread() -> None:
    def alone(op: Operation) -> None:
        assert threading.active_count() == before

    before = threading.active_count()
    recorder, plan = Recorder(alone), plan_of(9, pipelined=False)
    Lanes(plan).run(recorder.perform)
    assert recorder.seen == [(what, op.index) for op in plan for what in ("begins", "ends")]


def test_an_empty_plan_is_done_at_once() -> None:
    Lanes(()).run(lambda op: pytest.fail("nothing is to be done"))


def test_every_operation_runs_once_in_its_lane_after_what_it_depends_on() -> None:
    recorder = Recorder()
    with no_thread_is_left():
        Lanes(PLAN).run(recorder.perform)
    assert sorted(index for what, index in recorder.seen if what == "ends") == [op.index for op in PLAN]
    for op in PLAN:
        assert (recorder.threads[op.index] is threading.current_thread()) == (op.lane is Lane.COMPUTE)
        earlier = [other.index for other in PLAN[: op.index] if other.lane is op.lane]
        for index in (*op.depends_on, *earlier):
            assert recorder.when("ends", index) < recorder.when("begins", op.index)


def test_parity_is_copied_while_a_chunk_is_updated() -> None:
    """Each waits for the other to be under way, which only goes well if both are."""
    fetching, updating = threading.Event(), threading.Event()
    second, first = place(OpKind.FETCH, 1), place(OpKind.UPDATE, 0)

    def meet(op: Operation) -> None:
        if op.index == second:
            fetching.set()
            await_(updating)
        elif op.index == first:
            updating.set()
            await_(fetching)

    Lanes(PLAN).run(Recorder(meet).perform)


class Broken(Exception):
    pass


@pytest.mark.parametrize("kind", [OpKind.FETCH, OpKind.WRITE_BACK, OpKind.TIER2, OpKind.SAVE_UNDO, OpKind.PARITY])
@pytest.mark.parametrize("group", [0, 3])
def test_an_exception_of_a_lane_ends_the_other_and_is_raised(kind: OpKind, group: int) -> None:
    broken = place(kind, group)

    def fail(op: Operation) -> None:
        if op.index == broken:
            raise Broken

    recorder = Recorder(fail)
    with no_thread_is_left(), pytest.raises(Broken):
        Lanes(PLAN).run(recorder.perform)
    begun = {index for what, index in recorder.seen if what == "begins"}
    ended = {index for what, index in recorder.seen if what == "ends"}
    assert begun - ended == {broken}  # the other lane stopped between two operations


def test_an_operation_that_does_not_end_is_given_up() -> None:
    released, before = threading.Event(), set(threading.enumerate())

    def hang(op: Operation) -> None:
        if op.index == place(OpKind.FETCH, 0):
            await_(released)

    try:
        with pytest.raises(TimeoutError, match=r"the copy lane did not end in 0\.05 s") as given_up:
            Lanes(PLAN, timeout_s=SOON_S).run(Recorder(hang).perform)
        assert str(given_up.value.__cause__) == "no operation of the other lane ended in 0.05 s"
    finally:
        released.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(DEADLINE_S)


def test_the_deadline_is_one_of_progress() -> None:
    """Waiting for many operations may take longer than one is given."""
    pause = threading.Event()

    def slowly(op: Operation) -> None:
        if op.lane is Lane.COMPUTE:
            pause.wait(SOON_S / 2)

    Lanes(plan_of(2, pipelined=True), timeout_s=SOON_S).run(Recorder(slowly).perform)  # eight operations before a write-back


# Armed operations (U50).


def halted_at(kind: OpKind, group: int, hold_s: float = 0.0, timeout_s: float = DEADLINE_S) -> Recorder:
    """A run in which an armed operation stands parked for a while."""
    lanes, armed, pause = Lanes(PLAN, timeout_s=timeout_s), place(kind, group), threading.Event()

    def arm(op: Operation) -> None:
        if op.index == armed:
            lanes.halt(op)
            lanes.halt(op)  # as by an operation with two kernels, both of which are armed
            recorder.seen.append(("parked", op.index))
            pause.wait(hold_s)

    recorder = Recorder(arm)
    lanes.run(recorder.perform)
    return recorder


@pytest.mark.parametrize("kind", [OpKind.FETCH, OpKind.WRITE_BACK, OpKind.TIER2, OpKind.UPDATE, OpKind.PARITY])
@pytest.mark.parametrize("group", [0, 1, 4])
def test_while_an_armed_operation_is_parked_the_other_lane_stands_between_two(kind: OpKind, group: int) -> None:
    recorder = halted_at(kind, group, hold_s=SOON_S)
    armed = place(kind, group)
    parked = recorder.when("parked", armed)
    assert recorder.seen[parked + 1] == ("ends", armed)
    before = recorder.seen[:parked]
    open_ = {i for what, i in before if what == "begins"} - {i for what, i in before if what == "ends"}
    assert open_ == {armed}
    assert {i for what, i in recorder.seen if what == "ends"} == {op.index for op in PLAN}


def test_an_armed_operation_may_stand_parked_for_longer_than_the_deadline() -> None:
    halted_at(OpKind.FETCH, 0, hold_s=6 * SOON_S, timeout_s=SOON_S)


def test_two_armed_operations_go_one_after_the_other() -> None:
    lanes = Lanes(PLAN, timeout_s=DEADLINE_S)
    armed = (place(OpKind.FETCH, 1), place(OpKind.UPDATE, 0))
    both, parked = threading.Barrier(2, timeout=DEADLINE_S), []

    def arm(op: Operation) -> None:
        if op.index in armed:
            both.wait()  # both lanes are inside an operation, and both ask
            lanes.halt(op)
            parked.append(("parks", op.index))
            threading.Event().wait(SOON_S)
            parked.append(("goes on", op.index))

    lanes.run(Recorder(arm).perform)
    (_, first), (_, one), (_, other), (_, last) = parked
    assert first == one != other == last


def test_a_lane_that_waits_to_park_is_ended_by_the_others_exception() -> None:
    lanes = Lanes(PLAN, timeout_s=DEADLINE_S)
    both = threading.Barrier(2, timeout=DEADLINE_S)

    def arm_or_fail(op: Operation) -> None:
        if op.index == place(OpKind.FETCH, 1):
            both.wait()
            lanes.halt(op)
            pytest.fail("the other lane has failed, nobody parks any more")
        if op.index == place(OpKind.UPDATE, 0):
            both.wait()
            raise Broken

    with no_thread_is_left(), pytest.raises(Broken):
        lanes.run(Recorder(arm_or_fail).perform)
