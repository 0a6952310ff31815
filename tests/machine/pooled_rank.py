"""One rank's retained memory in this process as its state manager owns it, and processes that come and go over it.

``PooledRank`` is what outlives crashes: the state manager's arenas, names and marks, and the agent's view of the control
arena. ``PooledProcess`` is a trainer: it maps retained pages over regions of its own and is gone with them. Pages are lost as
in a running job: destroyed in the arena and poisoned in the mapping in which the state manager looks for them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import numpy as np

from chaos.explore.rank import allocations_of, gradients_of, update_parts
from chaos.faults.userfaultfd import Userfaultfd
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.geometry import OS_PAGE_BYTES, CodedGeometry, Page
from leto.core.layout import Domain, PageClass, marker_page_offset
from leto.core.markers import Mark, Progress, Word, pack, words_of
from leto.core.recovery import Decision
from leto.device.host import HostMapping
from leto.memory.control import ControlPage
from leto.memory.messages import Place
from leto.memory.regions import Regions
from leto.memory.retained_state import RetainedState
from leto.update.marks import Marks
from leto.update.record_slots import RecordSlots
from leto.update.updater import ChunkUpdater
from tests.machine.crash_free import KERNELS

Image = dict[Domain, bytes]
_IN_VIEW = (Domain.DEVICE, Domain.HOST)


class PooledRank:
    """Everything of a rank that outlives its processes. ``close`` gives the memory back."""

    def __init__(self, coded: CodedGeometry) -> None:
        self.coded = coded
        self.gradients = gradients_of(coded)
        self.page_bytes = coded.protection.page_bytes
        self.allocations = allocations_of(coded, self.gradients)
        self.classes = {a.name: a.page_class for a in self.allocations}
        sizes = {d: sum(a.byte_count for a in self.allocations if a.domain is d) for d in _IN_VIEW}
        self.retained = RetainedState(0, sizes[Domain.DEVICE], sizes[Domain.HOST], self.page_bytes)
        self._mapping = HostMapping(self._fd(Domain.CONTROL))
        self.control = ControlPage(self._mapping)
        self._views = {d: mmap.mmap(self._fd(d), sizes[d]) for d in _IN_VIEW}
        self._image_bytes = {
            d: sum(a.byte_count for a in self.allocations if a.domain is d and a.page_class is not PageClass.RECORDS)
            for d in _IN_VIEW
        }
        self._uffd = Userfaultfd.create()
        self._places: dict[str, Place] = {}
        self._poisoned: set[Page] = set()
        self.lost_mirrors: set[int] = set()  # in this epoch

    def open_epoch(self, decision: Decision) -> None:
        """What the agent does with a decision: durable first, then a newer epoch with what it carries over (U5, U21)."""
        epoch = self.retained.epoch + 1
        self.control.write_decision(epoch, decision)
        self.retained.advance(epoch)
        self.control.write_words(epoch, words_of(epoch, decision.carried[0]))
        self.lost_mirrors = set()

    def read_progress(self) -> Progress:
        """What the agent reads after a failure. Raises Unrecoverable when no mirror is left (U4)."""
        return self.control.read_progress(self.retained.epoch, self.retained.lost_control())

    def allocate(self) -> None:
        """For the first process of the job; whoever comes later finds the same places."""
        places = self.retained.allocate(self.coded.layout_hash(), self.allocations)
        self._places = {place.name: place for place in places}

    def attach(self) -> tuple[Place, ...]:
        return self.retained.attach(self.coded.layout_hash(), self.allocations)

    def lose(self, pages: Iterable[Page]) -> None:
        """No process may live: whoever mapped the pages would die of them."""
        for page in set(pages) - self._poisoned:
            self._poisoned.add(page)
            place = self._places[page.allocation]
            self._poison(place.domain, place.offset + page.page_index * self.page_bytes, self.page_bytes)

    def lose_mirrors(self, mirrors: Iterable[int]) -> None:
        """Of the marker page of this epoch."""
        for mirror in set(mirrors) - self.lost_mirrors:
            self.lost_mirrors.add(mirror)
            self._poison(Domain.CONTROL, marker_page_offset(self.retained.epoch, mirror), OS_PAGE_BYTES)

    def _poison(self, domain: Domain, offset: int, byte_count: int) -> None:
        arena = self.retained.arenas[domain]
        address = arena.address + offset
        self._uffd.register(address, byte_count)
        arena.discard(offset, byte_count)
        self._uffd.poison(address, byte_count, lambda: arena.discard(offset, byte_count))
        self._uffd.unregister(address, byte_count)

    def localise(self) -> None:
        """What the state manager does when the agent asks after a failure."""
        self.retained.localise()
        self._poisoned.clear()

    def lost(self) -> frozenset[Page]:
        """Pages that the state manager has marked."""
        pages: list[Page] = []
        while len(pages) < self.retained.lost_count:
            pages += self.retained.lost_from(len(pages))
        return frozenset(pages)

    def pages_of(self, allocation: str) -> list[Page]:
        return [Page(allocation, k) for k in range(self._places[allocation].byte_count // self.page_bytes)]

    def read(self, page: Page) -> bytes:
        place = self._places[page.allocation]
        first = place.offset + page.page_index * self.page_bytes
        return self._views[place.domain][first : first + self.page_bytes]

    def image(self) -> Image:
        """Everything but records, which are last in their arena, and which neither kernels nor repairs write."""
        return {domain: view[: self._image_bytes[domain]] for domain, view in self._views.items()}

    def put(self, image: Image) -> None:
        for domain, content in image.items():
            self._views[domain][: len(content)] = content

    def blanked(self, image: Image, pages: Iterable[Page]) -> Image:
        """The image without what these pages held."""
        blank = {domain: bytearray(content) for domain, content in image.items()}
        for page in pages:
            place = self._places[page.allocation]
            first = place.offset + page.page_index * self.page_bytes
            if place.page_class is not PageClass.RECORDS:
                blank[place.domain][first : first + self.page_bytes] = bytes(self.page_bytes)
        return {domain: bytes(content) for domain, content in blank.items()}

    def close(self) -> None:
        self._uffd.close()
        self._mapping.close()
        for view in self._views.values():
            view.close()
        self.retained.close()

    def _fd(self, domain: Domain) -> int:
        return self.retained.arenas[domain].export()


class ArmOnce:
    """Arms one kernel, the next that asks or the next of a kind."""

    def __init__(self, word_address: int, token: int) -> None:
        self._word_address = word_address
        self._token = token
        self._next: tuple[float, Kernel | None] | None = None

    def arm_next(self, progress: float, kernel: Kernel | None) -> None:
        self._next = progress, kernel

    def reach(self, point: Point, site: Site) -> None:
        return None

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        if self._next is None or self._next[1] not in (None, kernel):
            return None
        (progress, _), self._next = self._next, None
        return Park(word_address=self._word_address, token=self._token, progress=progress)


class PooledProcess:
    """A trainer of the current epoch: whatever it holds is gone after ``close``, whatever it wrote stays."""

    TOKEN = 7

    def __init__(self, rank: PooledRank, *, fused: bool) -> None:
        self.regions = Regions(rank.page_bytes)
        self.regions.reserve(rank.allocations)
        for place in rank.attach():
            self.regions.region(place.name).attach(rank.retained.arenas[place.domain].export(), place.offset)
        self._mapping = HostMapping(rank.retained.arenas[Domain.CONTROL].export())
        self.control = ControlPage(self._mapping)
        self.epoch = rank.retained.epoch
        self.marks = Marks(KERNELS, self.control, self.epoch)
        self.failpoints = ArmOnce(self.control.park_word_address, self.TOKEN)
        self.parts = update_parts(rank.coded, self.regions, KERNELS, self.marks, self.failpoints, fused=fused)
        self.updater = ChunkUpdater(self.parts, rank.gradients)

    @property
    def records(self) -> RecordSlots:
        """Not kept: it views regions, which cannot be closed meanwhile."""
        return RecordSlots(self.regions)

    def write(self, allocation: str, content: np.ndarray) -> None:
        self.regions.bytes(allocation)[:] = content.view(np.uint8)

    def publish_in(self, mirrors: int, word: Word, mark: Mark) -> None:
        """A mark that reaches only the first mirrors."""
        KERNELS.publish(self.control.word_addresses(self.epoch, word)[:mirrors], pack(self.epoch, mark))

    def close(self) -> None:
        self.regions.close()
        self._mapping.close()
