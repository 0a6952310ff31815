"""Finding lost pages by asking about ranges: both searches agree, and ask no more than they need."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.geometry import OS_PAGE_BYTES, Page
from leto.core.layout import DECISION_OFFSET, Allocation, Domain, PageClass, control_page, marker_page_offset
from leto.device import host, page_table
from leto.device.host import HostArena
from leto.device.linux import map_over, unmap
from leto.memory.localise import by_halving, page_by_page
from leto.memory.retained_state import RetainedState

PAGE_BYTES = 64


class Memory:
    """An allocation at ``offset`` with lost bytes, which counts how often it is asked."""

    def __init__(self, offset: int, byte_count: int, lost: set[int]) -> None:
        self.offset, self.byte_count, self.lost = offset, byte_count, lost
        self.questions = 0

    def has_lost(self, offset: int, byte_count: int) -> bool:
        assert byte_count > 0
        assert self.offset <= offset and offset + byte_count <= self.offset + self.byte_count, "asked beyond the allocation"
        self.questions += 1
        return any(offset <= self.offset + byte < offset + byte_count for byte in self.lost)


@given(st.data(), st.integers(1, 40 * PAGE_BYTES), st.integers(0, 1000))
def test_both_searches_find_the_pages_of_all_lost_bytes(data: st.DataObject, byte_count: int, offset: int) -> None:
    lost = data.draw(st.sets(st.integers(0, byte_count - 1), max_size=5))
    expected = sorted({byte // PAGE_BYTES for byte in lost})
    memory = Memory(offset, byte_count, lost)
    assert list(page_by_page(memory.has_lost, offset, byte_count, PAGE_BYTES)) == expected
    assert memory.questions == -(-byte_count // PAGE_BYTES)
    assert list(by_halving(memory.has_lost, offset, byte_count, PAGE_BYTES)) == expected


def test_halving_asks_once_where_nothing_is_lost_and_a_path_where_one_page_is() -> None:
    memory = Memory(0, 1024 * PAGE_BYTES, set())
    assert list(by_halving(memory.has_lost, 0, 1024 * PAGE_BYTES, PAGE_BYTES)) == []
    assert memory.questions == 1
    memory.lost.add(777 * PAGE_BYTES)
    assert list(by_halving(memory.has_lost, 0, 1024 * PAGE_BYTES, PAGE_BYTES)) == [777]
    assert memory.questions == 1 + 1 + 2 * 10


# What the kernel says of lost pages.

WHOLE = 4 * OS_PAGE_BYTES


def beyond_the_file(arena: HostArena, page: int = 1) -> None:
    empty = HostArena("leto-empty", OS_PAGE_BYTES)
    map_over(arena.address + page * OS_PAGE_BYTES, OS_PAGE_BYTES, empty.export(), OS_PAGE_BYTES)
    empty.close()


def unmapped(arena: HostArena) -> None:
    unmap(arena.address + OS_PAGE_BYTES, OS_PAGE_BYTES)


@pytest.mark.parametrize("lose", [beyond_the_file, unmapped])
def test_a_page_that_cannot_be_populated_is_lost(lose: Callable[[HostArena], None]) -> None:
    arena = HostArena("leto-test", WHOLE)
    assert not arena.has_lost(0, WHOLE)
    lose(arena)
    assert [arena.has_lost(k * OS_PAGE_BYTES, OS_PAGE_BYTES) for k in range(4)] == [False, True, False, False]
    assert arena.has_lost(0, WHOLE)
    arena.close()


def never(address: int, byte_count: int) -> int:
    raise AssertionError(f"asked about {byte_count} bytes that are in the page table")


def test_only_what_the_page_table_does_not_hold_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena("leto-test", WHOLE)
    arena.populate(0, WHOLE)
    monkeypatch.setattr(host, "populate_read", never)
    assert not arena.has_lost(0, WHOLE)
    arena.discard(OS_PAGE_BYTES, OS_PAGE_BYTES)
    assert not arena.has_lost(2 * OS_PAGE_BYTES, 2 * OS_PAGE_BYTES)
    for first, count in ((0, 2), (1, 1), (0, 4), (1, 3)):
        with pytest.raises(AssertionError, match=f"asked about {OS_PAGE_BYTES} bytes"):
            arena.has_lost(first * OS_PAGE_BYTES, count * OS_PAGE_BYTES)
    arena.close()


@given(st.sets(st.integers(0, 15), max_size=16), st.sets(st.integers(0, 15), max_size=3))
def test_the_page_table_does_not_hold_what_is_discarded_or_gone(discarded: set[int], gone: set[int]) -> None:
    arena = HostArena("leto-test", 16 * OS_PAGE_BYTES)
    arena.populate(0, 16 * OS_PAGE_BYTES)
    for page in discarded:
        arena.discard(page * OS_PAGE_BYTES, OS_PAGE_BYTES)
    for page in gone:
        beyond_the_file(arena, page)
    table = page_table.PageTable()
    absent = list(table.absent(arena.address, 16 * OS_PAGE_BYTES))
    table.close()
    pages = [(address - arena.address) // OS_PAGE_BYTES + k for address, size in absent for k in range(size // OS_PAGE_BYTES)]
    assert pages == sorted(discarded | gone)
    assert [arena.has_lost(k * OS_PAGE_BYTES, OS_PAGE_BYTES) for k in range(16)] == [k in gone for k in range(16)]
    arena.close()


def test_the_first_localisation_finds_everything_in_the_page_table(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RetainedState(0, WHOLE, WHOLE, OS_PAGE_BYTES)
    classes = (PageClass.CODED, PageClass.TIER1)
    state.allocate("layout", [Allocation(name=c.value, page_class=c, byte_count=WHOLE) for c in classes])
    monkeypatch.setattr(host, "populate_read", never)
    assert state.localise() == 0
    state.close()


@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EINVAL])
def test_a_kernel_that_does_not_tell_what_is_in_the_table_is_asked_about_all(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(number, "")

    monkeypatch.setattr(page_table.fcntl, "ioctl", refuse)
    arena = HostArena("leto-test", WHOLE)
    arena.populate(0, WHOLE)
    assert not arena.has_lost(0, WHOLE)
    unmapped(arena)
    assert arena.has_lost(0, WHOLE)
    arena.close()


@pytest.mark.parametrize("number", [133, errno.EFAULT, errno.ENOMEM, errno.EINVAL])
def test_the_errnos_of_a_lost_page(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena("leto-test", WHOLE)
    monkeypatch.setattr(host, "populate_read", lambda address, byte_count: number)
    assert arena.has_lost(0, WHOLE)
    arena.close()


def test_an_interrupted_question_is_asked_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena("leto-test", WHOLE)
    answers = iter([errno.EINTR, errno.EAGAIN, 0])
    monkeypatch.setattr(host, "populate_read", lambda address, byte_count: next(answers))
    assert not arena.has_lost(0, WHOLE)
    monkeypatch.setattr(host, "populate_read", lambda address, byte_count: errno.EAGAIN)
    with pytest.raises(OSError, match="leto-test: cannot localise 16384 bytes at 0"):
        arena.has_lost(0, WHOLE)
    arena.close()


def test_any_other_errno_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena("leto-test", WHOLE)
    monkeypatch.setattr(host, "populate_read", lambda address, byte_count: errno.EPERM)
    with pytest.raises(OSError, match="Operation not permitted"):
        arena.has_lost(0, WHOLE)
    arena.close()


def test_lost_pages_of_the_control_arena_are_named_and_left_as_they_are() -> None:
    """Those of this epoch: marks of an older one are nobody's concern any more."""
    state = RetainedState(0, OS_PAGE_BYTES, OS_PAGE_BYTES, OS_PAGE_BYTES)
    state.advance(1)
    state.advance(2)
    arena = state.arenas[Domain.CONTROL]
    slot, mirror, older = (offset // OS_PAGE_BYTES for offset in (DECISION_OFFSET, *(marker_page_offset(e, 1) for e in (2, 1))))
    for page in (slot, mirror, older):
        unmap(arena.address + page * OS_PAGE_BYTES, OS_PAGE_BYTES)
    assert state.localise() == 0
    for _ in range(2):
        assert state.lost_control() == (slot, mirror)
    assert control_page(2, slot) == Page("control", 1)
    assert control_page(2, mirror) == Page("markers", 1)
    state.close()
