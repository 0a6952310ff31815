"""The generation that stands by: shadows of all ranks, made while the active ones train (paper 6; U38).

It is all or nothing: shadows have built process groups among themselves, so one that dies takes its generation with it, and a
new one is made after a pause that doubles with every death.
"""

from __future__ import annotations

from collections.abc import Callable

from leto.core.errors import JobError
from leto.core.events import Event, Observer
from leto.runtime.generation import Death, Generation
from leto.runtime.messages import Report

ForkShadows = Callable[[int], Generation]
"""Forks one shadow a rank, reporting under the given epoch."""

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Standby:
    """At most one generation of shadows. ``clock`` gives monotonic seconds."""

    def __init__(self, fork: ForkShadows, observer: Observer, fence_s: float, clock: Callable[[], float]) -> None:
        self._fork = fork
        self._observer = observer
        self._fence_s = fence_s
        self._clock = clock
        self._generation: Generation | None = None
        self._prepared: set[int] = set()
        self._deaths = 0
        self._not_before_s = 0.0

    @property
    def generation(self) -> Generation | None:
        return self._generation

    @property
    def ready(self) -> bool:
        """Every rank is L3 in one generation; nothing less counts (U38)."""
        return self._generation is not None and self._prepared == set(self._generation.pids)

    @property
    def seconds_to_start(self) -> float | None:
        """Until ``start_if_due`` has something to do; None while a generation exists."""
        return None if self._generation is not None else max(self._not_before_s - self._clock(), 0.0)

    def start_if_due(self, epoch: int) -> None:
        if self.seconds_to_start != 0.0:
            return
        self._prepared = set()
        try:
            self._generation = self._fork(epoch)
        except JobError as error:  # training goes on without shadows; the cold path does not need them
            self._observer.observe(Event("shadow-failed", {"epoch": epoch, "reason": str(error)}))
            self._pause()

    def handle(self, event: Report | Death) -> None:
        """What a shadow says, or its death."""
        assert self._generation is not None
        if isinstance(event, Report) and event.name == "prepared":
            self._prepared.add(int(event.fields["rank"]))
            if self.ready:
                self._generation.idle()
                self._deaths = 0
                self._tell("shadows-ready", level=event.fields["level"], seconds=event.fields["seconds"])
        elif isinstance(event, Report):
            self._tell("shadow-failed", **event.fields)
        else:
            self._lose(event.rank)

    def _lose(self, rank: int) -> None:
        self._tell("shadow-ended", rank=rank)
        self.discard()
        self._pause()

    def _pause(self) -> None:
        """Doubles with every generation that did not come up."""
        self._not_before_s = self._clock() + min(_FIRST_PAUSE_S * 2**self._deaths, _LONGEST_PAUSE_S)
        self._deaths += 1

    def take(self) -> Generation | None:
        """The ready generation, which is the caller's from now on; None, with everything discarded, when none is ready."""
        if not self.ready:
            self.discard()
            return None
        generation, self._generation = self._generation, None
        return generation

    def discard(self) -> None:
        if self._generation is not None:
            self._generation.fence(self._fence_s)
            self._generation = None

    def _tell(self, name: str, **fields: object) -> None:
        assert self._generation is not None
        self._observer.observe(Event(name, {"epoch": self._generation.epoch, **fields}))
