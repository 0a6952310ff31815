"""Kernels that move and compare bytes, on any number of threads, and what an armed call leaves behind (U50)."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, addresses, blank, random_pages, same
from kernel_parking import every_progress, parked

from leto.core.failpoints import Park
from leto.device.host_kernels import HostKernels

PAGE_BYTES = 256

every_backend = pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)


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


THREADS = [1, 2, 5]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize(("count", "page_bytes"), [(1, 3 << 20), (7, 512 << 10), (19, (128 << 10) + 52)])
def test_large_copies_are_whole_on_any_number_of_threads(threads: int, shift: int, count: int, page_bytes: int) -> None:
    """Large enough to go past the cache and to be worth threads; more pages than are copied side by side, and fewer."""
    source = random_pages(np.random.default_rng(count), count, page_bytes)
    target = [page[shift:] for page in blank(count, page_bytes + shift)]
    HostKernels(threads=threads).copy_pages(addresses(source), addresses(target), page_bytes)
    assert same(source, target)


@pytest.mark.parametrize("threads", THREADS)
def test_a_large_xor_is_whole_on_any_number_of_threads(threads: int) -> None:
    source, target = random_pages(np.random.default_rng(18), 3, (1 << 20) + 20), blank(1, (1 << 20) + 20)
    HostKernels(threads=threads).xor_pages(addresses(source), addresses(target)[0], source[0].size)
    assert np.array_equal(target[0], np.bitwise_xor.reduce(source))


@pytest.mark.parametrize("threads", THREADS)
@every_progress
def test_a_large_copy_parks_at_the_same_byte_on_any_number_of_threads(progress: float, threads: int) -> None:
    page_bytes = 700 << 10
    source, target = random_pages(np.random.default_rng(19), 4, page_bytes), blank(4, page_bytes)
    cut = int(progress * 4 * page_bytes)
    new, old = np.concatenate(source), np.concatenate(target)
    kernels = HostKernels(threads=threads)
    with parked(lambda park: kernels.copy_pages(addresses(source), addresses(target), page_bytes, park), progress):
        assert np.array_equal(np.concatenate(target), np.concatenate([new[:cut], old[cut:]]))
    assert same(source, target)


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


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_outside_the_unit_interval_is_refused(progress: float) -> None:
    page = blank(1, PAGE_BYTES)
    with pytest.raises(ValueError, match="progress"):
        HostKernels().copy_pages(addresses(page), addresses(page), PAGE_BYTES, Park(word_address=0, token=1, progress=progress))
