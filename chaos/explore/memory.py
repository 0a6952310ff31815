"""Retained memory of one rank in this process: allocations and marker pages that outlive crashes, kept as images.

An image costs what was written since the last one: contents of allocations that nobody wrote are shared between images, and
restoring copies only what differs. Every writer says what it wrote (``wrote``); a test holds the explorer to it.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leto.core.geometry import Page
from leto.core.layout import CONTROL_BYTES, DECISION_OFFSET, DECISION_SLOT_BYTES, Allocation, marker_page_offset
from leto.core.markers import MIRRORS, WORDS, Progress, Word, read_mirrors, words_of
from leto.core.recovery import Decision
from leto.memory.control import DECISION_SLOTS, ControlPage

Bytes = npt.NDArray[np.uint8]
Content = bytes


class Memory:
    """Allocations by name, as the pool's client offers them: page aligned, one after the other, zero at first."""

    def __init__(self, allocations: Iterable[Allocation], page_bytes: int) -> None:
        kept = list(allocations)
        self.page_bytes = page_bytes
        raw = np.zeros(sum(a.byte_count for a in kept) + page_bytes, np.uint8)
        self._first = raw.ctypes.data + (-raw.ctypes.data % page_bytes)
        self.arrays: dict[str, Bytes] = {}
        self._addresses: dict[str, int] = {}
        at = self._first
        for a in kept:
            self._addresses[a.name] = at
            self.arrays[a.name] = raw[at - raw.ctypes.data :][: a.byte_count]
            at += a.byte_count
        self._stop = at
        self._names = list(self._addresses)
        self._starts = list(self._addresses.values())
        self._held: dict[str, Content | None] = dict.fromkeys(self._names)
        self._touched: dict[tuple[tuple[int, int], ...], tuple[str, ...]] = {}
        self._known: dict[Content, Content] | None = None

    def address(self, name: str) -> int:
        return self._addresses[name]

    def page_address(self, page: Page) -> int:
        return self._addresses[page.allocation] + page.page_index * self.page_bytes

    def bytes(self, name: str) -> Bytes:
        return self.arrays[name]

    def page(self, page: Page) -> Bytes:
        first = page.page_index * self.page_bytes
        return self.arrays[page.allocation][first : first + self.page_bytes]

    def name_at(self, address: int) -> str | None:
        """The allocation at an address, None for memory of the process."""
        if not self._first <= address < self._stop:
            return None
        return self._names[bisect.bisect_right(self._starts, address) - 1]

    def names_of(self, targets: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
        """The allocations that begin at these addresses or hold them; none of them for memory of the process."""
        if targets not in self._touched:
            found = {name: None for address, _ in targets if (name := self.name_at(address)) is not None}
            self._touched[targets] = tuple(found)
        return self._touched[targets]

    def wrote(self, names: Iterable[str]) -> None:
        for name in names:
            self._held[name] = None

    def lose(self, pages: Iterable[Page]) -> None:
        """What a trainer that attaches later finds in place of lost pages."""
        for page in pages:
            self.page(page)[:] = 0
            self._held[page.allocation] = None

    def flip_bit(self, page: Page) -> None:
        self.page(page)[0] ^= 1
        self._held[page.allocation] = None

    def contents(self, names: Iterable[str]) -> dict[str, Content]:
        return {name: self.arrays[name].tobytes() for name in names}

    def image(self) -> dict[str, Content]:
        """Contents of everything, as far as writers said what they wrote."""
        return {name: self._image_of(name) for name in self._names}

    def _image_of(self, name: str) -> Content:
        held = self._held[name]
        if held is None:
            held = self.arrays[name].tobytes()
            if self._known is not None:
                held = self._known.setdefault(held, held)
            self._held[name] = held
        return held

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Images that are taken meanwhile share equal contents: cuts of two lanes repeat those of each lane."""
        self._known = {}
        try:
            yield
        finally:
            self._known = None

    def restore(self, image: Mapping[str, Content]) -> None:
        for name, content in image.items():
            if self._held[name] is not content:
                ctypes.memmove(self._addresses[name], content, len(content))
                self._held[name] = content


@dataclass(frozen=True)
class MarkerImage:
    """The words of an epoch, mirror by mirror."""

    epoch: int
    words: tuple[int, ...]


class _Arena:
    """Anonymous memory in the place of a control arena; what is never written costs nothing."""

    byte_count = CONTROL_BYTES

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, CONTROL_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def bytes_at(self, offset: int, byte_count: int) -> Bytes:
        return np.frombuffer(self._map, np.uint8, byte_count, offset)

    def close(self) -> None:
        """Gone with the process."""


class Markers(ControlPage):
    """A rank's control arena: marker pages of every epoch, each with its three mirrors, and the decision record. Only the
    last epoch's marker pages are ever read."""

    def __init__(self) -> None:
        self._arena = _Arena()
        self._words: dict[int, list[ctypes.Array[ctypes.c_uint64]]] = {}
        self._read: dict[tuple[int, tuple[tuple[int, ...] | None, ...]], Progress] = {}
        self._word_addresses: dict[tuple[int, Word], tuple[int, int, int]] = {}
        super().__init__(self._arena)

    def word_addresses(self, epoch: int, word: Word) -> tuple[int, int, int]:
        if (epoch, word) not in self._word_addresses:
            self._word_addresses[epoch, word] = super().word_addresses(epoch, word)
        return self._word_addresses[epoch, word]

    def _views(self, epoch: int) -> list[ctypes.Array[ctypes.c_uint64]]:
        if epoch not in self._words:
            first = self._arena.address
            offsets = [marker_page_offset(epoch, mirror) for mirror in range(MIRRORS)]
            self._words[epoch] = [(ctypes.c_uint64 * WORDS).from_address(first + offset) for offset in offsets]
        return self._words[epoch]

    def mirrors(self, epoch: int) -> list[list[int]]:
        return [list(words) for words in self._views(epoch)]

    def read_progress(self, epoch: int, lost: Container[int] = ()) -> Progress:
        return self.read(epoch)

    def read(self, epoch: int, lost: Collection[int] = ()) -> Progress:
        """What a reader finds when these mirrors are lost. Raises Unrecoverable (U4). The same words are read once only."""
        left = tuple(None if m in lost else tuple(words) for m, words in enumerate(self._views(epoch)))
        if (epoch, left) not in self._read:
            self._read[epoch, left] = read_mirrors(epoch, left)
        return self._read[epoch, left]

    def carry(self, epoch: int, progress: Progress) -> None:
        self.write_words(epoch, words_of(epoch, progress))

    def begin_epoch(self, epoch: int, decision: Decision) -> None:
        """As at the beginning of ``epoch``: its decision is the only one, and the marker pages behind its own are zero."""
        address, byte_count = self.decision_slots
        ctypes.memset(address, 0, byte_count)
        self.write_decision(epoch, decision)
        self.restore(MarkerImage(epoch + 1, (0,) * (MIRRORS * WORDS)))

    @property
    def decision_slots(self) -> tuple[int, int]:
        """Address and size of all slots of the decision record."""
        return self._arena.address + DECISION_OFFSET, DECISION_SLOTS * DECISION_SLOT_BYTES

    def image(self, epoch: int) -> MarkerImage:
        return MarkerImage(epoch, tuple(word for mirror in self.mirrors(epoch) for word in mirror))

    def restore(self, image: MarkerImage) -> None:
        for mirror, words in enumerate(self._views(image.epoch)):
            words[:] = list(image.words[mirror * WORDS : (mirror + 1) * WORDS])


def words_after(old: MarkerImage, new: MarkerImage, stores: int) -> MarkerImage:
    """After so many of the stores that carry ``new`` over ``old``, word by word in every mirror."""
    order = [mirror * WORDS + word for word in range(WORDS) for mirror in range(MIRRORS)]
    done = set(order[:stores])
    return MarkerImage(new.epoch, tuple(new.words[n] if n in done else old.words[n] for n in range(len(order))))
