"""The messages of the pool channel: trainers, agents and observers on one side, a rank's state manager on the other.

Hello -> Welcome                   once, first; Welcome carries the arenas' descriptors
Allocate, Attach -> Table          trainers; long lists go in batches, each answered by the places of its own names
List -> Table                      everyone; from position ``first`` on, as many places as fit a datagram
Usage -> Used                      everyone
Localise -> Localised              agents; finds, marks and replaces lost pages
ListLost -> Lost                   everyone; marks of lost pages from position ``first`` on, as many as fit a datagram
Rebuilt -> Acknowledged            trainers; clears the marks of pages that hold again what they held
Advance -> Advanced                agents; ends every older epoch
anything -> Refused                ``error`` names the class of leto.core.errors to raise
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from leto.core.geometry import Page
from leto.core.layout import Allocation, Domain, PageClass
from leto.memory.wire import MAX_MESSAGE_BYTES, Codec

MAX_NAME_LENGTH = 1024
_BATCH_BYTES = MAX_MESSAGE_BYTES - 1024
_PLACE_BYTES = 192  # JSON of a place without its name, numbers at their longest


class Role(Enum):
    """Who connects. Agents are given the control arena only (U5)."""

    TRAINER = "trainer"
    AGENT = "agent"
    OBSERVER = "observer"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an allocation lies: ``byte_count`` bytes at ``offset`` of its domain's arena."""

    name: str
    page_class: PageClass
    domain: Domain
    offset: int
    byte_count: int


@dataclass(frozen=True, kw_only=True)
class Hello:
    epoch: int
    rank: int
    role: Role


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """``domains`` names the attached descriptors in order; ``layout_hash`` is None while nothing is retained.

    ``lost`` counts the marks of lost pages: nobody can attach without being told of them.
    """

    epoch: int
    layout_hash: str | None
    domains: tuple[Domain, ...]
    lost: int


@dataclass(frozen=True, kw_only=True)
class Allocate:
    """Cold start: make what is missing. A known name of the same class and size keeps its place and its contents."""

    epoch: int
    layout_hash: str
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, kw_only=True)
class Attach:
    """Every allocation must be retained already, with this class and size."""

    epoch: int
    layout_hash: str
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, kw_only=True)
class List:
    epoch: int
    first: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """``total`` counts everything the manager retains, not only these places."""

    epoch: int
    places: tuple[Place, ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class Usage:
    epoch: int


@dataclass(frozen=True, kw_only=True)
class DomainUsage:
    domain: Domain
    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True)
class Used:
    epoch: int
    domains: tuple[DomainUsage, ...]


@dataclass(frozen=True, kw_only=True)
class Localise:
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Localised:
    """``found`` pages were not marked before; ``lost`` are marked now. ``seconds`` is what finding and replacing took.

    ``control`` are lost pages of the control arena, in operating-system pages from its begin, which agents must not load from.
    """

    epoch: int
    found: int
    lost: int
    control: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ListLost:
    epoch: int
    first: int


@dataclass(frozen=True, kw_only=True)
class Lost:
    """``total`` counts all marks, not only these."""

    epoch: int
    pages: tuple[Page, ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    epoch: int
    pages: tuple[Page, ...]


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """``lost`` marks remain."""

    epoch: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class Advance:
    """``epoch`` is the new one; connections of every other epoch are fenced from here on."""

    epoch: int


@dataclass(frozen=True, kw_only=True)
class Advanced:
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """``epoch`` is the manager's current one."""

    epoch: int
    error: str
    text: str


POOL_CODEC = Codec(
    (
        Hello,
        Welcome,
        Allocate,
        Attach,
        List,
        Table,
        Usage,
        Used,
        Localise,
        Localised,
        ListLost,
        Lost,
        Rebuilt,
        Acknowledged,
        Advance,
        Advanced,
        Refused,
    )
)


_Item = TypeVar("_Item")


def allocation_name(item: Allocation | Place) -> str:
    return item.name


def page_name(page: Page) -> str:
    return page.allocation


def batched(
    items: Iterable[_Item], name_of: Callable[[_Item], str], batch_bytes: int = _BATCH_BYTES
) -> Iterator[tuple[_Item, ...]]:
    """Cut allocations, places or pages so that each batch, and the table that answers it, fits one datagram."""
    batch: list[_Item] = []
    used_bytes = 0
    for item in items:
        cost_bytes = len(json.dumps(name_of(item))) + _PLACE_BYTES
        if batch and used_bytes + cost_bytes > batch_bytes:
            yield tuple(batch)
            batch, used_bytes = [], 0
        batch.append(item)
        used_bytes += cost_bytes
    if batch:
        yield tuple(batch)


def first_batch(items: Iterable[_Item], name_of: Callable[[_Item], str]) -> tuple[_Item, ...]:
    """As many items as fit one datagram."""
    return next(batched(items, name_of), ())
