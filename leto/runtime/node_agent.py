"""The node agent: spawns, fences and replaces; the coordinator that decides is its guest.

    start     one state manager a rank, the fork server
    epoch e   decision durable in every rank's control page -> old epochs fenced -> words carried over
              -> shadows promoted, or trainers forked
    failure   fence all -> read all markers -> decide -> epoch e+1 (U21, U26)

A plain process without torch. It maps control arenas only and never reads retained contents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leto.core.config import JobConfig
from leto.core.errors import ConfigError, JobError, LetoError
from leto.core.events import Event, Observer
from leto.core.geometry import Page
from leto.core.layout import MAX_EPOCHS, control_page
from leto.core.markers import Progress, words_of
from leto.core.recovery import Action, Decision
from leto.megatron.models import model_spec
from leto.memory.client import PoolAgent
from leto.runtime.coordinator import Coordinator, cold_start
from leto.runtime.generation import SHADOW, TRAINER, Generation
from leto.runtime.services import Services
from leto.runtime.standby import Standby
from leto.runtime.watch import Failure, Recovery, Watch


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How the job ended: completed, refused (by the job's own decision, U54) or failed."""

    status: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """A generation that failed: when that was seen (monotonic seconds), and how long fencing and localisation took.

    ``lost_control`` are each rank's lost pages of its control arena.
    """

    at_s: float
    fence_s: float
    localise_s: float = 0.0
    lost_control: tuple[tuple[int, ...], ...] = ()


class NodeAgent:
    """Runs one job on this node, start to end."""

    def __init__(self, config: JobConfig, observer: Observer) -> None:
        self._config = config
        self._observer = observer
        self._log_dir = Path(config.output_dir) / "logs"

    def run(self) -> JobEnd:
        """Leaves no process, socket or memory behind, however it ends.

        Raises ConfigError, before anything is started, for a configuration that names what there is not.
        """
        self._check_config()
        try:
            with Services(self._config, self._log_dir) as services:
                self._tell("job-started", services=services.pids, pool_sockets=[str(p) for p in services.pool_sockets])
                end = Job(self._config, services, self._observer, self._log_dir).run()
        except LetoError as error:
            end = JobEnd(status="failed", reason=f"{type(error).__name__}: {error}")
        self._tell("job-ended", status=end.status, reason=end.reason)
        return end

    def _check_config(self) -> None:
        try:
            model_spec(self._config.workload)
        except ConfigError as error:
            raise ConfigError(f"workload.{error}") from None
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output_dir: {error.filename}: {error.strerror}") from None

    def _tell(self, name: str, **fields: Any) -> None:
        self._observer.observe(Event(name, fields))


