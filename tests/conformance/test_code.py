"""The erasure code: every implementation beside the readable definition, and what an armed call leaves behind (U50)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, Page, addresses, blank, random_pages, same
from kernel_parking import every_progress, parked, torn_at

from leto.core import reed_solomon
from leto.core.errors import Unrecoverable
from leto.core.failpoints import Park
from leto.device.base import CodeShape
from leto.device.host_kernels import HostKernels

PAGE_BYTES = 256

every_backend = pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)


def encoded(kernels: Backend, shape: CodeShape, columns: list[int], data: list[Page]) -> list[Page]:
    target = blank(shape.tier1_pages, shape.page_bytes)
    kernels.encode(shape, columns, addresses(data), addresses(target))
    return target


@every_backend
def test_encode_gives_the_published_coefficients(kernels: Backend) -> None:
    """A data page of ones shows the coefficients themselves."""
    shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=16)
    one = np.ones(PAGE_BYTES // 4, "<u4").view(np.uint8)
    shown = {c: [int(p.view("<u4")[0]) for p in encoded(kernels, shape, [c], [one])] for c in (0, 15, 16)}
    assert (shown[0][0], shown[15][3], shown[16][0]) == (0x06CD8D9B, 0x050A0A14, 0x9D30D2C4)


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


def assert_torn_rows(call: Callable[[list[int], Park | None], None], rows: int, page_bytes: int, progress: float) -> None:
    """All target pages are new up to the same word and untouched behind it; released, they equal the plain call's."""
    plain, target = blank(rows, page_bytes), blank(rows, page_bytes)
    call(addresses(plain), None)
    cut = int(progress * (page_bytes // 4)) * 4
    expected = torn_at(cut, plain, target)
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
