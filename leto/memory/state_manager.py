"""The state manager: a light process, one a rank, that owns retained memory and outlives every trainer (paper 4.2).

    python -m leto.memory.state_manager --socket PATH --rank 0 --device-bytes N --host-bytes N --parent-pid P --ready-fd F

It creates three memfd arenas, remembers which name lies where, and hands descriptors to trainers. It maps neither device nor
host memory and never reads contents, so nothing that happens to a page can reach it. It imports no torch and no numpy.

One thread and one selector: a connection is served datagram by datagram; a peer that misbehaves, or does not read its
answers, loses its connection and disturbs nobody else.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import selectors
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leto.core.errors import FencedError, JobError, LetoError, RetainedStateError, WireError
from leto.core.geometry import OS_PAGE_BYTES
from leto.core.layout import CONTROL_BYTES, MAX_EPOCHS, Allocation, Domain, marker_page_offset
from leto.device.host import HostArena
from leto.device.linux import die_with_parent
from leto.memory.messages import (
    MAX_NAME_LENGTH,
    POOL_CODEC,
    Advance,
    Advanced,
    Allocate,
    Attach,
    DomainUsage,
    Hello,
    List,
    Place,
    Refused,
    Role,
    Table,
    Usage,
    Used,
    Welcome,
    batched,
)
from leto.memory.wire import Channel, Message, PeerClosed, close_all

MAX_CONNECTIONS = 64
READY = b"ready\n"
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def command(socket_path: Path, *, rank: int, device_bytes: int, host_bytes: int, parent_pid: int, ready_fd: int) -> list[str]:
    """The argv of a state manager; it writes READY to ``ready_fd`` once it serves."""
    values = {
        "--socket": socket_path,
        "--rank": rank,
        "--device-bytes": device_bytes,
        "--host-bytes": host_bytes,
        "--parent-pid": parent_pid,
        "--ready-fd": ready_fd,
    }
    return [sys.executable, "-m", "leto.memory.state_manager", *(str(part) for pair in values.items() for part in pair)]


_MAY_SAY = {
    Role.TRAINER: (Allocate, Attach, List, Usage),
    Role.AGENT: (Advance, List, Usage),
    Role.OBSERVER: (List, Usage),
}


class RetainedState:
    """What one rank retains: arenas, names, the current epoch. No sockets."""

    def __init__(self, rank: int, device_bytes: int, host_bytes: int) -> None:
        capacities = {Domain.DEVICE: device_bytes, Domain.HOST: host_bytes, Domain.CONTROL: CONTROL_BYTES}
        self.rank = rank
        self.epoch = 0
        self.layout_hash: str | None = None
        self.arenas = {domain: HostArena(f"leto-{domain.value}-r{rank}", size) for domain, size in capacities.items()}
        self.arenas[Domain.CONTROL].create(CONTROL_BYTES)
        self._places: dict[str, Place] = {}
        self._kept_from_epoch = 0

    def allocate(self, layout_hash: str, allocations: Sequence[Allocation]) -> tuple[Place, ...]:
        """Make what is missing, all of it or nothing; a known name keeps its place."""
        self._check_layout(layout_hash)
        missing = [a for a in allocations if not self._is_known(a)]
        self._check_room(missing)
        for a in missing:
            offset = self.arenas[a.domain].create(a.byte_count)
            self._places[a.name] = Place(
                name=a.name, page_class=a.page_class, domain=a.domain, offset=offset, byte_count=a.byte_count
            )
        self.layout_hash = layout_hash
        return tuple(self._places[a.name] for a in allocations)

    def attach(self, layout_hash: str, allocations: Sequence[Allocation]) -> tuple[Place, ...]:
        self._check_layout(layout_hash)
        for a in allocations:
            if not self._is_known(a):
                raise RetainedStateError(f"rank {self.rank}: {a.name!r} is not retained")
        return tuple(self._places[a.name] for a in allocations)

    @property
    def place_count(self) -> int:
        return len(self._places)

    def places_from(self, first: int) -> tuple[Place, ...]:
        """As many places from position ``first`` on, in order of allocation, as fit one datagram."""
        return next(batched(itertools.islice(self._places.values(), max(first, 0), None)), ())

    def usage(self) -> tuple[DomainUsage, ...]:
        return tuple(
            DomainUsage(domain=domain, used_bytes=arena.used_bytes, capacity_bytes=arena.capacity_bytes)
            for domain, arena in self.arenas.items()
        )

    def advance(self, epoch: int) -> None:
        """Begin a newer epoch. The pages of its predecessor stay for the coordinator to read, older ones are given back."""
        if not self.epoch < epoch < MAX_EPOCHS:
            raise FencedError(f"rank {self.rank}: epoch {epoch} cannot follow epoch {self.epoch}")
        self.epoch = epoch
        if epoch - 1 > self._kept_from_epoch:
            first, stop = marker_page_offset(self._kept_from_epoch, 0), marker_page_offset(epoch - 1, 0)
            self.arenas[Domain.CONTROL].discard(first, stop - first)
            self._kept_from_epoch = epoch - 1

    def close(self) -> None:
        for arena in self.arenas.values():
            arena.close()

    def _check_layout(self, layout_hash: str) -> None:
        if self.layout_hash not in (None, layout_hash):
            raise RetainedStateError(f"rank {self.rank}: layout {layout_hash!r} asked, layout {self.layout_hash!r} is retained")

    def _is_known(self, a: Allocation) -> bool:
        """Raises RetainedStateError when the name is known as something else."""
        place = self._places.get(a.name)
        if place is None:
            return False
        if (place.byte_count, place.page_class) != (a.byte_count, a.page_class):
            raise RetainedStateError(
                f"rank {self.rank}: {a.name!r} is retained as {place.byte_count} bytes of {place.page_class.value},"
                f" asked for as {a.byte_count} bytes of {a.page_class.value}"
            )
        return True

    def _check_room(self, missing: Sequence[Allocation]) -> None:
        if len({a.name for a in missing}) != len(missing):
            raise RetainedStateError(f"rank {self.rank}: a name is asked for twice")
        for a in missing:
            if not 0 < len(a.name) <= MAX_NAME_LENGTH:
                raise RetainedStateError(
                    f"rank {self.rank}: a name of {len(a.name)} characters is not between 1 and {MAX_NAME_LENGTH}"
                )
            if a.byte_count <= 0 or a.byte_count % OS_PAGE_BYTES:
                raise RetainedStateError(f"rank {self.rank}: {a.name!r}: {a.byte_count} bytes are not whole pages")
        for domain, arena in self.arenas.items():
            asked = sum(a.byte_count for a in missing if a.domain is domain)
            free = arena.capacity_bytes - arena.used_bytes
            if asked > free:
                raise RetainedStateError(
                    f"rank {self.rank}: {asked} more bytes of {domain.value} memory asked,"
                    f" {free} of {arena.capacity_bytes} are free"
                )


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
        welcome = Welcome(epoch=self._state.epoch, layout_hash=self._state.layout_hash, domains=domains)
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
        if isinstance(message, Usage):
            return Used(epoch=message.epoch, domains=self._state.usage())
        return Table(epoch=message.epoch, places=self._places(message), total=self._state.place_count)

    def _places(self, message: Allocate | Attach | List) -> tuple[Place, ...]:
        match message:
            case Allocate():
                return self._state.allocate(message.layout_hash, message.allocations)
            case Attach():
                return self._state.attach(message.layout_hash, message.allocations)
            case List():
                return self._state.places_from(message.first)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket that only this user can reach.

    Its file is removed at the end, and its folder by whoever leaves it empty: an agent that was killed cannot.
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
    for name in ("--rank", "--device-bytes", "--host-bytes", "--parent-pid", "--ready-fd"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    stop_fd = _stop_descriptor()
    die_with_parent(options.parent_pid, signal.SIGTERM)
    try:
        with _listening(options.socket) as listener:
            state = RetainedState(options.rank, options.device_bytes, options.host_bytes)
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
