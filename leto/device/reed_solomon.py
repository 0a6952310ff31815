"""``leto.ReedSolomon``: the erasure code of one group for any caller, on the fastest kernels this processor has.

Pages are ``page_bytes`` long. A list of them is a C-contiguous uint8 array [pages, page_bytes], any other contiguous buffer of
as many bytes (``bytearray``, ``mmap``, ``memoryview``), or a sequence of page addresses, which is used as it is: nothing is
copied, and the caller keeps that memory mapped, 4-byte aligned and unshared with other writers until the call returns.

The bytes are those of ``leto.core.reed_solomon``, whichever processor computes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from leto import _kernels
from leto.core.errors import Unrecoverable
from leto.device.host_kernels import thread_scratch

MAX_DATA_PAGES = 4096
MAX_PARITY_PAGES = 16
PAGE_UNIT_BYTES = 64
MAX_PAGE_BYTES = 4 << 20
WORD_BYTES = 4

Array: TypeAlias = npt.NDArray[np.uint8]
Pages: TypeAlias = "Array | bytes | bytearray | memoryview | Sequence[int]"


class ReedSolomon:
    """A systematic code of up to ``data_pages`` data and ``parity_pages`` parity pages: any ``parity_pages`` erasures decode.

    ``page_bytes`` is a multiple of 64, at most 4 MiB; data_pages is at most 4096, parity_pages at most 16. ``threads`` is how
    many threads a call uses, None for as many as this process may run on. Objects are immutable and may be shared by threads.
    A group may hold fewer than ``data_pages`` pages: absent columns are zeros and cost nothing.

    Every method raises ValueError, having written nothing, when arguments do not fit the code: a wrong shape or type, a
    column that repeats or lies outside, memory that is read-only or overlaps other pages where the method writes.
    """

    def __init__(self, data_pages: int, parity_pages: int, page_bytes: int, *, threads: int | None = None) -> None:
        _require_between("data_pages", data_pages, 1, MAX_DATA_PAGES)
        _require_between("parity_pages", parity_pages, 1, MAX_PARITY_PAGES)
        _require_between("page_bytes", page_bytes, PAGE_UNIT_BYTES, MAX_PAGE_BYTES)
        if page_bytes % PAGE_UNIT_BYTES:
            raise ValueError(f"page_bytes is {page_bytes}; it must be a multiple of {PAGE_UNIT_BYTES}")
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if threads < 1:
            raise ValueError(f"threads is {threads}; it must be at least 1")
        self._data_pages = data_pages
        self._parity_pages = parity_pages
        self._page_bytes = page_bytes
        self._threads = threads

    def encode(self, data: Pages, out: Array | bytearray | memoryview | Sequence[int] | None = None) -> Pages:
        """Parity [parity_pages] of the data [at most data_pages], written to ``out``, or to a new array; returns it."""
        if out is None:
            out = np.empty((self._parity_pages, self._page_bytes), np.uint8)
        source = self._data("data", data)
        target = self._parity("out", out, written=True)
        _refuse_overlap([source], [target])
        _kernels.encode(*self._run, range(len(source.addresses)), source.addresses, target.addresses)
        return out

    def update(self, parity_in: Pages, parity_out: Pages, columns: Sequence[int], delta: Pages) -> None:
        """``parity_out`` <- the parity after the pages at ``columns`` changed by ``delta`` = old xor new, one page a column.

        ``parity_in`` is only read: parity of the state before stays whole until somebody decides that the new one counts.
        """
        columns = self._positions("columns", columns, self._data_pages)
        old = self._parity("parity_in", parity_in)
        new = self._parity("parity_out", parity_out, written=True)
        change = self._pages("delta", delta)
        if len(change.addresses) != len(columns):
            raise ValueError(f"delta has {len(change.addresses)} pages for {len(columns)} columns")
        _refuse_overlap([old, change], [new])
        _kernels.update_parity(*self._run, columns, [], change.addresses, old.addresses, new.addresses)

    def reconstruct(self, data: Pages, parity: Pages, erased_data: Sequence[int], erased_parity: Sequence[int] = ()) -> None:
        """Repairs the pages of ``data`` and ``parity`` at these positions in place, whatever they hold; others are only read.

        Raises Unrecoverable, having written nothing, when more than parity_pages pages are erased. With fewer, the spare rows
        must agree with the result (U16), else Unrecoverable; the erased pages are then not to be trusted. With exactly
        parity_pages erasures no check is possible.
        """
        pages = self._data("data", data, written=True)
        rows = self._parity("parity", parity, written=True)
        lost = self._positions("erased_data", erased_data, len(pages.addresses))
        lost_rows = self._positions("erased_parity", erased_parity, self._parity_pages)
        _refuse_overlap([], [pages, rows])
        if len(lost) + len(lost_rows) > self._parity_pages:
            raise Unrecoverable(
                f"{len(lost)} data and {len(lost_rows)} parity pages are lost, {self._parity_pages} of them together solvable"
            )
        contradicting = self._reconstruct(pages.addresses, rows.addresses, lost, lost_rows)
        if contradicting >= 0:
            raise Unrecoverable(f"spare parity row {contradicting} contradicts the data with {len(lost)} pages reconstructed")

    def check(self, data: Pages, parity: Pages) -> bool:
        """Whether ``parity`` is the parity of ``data``: every row is compared, neither is written (U16, U55)."""
        pages, rows = self._data("data", data), self._parity("parity", parity)
        return self._reconstruct(pages.addresses, rows.addresses, [], []) < 0

    @property
    def _run(self) -> tuple[_kernels.Scratch, int, int, int]:
        return thread_scratch(), self._threads, self._page_bytes, self._parity_pages

    def _reconstruct(self, data: list[int], parity: list[int], lost: list[int], lost_rows: list[int]) -> int:
        kept, rows = _without(len(data), lost), _without(len(parity), lost_rows)
        return _kernels.reconstruct(
            *self._run,
            kept,
            [data[k] for k in kept],
            lost,
            [data[k] for k in lost],
            rows,
            [parity[j] for j in rows],
            lost_rows,
            [parity[j] for j in lost_rows],
        )

    def _data(self, name: str, pages: Pages, *, written: bool = False) -> _Memory:
        memory = self._pages(name, pages, written=written)
        if not 1 <= len(memory.addresses) <= self._data_pages:
            raise ValueError(f"{name} has {len(memory.addresses)} pages; a group has 1 to {self._data_pages}")
        return memory

    def _parity(self, name: str, pages: Pages, *, written: bool = False) -> _Memory:
        memory = self._pages(name, pages, written=written)
        if len(memory.addresses) != self._parity_pages:
            raise ValueError(f"{name} has {len(memory.addresses)} pages; the code has {self._parity_pages} parity pages")
        return memory

    def _pages(self, name: str, pages: Pages, *, written: bool = False) -> _Memory:
        if isinstance(pages, np.ndarray):
            return _of_array(name, pages, self._page_bytes, written)
        if isinstance(pages, Sequence) and not isinstance(pages, bytes | bytearray | memoryview):
            return _of_addresses(name, pages, self._page_bytes)
        return _of_array(name, _of_buffer(name, pages, self._page_bytes), self._page_bytes, written)

    def _positions(self, name: str, positions: Sequence[int], count: int) -> list[int]:
        chosen = [int(position) for position in positions]
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"{name} repeats a position")
        if outside := [position for position in chosen if not 0 <= position < count]:
            raise ValueError(f"{name} names {outside[0]}; positions are 0 to {count - 1}")
        return chosen


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """An argument's pages. ``extents`` are the (first byte, length) ranges that they lie in, for comparing arguments."""

    name: str
    addresses: list[int]
    extents: list[tuple[int, int]]


