"""Retained memory of one rank in this process: allocations and marker pages that outlive crashes, kept as images.

An image costs what was written since the last one: contents of allocations that nobody wrote are shared between images, and
restoring copies only what differs. Every writer says what it wrote (``wrote``); a test holds the explorer to it.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leto.core.geometry import Page
from leto.core.layout import Allocation
from leto.core.markers import MIRRORS, WORDS, Progress, Word, read_mirrors, words_of

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
            held = self._held[name] = self.arrays[name].tobytes()
        return held

    def restore(self, image: Mapping[str, Content]) -> None:
        for name, content in image.items():
            if self._held[name] is not content:
                ctypes.memmove(self._addresses[name], content, len(content))
                self._held[name] = content


@dataclass(frozen=True)
class MarkerImage:
    epoch: int
    words: bytes


class Markers:
    """Marker pages of every epoch, each with its three mirrors; only the last epoch's are ever read."""

    def __init__(self) -> None:
        self._pages: dict[int, ctypes.Array[ctypes.c_uint64]] = {}

    def _page(self, epoch: int) -> ctypes.Array[ctypes.c_uint64]:
        if epoch not in self._pages:
            self._pages[epoch] = (ctypes.c_uint64 * (MIRRORS * WORDS))()
        return self._pages[epoch]

    def word_addresses(self, epoch: int, word: Word) -> tuple[int, int, int]:
        base = ctypes.addressof(self._page(epoch))
        first, second, third = (base + 8 * (mirror * WORDS + word) for mirror in range(MIRRORS))
        return first, second, third

    def mirrors(self, epoch: int) -> list[list[int]]:
        words = list(self._page(epoch))
        return [words[m * WORDS : (m + 1) * WORDS] for m in range(MIRRORS)]

    def read_progress(self, epoch: int) -> Progress:
        return read_mirrors(epoch, self.mirrors(epoch))

    def carry(self, epoch: int, progress: Progress) -> None:
        page = self._page(epoch)
        for n, word in enumerate(words_of(epoch, progress) * MIRRORS):
            page[n] = word

    def image(self, epoch: int) -> MarkerImage:
        return MarkerImage(epoch, bytes(self._page(epoch)))

    def restore(self, image: MarkerImage) -> None:
        ctypes.memmove(self._page(image.epoch), image.words, len(image.words))
