"""The fork server: imports torch and megatron once, then makes trainers in milliseconds (paper 4.4, level L1).

    python -u -m leto.runtime.fork_server --channel-fd N --parent-pid P --preload module:function ...

A forked copy of a process with threads inherits locks that nobody will ever release, so the server keeps to one thread: it
insists on single-threaded math libraries, counts its threads before every fork and refuses to fork when there are more.
Random generators are inherited like everything else: what is forked must seed or restore its own.

It ends with the agent, and its children end with it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from leto.core import plugins
from leto.core.errors import FencedError, JobError, LetoError, WireError
from leto.memory.wire import Channel, Codec, PeerClosed, close_all
from leto.runtime.process import die_with_parent, kill_group

SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of the server, set before anything is imported."""

_SEND_TIMEOUT_S = 30.0
_CHILD_SETUP_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Everything is preloaded."""

    epoch: int
    preload_s: float


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """Run ``target`` ("module:function") as ``target(arguments, fds)``, fds being the attached descriptors in order."""

    epoch: int
    target: str
    arguments: Mapping[str, Any]
    log_path: str


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Carries the child's pidfd. The child leads its own session and process group and dies with the server."""

    epoch: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class ForkRefused:
    epoch: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Exited:
    """A child of ``epoch`` was reaped. ``returncode`` is its exit code, or minus the number of the signal that killed it."""

    epoch: int
    pid: int
    returncode: int


FORK_CODEC = Codec((Ready, ForkRequest, Forked, ForkRefused, Exited))

Target = Callable[[dict[str, Any], list[int]], int | None]


class Server:
    """Forks on request, reports exits. One thread, and nothing else may be running in this process."""

    def __init__(self, channel: Channel, child_event_fds: tuple[int, int]) -> None:
        self._channel = channel
        self._child_event_fds = child_event_fds  # read end, and the end that the SIGCHLD handler writes
        self._selector = selectors.DefaultSelector()
        self._epoch = 0
        self._children: dict[int, int] = {}  # pid -> epoch
        self._pid = os.getpid()

    def run(self) -> None:
        """Until the agent closes its end; then every child's process group is killed."""
        self._selector.register(self._channel, selectors.EVENT_READ, self._serve)
        self._selector.register(self._child_event_fds[0], selectors.EVENT_READ, self._reap)
        with contextlib.suppress(PeerClosed):
            while True:
                for key, _ in self._selector.select():
                    key.data()
        for pid in self._children:
            kill_group(pid, _STOP_TIMEOUT_S)
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        os.read(self._child_event_fds[0], 4096)
        for pid, epoch in list(self._children.items()):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                del self._children[pid]
                exited = Exited(epoch=epoch, pid=pid, returncode=os.waitstatus_to_exitcode(status))
                self._channel.send(exited, timeout_s=_SEND_TIMEOUT_S)

    def _serve(self) -> None:
        request, fds = self._channel.receive(0.0)
        try:
            if not isinstance(request, ForkRequest):
                raise WireError(f"{type(request).__name__} is not for the agent to say")
            self._fork(request, fds)
        except PeerClosed:
            raise
        except (LetoError, OSError, ValueError) as error:  # ValueError: a path that no file can have
            self._channel.send(ForkRefused(epoch=request.epoch, text=str(error)), timeout_s=_SEND_TIMEOUT_S)
        finally:
            close_all(fds)

    def _fork(self, request: ForkRequest, fds: list[int]) -> None:
        if request.epoch < self._epoch:
            raise FencedError(f"a fork of epoch {request.epoch} is asked after one of epoch {self._epoch}")
        check_one_thread()
        self._epoch = request.epoch
        here, there = socket.socketpair()
        with open(request.log_path, "ab", buffering=0) as log, here, there:
            pid = os.fork()
            if pid == 0:
                self._run_child(request, fds, log, (here, there))
            there.close()
            self._children[pid] = request.epoch
            self._report_forked(request, pid, here)

    def _report_forked(self, request: ForkRequest, pid: int, setup: socket.socket) -> None:
        """Answer once the child has left this process group: from then on its group can be killed without this server.

        It cannot be reaped meanwhile, as this is the thread that reaps, so the pid still means the child.
        """
        if not _readable(setup, _CHILD_SETUP_TIMEOUT_S):
            os.kill(pid, signal.SIGKILL)
            raise JobError(f"the forked process {pid} did not set itself up within {_CHILD_SETUP_TIMEOUT_S:g} s")
        pidfd = os.pidfd_open(pid)
        try:
            self._channel.send(Forked(epoch=request.epoch, pid=pid), [pidfd], timeout_s=_SEND_TIMEOUT_S)
        finally:
            os.close(pidfd)

    def _run_child(self, request: ForkRequest, fds: list[int], log: IO[bytes], setup: tuple[socket.socket, ...]) -> NoReturn:
        code = 1
        try:
            self._leave_server()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            log.close()
            for end in setup:  # their end tells the server that this process stands alone
                end.close()
            code = _exit_code(plugins.load(request.target)(dict(request.arguments), fds))
        except SystemExit as end:
            code = _exit_code(end.code)
        except BaseException:
            traceback.print_exc()
        finally:
            _leave(code)

    def _leave_server(self) -> None:
        """Give up everything that is the server's: its life, its process group, its signals, its descriptors."""
        die_with_parent(self._pid)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._channel.close()
        close_all(self._child_event_fds)


def check_one_thread() -> None:
    """Raises JobError when a fork could inherit a lock whose holder it does not inherit."""
    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    if len(threads) != 1:
        raise JobError(f"the fork server has {len(threads)} threads ({', '.join(threads)}): a forked copy could hang")


def _readable(sock: socket.socket, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _exit_code(value: object) -> int:
    """What a target returns, or what it raised SystemExit with, as an exit code."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return 1


def _leave(code: int) -> NoReturn:
    """End without the server's exit handlers."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _child_events() -> tuple[int, int]:
    """A pipe that becomes readable with SIGCHLD."""
    event, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    return event, wakeup


def _check_environment() -> None:
    for name, value in SINGLE_THREAD.items():
        if os.environ.get(name) != value:
            raise JobError(f"the fork server needs {name}={value} in its environment before anything is imported")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leto.runtime.fork_server", allow_abbrev=False)
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE:FUNCTION")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    die_with_parent(options.parent_pid)
    channel = Channel(socket.socket(fileno=options.channel_fd), FORK_CODEC)
    os.set_inheritable(options.channel_fd, False)
    try:
        _check_environment()
        begin = time.monotonic()
        for path in options.preload:
            plugins.load(path)()
        check_one_thread()
        gc.collect()
        gc.freeze()  # the collector of a child must not write into, and so copy, every inherited page
        channel.send(Ready(epoch=0, preload_s=time.monotonic() - begin), timeout_s=_SEND_TIMEOUT_S)
        Server(channel, _child_events()).run()
    except LetoError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
