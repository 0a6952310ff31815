"""The pool's users: trainers obtain and attach by name, observers map what there is, agents hold the control arena."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from leto.core.errors import FencedError, RetainedStateError, WireError
from leto.core.geometry import Page
from leto.core.layout import Allocation, Domain
from leto.device.host import HostMapping
from leto.memory.control import ControlPage
from leto.memory.messages import (
    POOL_CODEC,
    Acknowledged,
    Advance,
    Advanced,
    Allocate,
    Attach,
    DomainUsage,
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
    allocation_name,
    batched,
    page_name,
)
from leto.memory.regions import Regions
from leto.memory.wire import Channel, Message, close_all

_ERRORS: dict[str, type[Exception]] = {e.__name__: e for e in (FencedError, RetainedStateError, WireError)}

_Answer = TypeVar("_Answer")


class _Connection:
    """A welcomed connection to one rank's state manager: the control arena is mapped, the other arenas are descriptors.

    Requests raise what the manager refuses with (FencedError, RetainedStateError), JobError at the deadline and PeerClosed
    when the manager is gone.
    """

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, role: Role, timeout_s: float) -> None:
        self.rank = rank
        self.epoch = epoch
        self.timeout_s = timeout_s
        self.arenas: dict[Domain, int] = {}
        self._channel = Channel.connect(str(socket_path), POOL_CODEC, timeout_s)
        try:
            welcome = self._hello(role)
            self._control = HostMapping(self.arenas[Domain.CONTROL])
        except BaseException:
            self._close_descriptors()
            raise
        self.control = ControlPage(self._control)
        self.layout_hash = welcome.layout_hash
        self.lost_count = welcome.lost

    def _hello(self, role: Role) -> Welcome:
        answer, fds = self._channel.request(Hello(epoch=self.epoch, rank=self.rank, role=role), self.timeout_s)
        try:
            welcome = _expect(Welcome, answer)
            if len(fds) != len(welcome.domains) or Domain.CONTROL not in welcome.domains:
                raise WireError(f"Welcome names {len(welcome.domains)} arenas and carries {len(fds)}")
        except BaseException:
            close_all(fds)
            raise
        self.arenas = dict(zip(welcome.domains, fds, strict=True))
        return welcome

    def request(self, message: Message, answer_type: type[_Answer]) -> _Answer:
        answer, fds = self._channel.request(message, self.timeout_s)
        close_all(fds)
        return _expect(answer_type, answer)

    def usage(self) -> dict[Domain, DomainUsage]:
        return {usage.domain: usage for usage in self.request(Usage(epoch=self.epoch), Used).domains}

    def places(self) -> Iterator[Place]:
        """Everything the manager retains, in order of allocation."""
        first, total = 0, 1
        while first < total:
            table = self.request(List(epoch=self.epoch, first=first), Table)
            yield from table.places
            if not table.places:
                return
            first, total = first + len(table.places), table.total

    def lost(self) -> tuple[Page, ...]:
        """Pages that are marked as lost, in order of marking."""
        pages: list[Page] = []
        while True:
            answer = self.request(ListLost(epoch=self.epoch, first=len(pages)), Lost)
            pages += answer.pages
            if len(pages) >= answer.total or not answer.pages:
                return tuple(pages)

    def map(self, regions: Regions, places: Iterable[Place]) -> None:
        """Retained pages over the regions of these allocations, which must be reserved."""
        for place in places:
            region = regions.region(place.name)
            assert region.byte_count == place.byte_count, place
            if not region.attached:
                region.attach(self.arenas[place.domain], place.offset)

    def close(self) -> None:
        """Control words are not mapped any more when it returns; what regions map stays."""
        self._close_descriptors()
        self._control.close()

    def _close_descriptors(self) -> None:
        self._channel.close()
        close_all(self.arenas.values())
        self.arenas = {}


class Pool:
    """A trainer's end: retained memory of one rank, obtained by name and mapped over the trainer's regions.

    Connecting and attaching map memory and write none of it.
    """

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, timeout_s: float) -> None:
        """``timeout_s`` bounds this call and every later request. Raises FencedError unless ``epoch`` is the current one."""
        self._connection = _Connection(socket_path, rank=rank, epoch=epoch, role=Role.TRAINER, timeout_s=timeout_s)
        self.control = self._connection.control
        self._lost = self._connection.lost() if self._connection.lost_count else ()

    @property
    def rank(self) -> int:
        return self._connection.rank

    @property
    def epoch(self) -> int:
        return self._connection.epoch

    @property
    def layout_hash(self) -> str | None:
        """Of what was retained when this pool connected; None when nothing was (U41)."""
        return self._connection.layout_hash

    def obtain(self, regions: Regions, allocations: Iterable[Allocation], layout_hash: str, *, create: bool) -> None:
        """Map retained pages over the regions of these allocations, which are reserved where they are not yet.

        A cold start creates: new pages are zero, a known name keeps its pages and their contents. Everybody else finds what
        an earlier process left. Raises RetainedStateError for another layout, a known name of another class or size, a name
        that is not retained (unless ``create``), or a full arena.
        """
        request = Allocate if create else Attach
        for batch in batched(allocations, allocation_name):
            table = self._connection.request(request(epoch=self.epoch, layout_hash=layout_hash, allocations=batch), Table)
            regions.reserve(batch)
            self._connection.map(regions, table.places)

    def attach_all(self, regions: Regions, layout_hash: str) -> None:
        """Map retained pages over everything that is reserved: the takeover. Raises like ``obtain``."""
        self.obtain(regions, regions.allocations, layout_hash, create=False)

    @property
    def lost(self) -> tuple[Page, ...]:
        """Pages marked as lost when this pool connected, before anything could be attached; ``rebuilt`` removes them.

        They read as zeros and must not be used before they are rebuilt.
        """
        return self._lost

    def rebuilt(self, pages: Iterable[Page]) -> None:
        """Acknowledge that these pages hold again what they held: their marks are cleared for good (U19, U36)."""
        done = tuple(pages)
        for batch in batched(done, page_name):
            self._connection.request(Rebuilt(epoch=self.epoch, pages=batch), Acknowledged)
        self._lost = tuple(page for page in self._lost if page not in set(done))

    def usage(self) -> dict[Domain, DomainUsage]:
        return self._connection.usage()

    def close(self) -> None:
        """The connection and the control arena; regions stay mapped."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class PoolObserver:
    """Everything that is retained for one rank, mapped; the trainers of later epochs keep using the same pages.

    ``page_bytes`` is the code page size of the job.
    """

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, page_bytes: int, timeout_s: float) -> None:
        """Raises FencedError unless ``epoch`` is the current one."""
        self._connection = _Connection(socket_path, rank=rank, epoch=epoch, role=Role.OBSERVER, timeout_s=timeout_s)
        self.control = self._connection.control
        self.regions = Regions(page_bytes)
        self.places: Mapping[str, Place] = {}  # as of the last ``table``; a place never changes, so it holds in later epochs

    def table(self) -> Mapping[str, Place]:
        """Everything retained now, by name; all of it is mapped afterwards."""
        places = {place.name: place for place in self._connection.places()}
        self.regions.reserve(
            Allocation(name=place.name, page_class=place.page_class, byte_count=place.byte_count) for place in places.values()
        )
        self._connection.map(self.regions, places.values())
        self.places = places
        return places

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A flat, writable view of the whole allocation. While a view lives, the observer cannot be closed."""
        return self.regions.bytes(name)

    @property
    def arenas(self) -> Mapping[Domain, int]:
        """Descriptors of the arenas, which this observer keeps owning."""
        return self._connection.arenas

    def lost(self) -> tuple[Page, ...]:
        """Pages that are marked as lost now."""
        return self._connection.lost()

    def usage(self) -> dict[Domain, DomainUsage]:
        return self._connection.usage()

    def close(self) -> None:
        """Unmap everything. Raises BufferError while views are alive."""
        self.regions.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class PoolAgent:
    """The node agent's end: control arena and epochs, no retained state."""

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, timeout_s: float) -> None:
        self._connection = _Connection(socket_path, rank=rank, epoch=epoch, role=Role.AGENT, timeout_s=timeout_s)
        self.control = self._connection.control

    @property
    def rank(self) -> int:
        return self._connection.rank

    @property
    def epoch(self) -> int:
        return self._connection.epoch

    def advance(self, epoch: int) -> None:
        """Begin ``epoch``: connections of every other epoch are refused from now on, old marker pages are given back."""
        self._connection.request(Advance(epoch=epoch), Advanced)
        self._connection.epoch = epoch

    def localise(self) -> Localised:
        """Find the rank's lost pages, mark and replace them; marks of earlier failures stay (U36). After the fence."""
        return self._connection.request(Localise(epoch=self.epoch), Localised)

    def lost(self) -> tuple[Page, ...]:
        """Pages that are marked as lost now, in order of marking."""
        return self._connection.lost()

    def usage(self) -> dict[Domain, DomainUsage]:
        return self._connection.usage()

    def close(self) -> None:
        self._connection.close()


def _expect(answer_type: type[_Answer], answer: Any) -> _Answer:
    if isinstance(answer, Refused):
        raise _ERRORS.get(answer.error, WireError)(answer.text)
    if not isinstance(answer, answer_type):
        raise WireError(f"{type(answer).__name__} is no answer here, {answer_type.__name__} is")
    return answer
