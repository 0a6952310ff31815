"""Leto as a system under test: a job of its own processes, watched through its events and hurt through its retained memory."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chaos.faults import hand_over
from chaos.faults.hand_over import HandOver
from chaos.faults.memory import can_poison, poison
from chaos.loss import LostPages
from chaos.mutants import find_mutant
from chaos.schedule import Injection, Place
from chaos.targets import no_updater
from chaos.targets.base import FaultNotInjected, Outcome, OutcomeStatus, Residue, Resources, RunSpec, Updater
from chaos.targets.leto_probe import PROBES, Aim, aim_path, read_aim
from chaos.targets.lost_pages import choose
from chaos.targets.rank_geometry import GEOMETRY_PLUGIN, RankGeometry, geometry_path
from chaos.targets.resources import resources_of
from leto.core.config import DEFAULT_UPDATER, JobConfig, Timeouts
from leto.core.errors import ConfigError, FencedError
from leto.core.events import Event
from leto.core.geometry import Protection
from leto.core.layout import Allocation
from leto.megatron.models import model_spec
from leto.memory.client import PoolObserver
from leto.runtime.process import Spawned, last_line, wait_pidfd

_READ_BYTES = 1 << 16


class LetoTarget:
    """Starts Leto. Implements chaos.targets.base.Target."""

    def check(self, spec: RunSpec) -> None:
        model_spec(spec.workload)
        why = can_poison() if _loses_pages(spec) else None
        if why is not None:
            what = f"pages cannot be lost on this machine: {why}; scenarios without 'lose-pages' run here"
            raise ConfigError(f"lose-pages: {what}")

    def start(self, spec: RunSpec) -> LetoJob:
        self.check(spec)
        armed = ArmedFile(spec.output_dir / "armed.json")
        armed.write(spec.injections)
        config_path = spec.output_dir / "job.json"
        config_path.write_text(_job_config(spec, armed.path).to_json())
        return LetoJob.spawn(config_path, spec, armed)


def _loses_pages(spec: RunSpec) -> bool:
    return any(injection.losses for injection in spec.injections)


def _job_config(spec: RunSpec, armed_path: Path) -> JobConfig:
    plugins, manager_plugins, agent_plugins = [*PROBES, GEOMETRY_PLUGIN], [], []
    if _loses_pages(spec):
        plugins.append(hand_over.TRAINER_PLUGIN)
        manager_plugins.append(hand_over.MANAGER_PLUGIN)
        agent_plugins.append(hand_over.AGENT_PLUGIN)
    updater = DEFAULT_UPDATER
    if spec.updater is Updater.NONE:
        plugins.append(no_updater.PLUGIN)
        updater = no_updater.UPDATER
    if spec.mutant is not None:
        plugins.append(find_mutant(spec.mutant).plugin)
    return JobConfig(
        name=spec.name,
        workload=spec.workload,
        protection=spec.protection,
        output_dir=str(spec.output_dir),
        updater=updater,
        plugins=tuple(plugins),
        manager_plugins=tuple(manager_plugins),
        agent_plugins=tuple(agent_plugins),
        plugin_options={
            "armed_file": str(armed_path),
            "aimed_dir": str(spec.output_dir),
            "ledger_dir": str(spec.ledger_dir),
            "memory_dir": str(spec.output_dir),
        },
    )


class ArmedFile:
    """The injections that trainers which start from now on are armed with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._injections: tuple[Injection, ...] = ()

    def write(self, injections: tuple[Injection, ...]) -> None:
        self._injections = injections
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps([i.to_json() for i in injections], indent=1))
        whole.replace(self.path)

    def remove(self, injection: Injection) -> None:
        self.write(tuple(i for i in self._injections if i.token != injection.token))

    def remove_gate(self, injection: Injection) -> None:
        self.write(tuple(replace(i, gate=None) if i.token == injection.token else i for i in self._injections))


