"""Logical time and aims of the probe, on an update that really runs in this process's memory."""

import ctypes
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.explore.rank import InMemoryRank, values
from chaos.schedule import Injection, Place, logical_time
from chaos.targets.leto_probe import (
    POINTS_OUTSIDE_ITERATIONS,
    ArmedFailpoints,
    LogicalClock,
    failpoints_an_iteration,
    read_aim,
)
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.geometry import Protection, Segment
from leto.core.hooks import TrainerContext
from leto.core.layout import parity_slot
from leto.core.markers import Mark, Phase, Word
from leto.core.update_plan import speaking_slot
from leto.update.updater import ChunkUpdater

T = 1


class Words:
    """The two words of a control page that a probe writes."""

    def __init__(self) -> None:
        self.park, self.heartbeat = ctypes.c_uint64(0), ctypes.c_uint64(0xFFFF)


@pytest.fixture(params=[0, 1], ids=["without tier 2", "with tier 2"])
def rank(request: pytest.FixtureRequest) -> InMemoryRank:
    return rank_of(chunks=5, tier2_pages=request.param)


def rank_of(*, chunks: int, tier2_pages: int = 1, pipelined: bool = False) -> InMemoryRank:
    protection = Protection(
        page_bytes=4096, data_pages=7, tier1_pages=4, tier2_pages=tier2_pages, chunk_pages=3, pipelined=pipelined
    )
    segment = Segment(name="w", first=0, count=1024 * (chunks - 1) + 10, optimizer=0, param_group=0)
    return InMemoryRank((segment,), protection, seed=1)


def context_of(rank: InMemoryRank, words: Words, number: int = 0) -> TrainerContext:
    return TrainerContext(
        rank=number,
        epoch=1,
        world_size=2,
        output_dir="",
        options={},
        park_word_address=ctypes.addressof(words.park),
        heartbeat_address=ctypes.addressof(words.heartbeat),
        report=lambda event: None,
        coded=rank.coded,
        gradients=rank.gradients,
    )


class Counting:
    """Passes every question on and counts them."""

    def __init__(self, failpoints: ArmedFailpoints, word: ctypes.c_uint64) -> None:
        self._failpoints, self._word = failpoints, word
        self.times: list[int] = []

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        park = self._failpoints.arm(kernel, site)
        self.times.append(self._word.value)
        return park

    def reach(self, point: Point, site: Site) -> None:
        self._failpoints.reach(point, site)
        self.times.append(self._word.value)


def run_iteration(rank: InMemoryRank, failpoints: Counting) -> None:
    """The points and the kernels of one iteration, in their order."""
    process = rank.process()
    process.parts = replace(process.parts, failpoints=failpoints)
    updater = ChunkUpdater(process.parts, rank.gradients)
    points = [p for p in Point if p not in POINTS_OUTSIDE_ITERATIONS]
    middle = points.index(Point.GRADIENT_PARITY)
    for point in points[:middle]:
        failpoints.reach(point, Site(iteration=T))
    updater.protect_gradients(T)
    for point in points[middle : points.index(Point.COMPLETE)]:
        failpoints.reach(point, Site(iteration=T))
    process.marks.publish(Word.PHASE, Mark(T, Phase.BEGIN))
    updater.run(values(T), process.marks.progress())
    for point in points[points.index(Point.COMPLETE) :]:
        failpoints.reach(point, Site(iteration=T))


def test_logical_time_goes_evenly_through_a_whole_iteration(rank: InMemoryRank, tmp_path: Path) -> None:
    words = Words()
    counting = Counting(ArmedFailpoints(context_of(rank, words), (), tmp_path), words.heartbeat)
    run_iteration(rank, counting)
    whole = failpoints_an_iteration(rank.coded, rank.gradients)
    assert counting.times == [logical_time(T, n / whole) for n in range(whole)]


def test_logical_time_never_goes_back_while_two_lanes_pass_failpoints(tmp_path: Path) -> None:
    rank, words = rank_of(chunks=40, pipelined=True), Words()
    by_thread: dict[int, list[int]] = {}

    class ByThread(Counting):
        def arm(self, kernel: Kernel, site: Site) -> Park | None:
            park = super().arm(kernel, site)
            by_thread.setdefault(threading.get_ident(), []).append(self._word.value)
            return park

    counting = ByThread(ArmedFailpoints(context_of(rank, words), (), tmp_path), words.heartbeat)
    run_iteration(rank, counting)
    whole = failpoints_an_iteration(rank.coded, rank.gradients)
    assert (len(counting.times), counting.times[-1]) == (whole, logical_time(T, (whole - 1) / whole))
    assert len(by_thread) == 2
    for times in by_thread.values():
        assert times == sorted(times)


