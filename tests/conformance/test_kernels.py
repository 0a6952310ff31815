"""What every implementation of the code's kernels must do, and how the native ones park (U50)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import galois
import numpy as np
import pytest
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, Page, addresses, blank, random_pages, same

from leto import _kernels
from leto.core import reed_solomon
from leto.core.errors import Unrecoverable
from leto.core.failpoints import Park
from leto.core.reed_solomon import transform_size
from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment, CodeShape
from leto.device.host_kernels import ADAM_BLOCK, HostKernels

PAGE_BYTES = 256
WAIT_S = 30.0

every_backend = pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)


def encoded(kernels: Backend, shape: CodeShape, columns: list[int], data: list[Page]) -> list[Page]:
    target = blank(shape.tier1_pages, shape.page_bytes)
    kernels.encode(shape, columns, addresses(data), addresses(target))
    return target


# --- the erasure code -------------------------------------------------------------------------------------------------


@every_backend
def test_encode_gives_the_published_coefficients(kernels: Backend) -> None:
    """A data page of ones shows the coefficients themselves."""
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=16)
    one = np.ones(PAGE_BYTES // 4, "<u4").view(np.uint8)
    shown = {c: [int(p.view("<u4")[0]) for p in encoded(kernels, shape, [c], [one])] for c in (0, 15, 16)}
    assert (shown[0][0], shown[15][3], shown[16][0]) == (0x06CD8D9B, 0x050A0A14, 0x9D30D2C4)


@pytest.fixture(scope="module")
def field() -> type[galois.FieldArray]:
    return galois.GF(2**32, irreducible_poly="x^32+x^7+x^6+x^2+1", primitive_element="x", verify=False)


@every_backend
@pytest.mark.parametrize("tier1", [1, 2, 4, 8, 16])
def test_parity_is_interpolation(kernels: Backend, tier1: int, field: type[galois.FieldArray]) -> None:
    """The independent view: row j is the sum over blocks of the value at j of the polynomial through the block's data."""
    shape = CodeShape(page_bytes=16, tier1_pages=tier1)
    m = transform_size(tier1)
    data = random_pages(np.random.default_rng(tier1), 3 * m, shape.page_bytes)
    words = np.array([page.view("<u4") for page in data])
    total = field.Zeros((m, 4))
    at_rows = field([[row**0 if power == 0 else int(field(row) ** power) for power in range(m)] for row in range(m)])
    for block in range(3):
        points = [m + block * m + k for k in range(m)]
        vandermonde = field([[int(field(x) ** power) for power in range(m)] for x in points])
        total += at_rows @ np.linalg.inv(vandermonde) @ field(words[block * m : (block + 1) * m])
    parity = encoded(kernels, shape, list(range(3 * m)), data)
    assert [page.view("<u4").tolist() for page in parity] == total.tolist()


@pytest.mark.parametrize("tier1", range(1, 17))
@pytest.mark.parametrize("page_bytes", [4, 64, 4096, 65536 + 4])
def test_host_equals_reference(tier1: int, page_bytes: int) -> None:
    rng = np.random.default_rng([tier1, page_bytes])
    shape = CodeShape(page_bytes=page_bytes, tier1_pages=tier1)
    columns = sorted(int(c) for c in rng.choice(1100, size=7, replace=False))
    data, new = random_pages(rng, 7, page_bytes), random_pages(rng, 7, page_bytes)
    results = []
    for kernels in BACKENDS:
        parity, after = encoded(kernels, shape, columns, data), blank(tier1, page_bytes)
        kernels.update_parity(shape, columns, addresses(data), addresses(new), addresses(parity), addresses(after))
        lost = min(tier1, 7)
        target = blank(lost, page_bytes)
        kernels.reconstruct(
            shape,
            columns[lost:],
            addresses(new[lost:]),
            columns[:lost],
            addresses(target),
            list(range(tier1)),
            addresses(after),
        )
        results.append([*parity, *after, *target])
    assert same(results[0], results[1])