class Job:
    """Epoch after epoch, until the job ends."""

    def __init__(self, config: JobConfig, services: Services, observer: Observer, log_dir: Path) -> None:
        self._config = config
        self._services = services
        self._observer = observer
        self._log_dir = log_dir
        self._coordinator = Coordinator(config.workload.world_size, config.workload.iterations)
        self._standby = Standby(self._fork_shadows, observer, config.timeouts.fence_s, time.monotonic)

    def run(self) -> JobEnd:
        try:
            return self._run()
        finally:
            self._standby.discard()

    def _run(self) -> JobEnd:
        decision = cold_start(self._config.workload.world_size)
        interrupted: Interrupted | None = None
        for epoch in range(1, MAX_EPOCHS):
            generation, recovery = self._open(epoch, decision, interrupted)
            failure, interrupted = self._train(generation, recovery)
            if failure is None:
                return JobEnd(status="completed")
            if failure.fatal:
                return _fatal_end(failure)
            localise_s, lost_control = self._localise(epoch)
            interrupted = replace(interrupted, localise_s=localise_s, lost_control=lost_control)
            decision = self._decide(epoch, lost_control)
            if decision.action is Action.CHECKPOINT:
                return JobEnd(status="refused", reason=f"{decision.reason}; rank {failure.rank} {failure.cause}")
        return JobEnd(status="refused", reason=f"{MAX_EPOCHS} epochs are used up")

    def _train(self, generation: Generation, recovery: Recovery | None) -> tuple[Failure | None, Interrupted]:
        """Watch the generation to its end and fence it: no thread of it can write when this returns (INV-F)."""
        watch = Watch(
            generation,
            recovery=recovery,
            services=self._services,
            standby=self._standby if self._config.shadows else None,
            config=self._config,
            observer=self._observer,
        )
        fence_s = 0.0
        failure: Failure | None = None
        try:
            failure = watch.run()
        finally:
            started_s = time.monotonic()
            generation.fence(self._config.timeouts.fence_s)
            fence_s = time.monotonic() - started_s
        if failure is not None:
            self._tell("fenced", epoch=generation.epoch, seconds=fence_s)
        return failure, Interrupted(at_s=watch.failed_at_s, fence_s=fence_s)

    def _open(self, epoch: int, decision: Decision, interrupted: Interrupted | None) -> tuple[Generation, Recovery | None]:
        """The decision is durable everywhere before anybody can act on it (U21)."""
        started_s = time.monotonic()
        self._check_managers()
        for pool in self._services.pools:
            pool.control.write_decision(epoch, decision)
        for pool, carried in zip(self._services.pools, decision.carried, strict=True):
            pool.advance(epoch)
            pool.control.write_words(epoch, words_of(epoch, carried))
            pool.control.clear_park()
        self._tell_carried(epoch, interrupted.lost_control if interrupted else ())
        shadows = None if decision.action is Action.COLD else self._standby.take()
        if shadows is not None:
            shadows.promote(epoch)
        generation = shadows or self._fork(TRAINER, epoch)
        if interrupted is None:
            return generation, None
        return generation, Recovery(
            since_s=interrupted.at_s,
            action=decision.action.value,
            level="L1" if shadows is None else "L3",
            phases={
                "fence_s": interrupted.fence_s,
                "localise_s": interrupted.localise_s,
                "promote_s": time.monotonic() - started_s,
            },
        )

    def _tell_carried(self, epoch: int, lost_control: Sequence[Sequence[int]]) -> None:
        """What lost mirrors said stands in fresh marker pages: nothing else is to be rebuilt of them (U4, U5)."""
        for rank, pages in enumerate(lost_control):
            if pages:
                self._tell("carried", epoch=epoch, rank=rank, pages=_control_names(epoch - 1, pages))

    def _check_managers(self) -> None:
        """What a state manager retained went with it, but for what trainers had mapped."""
        for manager in self._services.managers:
            if manager.ended():
                raise JobError(f"{manager.name} {manager.describe_end()}")

    def _fork(self, target: str, epoch: int) -> Generation:
        services = self._services
        return Generation.fork(target, services.fork_server, self._config, epoch, services.pool_sockets, self._log_dir)

    def _fork_shadows(self, epoch: int) -> Generation:
        return self._fork(SHADOW, epoch)

    def _localise(self, epoch: int) -> tuple[float, tuple[tuple[int, ...], ...]]:
        """Lost pages are found, marked and replaced before a trainer touches retained memory, or this agent a mark (R17).

        Returns the seconds, and each rank's lost pages of its control arena.
        """
        self._check_managers()
        started_s = time.monotonic()
        lost_control = []
        for rank, pool in enumerate(self._services.pools):
            found = pool.localise()
            lost_control.append(found.control)
            if found.lost or found.control:
                pages = [_page_name(page) for page in pool.lost()] + _control_names(epoch, found.control)
                counts = {"found": found.found + len(found.control), "lost": found.lost + len(found.control)}
                self._tell("localised", epoch=epoch, rank=rank, **counts, pages=pages, seconds=found.seconds)
        return time.monotonic() - started_s, tuple(lost_control)

    def _decide(self, epoch: int, lost_control: Sequence[Sequence[int]]) -> Decision:
        readers = [_reader(pool, epoch, lost) for pool, lost in zip(self._services.pools, lost_control, strict=True)]
        decision = self._coordinator.decide(readers)
        self._tell(
            "decided",
            epoch=epoch + 1,
            action=decision.action.value,
            iteration=decision.iteration,
            reason=decision.reason,
        )
        return decision

    def _tell(self, name: str, **fields: Any) -> None:
        self._observer.observe(Event(name, fields))


def _fatal_end(failure: Failure) -> JobEnd:
    status = "refused" if failure.refused else "failed"
    return JobEnd(status=status, reason=f"rank {failure.rank}: {failure.cause}")


def _reader(pool: PoolAgent, epoch: int, lost: Sequence[int]) -> Callable[[], Progress]:
    return lambda: pool.control.read_progress(epoch, lost)


def _page_name(page: Page) -> str:
    return f"{page.allocation}:{page.page_index}"


def _control_names(epoch: int, pages: Sequence[int]) -> list[str]:
    return [_page_name(control_page(epoch, page)) for page in pages]
