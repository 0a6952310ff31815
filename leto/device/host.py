"""Host memory that stands for a device's: one memfd an arena, a page's handle is its offset.

The state manager imports this module, so it must stay free of numpy and native code at import time.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from leto.core.errors import RetainedStateError
from leto.core.geometry import OS_PAGE_BYTES
from leto.device.linux import punch_hole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Missing from the fcntl module of Python 3.11.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4


class HostArena:
    """Owner of one memfd of fixed size (Arena). The file is sparse: pages cost memory once they are written.

    It is sealed against resizing, because a holder of the descriptor that shrinks the file would turn the pages of every
    other process into SIGBUS. The owner never maps it.
    """

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self._name = name
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, capacity_bytes)
        fcntl.fcntl(self._fd, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def create(self, byte_count: int) -> int:
        if byte_count <= 0 or byte_count % OS_PAGE_BYTES:
            raise RetainedStateError(f"{self._name}: {byte_count} bytes is not a positive multiple of {OS_PAGE_BYTES}")
        free_bytes = self._capacity_bytes - self._used_bytes
        if byte_count > free_bytes:
            raise RetainedStateError(f"{self._name}: {byte_count} bytes asked, {free_bytes} of {self._capacity_bytes} are free")
        handle = self._used_bytes
        self._used_bytes += byte_count
        return handle

    def discard(self, handle: int, byte_count: int) -> None:
        """Give the pages' memory back; they read as zeros until they are written again."""
        punch_hole(self._fd, handle, byte_count)

    def export(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HostMapping:
    """An exported arena mapped into this process (Mapping), and into no child of it.

    A forked helper, such as a data-loader worker, would go on writing retained memory after the trainer's death has been
    seen; MADV_DONTFORK keeps the mapping out of it (U5).
    """

    def __init__(self, fd: int) -> None:
        """Maps the whole file; the caller keeps ``fd`` and may close it."""
        self._byte_count = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, self._byte_count)
        self._memory.madvise(mmap.MADV_DONTFORK)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @property
    def address(self) -> int:
        assert not self._memory.closed, "the mapping is closed"
        return self._address

    @property
    def byte_count(self) -> int:
        return self._byte_count

    def bytes_at(self, offset: int, byte_count: int) -> npt.NDArray[np.uint8]:
        """A writable view; while it lives the mapping cannot be closed."""
        import numpy as np  # not at module level: the state manager imports this module and never reads contents

        return np.frombuffer(self._memory, dtype=np.uint8, count=byte_count, offset=offset)

    def close(self) -> None:
        """Raises BufferError while views are alive: they would read unmapped memory."""
        self._memory.close()
