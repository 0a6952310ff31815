"""The few Linux calls that Python does not offer, each with its errno turned into OSError."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def die_with_parent(parent_pid: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``death_signal`` when the thread that created this process ends.

    A parent that is already gone sent nothing, so its pid is compared afterwards: then this process ends at once. The kernel
    watches the creating thread, not the parent process: parents create processes from a thread that lives as long as they do.
    """
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(128 + death_signal)


def punch_hole(fd: int, offset: int, byte_count: int) -> None:
    """The range of the file reads as zeros afterwards, through every mapping, and costs no memory."""
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    _check(_LIBC.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(byte_count)), "fallocate(PUNCH_HOLE)")