@pytest.mark.parametrize("kernel", [Kernel.PARITY_FETCH, Kernel.PARITY_WRITEBACK, Kernel.ADAM, Kernel.RS_UPDATE])
def test_an_armed_operation_parks_with_marks_that_do_not_move(kernel: Kernel, tmp_path: Path) -> None:
    """U50, with the probe's own failpoints: the other lane stands still from before the aim is written until it is let go."""
    rank, words = rank_of(chunks=40, pipelined=True), Words()
    faults = [injection(7, kernel=kernel, progress=0.5, group=5, chunk=1)]
    seen: list[list[list[int]]] = []

    def watch() -> None:
        deadline = time.monotonic() + 20.0
        while words.park.value != 7 and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(50):
            seen.append(rank.markers.mirrors(rank.epoch))
            time.sleep(0.001)
        words.park.value = 0

    bench = threading.Thread(target=watch)
    bench.start()
    run_iteration(rank, Counting(ArmedFailpoints(context_of(rank, words), faults, tmp_path), words.heartbeat))
    bench.join()
    assert seen == [seen[0]] * 50
    assert all(mirror == seen[0][0] for mirror in seen[0])  # no mark is on its way
    target = read_aim(tmp_path, 7).target
    if kernel is Kernel.PARITY_FETCH:
        slot = speaking_slot(rank.coded, 5, 0)
        assert [page.allocation for page in target] == [parity_slot(slot)] * 4
    assert rank.process().updater.audit().equal


def test_a_new_process_says_nothing_until_it_passes_a_failpoint(rank: InMemoryRank) -> None:
    words = Words()
    clock = LogicalClock(context_of(rank, words))
    assert words.heartbeat.value == 0
    clock.pass_failpoint(7)
    assert words.heartbeat.value == logical_time(7, 0.0)
    clock.pass_failpoint(7)
    clock.pass_failpoint(8)
    assert words.heartbeat.value == logical_time(8, 0.0)


def injection(token: int, **where: object) -> Injection:
    place = {"iteration": T, "rank": 0, "group_draw": 5, "chunk_draw": 7, "token": token, **where}
    return Injection(fault_id="f", occurrence=1, action="kill", **place)  # type: ignore[arg-type]


def test_held_ranks_are_armed_with_their_own_tokens_and_nobody_with_anothers(rank: InMemoryRank, tmp_path: Path) -> None:
    held = Place(iteration=T, rank=1, kernel=Kernel.ADAM, progress=0.5, group=0, chunk=1, group_draw=0, chunk_draw=0, token=9)
    planned = [injection(8, kernel=Kernel.ADAM, progress=0.25, group=0, chunk=0, holds=(held,))]
    parks = {}
    for number in (0, 1):
        failpoints = ArmedFailpoints(context_of(rank, Words(), number), planned, tmp_path)
        sites = [Site(iteration=t, group=0, chunk=chunk) for t in (T, T + 1) for chunk in (0, 1)]
        found = [(site, park) for site in sites if (park := failpoints.arm(Kernel.ADAM, site)) is not None]
        parks[number] = [(site.iteration, site.chunk, park.token, park.progress) for site, park in found]
    assert parks == {0: [(T, 0, 8, 0.25)], 1: [(T, 1, 9, 0.5)]}
    assert read_aim(tmp_path, 9).chunk == 1


def test_a_free_running_kill_arms_nothing(rank: InMemoryRank, tmp_path: Path) -> None:
    words = Words()
    failpoints = ArmedFailpoints(context_of(rank, words), [injection(1, moment=logical_time(T, 0.5))], tmp_path)
    for point in Point:
        failpoints.reach(point, Site(iteration=T))
    assert failpoints.arm(Kernel.ADAM, Site(iteration=T, group=0, chunk=0)) is None
    assert words.park.value == 0


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_restore_is_hit_in_whatever_chunk_was_in_flight(rank: InMemoryRank, tmp_path: Path, chunk: int) -> None:
    site = Site(iteration=T, group=0, chunk=chunk)
    anywhere = ArmedFailpoints(context_of(rank, Words()), [injection(1, kernel=Kernel.UNDO_RESTORE)], tmp_path)
    assert anywhere.arm(Kernel.UNDO_RESTORE, site) is not None
    aimed = ArmedFailpoints(context_of(rank, Words()), [injection(1, kernel=Kernel.UNDO_RESTORE, group=0, chunk=0)], tmp_path)
    assert (aimed.arm(Kernel.UNDO_RESTORE, site) is not None) == (chunk == 0)
