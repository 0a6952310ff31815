"""Processes: start them with a pidfd, see them end, and fence a whole process group.

A pidfd is the authority on death: it becomes readable when every thread of the process is gone and its memory is torn down.
A signal that was sent proves nothing (INV-F).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leto.core.errors import JobError
from leto.device.linux import die_with_parent

__all__ = ["Spawned", "describe_code", "die_with_parent", "kill_group", "last_line", "wait_pidfd"]

_TAIL_BYTES = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Spawned:
    """A subprocess of this process, leader of its own session and process group. ``log_path`` gets stdout and stderr.

    Start it from a thread that lives as long as the job: children that die with their parent watch that thread.
    """

    name: str
    log_path: Path
    pidfd: int
    _log_begin: int
    _popen: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> Spawned:
        """Appends to the log. Raises JobError when the program cannot be started."""
        try:
            with log_path.open("ab") as log:
                log_begin = log.tell()
                popen = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, pass_fds=pass_fds, start_new_session=True
                )
        except OSError as error:
            raise JobError(f"{name}: cannot start: {error}") from None
        return cls(name=name, log_path=log_path, pidfd=os.pidfd_open(popen.pid), _log_begin=log_begin, _popen=popen)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal's number for a killed process, None while it runs. Reaps it."""
        return self._popen.poll()

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it ends within ``timeout_s``. Does not reap it."""
        return wait_pidfd(self.pidfd, timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Its return code. Raises JobError at the deadline."""
        if not self.ended(timeout_s):
            raise JobError(f"{self.name} (pid {self.pid}) did not end within {timeout_s:g} s")
        return self._popen.wait()

    def stop(self, timeout_s: float) -> None:
        """Ask for an orderly end, and after ``timeout_s`` kill the whole group. Raises JobError when even that fails."""
        if self.returncode is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            if not self.ended(timeout_s):
                kill_group(self.pid, timeout_s)
        self.wait(timeout_s)

    def close(self) -> None:
        """The process must have ended."""
        assert self.returncode is not None, f"{self.name} still runs"
        os.close(self.pidfd)

    def describe_end(self) -> str:
        """For error messages: how it ended and its last words."""
        code = self.returncode
        how = "still runs" if code is None else describe_code(code)
        return f"{how}; last log line: {last_line(self.log_path, self._log_begin) or 'none'} ({self.log_path})"


def describe_code(returncode: int) -> str:
    return f"ended with exit code {returncode}" if returncode >= 0 else f"was killed by {signal.Signals(-returncode).name}"


def wait_pidfd(pidfd: int, timeout_s: float) -> bool:
    """Whether the process has ended, waiting at most ``timeout_s`` for it."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(timeout_s, 0.0) * 1000))


def kill_group(group: int, timeout_s: float) -> None:
    """SIGKILL the process group and return once no thread of it runs any more: the fence of INV-F.

    A member that nobody has reaped yet counts as gone when its pidfd says so. Processes that left the group (setsid) are not
    found; retained mappings are not inherited by them (U5). Raises JobError when a member is still alive at the deadline.

    Call it before the group's leader is reaped, or soon after: a number that belongs to no process may be given away again.
    """
    assert group not in (0, 1, os.getpgrp()), f"group {group} is not one to kill"
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(ProcessLookupError):  # the group is empty already
            os.killpg(group, signal.SIGKILL)
        alive = _live_members(group)
        if not alive:
            return
        try:
            for pid, pidfd in alive.items():
                with contextlib.suppress(ProcessLookupError):  # dead by now; else it may have joined after the signal above
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                if not wait_pidfd(pidfd, deadline - time.monotonic()):
                    raise JobError(f"process {pid} of group {group} outlived SIGKILL by {timeout_s:g} s")
        finally:
            for pidfd in alive.values():
                os.close(pidfd)


def _live_members(group: int) -> dict[int, int]:
    """pid -> pidfd of every process of the group that has not ended."""
    alive: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or _group_of(int(name)) != group:
            continue
        try:
            pidfd = os.pidfd_open(int(name))
        except ProcessLookupError:  # reaped since it was listed
            continue
        # Ask the pidfd, not the state letter: a leader that exited reads as a zombie while its threads still run.
        if wait_pidfd(pidfd, 0):
            os.close(pidfd)
        else:
            alive[int(name)] = pidfd
    return alive


def _group_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[2])  # the name before it may hold anything


def last_line(path: Path, begin: int = 0) -> str:
    """The last line with text of a log from byte ``begin`` on, for error messages; empty when there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(begin, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")
