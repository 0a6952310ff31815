"""Any erasures within the budget decode, data and parity mixed; a flipped bit anywhere is found by a spare row."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, Page, addresses, blank, random_pages, same

from leto.core.errors import Unrecoverable
from leto.device.base import CodeShape
from leto.device.reed_solomon import ReedSolomon

Array = npt.NDArray[np.uint8]  # [pages, page_bytes]

every_backend = pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)


def encoded(kernels: Backend, shape: CodeShape, columns: list[int], data: list[Page]) -> list[Page]:
    parity = blank(shape.tier1_pages, shape.page_bytes)
    kernels.encode(shape, columns, addresses(data), addresses(parity))
    return parity


def recovered(
    kernels: Backend, shape: CodeShape, columns: list[int], data: list[Page], parity: list[Page], erased: set[int]
) -> list[Page]:
    """The data after losing ``erased``: below len(data) they are data positions, from there on parity rows."""
    positions = range(len(data))
    lost = [k for k in positions if k in erased]
    kept = [k for k in positions if k not in erased]
    rows = [j for j in range(shape.tier1_pages) if len(data) + j not in erased]
    target = blank(len(lost), shape.page_bytes)
    kernels.reconstruct(
        shape,
        [columns[k] for k in kept],
        addresses([data[k] for k in kept]),
        [columns[k] for k in lost],
        addresses(target),
        rows,
        addresses([parity[j] for j in rows]),
    )
    solved = dict(zip(lost, target, strict=True))
    return [solved.get(k, data[k]) for k in positions]


@every_backend
@pytest.mark.parametrize(("tier1", "data_pages"), [(1, 4), (2, 5), (3, 5), (4, 4)])
def test_every_erasure_set_of_a_small_code_decodes(kernels: Backend, tier1: int, data_pages: int) -> None:
    shape = CodeShape(page_bytes=8, tier1_pages=tier1)
    columns = list(range(data_pages))
    data = random_pages(np.random.default_rng(tier1), data_pages, shape.page_bytes)
    parity = encoded(kernels, shape, columns, data)
    for size in range(tier1 + 1):
        for erased in itertools.combinations(range(data_pages + tier1), size):
            assert same(recovered(kernels, shape, columns, data, parity, set(erased)), data), erased


@every_backend
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_erasures_of_large_codes_decode(kernels: Backend, draw: st.DataObject) -> None:
    tier1 = draw.draw(st.integers(1, 16), "tier1")
    columns = draw.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=24, unique=True), "columns")
    everything = range(len(columns) + tier1)
    erased = draw.draw(st.sets(st.sampled_from(everything), max_size=tier1), "erased")
    shape = CodeShape(page_bytes=draw.draw(st.integers(1, 20), "words") * 4, tier1_pages=tier1)
    data = random_pages(np.random.default_rng(draw.draw(st.integers(0, 99), "seed")), len(columns), shape.page_bytes)
    parity = encoded(kernels, shape, columns, data)
    assert same(recovered(kernels, shape, columns, data, parity, erased), data)


@every_backend
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_spare_row_finds_any_flipped_bit(kernels: Backend, draw: st.DataObject) -> None:
    """One flipped bit in any page that the solution reads is noticed, as long as one row is spare (U16)."""
    tier1 = draw.draw(st.integers(2, 16), "tier1")
    shape = CodeShape(page_bytes=32, tier1_pages=tier1)
    columns = list(range(draw.draw(st.integers(2, 20), "data pages")))
    everything = range(len(columns) + tier1)
    erased = draw.draw(st.sets(st.sampled_from(everything), max_size=tier1 - 1), "erased")
    victim = draw.draw(st.sampled_from([k for k in everything if k not in erased]), "victim")
    bit = draw.draw(st.integers(0, shape.page_bytes * 8 - 1), "bit")
    data = random_pages(np.random.default_rng(tier1), len(columns), shape.page_bytes)
    parity = encoded(kernels, shape, columns, data)
    [*data, *parity][victim][bit // 8] ^= 1 << bit % 8
    with pytest.raises(Unrecoverable, match="contradicts"):
        recovered(kernels, shape, columns, data, parity, erased)


def assert_repaired(code: ReedSolomon, data: Array, parity: Array, erased: tuple[int, ...]) -> None:
    """Losing ``erased`` (below len(data) data pages, from there on parity rows) and repairing it gives the group back."""
    lost = [k for k in erased if k < len(data)]
    lost_rows = [k - len(data) for k in erased if k >= len(data)]
    broken, broken_parity = data.copy(), parity.copy()
    broken[lost], broken_parity[lost_rows] = 0xEE, 0xEE
    code.reconstruct(broken, broken_parity, lost, lost_rows)
    assert np.array_equal(broken, data), erased
    assert np.array_equal(broken_parity, parity), erased


@pytest.mark.parametrize("parity_pages", range(1, 12))
def test_every_erasure_set_of_twelve_pages_is_repaired(parity_pages: int) -> None:
    code, data, parity = coded_group(12 - parity_pages, parity_pages, 64)
    for size in range(parity_pages + 1):
        for erased in itertools.combinations(range(12), size):
            assert_repaired(code, data, parity, erased)
    for erased in itertools.combinations(range(12), parity_pages + 1):
        with pytest.raises(Unrecoverable):
            assert_repaired(code, data, parity, erased)


def coded_group(data_pages: int, parity_pages: int, page_bytes: int) -> tuple[ReedSolomon, Array, Array]:
    code = ReedSolomon(data_pages, parity_pages, page_bytes, threads=1)
    data = np.random.default_rng(data_pages).integers(0, 256, (data_pages, page_bytes), dtype=np.uint8)
    parity = np.empty((parity_pages, page_bytes), np.uint8)
    code.encode(data, parity)
    return code, data, parity


DATA_PAGES = 1000  # the last block is partial
LAST = DATA_PAGES - 1
ADVERSARIAL = {
    "a whole block": range(16, 32),
    "across a block's edge": range(24, 40),
    "the first block": range(16),
    "the last pages": range(DATA_PAGES - 16, DATA_PAGES),
    "one of every block": range(0, 16 * 16, 16),
    "powers of two": [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
    "all parity": range(DATA_PAGES, DATA_PAGES + 16),
    "half and half": [*range(100, 108), *range(DATA_PAGES, DATA_PAGES + 16, 2)],
    "all but one row": [*range(DATA_PAGES + 1, DATA_PAGES + 16), LAST],
    "rows 0, 6, 9 with columns 114, 170, 507": [
        114, 170, 507, *(DATA_PAGES + j for j in range(16) if j not in (0, 6, 9)),
    ],
    "nothing": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def large_group() -> tuple[ReedSolomon, Array, Array]:
    return coded_group(DATA_PAGES, 16, 64)


@pytest.mark.parametrize("which", ADVERSARIAL)
def test_adversarial_erasures_of_a_large_group_are_repaired(which: str, large_group: tuple[ReedSolomon, Array, Array]) -> None:
    assert_repaired(*large_group, tuple(ADVERSARIAL[which]))


@settings(max_examples=100, deadline=None)
@given(erased=st.sets(st.integers(0, DATA_PAGES + 15), max_size=16))
def test_random_erasures_of_a_large_group_are_repaired(erased: set[int], large_group: tuple[ReedSolomon, Array, Array]) -> None:
    assert_repaired(*large_group, tuple(sorted(erased)))
