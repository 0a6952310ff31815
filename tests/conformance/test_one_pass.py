"""Update and parity in one pass: the bits of the two operations, and what an armed call leaves behind (U50)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from kernel_backends import Page, addresses, blank, random_pages, same
from kernel_chunks import COEFFICIENTS, Arrays, adam_arrays, adam_chunk
from kernel_parking import WAIT_S, every_progress, parked, torn_at

from leto.core import reed_solomon
from leto.core.failpoints import Park
from leto.device.base import AdamChunk, CodeShape
from leto.device.host_kernels import ADAM_BLOCK, HostKernels


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
STRIP_BYTES = 64 << 10
"""Of a page of 63: as much as is updated before its parity is."""
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


@pytest.mark.parametrize("threads", [2, 3])
def test_fused_update_on_threads(threads: int) -> None:
    case = Fused(tier1=16, page_bytes=512 << 10, pages=4, missing=1000, first_column=5)
    arrays, target = case.arrays(), blank(16, case.page_bytes)
    case.update(arrays, target, HostKernels(threads=threads))
    after, expected = case.expected()
    assert same(case.pages_of(arrays), case.pages_of(after))
    assert same(target, expected)


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
    """Everything before the point is done; behind it data of one strip are, at most as much as a call holds differences of,
    and no parity."""
    case = Fused(tier1=16, page_bytes=160000, pages=21, missing=0, first_column=6)
    arrays, target = case.arrays(), blank(16, case.page_bytes)
    after, parity = case.expected()
    cut = int(progress * (case.page_bytes // 4)) * 4
    done, before = case.pages_of(after), case.pages_of(case.arrays())
    with parked(lambda park: case.update(arrays, target, parity_park=park), progress):
        now = case.pages_of(arrays)
        changed = [np.flatnonzero(page != old) for page, old in zip(now, before, strict=True)]
        stop = 1 + max(int(bytes_[-1]) for bytes_ in changed if bytes_.size)
        assert same(now, torn_at(stop, done, before))
        assert cut < stop <= cut + STRIP_BYTES or stop == cut == case.page_bytes
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
