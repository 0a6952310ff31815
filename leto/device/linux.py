"""The Linux calls on processes that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for ``death_signal`` when the thread that created this process ends.

    A parent that is already gone sent nothing, so its pid is compared afterwards: then this process ends at once. The kernel
    watches the creating thread, not the parent process: parents create processes from a thread that lives as long as they do.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != parent_pid:
        os._exit(128 + death_signal)
