"""Watching one generation of trainers until it finishes or fails, with shadows being made beside it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from leto.core.config import JobConfig
from leto.core.errors import UnenrolledState, Unrecoverable
from leto.core.events import Event, Observer
from leto.runtime.generation import Death, Generation, poll
from leto.runtime.messages import Report
from leto.runtime.process import describe_code, last_line
from leto.runtime.services import Services
from leto.runtime.standby import Standby

_REFUSALS = {
    Unrecoverable.__name__: "unrecoverable: {}; no checkpoint configured",
    UnenrolledState.__name__: "state that is not enrolled: {}",
}
"""What a trainer raises where the job itself decides not to go on, in words (U30, U54)."""

_PEER_END_S = 0.5
"""How long the end of a killed trainer may be seen after that of a peer which raised because of it."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A generation cannot go on.

    ``fatal`` is a reason that forking again would only repeat; ``refused`` says that it is the job's own decision (U54).
    """

    rank: int
    cause: str
    fatal: bool = False
    refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a generation recovers from: told, with its phases in seconds, when every rank is training again."""

    since_s: float  # monotonic, when the failure was seen
    action: str
    level: str  # of the trainers that took over: L3 for promoted shadows, L1 for freshly forked ones
    phases: Mapping[str, float]  # until the generation was opened


class Watch:
    """One generation from its fork or promotion to its end. ``failed_at_s`` is set by ``run`` when it fails."""

    def __init__(
        self,
        generation: Generation,
        *,
        recovery: Recovery | None,
        services: Services,
        standby: Standby | None,
        config: JobConfig,
        observer: Observer,
    ) -> None:
        self._generation = generation
        self._recovery = recovery
        self._services = services
        self._standby = standby
        self._config = config
        self._observer = observer
        self._ranks = set(generation.pids)
        self._training: set[int] = set()
        self._finished: set[int] = set()
        self._gone: set[int] = set()
        self._deadline_s = time.monotonic() + config.timeouts.ready_s
        self._phases: dict[str, float] = {}  # the slowest rank's
        self.failed_at_s = 0.0

    def run(self) -> Failure | None:
        """Until every rank has finished (None) or one cannot go on."""
        while self._gone != self._ranks:
            heard = False
            for generation, event in poll(self._generations(), self._patience_s()):
                if generation is not self._generation:
                    assert self._standby is not None
                    self._standby.handle(event)
                    continue
                heard = True
                failure = self._on_death(event) if isinstance(event, Death) else self._on_report(event)
                if failure is not None:
                    return failure
            self._tell_ended_managers()
            self._start_shadows()
            if not heard and time.monotonic() >= self._deadline_s:
                return self._hang()
        return None

    def _generations(self) -> list[Generation]:
        shadows = self._standby.generation if self._standby else None
        return [self._generation] if shadows is None else [self._generation, shadows]

    def _patience_s(self) -> float:
        remaining_s = self._deadline_s - time.monotonic()
        start_s = self._standby.seconds_to_start if self._standby and self._is_training() else None
        return remaining_s if start_s is None else min(remaining_s, start_s)

    def _is_training(self) -> bool:
        return self._training == self._ranks and not self._finished

    def _start_shadows(self) -> None:
        """Only beside training: recovery has the machine to itself."""
        if self._standby is not None and self._is_training():
            self._standby.start_if_due(self._generation.epoch)

    def _on_report(self, report: Report) -> Failure | None:
        rank = int(report.fields["rank"])
        if report.name == "fatal":
            kind, reason = report.fields["kind"], report.fields["reason"]
            cause = _REFUSALS.get(kind, f"{kind}: {{}}").format(reason)
            return Failure(rank=rank, cause=cause, fatal=True, refused=kind in _REFUSALS)
        if report.name in ("iteration", "training"):
            self._deadline_s = time.monotonic() + self._config.timeouts.iteration_s
        if report.name == "finished":
            self._finished.add(rank)
            return None
        self._note_phases(report)
        if report.name == "training":
            self._training.add(rank)
            if self._training == self._ranks and self._recovery is not None:
                self._tell_recovered(self._recovery)
            return None
        self._tell(report.name, **report.fields)
        return None

    def _note_phases(self, report: Report) -> None:
        for name, value in report.fields.items():
            if name.endswith("_s"):
                self._phases[name] = max(self._phases.get(name, 0.0), float(value))

    def _tell_recovered(self, recovery: Recovery) -> None:
        seconds = time.monotonic() - recovery.since_s
        phases = {**recovery.phases, **self._phases}
        self._tell("recovered", seconds=seconds, action=recovery.action, level=recovery.level, phases=phases)

    def _on_death(self, death: Death) -> Failure | None:
        if death.rank in self._finished:
            self._gone.add(death.rank)
            return None
        self.failed_at_s = time.monotonic()
        rank, code = death.rank, self._exit_code(death.rank)
        if code >= 0:
            rank, code = self._killed_peer(rank) or (rank, code)
        cause = describe_code(code)
        if code > 0 or code == -signal.SIGABRT:  # it said why it ends itself
            cause += f": {last_line(self._generation.log_path(rank))}"
        return self._failure(rank, cause)

    def _exit_code(self, rank: int) -> int:
        pid = self._generation.pids[rank]
        return self._services.fork_server.wait_exit(pid, self._config.timeouts.fence_s).returncode

    def _killed_peer(self, raised: int) -> tuple[int, int] | None:
        """Of a trainer that raised: the peer whose death by signal made it raise, with its exit code.

        The peer died first and is seen later, because its memory takes longer to tear down.
        """
        deadline = time.monotonic() + _PEER_END_S
        for peer in sorted(self._ranks - {raised}):
            if self._generation.ended(peer, deadline - time.monotonic()):
                code = self._exit_code(peer)
                if code < 0:
                    return peer, code
        return None

    def _hang(self) -> Failure:
        self.failed_at_s = time.monotonic()
        waiting = self._ranks - self._finished or self._ranks - self._gone
        return self._failure(min(waiting), "hang")

    def _failure(self, rank: int, cause: str) -> Failure:
        self._tell("failure", rank=rank, cause=cause)
        return Failure(rank=rank, cause=cause)

    def _tell_ended_managers(self) -> None:
        """Training goes on in what trainers have mapped, but the next failure cannot be recovered: say so at once."""
        for manager in self._services.newly_ended_managers():
            self._observer.observe(Event("service-ended", {"service": manager.name, "cause": manager.describe_end()}))

    def _tell(self, name: str, **fields: object) -> None:
        self._observer.observe(Event(name, {"epoch": self._generation.epoch, **fields}))
