"""userfaultfd from Python, as far as poisoning pages needs it. Light: it is imported in state managers.

``UFFDIO_POISON`` makes pages of one mapping of one process answer every access with SIGBUS, as pages with an uncorrectable
memory error do, and needs no privilege (kernel 6.6). A userfaultfd speaks of the process that created it, wherever it is used.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_USER_MODE_ONLY = 1
_UFFD_API = 0xAA
_FEATURE_POISON = 1 << 14
_MODE_MISSING = 1

_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_UFFDIO_UNREGISTER = 0x8010AA01
_UFFDIO_POISON = 0xC020AA08

_API = struct.Struct("QQQ")  # api, features, ioctls
_RANGE = struct.Struct("QQ")  # start, byte count
_REGISTER = struct.Struct("QQQQ")  # range, mode, ioctls
_POISON = struct.Struct("QQQq")  # range, mode, bytes done or minus errno

_MAX_TRIES = 1000


class Userfaultfd:
    """A userfaultfd that this process holds. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> Userfaultfd:
        """For this process's memory. Raises OSError where the kernel has no such thing, or cannot poison."""
        number = _SYS_USERFAULTFD.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, f"userfaultfd: its number on {platform.machine()} is not known")
        fd = _LIBC.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _UFFD_USER_MODE_ONLY)
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"userfaultfd: {os.strerror(code)}")
        try:
            fcntl.ioctl(fd, _UFFDIO_API, _API.pack(_UFFD_API, _FEATURE_POISON, 0))
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, f"userfaultfd cannot poison pages: {error.strerror}") from None
        return cls(fd)

    def register(self, address: int, byte_count: int) -> None:
        """From now on a thread that touches a missing page of the range waits; only ``poison`` needs it."""
        fcntl.ioctl(self.fd, _UFFDIO_REGISTER, bytearray(_REGISTER.pack(address, byte_count, _MODE_MISSING, 0)))

    def unregister(self, address: int, byte_count: int) -> None:
        """Lets waiting threads go on; what is poisoned stays poisoned."""
        fcntl.ioctl(self.fd, _UFFDIO_UNREGISTER, _RANGE.pack(address, byte_count))

    def poison(self, address: int, byte_count: int, clear: Callable[[], None]) -> None:
        """Poison a registered range, in which no page may be present. ``clear`` takes away what somebody brought back."""
        done = 0
        for _ in range(_MAX_TRIES):
            request = bytearray(_POISON.pack(address + done, byte_count - done, 0, 0))
            try:
                fcntl.ioctl(self.fd, _UFFDIO_POISON, request)
                return
            except OSError as error:
                if error.errno == errno.EEXIST:
                    clear()
                elif error.errno == errno.EAGAIN:  # the mapping was changing; a part may be done
                    done += max(_POISON.unpack(request)[3], 0)
                else:
                    raise
        raise OSError(errno.EAGAIN, f"{byte_count - done} of {byte_count} bytes at {address:#x} could not be poisoned")

    def close(self) -> None:
        os.close(self.fd)


def can_poison() -> str | None:
    """Why pages cannot be poisoned on this machine, None when they can."""
    try:
        Userfaultfd.create().close()
    except OSError as error:
        return str(error.strerror)
    return None
