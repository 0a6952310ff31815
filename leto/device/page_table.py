"""What this process has mapped, as its page table says: PAGEMAP_SCAN of Linux 6.7, which touches no page.

A page that is lost is taken out of every page table: by the kernel when its memory fails, and by whoever poisons or unmaps it.
So a page that is in the table is there, and only of others the question is why not. Asking the table costs about a millisecond
for 2 GiB, asking about every page (MADV_POPULATE_READ) a hundred times as much.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator

_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_PAGE_IS_PRESENT = 1 << 3
_UNKNOWN_TO_OLDER_KERNELS = (errno.ENOTTY, errno.EINVAL)


class _Region(ctypes.Structure):
    """struct page_region"""

    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "end", "categories")]


class _Scan(ctypes.Structure):
    """struct pm_scan_arg"""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    ]


class PageTable:
    """Of the process that makes this object; a fork asks about its parent's."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        self._run = _Region()
        self._scan = _Scan(
            size=ctypes.sizeof(_Scan),
            vec=ctypes.addressof(self._run),
            vec_len=1,
            category_mask=_PAGE_IS_PRESENT,
            return_mask=_PAGE_IS_PRESENT,
        )

    def absent(self, address: int, byte_count: int) -> Iterator[tuple[int, int]]:
        """(address, byte_count) of what the table does not hold, in order; the whole range where the kernel does not tell."""
        end = address + byte_count
        while address < end:
            first, stop = self._present(address, end)
            if first > address:
                yield address, first - address
            address = stop

    def _present(self, address: int, end: int) -> tuple[int, int]:
        """[first, stop) of the first run of pages that are in the table, ``end`` twice where there is none.

        Ranges that nothing is mapped in are in no run.
        """
        self._scan.start, self._scan.end = address, end
        try:
            runs = fcntl.ioctl(self._fd, _PAGEMAP_SCAN, self._scan)
        except OSError as error:
            if error.errno not in _UNKNOWN_TO_OLDER_KERNELS:
                raise
            runs = 0
        return (self._run.start, self._run.end) if runs else (end, end)

    def close(self) -> None:
        os.close(self._fd)
