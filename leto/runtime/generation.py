"""One generation: one process a rank, trainers or the shadows that may become the next trainers, from fork to fence."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leto.core.config import JobConfig
from leto.core.errors import JobError, WireError
from leto.memory.wire import Channel, PeerClosed, close_all
from leto.runtime.fork_client import ForkedChild, ForkServer
from leto.runtime.messages import TRAINER_CODEC, Promote, Report

TRAINER = "leto.runtime.trainer:main"
SHADOW = "leto.runtime.shadow:main"
_SEND_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Death:
    """A member's pidfd fired."""

    rank: int


@dataclass(kw_only=True)
class _Member:
    rank: int
    child: ForkedChild
    channel: Channel
    dead: bool = False
    heard_out: bool = False  # the channel is closed: nothing more to hear


class Generation:
    """``poll`` yields what its members say and when they die; ``fence`` ends them all (INV-F).

    ``epoch`` is the one its members report under; that of shadows moves when they are promoted.
    """

    def __init__(self, epoch: int, members: Sequence[_Member]) -> None:
        self.epoch = epoch
        self._members = list(members)

    @staticmethod
    def fork(
        target: str, fork_server: ForkServer, config: JobConfig, epoch: int, pool_sockets: Sequence[Path], log_dir: Path
    ) -> Generation:
        """Fork one process a rank that runs ``target``. Rank 0 gets the listening socket of its rendezvous store."""
        generation = Generation(epoch, ())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            arguments = {"config": config.to_json(), "epoch": epoch, "store_port": listener.getsockname()[1]}
            try:
                for rank, pool_socket in enumerate(pool_sockets):
                    of_rank = arguments | {"rank": rank, "pool_socket": str(pool_socket)}
                    fds = [listener.fileno()] if rank == 0 else []
                    log_path = log_dir / f"trainer-{rank}.log"
                    generation._fork_rank(target, fork_server, rank, of_rank, fds, log_path, config.timeouts.ready_s)
            except BaseException:
                generation.fence(config.timeouts.fence_s)
                raise
        return generation

    def _fork_rank(
        self,
        target: str,
        fork_server: ForkServer,
        rank: int,
        arguments: Mapping[str, Any],
        fds: Sequence[int],
        log_path: Path,
        timeout_s: float,
    ) -> None:
        ours, theirs = Channel.pair(TRAINER_CODEC)
        try:
            child = fork_server.fork(
                target,
                arguments,
                epoch=self.epoch,
                log_path=log_path,
                fds=[theirs.fileno(), *fds],
                timeout_s=timeout_s,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._members.append(_Member(rank=rank, child=child, channel=ours))

    @property
    def pids(self) -> dict[int, int]:
        return {m.rank: m.child.pid for m in self._members}

    def log_path(self, rank: int) -> Path:
        return self._member(rank).child.log_path

    def ended(self, rank: int, timeout_s: float) -> bool:
        """Whether the rank's trainer ends within ``timeout_s``."""
        return self._member(rank).child.ended(timeout_s)

    def _member(self, rank: int) -> _Member:
        return next(m for m in self._members if m.rank == rank)

    def idle(self) -> None:
        """Stop every member: it costs nothing until it is promoted. One that is dead by now is seen by ``poll``."""
        for member in self._members:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(member.child.pidfd, signal.SIGSTOP)

    def promote(self, epoch: int) -> None:
        """Shadows become the trainers of ``epoch``, whose decision is durable. One that is dead by now is seen by ``poll``."""
        self.epoch = epoch
        for member in self._members:
            with contextlib.suppress(ProcessLookupError, PeerClosed):
                signal.pidfd_send_signal(member.child.pidfd, signal.SIGCONT)
                member.channel.send(Promote(epoch=epoch), timeout_s=_SEND_TIMEOUT_S)

    def _open_ends(self) -> Iterator[tuple[int, _Member]]:
        for member in self._members:
            if not member.heard_out:
                yield member.channel.fileno(), member
            if not member.dead:
                yield member.child.pidfd, member

    def _news(self, member: _Member) -> Iterator[Report | Death]:
        yield from self._hear(member)
        if not member.dead and member.child.ended():
            yield from self._hear(member)  # what it said between our poll and its end
            member.dead = True
            yield Death(rank=member.rank)

    def _hear(self, member: _Member) -> Iterator[Report]:
        while not member.heard_out:
            try:
                message, fds = member.channel.receive(0.0)
            except PeerClosed:
                member.heard_out = True
            except JobError:  # nothing more for now
                return
            else:
                close_all(fds)
                if message.epoch != self.epoch:
                    raise WireError(f"rank {member.rank} speaks for epoch {message.epoch} in epoch {self.epoch}")
                yield message

    def fence(self, timeout_s: float) -> None:
        """Every process of every rank's group is gone when this returns. Raises JobError at the deadline."""
        deadline = time.monotonic() + timeout_s
        for member in self._members:
            with contextlib.suppress(ProcessLookupError):  # all are told before any is waited for
                signal.pidfd_send_signal(member.child.pidfd, signal.SIGKILL)
        while self._members:
            member = self._members[-1]
            member.child.fence(deadline - time.monotonic())
            member.channel.close()
            member.child.close()
            self._members.pop()


def poll(generations: Sequence[Generation], timeout_s: float) -> Iterator[tuple[Generation, Report | Death]]:
    """What happened within ``timeout_s``, reports of a member before its death; empty when nothing did."""
    poller = select.poll()
    watched: dict[int, tuple[Generation, _Member]] = {}
    for generation in generations:
        for fd, member in generation._open_ends():
            poller.register(fd, select.POLLIN)
            watched[fd] = (generation, member)
    ready = [watched[fd] for fd, _ in poller.poll(max(timeout_s, 0.0) * 1000)]
    for generation, member in {id(member): (generation, member) for generation, member in ready}.values():
        for event in generation._news(member):
            yield generation, event
