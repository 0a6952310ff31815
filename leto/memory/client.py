"""The pool's users: trainers and observers attach by name (Pool), agents hold the control arena (PoolAgent)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from leto.memory.wire import Channel, Message, close_all

_ERRORS: dict[str, type[Exception]] = {e.__name__: e for e in (FencedError, RetainedStateError, WireError)}

_Answer = TypeVar("_Answer")


class _Connection:
    """A welcomed connection to one rank's state manager, with the arenas it was given mapped.

    Requests raise what the manager refuses with (FencedError, RetainedStateError), JobError at the deadline and PeerClosed
    when the manager is gone.
    """

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, role: Role, timeout_s: float) -> None:
        self.rank = rank
        self.epoch = epoch
        self.timeout_s = timeout_s
        self._channel = Channel.connect(str(socket_path), POOL_CODEC, timeout_s)
        self.mappings: dict[Domain, HostMapping] = {}
        try:
            self.layout_hash = self._hello(role)
        except BaseException:
            self.close()
            raise

    def _hello(self, role: Role) -> str | None:
        answer, fds = self._channel.request(Hello(epoch=self.epoch, rank=self.rank, role=role), self.timeout_s)
        try:
            welcome = _expect(Welcome, answer)
            if len(fds) != len(welcome.domains):
                raise WireError(f"Welcome names {len(welcome.domains)} arenas and carries {len(fds)}")
            self.mappings = {domain: HostMapping(fd) for domain, fd in zip(welcome.domains, fds, strict=True)}
        finally:
            close_all(fds)
        return welcome.layout_hash

    def request(self, message: Message, answer_type: type[_Answer]) -> _Answer:
        answer, fds = self._channel.request(message, self.timeout_s)
        close_all(fds)
        return _expect(answer_type, answer)

    def usage(self) -> dict[Domain, DomainUsage]:
        return {usage.domain: usage for usage in self.request(Usage(epoch=self.epoch), Used).domains}

    def close(self) -> None:
        """Raises BufferError while views are alive; nothing retained is mapped any more when it returns (INV-F)."""
        self._channel.close()
        for mapping in self.mappings.values():
            mapping.close()


class Pool:
    """Retained memory of one rank, mapped into this process. Connecting and attaching map memory and write none of it.

    ``page_bytes`` is the code page size of the job, in which ``page_address`` counts.
    """

    def __init__(self, connection: _Connection, page_bytes: int) -> None:
        self._connection = connection
        self._page_bytes = page_bytes
        self._places: dict[str, Place] = {}
        self.control = ControlPage(connection.mappings[Domain.CONTROL])

    @classmethod
    def connect(cls, socket_path: Path | str, *, rank: int, epoch: int, role: Role, page_bytes: int, timeout_s: float) -> Pool:
        """``timeout_s`` bounds this call and every later request. Raises FencedError unless ``epoch`` is the current one."""
        assert role is not Role.AGENT, "agents map the control arena only: PoolAgent"
        return cls(_Connection(socket_path, rank=rank, epoch=epoch, role=role, timeout_s=timeout_s), page_bytes)

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

    def allocate(self, allocations: Iterable[Allocation], layout_hash: str) -> None:
        """Cold start: retain what is missing. New pages are zero, a known name keeps its pages and their contents.

        Raises RetainedStateError for another layout, a known name of another size, or a full arena.
        """
        for batch in batched(allocations):
            self._learn(Allocate(epoch=self.epoch, layout_hash=layout_hash, allocations=batch))

    def attach(self, allocations: Iterable[Allocation], layout_hash: str) -> None:
        """Find what an earlier process left. Raises RetainedStateError unless every name is there with the same size."""
        for batch in batched(allocations):
            self._learn(Attach(epoch=self.epoch, layout_hash=layout_hash, allocations=batch))

    def table(self) -> Mapping[str, Place]:
        """Everything retained for this rank now, by name; all of it can be addressed afterwards."""
        first = 0
        while True:
            table = self._learn(List(epoch=self.epoch, first=first))
            first += len(table.places)
            if first >= table.total or not table.places:
                return dict(self._places)

    def place(self, name: str) -> Place:
        """Raises RetainedStateError for a name that this pool has neither allocated, attached nor listed."""
        try:
            return self._places[name]
        except KeyError:
            raise RetainedStateError(f"rank {self.rank}: {name!r} is not attached") from None

    def address(self, name: str) -> int:
        place = self.place(name)
        return self._connection.mappings[place.domain].address + place.offset

    def page_address(self, page: Page) -> int:
        place = self.place(page.allocation)
        offset = page.page_index * self._page_bytes
        assert 0 <= offset < place.byte_count, f"{page} lies outside its allocation"
        return self._connection.mappings[place.domain].address + place.offset + offset

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A flat, writable view of the whole allocation. While a view lives, the pool cannot be closed."""
        place = self.place(name)
        return self._connection.mappings[place.domain].bytes_at(place.offset, place.byte_count)

    @property
    def park_word_address(self) -> int:
        return self.control.park_word_address

    def usage(self) -> dict[Domain, DomainUsage]:
        return self._connection.usage()

    def close(self) -> None:
        """Unmap everything. Raises BufferError while views are alive."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _learn(self, message: Message) -> Table:
        table = self._connection.request(message, Table)
        self._places.update((place.name, place) for place in table.places)
        return table


class PoolAgent:
    """The node agent's end: control arena and epochs, no retained state."""

    def __init__(self, socket_path: Path | str, *, rank: int, epoch: int, timeout_s: float) -> None:
        self._connection = _Connection(socket_path, rank=rank, epoch=epoch, role=Role.AGENT, timeout_s=timeout_s)
        self.control = ControlPage(self._connection.mappings[Domain.CONTROL])

    @property
    def epoch(self) -> int:
        return self._connection.epoch

    def advance(self, epoch: int) -> None:
        """Begin ``epoch``: connections of every other epoch are refused from now on, old marker pages are given back."""
        self._connection.request(Advance(epoch=epoch), Advanced)
        self._connection.epoch = epoch

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
