"""Torn states are what armed kernels leave, marks are torn over mirrors, and images lose nothing that was written."""

from dataclasses import replace

import numpy as np
import pytest

from chaos.explore.cases import parse_case
from chaos.explore.memory import Memory
from chaos.explore.rank import GRADIENTS, KERNELS, InMemoryRank, Process, values
from chaos.explore.steps import MARK_STATES, WRITE_STATES, State, Step, Steps
from leto.core.failpoints import Kernel, Site
from leto.core.geometry import CODED_ARRAYS, MOMENTUM_BUFFER, MUON_MASTER, Page, Protection, Segment
from leto.core.layout import Allocation, PageClass
from leto.core.markers import Mark, Phase, Word, pack
from leto.device.host_kernels import ADAM_BLOCK
from leto.update.executor import PlanExecutor
from tests.unit.test_explore import explorer_of

PROTECTION = Protection(page_bytes=4096, data_pages=9, tier1_pages=4, tier2_pages=1, chunk_pages=3)
OLD, GARBAGE = (next(s for s in WRITE_STATES if s.progress == 0.3 and s.garbage is garbage) for garbage in (False, True))


class Blind:
    """Watches nothing."""

    def before(self, kernel: Kernel, site: Site, touched: tuple[str, ...]) -> None: ...
    def marked(self, word_address: int, value: int) -> None: ...
    def name(self, word_address: int, value: int) -> str:
        return "mark"


class Leave:
    """Leaves every step that touches an allocation in one state, as if nothing had crashed."""

    def __init__(self, state: State, allocation: str) -> None:
        self._state = state
        self._allocation = allocation

    def take(self, index: int, step: Step) -> None:
        if self._allocation in step.touched:
            step.leave(self._state)
        else:
            step.do()


def a_rank(chunk_pages: int = 3) -> InMemoryRank:
    segments = (Segment(name="w", first=0, count=1024 * 4, optimizer=0, param_group=0),)
    return InMemoryRank(segments, replace(PROTECTION, chunk_pages=chunk_pages), seed=3)


def steps_of(rank: InMemoryRank, state: State, allocation: str) -> Steps:
    return Steps(rank.memory, KERNELS, Leave(state, allocation), Blind())


