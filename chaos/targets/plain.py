"""The reference as a target: fresh processes of plain Megatron, one a rank, no faults and no recovery (U46)."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from chaos.schedule import Injection, Place
from chaos.targets.base import FaultNotInjected, Outcome, OutcomeStatus, Residue, RunSpec
from chaos.targets.plain_worker import PlainConfig
from chaos.targets.rank_geometry import RankGeometry, geometry_path
from leto.core.config import Timeouts
from leto.core.errors import JobError
from leto.core.events import Event
from leto.megatron.models import model_spec
from leto.megatron.preload import TRAINER_ENVIRONMENT

_READ_BYTES = 1 << 16
_PEER_END_S = 0.2
_NO_FAULTS = "the reference takes no faults"


class PlainTarget:
    """Starts the reference. Implements chaos.targets.base.Target."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()

    def check(self, spec: RunSpec) -> None:
        model_spec(spec.workload)

    def start(self, spec: RunSpec) -> PlainJob:
        self.check(spec)
        assert not spec.injections, _NO_FAULTS
        return PlainJob(_start_ranks(spec, self._timeouts), self._timeouts, spec.output_dir)


class _Rank:
    """One worker process, the socket its events come from, and its log."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], events: socket.socket, log: Path) -> None:
        self.rank = rank
        self.process = process
        self.events = events
        self._log = log
        self._partial = b""

    def read_events(self) -> list[Event] | None:
        """Whole lines that are there now; None at the end, which the worker's exit brings."""
        data = self.events.recv(_READ_BYTES)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        decoded = [json.loads(line) for line in lines]
        return [Event(raw["name"], raw["fields"]) for raw in decoded]

    def failure(self) -> str:
        """How the worker ended, with the last line it logged."""
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["no output"]
        return f"exit status {self.process.returncode}: {lines[-1]} (log: {self._log})"


def _start_ranks(spec: RunSpec, timeouts: Timeouts) -> list[_Rank]:
    world = range(spec.workload.world_size)
    config_path = spec.output_dir / "plain.json"
    ranks = []
    with ExitStack() as ours, ExitStack() as undo:
        # Bound here and handed to rank 0, which hosts the store: no port is guessed and nobody can take it.
        store = ours.enter_context(socket.create_server(("127.0.0.1", 0)))
        channels = [socket.socketpair() for _ in world]
        for parent, child in channels:
            undo.enter_context(parent)
            ours.enter_context(child)  # after the spawn the worker's copy is the last: its exit ends the stream
        PlainConfig(
            workload=spec.workload,
            protection=spec.protection,
            output_dir=str(spec.output_dir),
            ledger_dir=str(spec.ledger_dir),
            parent_pid=os.getpid(),
            store_fd=store.fileno(),
            store_port=store.getsockname()[1],
            event_fds=tuple(child.fileno() for _, child in channels),
            collective_timeout_s=timeouts.collective_s,
        ).save(config_path)
        for rank, (parent, child) in enumerate(channels):
            log = spec.output_dir / f"rank{rank}.log"
            inherited = (child.fileno(), store.fileno()) if rank == 0 else (child.fileno(),)
            process = _spawn(config_path, rank, log, inherited)
            undo.callback(process.wait)
            undo.callback(process.kill)  # before the wait: callbacks run last to first
            ranks.append(_Rank(rank, process, parent, log))
        undo.pop_all()  # nothing failed: the job owns processes and streams from here on
    return ranks


def _spawn(config_path: Path, rank: int, log: Path, inherited: tuple[int, ...]) -> subprocess.Popen[bytes]:
    try:
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "chaos.targets.plain_worker", str(config_path), str(rank)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **TRAINER_ENVIRONMENT},
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the bench, which then closes the job
            )
    except OSError as error:
        raise JobError(f"rank {rank} of the reference did not start: {error}") from None


