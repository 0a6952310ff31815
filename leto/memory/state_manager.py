"""The state manager: a light process, one a rank, that owns retained memory and outlives every trainer (paper 4.2).

    python -m leto.memory.state_manager --socket PATH --rank 0 --device-bytes N --host-bytes N --page-bytes N
                                        --parent-pid P --ready-fd F [--plugin MODULE:FUNCTION ...] [--plugin-options JSON]

It creates three memfd arenas, remembers which name lies where, and hands descriptors to trainers. It never reads contents: it
finds lost pages by asking the kernel about its own mapping, so nothing that happens to a page can reach it. It imports no
torch and no numpy. Plugins are called once, with a ManagerContext, before it serves.

One thread and one selector: a connection is served datagram by datagram; a peer that misbehaves, or does not read its
answers, loses its connection and disturbs nobody else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leto.core.errors import FencedError, JobError, LetoError, RetainedStateError, WireError
from leto.core.hooks import ManagerContext
from leto.core.layout import Domain
from leto.core.plugins import load
from leto.device.linux import die_with_parent
from leto.memory.messages import (
    POOL_CODEC,
    Acknowledged,
    Advance,
    Advanced,
    Allocate,
    Attach,
    Hello,
    List,
    ListLost,
    Localise,
    Localised,
    Lost,
    Place,
    Rebuilt,
    Refused,
    Role,
    Table,
    Usage,
    Used,
    Welcome,
)
from leto.memory.retained_state import RetainedState
from leto.memory.wire import Channel, Message, PeerClosed, close_all

MAX_CONNECTIONS = 64
READY = b"ready\n"
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, kw_only=True)
class ManagerSpec:
    """What a state manager is started with. ``page_bytes`` is the code page size of the job."""

    rank: int
    device_bytes: int
    host_bytes: int
    page_bytes: int
    plugins: tuple[str, ...] = ()
    plugin_options: Mapping[str, Any] = field(default_factory=dict)


def command(socket_path: Path, spec: ManagerSpec, *, parent_pid: int, ready_fd: int) -> list[str]:
    """The argv of a state manager; it writes READY to ``ready_fd`` once it serves."""
    values: list[tuple[str, object]] = [
        ("--socket", socket_path),
        ("--rank", spec.rank),
        ("--device-bytes", spec.device_bytes),
        ("--host-bytes", spec.host_bytes),
        ("--page-bytes", spec.page_bytes),
        ("--parent-pid", parent_pid),
        ("--ready-fd", ready_fd),
    ]
    if spec.plugins:
        values += [("--plugin", path) for path in spec.plugins]
        values += [("--plugin-options", json.dumps(dict(spec.plugin_options)))]
    return [sys.executable, "-P", "-m", "leto.memory.state_manager", *(str(part) for pair in values for part in pair)]


_MAY_SAY = {
    Role.TRAINER: (Allocate, Attach, List, Usage, ListLost, Rebuilt),
    Role.AGENT: (Advance, List, Usage, ListLost, Localise),
    Role.OBSERVER: (List, Usage, ListLost),
}


@dataclass(kw_only=True, eq=False)
class _Peer:
    """One connection; ``role`` is None until its Hello is accepted."""

    channel: Channel
    role: Role | None = None
    epoch: int = -1


class Server:
    """Serves one RetainedState to its connections, one datagram at a time."""

    def __init__(self, state: RetainedState, listener: socket.socket) -> None:
        self._state = state
        self._listener = listener
        self._connections = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)

    def run(self, stop_fd: int) -> None:
        """Until ``stop_fd`` becomes readable."""
        self._selector.register(stop_fd, selectors.EVENT_READ, None)
        while True:
            # New connections last: places that closed ones give up are free before anybody asks for one.
            for key, _ in sorted(self._selector.select(), key=lambda ready: ready[0].data is None):
                if key.fd == stop_fd:
                    return
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        _, uid, _ = _PEER_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size))
        if uid != os.getuid() or self._connections >= MAX_CONNECTIONS:
            sock.close()
            return
        peer = _Peer(channel=Channel(sock, POOL_CODEC))
        self._connections += 1
        self._selector.register(peer.channel, selectors.EVENT_READ, peer)

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.channel)
        self._connections -= 1
        peer.channel.close()

    def _serve(self, peer: _Peer) -> None:
        """One datagram. A refusal about retained state keeps the connection; everything else that goes wrong ends it."""
        try:
            self._exchange(peer)
        except RetainedStateError as error:
            if not self._refuse(peer, error) or isinstance(error, FencedError):
                self._drop(peer)
        except PeerClosed:
            self._drop(peer)
        except WireError as error:
            self._refuse(peer, error)
            self._drop(peer)
        except JobError:  # the peer does not read its answers
            self._drop(peer)

    def _exchange(self, peer: _Peer) -> None:
        message, fds = peer.channel.receive(0.0)
        if fds:
            close_all(fds)
            raise WireError("this channel takes no descriptors")
        if isinstance(message, Hello):
            self._welcome(peer, message)
        else:
            peer.channel.send(self._answer(peer, message))

    def _refuse(self, peer: _Peer, error: LetoError) -> bool:
        """Tell the peer why; False when it cannot be told."""
        try:
            peer.channel.send(Refused(epoch=self._state.epoch, error=type(error).__name__, text=str(error)))
        except (PeerClosed, JobError):
            return False
        return True

    def _welcome(self, peer: _Peer, hello: Hello) -> None:
        if peer.role is not None:
            raise WireError("a second Hello")
        if hello.rank != self._state.rank:
            raise WireError(f"rank {hello.rank} says Hello to the state manager of rank {self._state.rank}")
        self._check_epoch(hello.epoch)
        peer.role, peer.epoch = hello.role, hello.epoch
        domains = (Domain.CONTROL,) if hello.role is Role.AGENT else tuple(Domain)
        welcome = Welcome(
            epoch=self._state.epoch, layout_hash=self._state.layout_hash, domains=domains, lost=self._state.lost_count
        )
        peer.channel.send(welcome, [self._state.arenas[domain].export() for domain in domains])

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._state.epoch:
            raise FencedError(f"rank {self._state.rank}: epoch {epoch} is not the current epoch {self._state.epoch}")

    def _answer(self, peer: _Peer, message: Any) -> Message:
        if peer.role is None:
            raise WireError(f"{type(message).__name__} before Hello")
        if not isinstance(message, _MAY_SAY[peer.role]):
            raise WireError(f"{type(message).__name__} is not for the {peer.role.value} to say")
        self._check_epoch(peer.epoch)
        if isinstance(message, Advance):
            self._state.advance(message.epoch)
            peer.epoch = message.epoch
            return Advanced(epoch=message.epoch)
        self._check_epoch(message.epoch)
        return self._carry_out(message)

    def _carry_out(self, message: Allocate | Attach | List | Usage | Localise | ListLost | Rebuilt) -> Message:
        state, epoch = self._state, message.epoch
        match message:
            case Allocate():
                return self._table(epoch, state.allocate(message.layout_hash, message.allocations))
            case Attach():
                return self._table(epoch, state.attach(message.layout_hash, message.allocations))
            case List():
                return self._table(epoch, state.places_from(message.first))
            case Usage():
                return Used(epoch=epoch, domains=state.usage())
            case Localise():
                started_s = time.perf_counter()
                found, control = state.localise(), state.lost_control()
                seconds = time.perf_counter() - started_s
                return Localised(epoch=epoch, found=found, lost=state.lost_count, control=control, seconds=seconds)
            case ListLost():
                return Lost(epoch=epoch, pages=state.lost_from(message.first), total=state.lost_count)
            case Rebuilt():
                state.rebuilt(message.pages)
                return Acknowledged(epoch=epoch, lost=state.lost_count)

    def _table(self, epoch: int, places: tuple[Place, ...]) -> Table:
        return Table(epoch=epoch, places=places, total=self._state.place_count)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket that only this user can reach.

    Its file is removed at the end, and its folder by whoever leaves it empty: an agent that was killed cannot, and may have
    been killed before this process came up.
    """
    folder = path.parent.stat()
    if folder.st_uid != os.getuid() or stat.S_IMODE(folder.st_mode) & 0o077:
        raise JobError(f"{path.parent}: the socket's folder must be ours alone (mode 0700)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        try:
            path.chmod(0o600)
            listener.listen(socket.SOMAXCONN)  # a full backlog would fail a connect at once
            yield listener
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others still serve in it, or the agent removed it
                path.parent.rmdir()


def _stop_descriptor() -> int:
    """Becomes readable with SIGTERM or SIGINT, and so with the death of the parent."""
    stop, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    return stop


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leto.memory.state_manager", allow_abbrev=False)
    parser.add_argument("--socket", type=Path, required=True)
    for name in ("--rank", "--device-bytes", "--host-bytes", "--page-bytes", "--parent-pid", "--ready-fd"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--plugin-options", type=json.loads, default={})
    return parser.parse_args(arguments)


def _call_plugins(options: argparse.Namespace, state: RetainedState) -> None:
    mappings = {domain: (arena.address, arena.capacity_bytes) for domain, arena in state.arenas.items()}
    context = ManagerContext(rank=options.rank, options=options.plugin_options, mappings=mappings)
    for path in options.plugin:
        load(path)(context)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    stop_fd = _stop_descriptor()
    die_with_parent(options.parent_pid, signal.SIGTERM)
    try:
        with _listening(options.socket) as listener:
            state = RetainedState(options.rank, options.device_bytes, options.host_bytes, options.page_bytes)
            _call_plugins(options, state)
            os.write(options.ready_fd, READY)
            os.close(options.ready_fd)
            Server(state, listener).run(stop_fd)
            state.close()
    except (LetoError, OSError) as error:
        sys.stderr.write(f"state manager of rank {options.rank}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