def copy_left_in(state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Undo before a save, after one that was left in ``state``, and as it should be."""
    rank = a_rank()
    pages = [rank.memory.page_address(placed.page) for placed in rank.coded.chunk_pages(0)]
    undo = rank.memory.bytes("undo")
    undo[:] = 7
    old = undo.copy()
    target = [rank.memory.page_address(Page("undo", k)) for k in range(3)]
    steps_of(rank, state, "undo").copy_pages(pages, target, 4096)
    new = np.concatenate([rank.memory.page(placed.page) for placed in rank.coded.chunk_pages(0)])
    return old, undo.copy(), new


def test_a_torn_copy_is_done_up_to_its_point_and_old_behind() -> None:
    old, torn, new = copy_left_in(OLD)
    cut = int(0.3 * new.size)
    assert (torn[:cut] == new[:cut]).all()
    assert (torn[cut:] == old[cut:]).all()


def test_garbage_also_falls_where_the_old_byte_was_right() -> None:
    rank = a_rank()
    rows = [rank.memory.page_address(Page("tier1/0", row)) for row in range(4)]
    pages = rank.coded.group_pages(0)
    before = rank.memory.bytes("tier1/0").copy()
    addresses = [rank.memory.page_address(placed.page) for placed in pages]
    shape = Process(rank).parts.shape
    steps_of(rank, GARBAGE, "tier1/0").encode(shape, [placed.column for placed in pages], addresses, rows)
    after = rank.memory.bytes("tier1/0").reshape(4, 4096)
    cut = int(0.3 * 4096) // 4 * 4
    same = after == before.reshape(4, 4096)
    assert same[:, :cut].all()  # the armed encoder cuts every row at the same offset
    assert same[:, cut:].mean() < 0.02


@pytest.mark.parametrize("garbage", [False, True])
def test_a_torn_chunk_has_a_half_done_block(garbage: bool) -> None:
    right, torn, old = (a_rank(chunk_pages=6) for _ in range(3))
    for rank, state in ((right, None), (torn, GARBAGE if garbage else OLD)):
        kernels = KERNELS if state is None else steps_of(rank, state, "master")
        parts = Process(rank, kernels).parts
        kernels.adam(PlanExecutor(parts, values(1))._adam_chunk(0))
    size = 2048
    cut = int(0.3 * size)
    for name in CODED_ARRAYS:
        done, found, before = (rank.array(name)[:size].view(np.uint32) for rank in (right, torn, old))
        assert (found[:cut] == done[:cut]).all(), name
        behind = slice(cut + ADAM_BLOCK, size)
        assert behind.start < behind.stop
        assert (found[behind] == before[behind]).all() is not np.bool_(garbage), name
    block = slice(cut, cut + ADAM_BLOCK)
    assert (torn.array("exp_avg")[block] == right.array("exp_avg")[block]).all()
    assert not (torn.array("master")[block] == right.array("master")[block]).all()


@pytest.mark.parametrize(("kernel", "array"), [("muon-momentum", MOMENTUM_BUFFER), ("muon-apply", MUON_MASTER)])
def test_a_torn_chunk_of_muon_is_done_up_to_its_point(kernel: str, array: str) -> None:
    """Also where it holds the end of one matrix and the beginning of the next."""
    explorer = explorer_of("muon")
    frames = explorer.tape.ranks[0].frames
    of_kernel = [n for n, frame in enumerate(frames) if frame.name.startswith(kernel)]
    assert len(of_kernel) == 2 * explorer.shape.iterations
    for n in of_kernel:
        images = (*(frames[n].images[WRITE_STATES.index(state)] for state in (WRITE_STATES[0], OLD)), frames[n + 1].images[0])
        before, torn, after = (np.frombuffer(image.memory[array], np.float32) for image in images)
        first, stop = explorer.plan.coded.chunk_range(int(frames[n].name.split()[-1]))
        cut = first + int(0.3 * (stop - first))
        assert (torn[:cut] == after[:cut]).all()
        assert (torn[cut:] == before[cut:]).all()
        assert (before[first:stop] != after[first:stop]).any()
        assert (before[stop:] == after[stop:]).all()


@pytest.mark.parametrize("state", MARK_STATES)
def test_a_torn_mark_stands_in_the_first_mirrors(state: State) -> None:
    rank = a_rank()

    class Torn:
        def take(self, index: int, step: Step) -> None:
            step.leave(state)

    steps = Steps(rank.memory, KERNELS, Torn(), Blind())
    steps.publish(rank.markers.word_addresses(1, Word.PHASE), pack(1, Mark(2, Phase.BEGIN)))
    found = [mirror[Word.PHASE] == pack(1, Mark(2, Phase.BEGIN)) for mirror in rank.markers.mirrors(1)]
    assert found == [True] * state.mirrors + [False] * (3 - state.mirrors)


def test_kernels_that_write_memory_of_the_process_are_no_steps() -> None:
    rank = a_rank()
    steps = steps_of(rank, OLD, "undo")
    own = np.zeros(4096, np.uint8)
    steps.copy_pages([rank.memory.page_address(Page("master", 0))], [own.ctypes.data], 4096)
    assert steps.count == 0
    assert (own == rank.memory.page(Page("master", 0))).all()


def test_a_write_that_nobody_reported_would_be_lost_from_images() -> None:
    """Why every writer says what it wrote; the explorer's own writers all do (below)."""
    memory = Memory([Allocation(name="a", page_class=PageClass.CODED, byte_count=4096)], 4096)
    first = memory.image()
    memory.bytes("a")[0] = 1
    assert memory.image() == first
    memory.wrote(["a"])
    assert memory.image() != first
    memory.restore(first)
    assert not memory.bytes("a").any()


@pytest.mark.parametrize(
    ("shape", "cases"),
    [
        ("narrow", ("102.2,97.0/split,none/0:2.1", "13.0,0.2/none,none", "110.1,130.2/tier-by-tier,unneeded")),
        ("muon", ("103.1,91.2/split,none/0:2.1", "122.1,91.2/tier-by-tier,unneeded")),
    ],
)
def test_images_hold_everything_that_a_job_writes(shape: str, cases: tuple[str, ...]) -> None:
    explorer = explorer_of(shape)
    for text in cases:
        explorer.run(parse_case(text))
        for rank in explorer.job.ranks:
            assert rank.memory.image() == rank.memory.contents(rank.memory.arrays)
    assert explorer.job.ranks[0].array(GRADIENTS).any()
