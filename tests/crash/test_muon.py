"""Muon's two transactions (U32): the bits of torch.optim.Muon wherever chunks cut matrices, wherever and however often it
crashes, whatever is lost; and that masters applied from momentum which is not all committed would be seen."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.explore.rank import GRADIENTS, RATES, InMemoryRank, Process, values
from chaos.mutants import MUTANTS
from chaos.planted.planting import Patch
from chaos.schedule import Injection
from chaos.targets.leto_probe import ArmedFailpoints
from leto.core.failpoints import Failpoints, Kernel, Park, Site
from leto.core.geometry import (
    CODED_ARRAYS,
    MOMENTUM_BUFFER,
    MUON_MASTER,
    Matrix,
    Page,
    Protection,
    Rule,
    Segment,
)
from leto.core.layout import UNDO
from leto.core.recovery import Decision
from leto.update.muon import MuonHyper, TorchMuon
from leto.update.pieces import Matrices, MuonPiece, cut
from leto.update.record_slots import RecordSlots
from leto.update.repair import rebuild
from tests.crash.test_chunk_transactions import T, crash_within
from tests.unit.test_leto_probe import Words, context_of

HYPER = MuonHyper(
    momentum=0.95, ns_coefficients=(3.4445, -4.7750, 2.0315), ns_steps=5, eps=1e-7, adjust_lr_fn="match_rms_adamw"
)
PROTECTION = Protection(page_bytes=4096, data_pages=13, tier1_pages=4, tier2_pages=1, chunk_pages=3)
SHAPES = ((64, 100), (7, 5), (50, 130), (33, 96))
"""Chunks of 3072 elements: the middle of a matrix, the end of one with another whole and the beginning of a third."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def matrices_of(shapes: Sequence[tuple[int, int]]) -> tuple[Matrix, ...]:
    firsts = [sum(rows * columns for rows, columns in shapes[:n]) for n in range(len(shapes))]
    return tuple(
        Matrix(name=f"m{n}", first=first, count=rows * columns, rows=rows, optimizer=n % 2, param_group=0)
        for n, (first, (rows, columns)) in enumerate(zip(firsts, shapes, strict=True))
    )


class MuonRank(InMemoryRank):
    """A rank with matrices; every process begins without a direction."""

    def __init__(
        self, shapes: Sequence[tuple[int, int]] = SHAPES, *, protection: Protection = PROTECTION, fused: bool = False
    ) -> None:
        segment = Segment(name="embedding", first=0, count=5000, optimizer=0, param_group=1)
        self.fused = fused
        super().__init__((segment,), protection, seed=3, matrices=matrices_of(shapes))

    def process(self, failpoints: Failpoints | None = None) -> Process:
        return Process(self, failpoints=failpoints, fused=self.fused, muon=TorchMuon(HYPER))

    def chunks_by(self, rule: Rule) -> range:
        return next(region.chunks for region in self.coded.regions if region.rule is rule)


def finish(rank: MuonRank) -> dict[str, bytes]:
    process = rank.process()
    process.updater.run(values(T), process.marks.progress())
    assert process.updater.audit().equal
    return rank.durable()


def uninterrupted(rank: MuonRank) -> dict[str, bytes]:
    rank.process().begin(T)
    return finish(rank)


def torch_says(rank: MuonRank) -> dict[str, bytes]:
    """Momentum and masters of ``rank`` after torch.optim.Muon's own step, with gradients clipped in place like Megatron's."""
    gradients = torch.from_numpy(rank.array(GRADIENTS)[rank.coded.element_count :].copy())
    gradients.mul_(float.fromhex(values(T).clip))
    arrays = [torch.from_numpy(rank.array(name).copy()) for name in (MOMENTUM_BUFFER, MUON_MASTER)]
    for matrix in rank.coded.matrices:
        momentum, master, gradient = (
            array[matrix.first : matrix.stop].view(matrix.rows, matrix.columns) for array in (*arrays, gradients)
        )
        parameter = torch.nn.Parameter(master)
        parameter.grad = gradient
        lr, weight_decay = RATES[matrix.optimizer][matrix.param_group]
        settings_of = {"momentum": HYPER.momentum, "nesterov": True, "adjust_lr_fn": HYPER.adjust_lr_fn}
        optimizer = torch.optim.Muon([parameter], lr=lr, weight_decay=weight_decay, **settings_of)
        optimizer.state[parameter]["momentum_buffer"] = momentum
        optimizer.step()
    return {name: array.numpy().tobytes() for name, array in zip((MOMENTUM_BUFFER, MUON_MASTER), arrays, strict=True)}


def muon_state(rank: MuonRank) -> dict[str, bytes]:
    return {name: rank.array(name).tobytes() for name in (MOMENTUM_BUFFER, MUON_MASTER)}


