"""Every implementation of the code's kernels, behind one Protocol, for the suites that must hold for all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leto.core import reed_solomon
from leto.device.base import CodeShape
from leto.device.host_kernels import HostKernels

Page = npt.NDArray[np.uint8]


def addresses(pages: Sequence[npt.NDArray[np.generic]]) -> list[int]:
    return [page.ctypes.data for page in pages]


def blank(count: int, page_bytes: int) -> list[Page]:
    """Pages full of a value that no kernel may leave in its target by accident."""
    return [np.full(page_bytes, 0xA5, np.uint8) for _ in range(count)]


def random_pages(rng: np.random.Generator, count: int, page_bytes: int) -> list[Page]:
    return [rng.integers(0, 256, page_bytes, dtype=np.uint8) for _ in range(count)]


def same(left: Sequence[Page], right: Sequence[Page]) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


class ReferenceKernels:
    """The readable definition over addresses, as native kernels see them."""

    def copy_pages(self, source: Sequence[int], target: Sequence[int], page_bytes: int) -> None:
        for from_, to in zip(source, target, strict=True):
            _page(to, page_bytes)[:] = _page(from_, page_bytes)

    def encode(self, shape: CodeShape, columns: Sequence[int], data: Sequence[int], target: Sequence[int]) -> None:
        _store(target, reed_solomon.encode(shape.tier1_pages, columns, _pages(data, shape)))

    def update_parity(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        undo: Sequence[int],
        data: Sequence[int],
        parity: Sequence[int],
        target: Sequence[int],
    ) -> None:
        old, new = _pages(undo, shape), _pages(data, shape)
        _store(target, reed_solomon.update(shape.tier1_pages, columns, old, new, _pages(parity, shape)))

    def reconstruct(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        data: Sequence[int],
        lost_columns: Sequence[int],
        target: Sequence[int],
        rows: Sequence[int],
        parity: Sequence[int],
    ) -> None:
        known, survivors = _pages(data, shape), _pages(parity, shape)
        _store(target, reed_solomon.reconstruct(shape.tier1_pages, columns, known, lost_columns, rows, survivors))

    def xor_pages(self, source: Sequence[int], target: int, page_bytes: int) -> None:
        _page(target, page_bytes)[:] = reed_solomon.xor_pages([_page(a, page_bytes) for a in source])

    def equal_pages(self, left: Sequence[int], right: Sequence[int], page_bytes: int) -> list[int]:
        pairs = zip(left, right, strict=True)
        return [k for k, (a, b) in enumerate(pairs) if not np.array_equal(_page(a, page_bytes), _page(b, page_bytes))]

    def fill(self, address: int, byte_count: int, pattern: int) -> None:
        _page(address, byte_count).view(np.uint32)[:] = pattern

    def publish(self, addresses: Sequence[int], value: int) -> None:
        for address in addresses:
            _page(address, 8).view(np.uint64)[0] = value


Backend = ReferenceKernels | HostKernels
BACKENDS: list[Backend] = [ReferenceKernels(), HostKernels()]
BACKEND_NAMES = ["reference", "host"]


def _page(address: int, byte_count: int) -> Page:
    return np.ctypeslib.as_array((ctypes.c_uint8 * byte_count).from_address(address))


def _pages(addresses: Sequence[int], shape: CodeShape) -> list[Page]:
    return [_page(address, shape.page_bytes) for address in addresses]


def _store(target: Sequence[int], pages: Sequence[Page]) -> None:
    for address, page in zip(target, pages, strict=True):
        _page(address, page.size)[:] = page