@pytest.mark.parametrize("tier1", [1, 2, 3, 4, 7, 8, 9, 16])
@pytest.mark.parametrize(
    "columns",
    [list(range(13, 13 + 40)), [*range(20), 4095], list(range(31, -1, -1)), [*range(5), *range(100, 121), *range(700, 707)]],
    ids=["across blocks", "far away", "descending", "three stretches"],
)
@pytest.mark.parametrize("page_bytes", [256, 8192 + 68])
def test_host_equals_reference_on_many_columns(tier1: int, columns: list[int], page_bytes: int) -> None:
    """Enough columns that rows which have a transform use it; pages of a group of words, and of a strip and a bit."""
    rng = np.random.default_rng([tier1, page_bytes])
    shape = CodeShape(page_bytes=page_bytes, tier1_pages=tier1)
    data, new = random_pages(rng, len(columns), page_bytes), random_pages(rng, len(columns), page_bytes)
    parity, after = encoded(HostKernels(), shape, columns, data), blank(tier1, page_bytes)
    HostKernels().update_parity(shape, columns, addresses(data), addresses(new), addresses(parity), addresses(after))
    ends = [slice(0, 64), slice(page_bytes - 64, page_bytes)]  # the reference is slow, and words do not know each other
    for pages, result in ((data, parity), (new, after)):
        for end in ends:
            expected = reed_solomon.encode(tier1, columns, [page[end].copy() for page in pages])
            assert same([page[end] for page in result], expected)


@pytest.mark.parametrize("offset", [4, 12, 60])
def test_pages_need_only_be_aligned_to_words(offset: int) -> None:
    rng = np.random.default_rng(offset)
    shape = CodeShape(page_bytes=1 << 20, tier1_pages=16)  # large enough to be stored past the cache where it is aligned
    columns = list(range(20))
    data = random_pages(rng, 20, shape.page_bytes)
    shifted = [np.zeros(shape.page_bytes + 64, np.uint8)[offset : offset + shape.page_bytes] for _ in range(36)]
    for page, source in zip(shifted, data, strict=False):
        page[:] = source
    HostKernels().encode(shape, columns, addresses(shifted[:20]), addresses(shifted[20:]))
    assert same(shifted[20:], encoded(HostKernels(), shape, columns, data))


def test_columns_must_differ_and_pages_be_words() -> None:
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=2)
    data, target = blank(2, PAGE_BYTES), blank(2, PAGE_BYTES)
    with pytest.raises(ValueError, match="a column repeats"):
        HostKernels().encode(shape, [5, 5], addresses(data), addresses(target))
    with pytest.raises(ValueError, match="not 4-byte aligned"):
        HostKernels().encode(shape, [5, 6], [address + 1 for address in addresses(data)], addresses(target))


@every_backend
def test_update_leaves_what_it_reads(kernels: Backend) -> None:
    rng = np.random.default_rng(7)
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=4)
    undo, data, parity = (random_pages(rng, n, PAGE_BYTES) for n in (3, 3, 4))
    kept = [page.copy() for page in (*undo, *data, *parity)]
    target = blank(4, PAGE_BYTES)
    kernels.update_parity(shape, [0, 5, 9], addresses(undo), addresses(data), addresses(parity), addresses(target))
    assert same([*undo, *data, *parity], kept)


@every_backend
def test_absent_columns_are_zeros(kernels: Backend) -> None:
    rng = np.random.default_rng(8)
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=5)
    data = random_pages(rng, 2, PAGE_BYTES)
    whole = [data[0], np.zeros(PAGE_BYTES, np.uint8), data[1]]
    assert same(encoded(kernels, shape, [4, 9], data), encoded(kernels, shape, [4, 7, 9], whole))


@every_backend
def test_more_lost_than_rows_is_unrecoverable(kernels: Backend) -> None:
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=2)
    parity, target = blank(1, PAGE_BYTES), blank(2, PAGE_BYTES)
    with pytest.raises(Unrecoverable, match=r"2 pages of the group are lost, 1 solvable"):
        kernels.reconstruct(shape, [], [], [0, 1], addresses(target), [1], addresses(parity))


