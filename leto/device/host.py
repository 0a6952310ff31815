"""The embedded default device: "HBM" is a memfd, a handle is an offset into it. See ``leto.device.base`` for the contracts.

Imported by state managers, which never look at contents, so numpy is imported only by who asks for a view.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from leto.core.errors import RetainedStateError
from leto.core.geometry import OS_PAGE_BYTES
from leto.device.linux import madvise, map_over, map_unwritable, populate_read, punch_hole, unmap
from leto.device.page_table import PageTable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Missing from Python 3.11.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_MAP_NORESERVE = 0x4000
_EHWPOISON = 133

LOST_ERRNOS = frozenset({_EHWPOISON, errno.EFAULT, errno.ENOMEM, errno.EINVAL})
"""What populating says of a lost page: poisoned, beyond a file's end, unmapped, inaccessible."""
_MAX_INTERRUPTIONS = 1000


class HostArena:
    """Owner's side: one memfd of ``capacity_bytes``, handed out from the front in whole operating-system pages.

    The file has its full size from the start, so that a mapping made early also reaches what is created later; memory is
    used only where somebody writes. It is sealed against resizing: whoever shrank it would turn the pages of all others into
    SIGBUS. The owner's one mapping is never dereferenced; ``has_lost`` asks the kernel about it (paper 5.3, U51).
    Raises RetainedStateError where the system does not grant the size (RLIMIT_FSIZE, RLIMIT_AS).
    """

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._table = PageTable()
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, capacity_bytes)
            fcntl.fcntl(self._fd, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)
            self._address = map_unwritable(capacity_bytes, self._fd)
        except OSError as error:
            os.close(self._fd)
            self._table.close()
            raise RetainedStateError(f"{name}: an arena of {capacity_bytes} bytes is refused: {error.strerror}") from None
        madvise(self._address, capacity_bytes, mmap.MADV_DONTFORK)

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def address(self) -> int:
        """Of the owner's mapping of the whole arena: for who asks the kernel about pages, not for loads."""
        return self._address

    def create(self, byte_count: int) -> int:
        """cuMemCreate: the offset of ``byte_count`` zeroed bytes. Raises RetainedStateError when they do not fit."""
        if byte_count <= 0 or byte_count % OS_PAGE_BYTES:
            raise RetainedStateError(f"{self.name}: {byte_count} bytes is not a positive multiple of {OS_PAGE_BYTES}")
        free_bytes = self._capacity_bytes - self._used_bytes
        if byte_count > free_bytes:
            raise RetainedStateError(f"{self.name}: {byte_count} bytes wanted, {free_bytes} of {self._capacity_bytes} free")
        handle = self._used_bytes
        self._used_bytes += byte_count
        return handle

    def export(self) -> int:
        """cuMemExportToShareableHandle: the memfd, which the arena keeps owning."""
        return self._fd

    def discard(self, offset: int, byte_count: int) -> None:
        """Give back the memory of a range of whole pages: in every mapping it reads as zeros from now on."""
        try:
            punch_hole(self._fd, offset, byte_count)
        except OSError as error:
            raise OSError(
                error.errno, f"{self.name}: cannot discard {byte_count} bytes at {offset}: {error.strerror}"
            ) from None

    def populate(self, offset: int, byte_count: int) -> None:
        """Memory for the range, now and not when somebody writes it, in the owner's page table too: ``has_lost`` is quick then.

        Where there is none, whoever writes finds out.
        """
        populate_read(self._address + offset, byte_count)

    def has_lost(self, offset: int, byte_count: int) -> bool:
        """Whether a page of the range is lost, without touching it. Raises OSError when the kernel says something else."""
        absent = self._table.absent(self._address + offset, byte_count)
        return any(self._is_unpopulable(address - self._address, count) for address, count in absent)

    def _is_unpopulable(self, offset: int, byte_count: int) -> bool:
        for _ in range(_MAX_INTERRUPTIONS):
            number = populate_read(self._address + offset, byte_count)
            if number not in (errno.EINTR, errno.EAGAIN):
                break
        if number and number not in LOST_ERRNOS:
            raise OSError(number, f"{self.name}: cannot localise {byte_count} bytes at {offset}: {os.strerror(number)}")
        return number != 0

    def renew(self, offset: int, byte_count: int) -> None:
        """Fresh zero pages in place of lost ones (U19): whoever maps the range from now on reads zeros and can write."""
        self.discard(offset, byte_count)
        madvise(self._address + offset, byte_count, mmap.MADV_DONTNEED)

    def close(self) -> None:
        """cuMemRelease: the memory lives on while somebody else maps it."""
        if self._fd >= 0:
            unmap(self._address, self._capacity_bytes)
            os.close(self._fd)
            self._table.close()
            self._fd = -1


class HostRegion:
    """User's side: addresses of this process that never move, and what is mapped there.

    A region is scratch memory of this process alone until ``attach`` swaps retained pages in underneath (MAP_FIXED): tensors
    built on its addresses before stay valid, and before that nothing written to them can reach retained memory.
    """

    def __init__(self, byte_count: int) -> None:
        self._mmap = mmap.mmap(-1, byte_count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        self._byte_count = byte_count
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mmap))
        self._attached = False

    @property
    def address(self) -> int:
        assert not self._mmap.closed, "the region is closed"
        return self._address

    @property
    def byte_count(self) -> int:
        return self._byte_count

    @property
    def attached(self) -> bool:
        return self._attached

    def attach(self, fd: int, offset: int) -> None:
        """cuMemMap + cuMemSetAccess: the arena's bytes from ``offset`` on, shared. What the scratch memory held is gone.

        Children do not inherit the mapping: a forked helper would keep writing after the trainer itself is fenced (INV-F, U5).
        """
        map_over(self.address, self._byte_count, fd, offset)
        madvise(self._address, self._byte_count, mmap.MADV_DONTFORK)
        self._attached = True

    def drop(self) -> None:
        """Give back the scratch memory, which reads as zeros from now on. Does nothing once retained pages are attached."""
        if not self._attached:
            madvise(self.address, self._byte_count, mmap.MADV_DONTNEED)

    def bytes_at(self, offset: int, byte_count: int) -> npt.NDArray[np.uint8]:
        """A writable view of the range, flat uint8, valid across ``attach``. Drop all views before ``close``."""
        import numpy as np

        return np.frombuffer(self._mmap, np.uint8, byte_count, offset)

    def close(self) -> None:
        """cuMemUnmap + cuMemAddressFree: nothing is mapped any more. Raises BufferError while views are alive."""
        self._mmap.close()


class HostMapping(HostRegion):
    """A whole arena mapped at once, from a descriptor that stays the caller's."""

    def __init__(self, fd: int) -> None:
        super().__init__(os.fstat(fd).st_size)
        try:
            self.attach(fd, 0)
        except OSError:
            self.close()
            raise
