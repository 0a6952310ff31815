"""The Linux calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PROT_READ = 1
_PROT_READ_WRITE = 3
_MAP_SHARED = 0x01
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ = 22
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2

_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def die_with_parent(parent_pid: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``death_signal`` when the thread that created this process ends.

    A parent that is already gone sent nothing, so its pid is compared afterwards, and this process sends the signal to itself.
    The kernel watches the creating thread, not the parent process: parents create processes from a thread that lives as long
    as they do.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise _error("prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), death_signal)


def map_over(address: int, byte_count: int, fd: int, offset: int) -> None:
    """Replace whatever this process has mapped there by a shared mapping of the file's range, in one step (MAP_FIXED)."""
    found = _LIBC.mmap(address, byte_count, _PROT_READ_WRITE, _MAP_SHARED | _MAP_FIXED, fd, offset)
    if found == _MAP_FAILED:
        raise _error(f"mmap of {byte_count} bytes at {address:#x}")


def map_unwritable(byte_count: int, fd: int) -> int:
    """The address of a shared, read-only mapping of the whole file, at a place the kernel chooses."""
    found = _LIBC.mmap(None, byte_count, _PROT_READ, _MAP_SHARED, fd, 0)
    if found == _MAP_FAILED:
        raise _error(f"mmap of {byte_count} bytes")
    return int(found)


def unmap(address: int, byte_count: int) -> None:
    if _LIBC.munmap(address, byte_count) != 0:
        raise _error(f"munmap of {byte_count} bytes at {address:#x}")


def populate_read(address: int, byte_count: int) -> int:
    """Make the range readable without reading it: 0, or the errno of the first page that cannot be (MADV_POPULATE_READ).

    Where a load would end the process by SIGBUS or SIGSEGV, this only says so.
    """
    return 0 if _LIBC.madvise(address, byte_count, _MADV_POPULATE_READ) == 0 else ctypes.get_errno()


def madvise(address: int, byte_count: int, advice: int) -> None:
    if _LIBC.madvise(address, byte_count, advice) != 0:
        raise _error(f"madvise({advice}) of {byte_count} bytes at {address:#x}")


def punch_hole(fd: int, offset: int, byte_count: int) -> None:
    """The file's range holds no memory any more and reads as zeros in every mapping."""
    if _LIBC.fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, byte_count) != 0:
        raise _error(f"punch of {byte_count} bytes at {offset}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
