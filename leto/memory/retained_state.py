"""What a state manager owns: arenas, what lies where in them, which pages are lost, the current epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from leto.core.errors import FencedError, RetainedStateError
from leto.core.geometry import OS_PAGE_BYTES, Page
from leto.core.layout import CONTROL_BYTES, MAX_EPOCHS, Allocation, Domain, control_pages, marker_page_offset
from leto.device.host import HostArena
from leto.memory.localise import SEARCHES
from leto.memory.messages import MAX_NAME_LENGTH, DomainUsage, Place, allocation_name, first_batch, page_name


class RetainedState:
    """What one rank retains: arenas, names, marks of lost pages, the current epoch. No sockets.

    ``page_bytes`` is the code page size of the job, in which losses are marked.
    """

    def __init__(self, rank: int, device_bytes: int, host_bytes: int, page_bytes: int) -> None:
        capacities = {Domain.DEVICE: device_bytes, Domain.HOST: host_bytes, Domain.CONTROL: CONTROL_BYTES}
        self.rank = rank
        self.epoch = 0
        self.layout_hash: str | None = None
        self.arenas = {domain: HostArena(f"leto-{domain.value}-r{rank}", size) for domain, size in capacities.items()}
        self.arenas[Domain.CONTROL].create(CONTROL_BYTES)
        self._page_bytes = page_bytes
        self._places: dict[str, Place] = {}
        self._lost: dict[Page, None] = {}
        self._kept_from_epoch = 0

    def allocate(self, layout_hash: str, allocations: Sequence[Allocation]) -> tuple[Place, ...]:
        """Make what is missing, all of it or nothing; a known name keeps its place."""
        self._check_layout(layout_hash)
        missing = [a for a in allocations if not self._is_known(a)]
        self._check_room(missing)
        for a in missing:
            offset = self.arenas[a.domain].create(a.byte_count)
            self.arenas[a.domain].populate(offset, a.byte_count)
            self._places[a.name] = Place(
                name=a.name, page_class=a.page_class, domain=a.domain, offset=offset, byte_count=a.byte_count
            )
        self.layout_hash = layout_hash
        return tuple(self._places[a.name] for a in allocations)

    def attach(self, layout_hash: str, allocations: Sequence[Allocation]) -> tuple[Place, ...]:
        self._check_layout(layout_hash)
        for a in allocations:
            if not self._is_known(a):
                raise RetainedStateError(f"rank {self.rank}: {a.name!r} is not retained")
        return tuple(self._places[a.name] for a in allocations)

    @property
    def place_count(self) -> int:
        return len(self._places)

    def places_from(self, first: int) -> tuple[Place, ...]:
        """As many places from position ``first`` on, in order of allocation, as fit one datagram."""
        return first_batch(itertools.islice(self._places.values(), max(first, 0), None), allocation_name)

    def localise(self) -> int:
        """Find, mark and replace the lost pages of everything allocated; returns how many of them were not marked before.

        A mark says that the page holds zeros in place of what it held. It stays until a trainer acknowledges that the page
        is rebuilt, however often somebody fails before that (U19, U36).
        """
        marked = len(self._lost)
        for place in self._places.values():
            arena = self.arenas[place.domain]
            search = SEARCHES[place.domain]
            for index in search(arena.has_lost, place.offset, place.byte_count, self._page_bytes):
                first = index * self._page_bytes
                self._lost[Page(place.name, index)] = None
                arena.renew(place.offset + first, min(self._page_bytes, place.byte_count - first))
        return len(self._lost) - marked

    def lost_control(self) -> tuple[int, ...]:
        """Lost pages of the control arena that this epoch uses, by operating-system page.

        They are neither marked nor replaced: nobody rebuilds them, and zeros in their place would read as words.
        """
        arena = self.arenas[Domain.CONTROL]
        return tuple(page for page in control_pages(self.epoch) if arena.has_lost(page * OS_PAGE_BYTES, OS_PAGE_BYTES))

    @property
    def lost_count(self) -> int:
        return len(self._lost)

    def lost_from(self, first: int) -> tuple[Page, ...]:
        """As many marks from position ``first`` on, in order of marking, as fit one datagram."""
        return first_batch(itertools.islice(self._lost, max(first, 0), None), page_name)

    def rebuilt(self, pages: Sequence[Page]) -> None:
        """Clear these marks, all of them or none: their pages hold again what they held."""
        for page in pages:
            if page not in self._lost:
                raise RetainedStateError(
                    f"rank {self.rank}: page {page.page_index} of {page.allocation!r} is not marked as lost"
                )
        for page in pages:
            self._lost.pop(page, None)

    def usage(self) -> tuple[DomainUsage, ...]:
        return tuple(
            DomainUsage(domain=domain, used_bytes=arena.used_bytes, capacity_bytes=arena.capacity_bytes)
            for domain, arena in self.arenas.items()
        )

    def advance(self, epoch: int) -> None:
        """Begin a newer epoch. The pages of its predecessor stay for the coordinator to read, older ones are given back."""
        if not self.epoch < epoch < MAX_EPOCHS:
            raise FencedError(f"rank {self.rank}: epoch {epoch} cannot follow epoch {self.epoch}")
        self.epoch = epoch
        if epoch - 1 > self._kept_from_epoch:
            first, stop = marker_page_offset(self._kept_from_epoch, 0), marker_page_offset(epoch - 1, 0)
            self.arenas[Domain.CONTROL].discard(first, stop - first)
            self._kept_from_epoch = epoch - 1

    def close(self) -> None:
        for arena in self.arenas.values():
            arena.close()

    def _check_layout(self, layout_hash: str) -> None:
        if self.layout_hash not in (None, layout_hash):
            raise RetainedStateError(f"rank {self.rank}: layout {layout_hash!r} asked, layout {self.layout_hash!r} is retained")

    def _is_known(self, a: Allocation) -> bool:
        """Raises RetainedStateError when the name is known as something else."""
        place = self._places.get(a.name)
        if place is None:
            return False
        if (place.byte_count, place.page_class) != (a.byte_count, a.page_class):
            raise RetainedStateError(
                f"rank {self.rank}: {a.name!r} is retained as {place.byte_count} bytes of {place.page_class.value},"
                f" asked for as {a.byte_count} bytes of {a.page_class.value}"
            )
        return True

    def _check_room(self, missing: Sequence[Allocation]) -> None:
        if len({a.name for a in missing}) != len(missing):
            raise RetainedStateError(f"rank {self.rank}: a name is asked for twice")
        for a in missing:
            if not 0 < len(a.name) <= MAX_NAME_LENGTH:
                raise RetainedStateError(
                    f"rank {self.rank}: a name of {len(a.name)} characters is not between 1 and {MAX_NAME_LENGTH}"
                )
            if a.byte_count <= 0 or a.byte_count % OS_PAGE_BYTES:
                raise RetainedStateError(f"rank {self.rank}: {a.name!r}: {a.byte_count} bytes are not whole pages")
        for domain, arena in self.arenas.items():
            asked = sum(a.byte_count for a in missing if a.domain is domain)
            free = arena.capacity_bytes - arena.used_bytes
            if asked > free:
                raise RetainedStateError(
                    f"rank {self.rank}: {asked} more bytes of {domain.value} memory asked,"
                    f" {free} of {arena.capacity_bytes} are free"
                )
