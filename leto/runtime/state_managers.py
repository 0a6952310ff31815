"""Starting a rank's state manager as a process of the node agent."""

from __future__ import annotations

import os
import select
from pathlib import Path

from leto.core.errors import JobError
from leto.memory.state_manager import READY, ManagerSpec, command
from leto.runtime.process import Spawned

_END_S = 1.0
"""A manager that fails closes its end of the pipe a moment before it is dead."""


def start_state_manager(socket_path: Path, spec: ManagerSpec, *, log_path: Path, timeout_s: float) -> Spawned:
    """Returns once it serves ``socket_path``, whose folder must have mode 0700. It ends by SIGTERM, or with this process.

    Raises JobError with the manager's last log line when it does not come up.
    """
    name = f"state manager of rank {spec.rank}"
    ready, ready_in_child = os.pipe2(os.O_CLOEXEC)
    try:
        argv = command(socket_path, spec, parent_pid=os.getpid(), ready_fd=ready_in_child)
        try:
            process = Spawned.start(name, argv, log_path=log_path, pass_fds=[ready_in_child])
        finally:
            os.close(ready_in_child)
        if not _is_ready(ready, timeout_s):
            late = "" if process.ended(_END_S) else f"was not ready in {timeout_s:g} s and "
            process.stop(timeout_s)
            message = f"{name} {late}{process.describe_end()}"
            process.close()
            raise JobError(message)
    finally:
        os.close(ready)
    return process


def _is_ready(ready_fd: int, timeout_s: float) -> bool:
    """False at the deadline, and when the manager ended without a word."""
    poller = select.poll()
    poller.register(ready_fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000)) and os.read(ready_fd, len(READY)) == READY
