"""What the engine asks of a system under test.

A target knows how to start a job, to look at its park words, and to hurt it. It decides nothing: when a fault fires, what
counts as a hang and what the run is worth belong to the engine and the checkers. Events carry these fields (JSON values):

    job-started                                       processes exist
    ready       rank, pid, epoch                      the trainer attached and is about to compute
    iteration   rank, iteration, loss                 results of the iteration are in the ledger; loss is float.hex
    failure     rank, cause                           a trainer is gone or hangs
    service-ended  service, cause                     a process that keeps the job recoverable is gone; training goes on
    fenced      epoch, seconds                        no thread of an older epoch can write (INV-F)
    decided     action, iteration, reason, epoch      one decision a failure (U21); epoch is the new one
    resumed     rank, row, reason                     where the rank goes on (crash-point table)
    localised   rank, epoch, found, lost, pages, seconds
                                                      a failed rank's lost pages, as "allocation:index"; those of earlier
                                                      failures that nobody has rebuilt yet are among them
    carried     rank, epoch, pages                    lost mirrors of the rank's marker, whose words stand in the fresh marker
                                                      pages of this epoch: nothing is to be rebuilt of them
    repaired    rank, epoch, pages, rebuilt, budgets, reconstruct_s
                                                      the rank holds again what it needs; budgets by code word
    recovered   epoch, seconds, action, level, phases
                                                      every rank of the new epoch is training again; level of the trainers that
                                                      took over, phases in seconds
    shadows-ready  epoch, level, seconds              shadows of all ranks stand by; until shadow-ended or the next fence
    shadow-ended, shadow-failed  epoch                the generation that stood by, or was to, is gone
    audit       rank, epoch, iteration, groups, tier1_wrong, tier2_wrong
                                                      U55; of the last completed iteration; wrong ones are lists of groups
    job-ended   status, reason                        the last event of every job; status is an Outcome's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from chaos.loss import LostPages
from chaos.schedule import Injection, Place
from chaos.targets.rank_geometry import RankGeometry
from leto.core.config import Workload
from leto.core.events import Event
from leto.core.geometry import Protection


class FaultNotInjected(Exception):
    """The target could not carry out a step of an injection; the run is invalid, whatever its numbers say."""


class Updater(Enum):
    """Who runs the update phase of a job."""

    CHUNKS = "chunks"  # the resumable updater
    NONE = "none"  # the control: update in place, encode afterwards (U52)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One job to start. The reference only says what ``protection`` would come to in it, and never gets injections.

    The job writes one ledger a rank, ``rank<N>.ledger`` in ``ledger_dir``, and everything else below ``output_dir``. Both
    directories exist.
    """

    name: str
    workload: Workload
    protection: Protection
    output_dir: Path
    ledger_dir: Path
    injections: tuple[Injection, ...] = ()
    updater: Updater = Updater.CHUNKS
    mutant: str | None = None  # a name of chaos.mutants


class OutcomeStatus(Enum):
    COMPLETED = "completed"
    REFUSED = "refused"  # the system stopped by its own decision, with its reason (U54)
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``reason`` is empty only when it completed."""

    status: OutcomeStatus
    reason: str = ""


@dataclass(frozen=True)
class Residue:
    """What a job left behind, one line each: processes, sockets, memory files, descriptors."""

    leaks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What all processes of a job together hold, at one moment.

    ``private_bytes`` is memory that nobody else maps (USS); ``proportional_bytes`` counts shared pages once over all who map
    them (PSS).
    """

    processes: int
    descriptors: int
    private_bytes: int
    proportional_bytes: int
    shm_files: int  # in /dev/shm, whoever made them
    shm_bytes: int


class RunningJob(Protocol):
    """A started job. Every method but ``next_event`` and ``finish`` returns at once."""

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event in order, or None when none came in time. After ``job-ended`` it is always None."""
        ...

    def parked(self, place: Place) -> bool:
        """True when the park word of the place's rank holds its token (U50).

        Not before the ready event of the parked process has come out of ``next_event``: until then nobody could kill it.
        """
        ...

    def locate(self, place: Place) -> str:
        """Which group and chunk a parked kernel works on, for people; "" at a point. Raises FaultNotInjected."""
        ...

    def geometry(self, rank: int) -> RankGeometry | None:
        """What the pages of a rank are that is ready, under the spec's protection; None where the system does not say."""
        ...

    def time_of(self, rank: int) -> int | None:
        """The rank's logical time (chaos.schedule.logical_time) as it last said it, None while it has no ready trainer."""
        ...

    def damage(self, injection: Injection) -> str:
        """Destroy what the injection destroys besides the process and say what that was, "" when nothing.

        Called once, while the injection's places are parked. Raises FaultNotInjected.
        """
        ...

    def choose_losses(self, injection: Injection) -> tuple[LostPages, ...]:
        """Which pages the injection's losses come to where its rank stands parked. Changes nothing.

        Raises FaultNotInjected when there are fewer than are to be lost.
        """
        ...

    def lose(self, injection: Injection, lost: Sequence[LostPages]) -> None:
        """Lose these pages of the injection's parked rank. Raises FaultNotInjected."""
        ...

    def resources(self) -> Resources:
        """What the job's processes hold now. Raises FaultNotInjected when they are gone."""
        ...

    def open_gate(self, injection: Injection) -> None:
        """Let the rank that stands at the injection's gate go on; later processes do not stop there any more."""
        ...

    def disarm(self, injection: Injection) -> None:
        """Later processes of the job must not park at this injection: it fires once across restarts."""
        ...

    def release(self, injection: Injection) -> None:
        """Let the injection's parked rank go on."""
        ...

    def kill(self, injection: Injection) -> None:
        """SIGKILL the injection's ``killed_rank`` through its pidfd. Raises FaultNotInjected when it is not there."""
        ...

    def finish(self, timeout_s: float) -> Outcome:
        """Wait for the orderly end. Called after ``job-ended``. Raises TimeoutError."""
        ...

    def close(self) -> Residue:
        """Kill and reap whatever of the job still runs, free what it held, and say what it had not freed by itself.

        Called exactly once for every started job, in whatever state it is. After an orderly end a process that is still alive
        is a leak; of a job that was cut short only what survives ``close`` is one.
        """
        ...


class Target(Protocol):
    """A system under test or a reference. Constructed without arguments, starts one job at a time."""

    def check(self, spec: RunSpec) -> None:
        """Raises ConfigError when the spec names a model, data or precision that the system does not have, or losses that this
        machine cannot make. Starts nothing and needs no directory."""
        ...

    def start(self, spec: RunSpec) -> RunningJob:
        """Raises ConfigError as ``check`` does, JobError when the job does not start; nothing is left behind in either case."""
        ...