@every_backend
@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("where", ["data", "spare row"])
def test_a_spare_row_finds_a_flipped_bit(kernels: Backend, lost: int, where: str) -> None:
    rng = np.random.default_rng(9)
    shape = CodeShape(page_bytes=20000, tier1_pages=4)  # more than one strip
    columns = [0, 1, 2, 3, 4]
    data = random_pages(rng, 5, shape.page_bytes)
    parity = encoded(kernels, shape, columns, data)
    call = (shape, columns[lost:], addresses(data[lost:]), columns[:lost])
    target = blank(lost, shape.page_bytes)
    kernels.reconstruct(*call, addresses(target), [0, 1, 2, 3], addresses(parity))
    assert same(target, data[:lost])
    victim = data[4] if where == "data" else parity[3]
    victim[19999] ^= 1
    with pytest.raises(Unrecoverable, match="contradicts"):
        kernels.reconstruct(*call, addresses(target), [0, 1, 2, 3], addresses(parity))


@pytest.mark.parametrize("bad", ["columns", "target", "tier1", "page_bytes"])
def test_host_refuses_calls_that_do_not_fit_together(bad: str) -> None:
    data, target = blank(2, PAGE_BYTES), blank(3, PAGE_BYTES)
    shape = CodeShape(page_bytes=PAGE_BYTES - (bad == "page_bytes"), tier1_pages=17 if bad == "tier1" else 3)
    columns = [0] if bad == "columns" else [0, 1]
    with pytest.raises(ValueError, match=r"encode|code"):
        HostKernels().encode(shape, columns, addresses(data), addresses(target)[: 2 if bad == "target" else 3])


# --- bytes ------------------------------------------------------------------------------------------------------------


@every_backend
def test_copy_fill_and_equal(kernels: Backend) -> None:
    source, target = random_pages(np.random.default_rng(10), 3, PAGE_BYTES), blank(3, PAGE_BYTES)
    kernels.copy_pages(addresses(source), addresses(target), PAGE_BYTES)
    assert same(source, target)
    target[0][255] ^= 1
    target[2][0] ^= 0x80
    assert kernels.equal_pages(addresses(source), addresses(target), PAGE_BYTES) == [0, 2]
    kernels.fill(addresses(target)[1], PAGE_BYTES - 4, 0x7FC0DEAD)
    assert target[1].view("<u4").tolist() == [0x7FC0DEAD] * 63 + [int(source[1].view("<u4")[63])]


@every_backend
@pytest.mark.parametrize("count", [1, 2, 16])
def test_xor_pages(kernels: Backend, count: int) -> None:
    source, target = random_pages(np.random.default_rng(11), count, 9000), blank(1, 9000)
    kernels.xor_pages(addresses(source), addresses(target)[0], 9000)
    assert np.array_equal(target[0], np.bitwise_xor.reduce(source))


@every_backend
def test_publish_stores_every_word(kernels: Backend) -> None:
    words = np.zeros(24, np.uint64)
    chosen = [words.ctypes.data + 8 * k for k in (0, 8, 16)]
    kernels.publish(chosen, 0xFEDC_BA98_7654_3210)
    assert np.flatnonzero(words).tolist() == [0, 8, 16]
    assert set(words[[0, 8, 16]].tolist()) == {0xFEDC_BA98_7654_3210}


# --- parking ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def parked(call: Callable[[Park], None], progress: float) -> Iterator[None]:
    """Runs the armed call in a thread and yields while it is parked; afterwards it has been released and has returned."""
    word = np.zeros(1, np.uint64)
    token = 0xC0FFEE
    failures: list[BaseException] = []

    def work() -> None:
        try:
            call(Park(word_address=word.ctypes.data, token=token, progress=progress))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while word[0] != token:
        assert not failures, failures
        assert time.monotonic() < deadline, "the call did not park"
        thread.join(0.001)
    yield
    assert thread.is_alive()
    word[0] = 0
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the call did not go on"
    assert not failures, failures


every_progress = pytest.mark.parametrize("progress", [0.0, 0.3, 0.5, 1.0])


@every_progress
def test_parked_copy(progress: float) -> None:
    source, target = random_pages(np.random.default_rng(12), 3, PAGE_BYTES), blank(3, PAGE_BYTES)
    cut = int(progress * 3 * PAGE_BYTES)
    new, old = np.concatenate(source), np.concatenate(target)
    with parked(lambda park: HostKernels().copy_pages(addresses(source), addresses(target), PAGE_BYTES, park), progress):
        assert np.array_equal(np.concatenate(target), np.concatenate([new[:cut], old[cut:]]))
    assert same(source, target)