class PlainJob:
    """A running reference. Implements chaos.targets.base.RunningJob.

    Nothing recovers here: the first worker that fails or makes no progress in time ends the job.
    """

    def __init__(self, ranks: list[_Rank], timeouts: Timeouts, output_dir: Path) -> None:
        self._ranks = ranks
        self._timeouts = timeouts
        self._output_dir = output_dir
        self._events: deque[Event] = deque([Event("job-started")])
        self._outcome: Outcome | None = None
        self._deadline = time.monotonic() + timeouts.start_s
        self._selector = selectors.DefaultSelector()
        for rank in ranks:
            self._selector.register(rank.events, selectors.EVENT_READ, rank)

    def next_event(self, timeout_s: float) -> Event | None:
        give_up = time.monotonic() + timeout_s
        while not self._events and self._outcome is None:
            now = time.monotonic()
            if now >= self._deadline:
                self._fail(self._ranks[0].rank, "no progress in time")
            elif now >= give_up:
                return None
            else:
                self._wait(min(give_up, self._deadline) - now)
        return self._events.popleft() if self._events else None

    def _wait(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            rank: _Rank = key.data
            events = rank.read_events()
            if events is None:
                self._selector.unregister(rank.events)
                self._end_of(rank)
            else:
                self._events.extend(events)
                self._deadline = time.monotonic() + self._timeouts.iteration_s

    def _end_of(self, rank: _Rank) -> None:
        try:
            rank.process.wait(self._timeouts.stop_s)
        except subprocess.TimeoutExpired:
            self._fail(rank.rank, "closed its events and did not exit")
            return
        if rank.process.returncode != 0:
            cause = self._killed_peer(rank) or rank
            self._fail(cause.rank, cause.failure())
        elif self._outcome is None and not self._selector.get_map():
            self._end(Outcome(OutcomeStatus.COMPLETED))

    def _killed_peer(self, raised: _Rank) -> _Rank | None:
        """Of a worker that raised: the peer that was killed, which is why it raised. Its end can be seen a little later."""
        if raised.process.returncode < 0:
            return None
        for peer in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                if peer.process.wait(_PEER_END_S) < 0:
                    return peer
        return None

    def _fail(self, rank: int, cause: str) -> None:
        """The first failure ends the job; what the others say afterwards is a consequence of it."""
        if self._outcome is None:
            self._events.append(Event("failure", {"rank": rank, "cause": cause}))
            for other in self._ranks:
                other.process.kill()
            self._end(Outcome(OutcomeStatus.FAILED, f"rank {rank}: {cause}"))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._events.append(Event("job-ended", {"status": outcome.status.value, "reason": outcome.reason}))

    def parked(self, place: Place) -> bool:
        return False

    def locate(self, place: Place) -> str:
        raise FaultNotInjected(_NO_FAULTS)

    def geometry(self, rank: int) -> RankGeometry:
        return RankGeometry.read(geometry_path(self._output_dir, rank))

    def time_of(self, rank: int) -> int | None:
        return None

    def damage(self, injection: Injection) -> str:
        raise FaultNotInjected(_NO_FAULTS)

    def disarm(self, injection: Injection) -> None:
        raise FaultNotInjected(_NO_FAULTS)

    def kill(self, injection: Injection) -> None:
        raise FaultNotInjected(_NO_FAULTS)

    def finish(self, timeout_s: float) -> Outcome:
        deadline = time.monotonic() + timeout_s
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"rank {rank.rank} (pid {rank.process.pid}) did not end in {timeout_s} s") from None
        assert self._outcome is not None, "finish is called after job-ended"
        return self._outcome

    def close(self) -> Residue:
        orderly = self._outcome is not None and self._outcome.status is OutcomeStatus.COMPLETED
        alive = [rank for rank in self._ranks if rank.process.poll() is None]
        for rank in alive:
            rank.process.kill()
        survivors = [rank for rank in alive if not self._reaped(rank)]
        for rank in self._ranks:
            rank.events.close()
        self._selector.close()
        return Residue(tuple(f"process {r.process.pid} of rank {r.rank}" for r in (alive if orderly else survivors)))

    def _reaped(self, rank: _Rank) -> bool:
        try:
            rank.process.wait(self._timeouts.fence_s)
        except subprocess.TimeoutExpired:
            return False
        return True