def _of_array(name: str, array: npt.NDArray[np.generic], page_bytes: int, written: bool) -> _Memory:
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != page_bytes or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is {array.dtype} {list(array.shape)}{'' if array.flags.c_contiguous else ', not C-contiguous'}; "
            f"it must be uint8 [pages, {page_bytes}], C-contiguous"
        )
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only, but the call writes it")
    first = array.ctypes.data
    if first % WORD_BYTES:
        raise ValueError(f"{name} starts at an address that is not a multiple of {WORD_BYTES}")
    addresses = [first + page * page_bytes for page in range(array.shape[0])]
    return _Memory(name=name, addresses=addresses, extents=[(first, array.nbytes)])


def _of_addresses(name: str, pages: Sequence[int], page_bytes: int) -> _Memory:
    addresses = [int(address) for address in pages]
    if bad := [address for address in addresses if address <= 0 or address % WORD_BYTES]:
        raise ValueError(f"{name} holds {bad[0]:#x}, which is no address of a page: a positive multiple of {WORD_BYTES}")
    return _Memory(name=name, addresses=addresses, extents=[(address, page_bytes) for address in addresses])


def _of_buffer(name: str, buffer: bytes | bytearray | memoryview, page_bytes: int) -> Array:
    try:
        flat = np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise ValueError(f"{name} is neither an array, a contiguous buffer nor a sequence of addresses: {error}") from None
    if flat.size % page_bytes:
        raise ValueError(f"{name} has {flat.size} bytes, which is not a multiple of the page's {page_bytes}")
    return flat.reshape(-1, page_bytes)


def _refuse_overlap(read: Sequence[_Memory], written: Sequence[_Memory]) -> None:
    """Raises ValueError when written memory overlaps anything else. Memory that is only read may overlap."""
    ranges = sorted(
        (first, first + length, memory.name, writes)
        for writes, memories in ((False, read), (True, written))
        for memory in memories
        for first, length in memory.extents
    )
    furthest = {False: (0, ""), True: (0, "")}  # where the read and the written memory so far ends, and whose it is
    for first, stop, name, writes in ranges:
        for other_writes in (False, True) if writes else (True,):
            if first < furthest[other_writes][0]:
                raise ValueError(f"{name} overlaps {furthest[other_writes][1]}, but the call writes one of them")
        furthest[writes] = max(furthest[writes], (stop, name))


def _without(count: int, positions: Sequence[int]) -> list[int]:
    left_out = set(positions)
    return [position for position in range(count) if position not in left_out]


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be {low} to {high}")