@every_progress
def test_parked_xor(progress: float) -> None:
    source, target = random_pages(np.random.default_rng(13), 4, 9001), blank(1, 9001)
    cut = int(progress * 9001)
    new, old = np.bitwise_xor.reduce(source), target[0].copy()
    with parked(lambda park: HostKernels().xor_pages(addresses(source), addresses(target)[0], 9001, park), progress):
        assert np.array_equal(target[0], np.concatenate([new[:cut], old[cut:]]))
    assert np.array_equal(target[0], new)


def assert_torn_rows(call: Callable[[list[int], Park | None], None], rows: int, page_bytes: int, progress: float) -> None:
    """All target pages are new up to the same word and untouched behind it; released, they equal the plain call's."""
    plain, target = blank(rows, page_bytes), blank(rows, page_bytes)
    call(addresses(plain), None)
    cut = int(progress * (page_bytes // 4)) * 4
    expected = [np.concatenate([new[:cut], old[cut:]]) for new, old in zip(plain, target, strict=True)]
    with parked(lambda park: call(addresses(target), park), progress):
        assert same(target, expected)
    assert same(target, plain)


@every_progress
@pytest.mark.parametrize("tier1", [3, 16])
def test_parked_encode(progress: float, tier1: int) -> None:
    shape = CodeShape(page_bytes=40000, tier1_pages=tier1)
    data = random_pages(np.random.default_rng(14), 5, shape.page_bytes)
    assert_torn_rows(
        lambda target, park: HostKernels().encode(shape, [0, 1, 2, 30, 31], addresses(data), target, park),
        tier1,
        shape.page_bytes,
        progress,
    )


@every_progress
def test_parked_update(progress: float) -> None:
    rng = np.random.default_rng(15)
    shape = CodeShape(page_bytes=40000, tier1_pages=4)
    undo, data, parity = (random_pages(rng, n, shape.page_bytes) for n in (3, 3, 4))
    assert_torn_rows(
        lambda target, park: HostKernels().update_parity(
            shape, [6, 7, 8], addresses(undo), addresses(data), addresses(parity), target, park
        ),
        4,
        shape.page_bytes,
        progress,
    )


COEFFICIENTS = AdamCoefficients(lr=3e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, step=4, clip=0.5)


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""master, exp_avg, exp_avg_sq, gradient"""


def adam_arrays(count: int) -> Arrays:
    rng = np.random.default_rng(16)
    master, exp_avg, exp_avg_sq, gradient = rng.standard_normal((4, count), dtype=np.float32)
    return master, exp_avg, np.square(exp_avg_sq), gradient


def adam_chunk(arrays: Arrays, cuts: list[int]) -> AdamChunk:
    """The arrays as a chunk whose segments end at ``cuts``."""
    master, exp_avg, exp_avg_sq, gradient = arrays
    edges = [0, *cuts]
    return AdamChunk(
        master_address=master.ctypes.data,
        exp_avg_address=exp_avg.ctypes.data,
        exp_avg_sq_address=exp_avg_sq.ctypes.data,
        segments=tuple(
            AdamSegment(count=stop - first, gradient_address=gradient.ctypes.data + 4 * first, coefficients=COEFFICIENTS)
            for first, stop in itertools.pairwise(edges)
        ),
    )


@pytest.mark.parametrize("progress", [0.0, 0.41, 0.999, 1.0])
def test_parked_adam_leaves_a_torn_chunk(progress: float) -> None:
    count = 5 * ADAM_BLOCK + 77
    cuts = [100, 2 * ADAM_BLOCK + 333, count]
    before, plain, torn = adam_arrays(count), adam_arrays(count), adam_arrays(count)
    kernels = HostKernels()
    kernels.adam(adam_chunk(plain, cuts))
    cut = int(progress * count)
    stop = min(count, cut + ADAM_BLOCK)
    block = slice(cut, stop)
    decayed = before[0] * np.float32(1 - COEFFICIENTS.lr * COEFFICIENTS.weight_decay)
    with parked(lambda park: kernels.adam(adam_chunk(torn, cuts), park), progress):
        for now, new, old in zip(torn[:3], plain[:3], before[:3], strict=True):
            assert np.array_equal(now[:cut], new[:cut])
            assert np.array_equal(now[stop:], old[stop:])
        assert np.array_equal(torn[0][block], decayed[block])
        assert np.array_equal(torn[1][block], plain[1][block])
        assert np.array_equal(torn[2][block], before[2][block])
    assert all(np.array_equal(now, new) for now, new in zip(torn, plain, strict=True))
    assert not np.array_equal(plain[2], before[2])


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_outside_the_unit_interval_is_refused(progress: float) -> None:
    page = blank(1, PAGE_BYTES)
    with pytest.raises(ValueError, match="progress"):
        HostKernels().copy_pages(addresses(page), addresses(page), PAGE_BYTES, Park(word_address=0, token=1, progress=progress))


# --- update and parity in one pass --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fused:
    """A chunk of ``pages`` pages in each array, ``missing`` elements short of filling them, and its group's old parity."""

    tier1: int
    page_bytes: int
    pages: int
    missing: int
    first_column: int = 0

    @property
    def shape(self) -> CodeShape:
        return CodeShape(page_bytes=self.page_bytes, tier1_pages=self.tier1)

    @property
    def columns(self) -> list[int]:
        return list(range(self.first_column, self.first_column + 3 * self.pages))

    @property
    def count(self) -> int:
        return self.pages * self.page_bytes // 4 - self.missing

    def arrays(self) -> Arrays:
        """Whole pages; behind the last element there is padding that nobody may touch."""
        arrays = adam_arrays(self.pages * self.page_bytes // 4)
        for array in arrays[:3]:
            array[self.count :] = np.float32(7)
        return arrays

    def chunk(self, arrays: Arrays) -> AdamChunk:
        cuts = sorted({min(3, self.count), max(1, self.count // 2), self.count})
        return adam_chunk(arrays, cuts)

    def pages_of(self, arrays: Arrays) -> list[Page]:
        return [page for array in arrays[:3] for page in array.view(np.uint8).reshape(self.pages, self.page_bytes)]

    def parity(self) -> list[Page]:
        return random_pages(np.random.default_rng(17), self.tier1, self.page_bytes)

    def update(self, arrays: Arrays, target: list[Page], kernels: HostKernels | None = None, **parks: Park) -> None:
        parity = self.parity()
        (kernels or HostKernels()).update_chunk(
            self.shape, self.columns, self.chunk(arrays), addresses(parity), addresses(target), **parks
        )

    def expected(self) -> tuple[Arrays, list[Page]]:
        """The two operations one after the other; parity by the readable definition where it is not too slow for it."""
        before, after = self.arrays(), self.arrays()
        HostKernels().adam(self.chunk(after))
        if self.page_bytes * self.pages <= 64 << 10:
            old, new = self.pages_of(before), self.pages_of(after)
            return after, reed_solomon.update(self.tier1, self.columns, old, new, self.parity())
        target = blank(self.tier1, self.page_bytes)
        parity, undo, data = self.parity(), self.pages_of(before), self.pages_of(after)
        HostKernels().update_parity(
            self.shape, self.columns, addresses(undo), addresses(data), addresses(parity), addresses(target)
        )
        return after, target


FUSED = [
    Fused(tier1=1, page_bytes=4096, pages=2, missing=0),
    Fused(tier1=3, page_bytes=4096, pages=1, missing=5),
    Fused(tier1=4, page_bytes=64, pages=2, missing=17, first_column=1),
    Fused(tier1=8, page_bytes=260, pages=7, missing=1, first_column=13),
    Fused(tier1=16, page_bytes=4096, pages=5, missing=0, first_column=15),
    Fused(tier1=16, page_bytes=4096, pages=3, missing=2 * 1024 + 9, first_column=4000),
    Fused(tier1=16, page_bytes=72 << 10, pages=21, missing=333, first_column=63),
    Fused(tier1=16, page_bytes=320 << 10, pages=2, missing=0, first_column=2),
]
every_fused = pytest.mark.parametrize("case", FUSED, ids=str)


@every_fused
def test_fused_update_equals_adam_and_then_parity(case: Fused) -> None:
    arrays, target = case.arrays(), blank(case.tier1, case.page_bytes)
    case.update(arrays, target)
    after, parity = case.expected()
    assert same(case.pages_of(arrays), case.pages_of(after))
    assert same(target, parity)


@pytest.mark.parametrize("coefficients", [{"clip": None}, {"weight_decay": 0.0}, {"beta1": 0.25}, {"clip": None, "beta1": 0.5}])
@pytest.mark.parametrize("fused_multiply_add", [False, True])
def test_fused_update_has_every_branch_of_adam(coefficients: dict[str, float | None], fused_multiply_add: bool) -> None:
    case = Fused(tier1=2, page_bytes=8192, pages=2, missing=100)
    kernels = HostKernels(fused_multiply_add=fused_multiply_add)
    changed = replace(COEFFICIENTS, **coefficients)  # type: ignore[arg-type]

    def chunk_of(arrays: Arrays) -> AdamChunk:
        chunk = case.chunk(arrays)
        return replace(chunk, segments=tuple(replace(s, coefficients=changed) for s in chunk.segments))

    fused, unfused, parity, target = case.arrays(), case.arrays(), case.parity(), blank(2, case.page_bytes)
    kernels.update_chunk(case.shape, case.columns, chunk_of(fused), addresses(parity), addresses(target))
    kernels.adam(chunk_of(unfused))
    assert same(case.pages_of(fused), case.pages_of(unfused))
    old, new = case.pages_of(case.arrays()), case.pages_of(unfused)
    assert same(target, reed_solomon.update(2, case.columns, old, new, parity))


def test_fused_update_on_threads() -> None:
    case = Fused(tier1=16, page_bytes=512 << 10, pages=4, missing=1000, first_column=5)
    arrays, target, parity = case.arrays(), blank(16, case.page_bytes), case.parity()
    chunk = HostKernels()._adam_arguments(case.chunk(arrays))
    shape = (case.page_bytes, case.tier1)
    _kernels.update_chunk(_kernels.Scratch(), 3, *shape, case.columns, *chunk, addresses(parity), addresses(target))
    after, expected = case.expected()
    assert same(case.pages_of(arrays), case.pages_of(after))
    assert same(target, expected)


def torn_at(cut: int, done: list[Page], before: list[Page]) -> list[Page]:
    """Pages that are new up to the byte ``cut``, and old behind it."""
    return [np.concatenate([new[:cut], old[cut:]]) for new, old in zip(done, before, strict=True)]


@every_progress
def test_fused_update_parked_in_adam(progress: float) -> None:
    """Everything before the point is done in all pages; of the first page of each array the next block is half updated."""
    case = Fused(tier1=4, page_bytes=40000, pages=3, missing=50, first_column=6)
    arrays, target = case.arrays(), blank(4, case.page_bytes)
    after, parity = case.expected()
    before = case.pages_of(case.arrays())
    cut = int(progress * (case.page_bytes // 4)) * 4
    expected = torn_at(cut, case.pages_of(after), before)
    block = slice(cut // 4, min(cut // 4 + ADAM_BLOCK, case.page_bytes // 4))
    decay = np.float32(1 - COEFFICIENTS.lr * COEFFICIENTS.weight_decay)
    expected[0].view("<f4")[block] = before[0].view("<f4")[block] * decay
    expected[3].view("<f4")[block] = case.pages_of(after)[3].view("<f4")[block]
    with parked(lambda park: case.update(arrays, target, adam_park=park), progress):
        assert same(case.pages_of(arrays), expected)
        assert same(target, torn_at(cut, parity, blank(4, case.page_bytes)))
    assert same(case.pages_of(arrays), case.pages_of(after))
    assert same(target, parity)


@every_progress
def test_fused_update_parked_in_parity(progress: float) -> None:
    """Everything before the point is done; behind it data of one strip are, and no parity."""
    case = Fused(tier1=16, page_bytes=40000, pages=21, missing=0, first_column=6)
    arrays, target = case.arrays(), blank(16, case.page_bytes)
    after, parity = case.expected()
    cut = int(progress * (case.page_bytes // 4)) * 4
    done, before = case.pages_of(after), case.pages_of(case.arrays())
    with parked(lambda park: case.update(arrays, target, parity_park=park), progress):
        now = case.pages_of(arrays)
        strips = {stop for stop in range(cut, case.page_bytes + 1, 4) if same(now, torn_at(stop, done, before))}
        assert len(strips) == 1
        assert min(strips) > cut or cut == case.page_bytes
        assert same(target, torn_at(cut, parity, blank(16, case.page_bytes)))
    assert same(case.pages_of(arrays), done)
    assert same(target, parity)


@pytest.mark.parametrize(("of_adam", "of_parity"), [(0.2, 0.7), (0.7, 0.2), (0.5, 0.5), (0.5, 0.5001), (1.0, 1.0)])
def test_both_parks_of_a_fused_update_are_honoured(of_adam: float, of_parity: float) -> None:
    case = Fused(tier1=4, page_bytes=80000, pages=2, missing=1)
    arrays, target = case.arrays(), blank(4, case.page_bytes)
    after, parity = case.expected()
    word = np.zeros(1, np.uint64)
    other = Park(word_address=word.ctypes.data, token=7, progress=of_parity)
    call = threading.Thread(target=lambda: update_released(case, arrays, target, of_adam, other), daemon=True)
    call.start()
    wait_for(word, 7)
    cut = int(of_parity * (case.page_bytes // 4)) * 4
    assert same(target, torn_at(cut, parity, blank(4, case.page_bytes)))
    word[0] = 0
    call.join(WAIT_S)
    assert not call.is_alive()
    assert same(case.pages_of(arrays), case.pages_of(after))
    assert same(target, parity)


def update_released(case: Fused, arrays: Arrays, target: list[Page], progress: float, other: Park) -> None:
    """An update that is armed in adam too, and let go from there."""
    with parked(lambda park: case.update(arrays, target, adam_park=park, parity_park=other), progress):
        pass


def wait_for(word: np.ndarray, token: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while word[0] != token:
        assert time.monotonic() < deadline, "the call did not park"
        time.sleep(0)


@pytest.mark.parametrize("bad", ["columns", "elements", "target", "aligned"])
def test_a_fused_update_that_does_not_fit_together_is_refused(bad: str) -> None:
    case = Fused(tier1=2, page_bytes=256, pages=2, missing=-1 if bad == "elements" else 0)
    arrays, parity, target = adam_arrays(200), blank(2, 256), blank(2 + (bad == "target"), 256)
    chunk = adam_chunk(arrays, [case.count])
    if bad == "aligned":
        chunk = replace(chunk, exp_avg_address=chunk.exp_avg_address + 2)
    columns = case.columns[: 5 if bad == "columns" else 6]
    kept = [array.copy() for array in arrays]
    with pytest.raises(ValueError, match=r"update_chunk|code"):
        HostKernels().update_chunk(case.shape, columns, chunk, addresses(parity), addresses(target))
    assert all(np.array_equal(array, old) for array, old in zip(arrays, kept, strict=True))


# --- rows -------------------------------------------------------------------------------------------------------------


def digest_of_adam() -> str:
    """What adam makes of one chunk, fused and separate, with the instruction-set row in use."""
    digest = hashlib.sha256()
    for fused in (False, True):
        arrays = adam_arrays(3001)
        HostKernels(fused_multiply_add=fused).adam(adam_chunk(arrays, [1000, 3001]))
        for array in arrays:
            digest.update(array.tobytes())
    return digest.hexdigest()


def in_row(row: str, expression: str) -> subprocess.CompletedProcess[str]:
    """Evaluates an expression of this module in a process that is told to use ``row``."""
    program = f"import test_kernels as t; print({expression})"
    path = os.pathsep.join(sys.path)
    environment = os.environ | {"LETO_KERNEL": row, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("row", _kernels.supported_rows)
def test_every_row_gives_the_same_bits(row: str) -> None:
    done = in_row(row, "t._kernels.row, t.digest_of_adam()")
    assert done.stdout.split() == [row, digest_of_adam()], done.stderr


def test_a_row_that_is_not_there_is_refused() -> None:
    done = in_row("abacus", "t._kernels.row")
    assert done.returncode != 0
    assert "LETO_KERNEL=abacus: this processor has portable" in done.stderr