shapes = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(shapes, st.sampled_from([3, 6, 9]), st.booleans(), st.booleans())
def test_an_update_has_torchs_bits_wherever_chunks_cut_matrices(
    sizes: list[tuple[int, int]], chunk_pages: int, pipelined: bool, fused: bool
) -> None:
    rank = MuonRank(sizes, protection=replace(PROTECTION, chunk_pages=chunk_pages, pipelined=pipelined), fused=fused)
    expected = torch_says(rank)
    uninterrupted(rank)
    assert muon_state(rank) == expected


@settings(max_examples=40, deadline=None)
@given(shapes, st.lists(st.floats(0, 1), max_size=6))
def test_any_cut_of_the_elements_gives_the_same_bits(sizes: list[tuple[int, int]], cuts: list[float]) -> None:
    """Beside chunks: down to single elements, in pieces of any length."""
    rank = MuonRank(sizes)
    expected = torch_says(rank)
    at = Matrices(rank.coded, rank.memory.address, rank.process().parts.gradient_address)
    whole = [MuonPiece(matrix=at.whole(m.name, values(T)), first=0, count=m.count) for m in rank.coded.matrices]
    total = sum(piece.count for piece in whole)
    edges = sorted({0, total, *(int(at * total) for at in cuts)})
    muon = TorchMuon(HYPER)
    for update in (muon.momentum, muon.apply):
        for first, stop in pairwise(edges):
            update(tuple(cut(whole, first, stop)))
    assert muon_state(rank) == expected


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_beside_muon_is_what_it_is_alone(fused: bool) -> None:
    rank = MuonRank(fused=fused)
    alone = InMemoryRank(rank.coded.segments, PROTECTION, seed=3)
    for name in (*CODED_ARRAYS, GRADIENTS):
        alone.array(name)[:] = rank.array(name)[: alone.coded.element_count]
    alone.process().updater.encode_state()
    process = alone.process()
    process.begin(T)
    process.updater.run(values(T), process.marks.progress())
    uninterrupted(rank)
    for name in CODED_ARRAYS:
        assert rank.array(name).tobytes() == alone.array(name).tobytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=4), st.integers(0, 2**32 - 1), st.booleans())
def test_any_chain_of_crashes_ends_in_the_crash_free_bytes(crashes: list[tuple[float, bool]], seed: int, fused: bool) -> None:
    """A new process each time: its direction is computed again, in the middle of a matrix too."""
    expected = uninterrupted(MuonRank())
    rank = MuonRank(fused=fused)
    garbage = np.random.default_rng(seed)
    rank.process().begin(T)
    for where, torn in crashes:
        crash_within(rank, where, garbage if torn else None, fused=fused)
    assert finish(rank) == expected


class ParkedAt:
    """Parks one kernel of one chunk; the test looks at the memory and lets it go."""

    def __init__(self, rank: MuonRank, kernel: Kernel, chunk: int, progress: float) -> None:
        self.word = ctypes.c_uint64(0)
        self._park = Park(word_address=ctypes.addressof(self.word), token=1, progress=progress)
        self._at = (kernel, chunk)
        self._rank = rank
        self.seen: dict[str, bytes] = {}

    def reach(self, point: object, site: Site) -> None:
        return None

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        return self._park if (kernel, site.chunk) == self._at else None

    def image_while_parked(self) -> None:
        process = self._rank.process(self)
        runner = threading.Thread(target=lambda: process.updater.run(values(T), process.marks.progress()), daemon=True)
        runner.start()
        deadline = time.monotonic() + 20.0
        while self.word.value == 0:
            assert time.monotonic() < deadline and runner.is_alive(), "the armed kernel did not park"
            time.sleep(0.0005)
        self.seen = self._rank.memory.contents(list(self._rank.classes))
        self.marks = self._rank.marker_image()
        self.word.value = 0
        runner.join(20.0)
        assert not runner.is_alive()

    def crash_there(self) -> Decision:
        """Memory as it was while the kernel stood parked, then the next epoch."""
        for name, content in self.seen.items():
            self._rank.memory.bytes(name)[:] = np.frombuffer(content, np.uint8)
        self._rank.markers.restore(self.marks)
        return self._rank.crash()


def parked(rank: MuonRank, kernel: Kernel, chunk: int, progress: float) -> ParkedAt:
    at = ParkedAt(rank, kernel, chunk, progress)
    rank.process().begin(T)
    at.image_while_parked()
    return at


RULE_OF = {Kernel.MUON_MOMENTUM: Rule.MUON_MOMENTUM, Kernel.MUON_APPLY: Rule.MUON_APPLY}


@pytest.mark.parametrize("kernel", RULE_OF)
@pytest.mark.parametrize("progress", [0.0, 0.37, 1.0])
def test_a_kill_inside_any_chunk_of_momentum_and_masters(kernel: Kernel, progress: float) -> None:
    expected = uninterrupted(MuonRank())
    for chunk in MuonRank().chunks_by(RULE_OF[kernel]):
        rank = MuonRank()
        at = parked(rank, kernel, chunk, progress)
        at.crash_there()
        assert finish(rank) == expected, (kernel, chunk, progress)


