"""The agent's end of the fork server."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from leto.core.errors import JobError, LetoError, WireError
from leto.memory.wire import Channel, PeerClosed, close_all
from leto.runtime.fork_server import FORK_CODEC, SINGLE_THREAD, Exited, Forked, ForkRefused, ForkRequest, Ready
from leto.runtime.process import Spawned, kill_group, wait_pidfd

_KILL_TIMEOUT_S = 10.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class ForkedChild:
    """A process that the fork server made. ``pid`` is also its process group; ``pidfd`` is the caller's to close."""

    pid: int
    epoch: int
    pidfd: int
    log_path: Path

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the process itself is gone; helpers that it forked may still run."""
        return wait_pidfd(self.pidfd, timeout_s)

    def fence(self, timeout_s: float) -> None:
        """Kill it with everything it forked; on return nothing of it runs (INV-F). Raises JobError at the deadline."""
        kill_group(self.pid, timeout_s)
        if not self.ended():
            raise JobError(f"process {self.pid} is not in its own group: it cannot be fenced by it")

    def close(self) -> None:
        os.close(self.pidfd)


class ForkServer:
    """A fork server started by this process. Calls raise JobError, with the server's last log line, once it is gone."""

    def __init__(self, process: Spawned, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self._exits: dict[int, Exited] = {}
        self.preload_s = 0.0

    @classmethod
    def start(
        cls, preload: Sequence[str], *, log_path: Path, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> ForkServer:
        """Import and call every ``module:function`` of ``preload`` in a fresh process; ``env`` replaces this process's.

        Raises JobError with the last log line when a preload fails or takes longer than ``timeout_s``.
        """
        server = cls._spawn(preload, log_path, os.environ if env is None else env)
        try:
            ready, _ = server._await(Ready, timeout_s, "to preload " + ", ".join(preload))
        except LetoError:
            server.close(timeout_s)
            raise
        server.preload_s = ready.preload_s
        return server

    @classmethod
    def _spawn(cls, preload: Sequence[str], log_path: Path, env: Mapping[str, str]) -> ForkServer:
        channel, child_end = Channel.pair(FORK_CODEC)
        fd = child_end.fileno()
        argv = [
            sys.executable,
            "-uP",
            "-m",
            "leto.runtime.fork_server",
            "--channel-fd",
            str(fd),
            "--parent-pid",
            str(os.getpid()),
        ]
        argv += [part for path in preload for part in ("--preload", path)]
        try:
            process = Spawned.start("fork server", argv, log_path=log_path, pass_fds=[fd], env={**env, **SINGLE_THREAD})
        except JobError:
            channel.close()
            raise
        finally:
            child_end.close()
        return cls(process, channel)

    @property
    def process(self) -> Spawned:
        return self._process

    def fork(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        epoch: int,
        log_path: Path,
        fds: Sequence[int] = (),
        timeout_s: float,
    ) -> ForkedChild:
        """A child that runs ``target(arguments, fds)``; ``fds`` arrive as duplicates, in order, and stay the caller's here.

        Raises JobError when the server refuses: it has threads, the log cannot be opened, the epoch is older than the last.
        """
        request = ForkRequest(epoch=epoch, target=target, arguments=arguments, log_path=str(log_path))
        try:
            self._channel.send(request, fds, timeout_s=timeout_s)
        except PeerClosed:
            raise self._gone() from None
        forked, (pidfd,) = self._await(Forked, timeout_s, f"to fork {target}")
        self._exits.pop(forked.pid, None)  # of an earlier process with this number
        return ForkedChild(pid=forked.pid, epoch=epoch, pidfd=pidfd, log_path=log_path)

    def wait_exit(self, pid: int, timeout_s: float) -> Exited:
        """The exit of this child; exits of others stay for later calls. Raises JobError at the deadline."""
        deadline = time.monotonic() + timeout_s
        while pid not in self._exits:
            self._receive(deadline - time.monotonic())
        return self._exits.pop(pid)

    def close(self, timeout_s: float) -> None:
        """End the server, which kills the process group of every child first. Raises JobError at the deadline.

        A server that does not end is killed; its children are then sent SIGKILL by the kernel, so fence those that matter.
        """
        self._channel.close()
        if not self._process.ended(timeout_s):
            kill_group(self._process.pid, timeout_s)
        self._process.wait(timeout_s)
        self._process.close()

    def _await(self, kind: type[_Answer], timeout_s: float, what: str) -> tuple[_Answer, list[int]]:
        """The answer to a request. Raises JobError when it is refused or does not come.

        A server that misses the deadline is killed: its late answer could be taken for another request's.
        """
        deadline = time.monotonic() + timeout_s
        while self._channel.readable(deadline - time.monotonic()):
            received = self._receive(0.0)
            if received is None:
                continue
            message, fds = received
            if isinstance(message, kind):
                return message, fds
            close_all(fds)
            if isinstance(message, ForkRefused):
                raise JobError(message.text)
            raise WireError(f"{type(message).__name__} is no answer here, {kind.__name__} is")
        kill_group(self._process.pid, _KILL_TIMEOUT_S)
        raise JobError(f"{timeout_s:g} s are too short for the fork server {what}: it {self._process.describe_end()}")

    def _receive(self, timeout_s: float) -> tuple[Any, list[int]] | None:
        """One message; None for an exit, which is kept."""
        try:
            message, fds = self._channel.receive(timeout_s)
        except PeerClosed:
            raise self._gone() from None
        if not isinstance(message, Exited):
            return message, fds
        close_all(fds)
        self._exits[message.pid] = message
        return None

    def _gone(self) -> JobError:
        self._process.ended(_KILL_TIMEOUT_S)  # its channel closes a moment before it is dead
        return JobError(f"the fork server {self._process.describe_end()}")
