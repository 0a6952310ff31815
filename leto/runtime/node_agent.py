"""The node agent: spawns, watches, fences and replaces; the coordinator that decides is its guest.

    start     fork server, one state manager a rank
    epoch e   decision durable in every rank's control page -> old epochs fenced -> words carried over -> trainers forked
    failure   fence all -> read all markers -> decide -> epoch e+1 (U21, U26)

A plain process without torch. It maps control arenas only and never reads retained contents.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leto.core.config import JobConfig
from leto.core.errors import ConfigError, JobError, LetoError
from leto.core.events import Event, Observer
from leto.core.layout import MAX_EPOCHS
from leto.core.markers import words_of
from leto.core.recovery import Action, Decision
from leto.megatron.models import model_spec
from leto.megatron.preload import TRAINER_ENVIRONMENT
from leto.memory.client import PoolAgent
from leto.memory.state_manager import ManagerSpec
from leto.runtime.coordinator import Coordinator, cold_start
from leto.runtime.fork_client import ForkServer
from leto.runtime.generation import Death, Generation
from leto.runtime.messages import Report
from leto.runtime.process import Spawned, describe_code, last_line
from leto.runtime.state_managers import start_state_manager

_PEER_END_S = 0.5
"""How long a trainer that raised waits for the peer that was killed before it; survivors raise and end sooner."""
PRELOAD = "leto.runtime.trainer:preload"


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How the job ended: completed, refused (by the job's own decision, U54) or failed."""

    status: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """A generation cannot go on. ``fatal`` is a reason that forking again would only repeat."""

    rank: int
    cause: str
    fatal: bool = False


