"""One rank's retained memory in this process, with the real geometry, plans, executor, marks and kernels: crashes without
processes. A crash is: run a prefix of the plan, leave the next operation's target torn, forget everything but memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from leto.core.failpoints import NoFailpoints
from leto.core.geometry import CODED_ARRAYS, CodedGeometry, GradientGeometry, Page, Protection, Segment, pages_of_bytes
from leto.core.layout import Allocation, PageClass, updater_allocations
from leto.core.markers import MIRRORS, WORDS, Mark, Phase, Progress, Word, read_mirrors, words_of
from leto.core.records import UpdateValues
from leto.device.host_kernels import HostKernels
from leto.update.executor import AdamHyper, UpdateParts
from leto.update.marks import Marks
from leto.update.updater import ChunkUpdater

GRADIENTS = "gradients/all"
RECORD_BYTES = 4096


class Memory:
    """Allocations by name, as the pool's client offers them."""

    def __init__(self, allocations: Iterable[Allocation], page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.arrays: dict[str, np.ndarray] = {}
        for a in allocations:
            raw = np.zeros(a.byte_count + page_bytes, np.uint8)
            skip = -raw.ctypes.data % page_bytes
            self.arrays[a.name] = raw[skip : skip + a.byte_count]

    def address(self, name: str) -> int:
        return int(self.arrays[name].ctypes.data)

    def page_address(self, page: Page) -> int:
        return self.address(page.allocation) + page.page_index * self._page_bytes

    def bytes(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def page(self, page: Page) -> np.ndarray:
        first = page.page_index * self._page_bytes
        return self.arrays[page.allocation][first : first + self._page_bytes]

    def image(self, names: Iterable[str]) -> dict[str, bytes]:
        return {name: self.arrays[name].tobytes() for name in names}


class InMemoryMarkers:
    """Marker pages of every epoch."""

    def __init__(self) -> None:
        self._pages: dict[int, ctypes.Array[ctypes.c_uint64]] = {}

    def _page(self, epoch: int) -> ctypes.Array[ctypes.c_uint64]:
        return self._pages.setdefault(epoch, (ctypes.c_uint64 * (MIRRORS * WORDS))())

    def word_addresses(self, epoch: int, word: Word) -> tuple[int, int, int]:
        base = ctypes.addressof(self._page(epoch))
        first, second, third = (base + 8 * (mirror * WORDS + word) for mirror in range(MIRRORS))
        return first, second, third

    def read_progress(self, epoch: int) -> Progress:
        page = self._page(epoch)
        return read_mirrors(epoch, [list(page[m * WORDS : (m + 1) * WORDS]) for m in range(MIRRORS)])

    def carry(self, epoch: int, progress: Progress) -> None:
        for word, value in enumerate(words_of(epoch, progress)):
            for mirror in range(MIRRORS):
                self._page(epoch)[mirror * WORDS + word] = value


class InMemoryRank:
    """A rank between its processes: what is here survives a crash."""

    def __init__(self, segments: tuple[Segment, ...], protection: Protection, seed: int) -> None:
        self.coded = CodedGeometry(protection=protection, segments=segments)
        gradient_bytes = 4 * self.coded.element_count
        pages = tuple(pages_of_bytes(GRADIENTS, 0, gradient_bytes, protection.page_bytes))
        self.gradients = GradientGeometry(protection=protection, pages=pages)
        whole = len(pages) * protection.page_bytes
        allocations = [
            *updater_allocations(self.coded, self.gradients, RECORD_BYTES),
            Allocation(name=GRADIENTS, page_class=PageClass.GRADIENTS, byte_count=whole),
        ]
        self.classes = {a.name: a.page_class for a in allocations}
        self.memory = Memory(allocations, protection.page_bytes)
        self.markers = InMemoryMarkers()
        self.kernels = HostKernels()
        self.epoch = 1
        self._fill(np.random.default_rng(seed))
        self.process().updater.encode_state()

    def _fill(self, generator: np.random.Generator) -> None:
        count = self.coded.element_count
        for name in CODED_ARRAYS:
            values = generator.standard_normal(count).astype(np.float32)
            self.memory.bytes(name).view(np.float32)[:count] = np.abs(values) if name == "exp_avg_sq" else values
        self.new_gradients(generator)

    def new_gradients(self, generator: np.random.Generator) -> None:
        count = self.coded.element_count
        self.memory.bytes(GRADIENTS).view(np.float32)[:count] = generator.standard_normal(count).astype(np.float32)

    def process(self) -> Process:
        return Process(self)

    def crash(self) -> None:
        """The process is gone; a new epoch carries its marks over as FINISH does."""
        from leto.core.recovery import decide

        progress = self.markers.read_progress(self.epoch)
        self.epoch += 1
        self.markers.carry(self.epoch, decide([progress], 1 << 20).carried[0])


class Process:
    """What a trainer process builds over retained memory."""

    def __init__(self, rank: InMemoryRank) -> None:
        self.rank = rank
        self.marks = Marks(rank.kernels, rank.markers, rank.epoch)
        self.parts = UpdateParts(
            coded=rank.coded,
            retained=rank.memory,
            kernels=rank.kernels,
            adam=rank.kernels.adam,
            hyper=AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8),
            marks=self.marks,
            failpoints=NoFailpoints(),
            gradient_address=lambda segment: rank.memory.address(GRADIENTS) + 4 * segment.first,
        )
        self.updater = ChunkUpdater(self.parts, rank.gradients)

    def begin(self, iteration: int) -> None:
        self.marks.publish(Word.PHASE, Mark(iteration, Phase.BEGIN))


def values(iteration: int) -> UpdateValues:
    rates = (((1e-3, 0.1), (2e-3, 0.0)), ((3e-3, 0.05),))
    return UpdateValues(iteration=iteration, skipped=False, applied_step=iteration, clip=(0.5).hex(), learning_rates=rates)