def test_an_armed_kernel_parks_with_a_part_of_its_chunk_done() -> None:
    for kernel, array in ((Kernel.MUON_MOMENTUM, MOMENTUM_BUFFER), (Kernel.MUON_APPLY, MUON_MASTER)):
        rank = MuonRank()
        before = rank.array(array).copy()
        chunk = rank.chunks_by(RULE_OF[kernel])[1]
        at = parked(rank, kernel, chunk, 0.25)
        first, stop = rank.coded.chunk_range(chunk)
        middle = first + (stop - first) // 4
        during, after = np.frombuffer(at.seen[array], np.float32), rank.array(array)
        assert (during[:middle] == after[:middle]).all() and (after[first:middle] != before[first:middle]).any()
        assert (during[middle : before.size] == before[middle:]).all()


@pytest.mark.parametrize("kernel", RULE_OF)
def test_lost_pages_of_momentum_and_masters_come_back_before_the_update_goes_on(kernel: Kernel) -> None:
    """As many of every group as its parity solves, and pages of the undo buffer beside the chunk in flight."""
    expected = uninterrupted(MuonRank())
    for chunk in MuonRank().chunks_by(RULE_OF[kernel]):
        rank = MuonRank()
        rank.process().updater.protect_gradients(T)
        decision = parked(rank, kernel, chunk, 0.5).crash_there()
        random = np.random.default_rng(chunk)
        lost = {Page(UNDO, 1)}
        for group in range(rank.coded.group_count):
            others = [p.page for c in rank.coded.chunks_of(group) if c != chunk for p in rank.coded.chunk_pages(c)]
            most = PROTECTION.tier1_pages - (chunk in rank.coded.chunks_of(group))
            lost |= {others[k] for k in random.permutation(len(others))[:most]}
        rank.memory.lose(lost)
        process = rank.process()
        rebuild(
            rank.memory,
            process.parts.kernels,
            coded=rank.coded,
            gradients=rank.gradients,
            classes=rank.classes,
            records=NotSkipped(),  # type: ignore[arg-type]
            decision=decision,
            progress=process.marks.progress(),
            lost=lost,
            acknowledge=rank.rebuilt,
        )
        assert finish(rank) == expected, (kernel, chunk)


class NotSkipped(RecordSlots):
    """POST of an update that is not skipped, without the records around it."""

    def __init__(self) -> None: ...

    def read_post(self, iteration: int):  # type: ignore[no-untyped-def]
        class Post:
            values = values(T)

        return Post


def test_an_update_reads_gradients_only() -> None:
    rank = MuonRank()
    before = rank.memory.contents([GRADIENTS])
    uninterrupted(rank)
    assert rank.memory.contents([GRADIENTS]) == before


def test_a_direction_from_momentum_that_is_half_updated_would_be_seen() -> None:
    with Patch() as patch:
        MUTANTS["masters-right-after-momentum"].plant(patch)
        rank = MuonRank()
        expected = torch_says(rank)
        uninterrupted(rank)
    assert muon_state(rank)[MOMENTUM_BUFFER] == expected[MOMENTUM_BUFFER]
    assert muon_state(rank)[MUON_MASTER] != expected[MUON_MASTER]


def test_momentum_that_is_updated_twice_would_be_seen() -> None:
    """Nothing writes masters twice, but directions follow momentum."""
    expected = uninterrupted(MuonRank())
    rank = MuonRank()
    chunk = rank.chunks_by(Rule.MUON_MOMENTUM)[0]
    parked(rank, Kernel.MUON_MOMENTUM, chunk, 0.5).crash_there()
    with Patch() as patch:
        MUTANTS["momentum-not-restored"].plant(patch)
        assert finish(rank)[MUON_MASTER] != expected[MUON_MASTER]


@pytest.mark.parametrize("kernel", [*RULE_OF, Kernel.ADAM])
@pytest.mark.parametrize("draw", range(5))
def test_a_seeded_place_is_one_where_the_kernel_runs(kernel: Kernel, draw: int, tmp_path: Path) -> None:
    rank = MuonRank()
    place = Injection(
        fault_id="f", occurrence=1, action="kill", iteration=T, rank=0, kernel=kernel, group_draw=draw, chunk_draw=draw, token=1
    )
    failpoints = ArmedFailpoints(context_of(rank, Words()), [place], tmp_path)
    chunks = rank.chunks_by(RULE_OF.get(kernel, Rule.ADAMW))
    hit = [c for c in chunks if failpoints.arm(kernel, Site(iteration=T, group=rank.coded.group_of(c), chunk=c))]
    assert len(hit) == 1