class NodeAgent:
    """Runs one job on this node, start to end."""

    def __init__(self, config: JobConfig, observer: Observer) -> None:
        self._config = config
        self._observer = observer
        self._resources = ExitStack()
        self._managers: list[Spawned] = []
        self._ended_managers: set[str] = set()
        self._pools: list[PoolAgent] = []
        self._pool_sockets: list[Path] = []
        self._logs = Path(config.output_dir) / "logs"
        self._failed_at_s: float | None = None

    def run(self) -> JobEnd:
        """Leaves no process, socket or memory behind, however it ends.

        Raises ConfigError, before anything is started, for a configuration that names what there is not.
        """
        self._check_config()
        try:
            with self._resources:
                end = self._run()
        except LetoError as error:
            end = JobEnd(status="failed", reason=f"{type(error).__name__}: {error}")
        self._tell("job-ended", status=end.status, reason=end.reason)
        return end

    def _run(self) -> JobEnd:
        fork_server = self._start()
        workload = self._config.workload
        coordinator = Coordinator(workload.world_size, workload.iterations)
        decision = cold_start(workload.world_size)
        for epoch in range(1, MAX_EPOCHS):
            generation = self._open(fork_server, epoch, decision)
            try:
                failure = self._watch(fork_server, generation, decision)
            finally:
                self._fence(generation)
            if failure is None:
                return JobEnd(status="completed")
            if failure.fatal:
                return JobEnd(status="failed", reason=f"rank {failure.rank}: {failure.cause}")
            decision = self._decide(coordinator, epoch)
            if decision.action is Action.CHECKPOINT:
                return JobEnd(status="refused", reason=f"{decision.reason}; rank {failure.rank} {failure.cause}")
        return JobEnd(status="refused", reason=f"{MAX_EPOCHS} epochs are used up")

    def _check_config(self) -> None:
        model_spec(self._config.workload)
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output_dir: {error.filename}: {error.strerror}") from None

    def _start(self) -> ForkServer:
        config, timeouts = self._config, self._config.timeouts
        sockets = Path(tempfile.mkdtemp(prefix="leto-"))  # mode 0700
        self._resources.callback(shutil.rmtree, sockets, ignore_errors=True)
        self._managers = [self._start_manager(rank, sockets) for rank in range(config.workload.world_size)]
        fork_server = ForkServer.start(
            [PRELOAD],
            log_path=self._logs / "fork-server.log",
            timeout_s=timeouts.start_s,
            env={**os.environ, **TRAINER_ENVIRONMENT},
        )
        self._resources.callback(fork_server.close, timeouts.stop_s)
        pids = {m.name: m.pid for m in (fork_server.process, *self._managers)}
        self._tell("job-started", services=pids, pool_sockets=[str(path) for path in self._pool_sockets])
        return fork_server

    def _start_manager(self, rank: int, sockets: Path) -> Spawned:
        config, timeouts = self._config, self._config.timeouts
        path = sockets / f"r{rank}"
        manager = start_state_manager(
            path,
            ManagerSpec(
                rank=rank,
                device_bytes=config.device_bytes,
                host_bytes=config.host_bytes,
                page_bytes=config.protection.page_bytes,
                plugins=config.manager_plugins,
                plugin_options=config.plugin_options,
            ),
            log_path=self._logs / f"state-manager-{rank}.log",
            timeout_s=timeouts.start_s,
        )
        self._resources.callback(_stop, manager, timeouts.stop_s)
        pool = PoolAgent(path, rank=rank, epoch=0, timeout_s=timeouts.start_s)
        self._resources.callback(pool.close)
        self._pools.append(pool)
        self._pool_sockets.append(path)
        return manager

    def _open(self, fork_server: ForkServer, epoch: int, decision: Decision) -> Generation:
        """The decision is durable everywhere before anybody can act on it (U21)."""
        for manager in self._managers:
            if manager.ended():  # what it retained went with it, but for what trainers had mapped
                raise JobError(f"{manager.name} {manager.describe_end()}")
        for pool in self._pools:
            pool.control.write_decision(epoch, decision)
        for pool, carried in zip(self._pools, decision.carried, strict=True):
            pool.advance(epoch)
            pool.control.write_words(epoch, words_of(epoch, carried))
            pool.control.clear_park()
        return Generation.fork(fork_server, self._config, epoch, self._pool_sockets, self._logs)

    def _watch(self, fork_server: ForkServer, generation: Generation, decision: Decision) -> _Failure | None:
        """Until every rank has finished (None) or one cannot go on."""
        ranks = set(generation.pids)
        finished: set[int] = set()
        gone: set[int] = set()
        training: set[int] = set()
        timeouts = self._config.timeouts
        deadline = time.monotonic() + timeouts.ready_s
        while gone != ranks:
            quiet = True
            self._tell_ended_managers()
            for event in generation.events(deadline - time.monotonic()):
                quiet = False
                if isinstance(event, Death):
                    if event.rank not in finished:
                        return self._failure(fork_server, generation, event.rank)
                    gone.add(event.rank)
                    continue
                rank = int(event.fields["rank"])
                if event.name == "fatal":
                    return _Failure(rank=rank, cause=f"{event.fields['kind']}: {event.fields['reason']}", fatal=True)
                if event.name == "finished":
                    finished.add(rank)
                elif event.name == "training":
                    training.add(rank)
                    if training == ranks:
                        self._tell_recovered(generation.epoch, decision)
                else:
                    self._forward(event)
                if event.name in ("iteration", "training"):
                    deadline = time.monotonic() + timeouts.iteration_s
            if quiet and time.monotonic() >= deadline:
                return self._hang(min(ranks - finished, default=min(ranks - gone)))
        return None

    def _failure(self, fork_server: ForkServer, generation: Generation, rank: int) -> _Failure:
        self._failed_at_s = time.monotonic()
        code = self._exit_code(fork_server, generation, rank)
        if code >= 0:
            rank, code = self._killed_peer(fork_server, generation, rank) or (rank, code)
        cause = describe_code(code)
        if code > 0:
            cause += f": {last_line(generation.log_path(rank))}"
        self._tell("failure", rank=rank, cause=cause)
        return _Failure(rank=rank, cause=cause)

    def _exit_code(self, fork_server: ForkServer, generation: Generation, rank: int) -> int:
        return fork_server.wait_exit(generation.pids[rank], self._config.timeouts.fence_s).returncode

    def _killed_peer(self, fork_server: ForkServer, generation: Generation, raised: int) -> tuple[int, int] | None:
        """Of a trainer that raised: the peer whose death by signal made it raise, with its exit code.

        The peer died first and is seen later, because its memory takes longer to tear down.
        """
        deadline = time.monotonic() + _PEER_END_S
        for peer in sorted(generation.pids.keys() - {raised}):
            if generation.ended(peer, deadline - time.monotonic()):
                code = self._exit_code(fork_server, generation, peer)
                if code < 0:
                    return peer, code
        return None

    def _tell_ended_managers(self) -> None:
        """Training goes on in what trainers have mapped, but the next failure cannot be recovered: say so at once."""
        for manager in self._managers:
            if manager.name not in self._ended_managers and manager.ended():
                self._ended_managers.add(manager.name)
                self._tell("service-ended", service=manager.name, cause=manager.describe_end())

    def _hang(self, rank: int) -> _Failure:
        self._failed_at_s = time.monotonic()
        self._tell("failure", rank=rank, cause="hang")
        return _Failure(rank=rank, cause="hang")

    def _fence(self, generation: Generation) -> None:
        started_s = time.monotonic()
        epoch = generation.epoch
        generation.fence(self._config.timeouts.fence_s)
        if self._failed_at_s is not None:
            self._tell("fenced", epoch=epoch, seconds=time.monotonic() - started_s)

    def _decide(self, coordinator: Coordinator, epoch: int) -> Decision:
        decision = coordinator.decide([_reader(pool, epoch) for pool in self._pools])
        self._tell(
            "decided",
            epoch=epoch + 1,
            action=decision.action.value,
            iteration=decision.iteration,
            reason=decision.reason,
        )
        return decision

    def _tell_recovered(self, epoch: int, decision: Decision) -> None:
        if self._failed_at_s is None:
            return
        seconds = time.monotonic() - self._failed_at_s
        self._failed_at_s = None
        self._tell("recovered", epoch=epoch, seconds=seconds, action=decision.action.value)

    def _forward(self, report: Report) -> None:
        fields: Mapping[str, Any] = {**report.fields, "epoch": report.epoch}
        self._observer.observe(Event(report.name, fields))

    def _tell(self, name: str, **fields: Any) -> None:
        self._observer.observe(Event(name, fields))


def _reader(pool: PoolAgent, epoch: int) -> Any:
    return lambda: pool.control.read_progress(epoch)


def _stop(manager: Spawned, timeout_s: float) -> None:
    manager.stop(timeout_s)
    manager.close()