class EventStream:
    """JSON lines from the job's event pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial = b""
        self._events: deque[Event] = deque()
        self.ended = False

    def next(self, timeout_s: float) -> Event | None:
        deadline = time.monotonic() + timeout_s
        while not self._events and not self.ended and _readable(self._fd, deadline - time.monotonic()):
            self._read()
        return self._events.popleft() if self._events else None

    def _read(self) -> None:
        data = os.read(self._fd, _READ_BYTES)
        self.ended = not data
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            raw = json.loads(line)
            self._events.append(Event(raw.pop("event"), raw))

    def close(self) -> None:
        os.close(self._fd)


class LetoJob:
    """A running Leto job. Implements chaos.targets.base.RunningJob."""

    def __init__(self, process: Spawned, stream: EventStream, spec: RunSpec, armed: ArmedFile) -> None:
        self._process = process
        self._stream = stream
        self._spec = spec
        self._armed = armed
        self._timeouts = Timeouts()
        self._outcome: Outcome | None = None
        self._services: dict[str, int] = {}  # name -> pidfd
        self._sockets: list[Path] = []
        self._trainers: dict[int, tuple[int, int]] = {}  # rank -> (pid, pidfd) of the current epoch
        self._pools: dict[int, PoolObserver] = {}
        self._epoch = 0  # of the trainers
        self._broken_epoch: int | None = None  # the last one in which the bench killed a trainer

    @staticmethod
    def spawn(config_path: Path, spec: RunSpec, armed: ArmedFile) -> LetoJob:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        argv = [sys.executable, "-P", "-m", "leto.cli", "train", str(config_path)]
        argv += ["--events-fd", str(write_fd), "--parent-pid", str(os.getpid())]
        try:
            process = Spawned.start("leto", argv, log_path=spec.output_dir / "agent.log", pass_fds=[write_fd])
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        return LetoJob(process, EventStream(read_fd), spec, armed)

    def next_event(self, timeout_s: float) -> Event | None:
        if self._outcome is not None:
            return None
        event = self._stream.next(timeout_s)
        if event is None:
            return self._ended_without_a_word() if self._stream.ended else None
        if event.name == "job-started":
            self._services = {name: os.pidfd_open(pid) for name, pid in event.fields["services"].items()}
            self._sockets = [Path(path) for path in event.fields["pool_sockets"]]
        elif event.name == "ready":
            self._meet(event.fields["rank"], event.fields["pid"], event.fields["epoch"])
        elif event.name == "fenced":
            for rank in list(self._trainers):  # all of that epoch are gone
                self._forget(rank)
        elif event.name == "job-ended":
            self._outcome = Outcome(OutcomeStatus(event.fields["status"]), event.fields["reason"])
        return event

    def _ended_without_a_word(self) -> Event:
        code = self._process.wait(self._timeouts.stop_s)
        reason = f"the agent ended with exit code {code}: {last_line(self._process.log_path) or 'no output'}"
        self._outcome = Outcome(OutcomeStatus.FAILED, reason)
        return Event("job-ended", {"status": self._outcome.status.value, "reason": reason})

    def _meet(self, rank: int, pid: int, epoch: int) -> None:
        """A trainer is ready: remember how to kill it, and map its rank's retained memory once."""
        self._forget(rank)
        self._epoch = epoch
        try:
            self._trainers[rank] = (pid, os.pidfd_open(pid))
        except ProcessLookupError:  # it died again already
            return
        if rank in self._pools:
            return
        try:
            self._pools[rank] = self._map_retained(rank, epoch)
        except FencedError:  # that epoch has ended meanwhile; the next one's ready event follows
            self._forget(rank)

    def _map_retained(self, rank: int, epoch: int) -> PoolObserver:
        pool = PoolObserver(
            self._sockets[rank],
            rank=rank,
            epoch=epoch,
            page_bytes=self._spec.protection.page_bytes,
            timeout_s=self._timeouts.stop_s,
        )
        pool.table()
        return pool

    def _forget(self, rank: int) -> None:
        if rank in self._trainers:
            os.close(self._trainers.pop(rank)[1])

    def parked(self, place: Place) -> bool:
        """Who stood parked beside a killed trainer does not count: the system fences it, sooner than a fault could be fired."""
        if self._epoch == self._broken_epoch:
            return False
        if place.rank not in self._trainers:  # its ready event has not been read: nobody there to be killed yet
            return False
        return self._pools[place.rank].control.park_token == place.token

    def locate(self, place: Place) -> str:
        aim = self._aim(place)
        return "" if aim is None else _described(aim, self._spec.protection)

    def geometry(self, rank: int) -> RankGeometry:
        return RankGeometry.read(geometry_path(self._spec.output_dir, rank))

    def time_of(self, rank: int) -> int | None:
        return self._pools[rank].control.heartbeat if rank in self._trainers else None

    def damage(self, injection: Injection) -> str:
        if injection.fill_seed is None:
            return ""
        aim = self._aim(injection)
        if aim is None or not aim.target:
            raise FaultNotInjected(f"{injection.label}: {injection.kernel} has no target that could be filled")
        page_bytes = self._spec.protection.page_bytes
        first = int(injection.progress * len(aim.target) * page_bytes)
        filled = _fill_random(self._pools[injection.rank], aim, page_bytes, first, injection.fill_seed)
        return f"filled {filled} bytes of {aim.target[0].allocation} from byte {first} on with random bytes"

    def _aim(self, place: Place) -> Aim | None:
        if place.kernel is None:
            return None
        if not aim_path(self._spec.output_dir, place.token).exists():
            raise FaultNotInjected(f"rank {place.rank} parked in {place.kernel.value} without saying where")
        return read_aim(self._spec.output_dir, place.token)

    def choose_losses(self, injection: Injection) -> tuple[LostPages, ...]:
        if not injection.losses:
            return ()
        pool = self._pools[injection.rank]
        allocations = [Allocation(name=p.name, page_class=p.page_class, byte_count=p.byte_count) for p in pool.places.values()]
        return choose(injection.losses, self.geometry(injection.rank), allocations, pool.control.read_progress(self._epoch))

    def lose(self, injection: Injection, lost: Sequence[LostPages]) -> None:
        rank = injection.rank
        pages = [page for one in lost for page in one.pages]
        ways = (hand_over.manager_path, hand_over.trainer_path, hand_over.agent_path)
        try:
            processes = [HandOver.read(path_of(self._spec.output_dir, rank)) for path_of in ways]
            if processes[1].pid != self._trainers[rank][0]:
                raise FaultNotInjected(f"{injection.label}: rank {rank} handed over its memory as process {processes[1].pid}")
            poison(self._pools[rank], processes, pages, epoch=self._epoch)
        except OSError as error:
            raise FaultNotInjected(f"{injection.label}: {error}") from None

    def resources(self) -> Resources:
        try:
            return resources_of(self._process.pid)
        except ProcessLookupError:
            raise FaultNotInjected(f"the agent (pid {self._process.pid}) has ended") from None

    def open_gate(self, injection: Injection) -> None:
        self._armed.remove_gate(injection)
        self.release(injection)

    def release(self, injection: Injection) -> None:
        self._pools[injection.rank].control.clear_park()

    def disarm(self, injection: Injection) -> None:
        self._armed.remove(injection)

    def kill(self, injection: Injection) -> None:
        rank = injection.killed_rank
        if rank not in self._trainers:
            raise FaultNotInjected(f"{injection.label}: rank {rank} has no trainer")
        pid, pidfd = self._trainers[rank]
        if wait_pidfd(pidfd, 0.0):  # a zombie takes the signal without a word: something else ended it
            raise FaultNotInjected(f"{injection.label}: rank {rank} (pid {pid}) has ended already")
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            raise FaultNotInjected(f"{injection.label}: rank {rank} (pid {pid}) is gone already") from None
        self._broken_epoch = self._epoch

    def finish(self, timeout_s: float) -> Outcome:
        assert self._outcome is not None, "finish is called after job-ended"
        if not self._process.ended(timeout_s):
            raise TimeoutError(f"the agent (pid {self._process.pid}) did not end in {timeout_s:g} s")
        return self._outcome

    def close(self) -> Residue:
        orderly = self._outcome is not None
        leaks = list(self._survivors()) if orderly else []
        self._process.stop(self._timeouts.stop_s)  # the kernel ends the rest with it: each dies with its parent
        leaks += [leak for leak in self._survivors(self._timeouts.stop_s) if leak not in leaks]
        leaks += [f"socket {path}" for path in self._sockets if orderly and path.exists()]
        self._release()
        return Residue(tuple(leaks))

    def _survivors(self, timeout_s: float = 0.0) -> Iterator[str]:
        """Processes of the job, other than the agent, that have not ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        members = list(self._services.items())
        members += [(f"trainer of rank {rank}", pidfd) for rank, (_, pidfd) in self._trainers.items()]
        for name, pidfd in members:
            if not wait_pidfd(pidfd, deadline - time.monotonic()):
                yield f"process {name}"

    def _release(self) -> None:
        self._stream.close()
        for pidfd in self._services.values():
            os.close(pidfd)
        for rank in list(self._trainers):
            self._forget(rank)
        for pool in self._pools.values():
            pool.close()
        self._process.close()


def _described(aim: Aim, protection: Protection) -> str:
    """``group 1 chunk 2 (18 of the rank)``: as scenarios count chunks, and as the system does in its reasons."""
    if aim.chunk is None:
        return f"group {aim.group}"
    return f"group {aim.group} chunk {aim.chunk % protection.chunks_per_group} ({aim.chunk} of the rank)"


def _fill_random(pool: PoolObserver, aim: Aim, page_bytes: int, first_byte: int, seed: int) -> int:
    """Overwrite the target from ``first_byte`` to its end; returns how many bytes that were."""
    generator = np.random.default_rng(seed)
    filled = 0
    for position, page in enumerate(aim.target):
        skip = min(max(first_byte - position * page_bytes, 0), page_bytes)
        begin = page.page_index * page_bytes + skip
        count = page_bytes - skip
        pool.bytes(page.allocation)[begin : begin + count] = generator.integers(0, 256, count, dtype=np.uint8)
        filled += count
    return filled


def _readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(timeout_s, 0.0) * 1000))
