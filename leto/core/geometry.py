"""Pages, chunks and protection groups: which byte of coded state belongs to which column of which group.

One rank's coded state is three flat fp32 arrays of equal length, ``master``, ``exp_avg`` and ``exp_avg_sq``, laid out in
bucket-shard order (U31). A chunk is the same element range of all three:

    allocation   page 0      page 1      page 2      page 3      ...
    master       [ chunk 0             ][ chunk 1             ]
    exp_avg      [ chunk 0             ][ chunk 1             ]        chunk_pages = 6: two pages of each array
    exp_avg_sq   [ chunk 0             ][ chunk 1             ]

    group 0, columns   0 1 | 2 3 | 4 5   6 7 | 8 9 | 10 11
                       master  m    v    master  m    v
                       '--- chunk 0 ---' '--- chunk 1 ----'

Virtual addresses follow tensors, columns follow the plan; this module is the only mapping between the two (U48). Columns
that no chunk fills are absent pages: zeros to the code, and they cost nothing (U14).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from leto.core.errors import ConfigError

OS_PAGE_BYTES = 4096
"""Pages of the code are whole operating-system pages, so that a lost page is a lost mapping."""
ELEMENT_BYTES = 4
"""Coded state is fp32."""
CODED_ARRAYS = ("master", "exp_avg", "exp_avg_sq")
"""The coded allocations, in column order inside a chunk."""
MAX_TIER1_PAGES = 16
SERIAL_SLOTS = 2
"""Parity buffers of a serial update: the group under way, and the scratch that its next commit goes to."""
PIPELINED_SLOTS = 4
"""Beside these two, the group before it on its way back to host memory and the one after it on its way in (U35)."""


@dataclass(frozen=True, kw_only=True)
class Protection:
    """Shape of the code over one memory arena (paper 4.1). Defaults are the paper's. ``pipelined`` updates copy parity beside
    the computation, for two parity buffers more (U35).

    Raises ConfigError with the offending key in the message's first word.
    """

    page_bytes: int = 2 << 20
    data_pages: int = 1024
    tier1_pages: int = 16
    tier2_pages: int = 1
    chunk_pages: int = 63
    pipelined: bool = False

    def __post_init__(self) -> None:
        if self.page_bytes <= 0 or self.page_bytes % OS_PAGE_BYTES:
            raise ConfigError(f"page: {self.page_bytes} bytes is not a multiple of 4 KiB")
        if not 1 <= self.tier1_pages <= MAX_TIER1_PAGES:
            raise ConfigError(f"tier1: {self.tier1_pages} is not between 1 and {MAX_TIER1_PAGES}")
        if self.tier2_pages not in (0, 1):
            raise ConfigError(f"tier2: {self.tier2_pages} is not 0 or 1")
        if self.chunk_pages <= 0 or self.chunk_pages % len(CODED_ARRAYS):
            raise ConfigError(
                f"chunk_pages: {self.chunk_pages} is not a positive multiple of 3"
                " (a chunk holds equal shares of master, exp_avg and exp_avg_sq)"
            )
        if self.data_pages < self.chunk_pages:
            raise ConfigError(f"data_pages: {self.data_pages} is less than chunk_pages ({self.chunk_pages})")

    @property
    def chunks_per_group(self) -> int:
        return self.data_pages // self.chunk_pages

    @property
    def chunk_columns(self) -> int:
        """Columns from one chunk to the next. Where the group has columns to spare, chunks begin at whole blocks of the code's
        transform: one of 63 pages then updates 4 blocks of 16 columns rather than 5, a tenth of the time of its update."""
        block = 1 << (self.tier1_pages - 1).bit_length()
        aligned = -(-self.chunk_pages // block) * block
        return aligned if self.chunks_per_group * aligned <= self.data_pages else self.chunk_pages

    @property
    def parity_slots(self) -> int:
        """Parity buffers of a rank."""
        return PIPELINED_SLOTS if self.pipelined else SERIAL_SLOTS

    @property
    def array_pages_per_chunk(self) -> int:
        """Pages that one chunk has in each of the coded arrays."""
        return self.chunk_pages // len(CODED_ARRAYS)

    @property
    def chunk_elements(self) -> int:
        """fp32 elements of each coded array in one chunk."""
        return self.array_pages_per_chunk * self.page_bytes // ELEMENT_BYTES


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A range of the flat coded arrays that belongs to one parameter.

    ``first`` and ``count`` are in elements. ``optimizer`` and ``param_group`` find the learning rate and weight decay of the
    update in POST (U28); a chunk may span many segments.
    """

    name: str
    first: int
    count: int
    optimizer: int
    param_group: int

    @property
    def stop(self) -> int:
        return self.first + self.count


@dataclass(frozen=True, order=True)
class Page:
    """One code page: the page_index-th of an allocation."""

    allocation: str
    page_index: int


@dataclass(frozen=True)
class PlacedPage:
    """A data page with its column in the group's code word."""

    column: int
    page: Page


@dataclass(frozen=True, kw_only=True)
class CodedGeometry:
    """Layout of one rank's coded state."""

    protection: Protection
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        expected = 0
        for segment in self.segments:
            if segment.first != expected or segment.count <= 0:
                raise ConfigError(f"segments: {segment.name!r} starts at {segment.first}, expected {expected}")
            expected = segment.stop

    @property
    def element_count(self) -> int:
        return self.segments[-1].stop if self.segments else 0

    @property
    def chunk_count(self) -> int:
        return -(-self.element_count // self.protection.chunk_elements)

    @property
    def group_count(self) -> int:
        return -(-self.chunk_count // self.protection.chunks_per_group)

    @property
    def array_pages(self) -> int:
        """Pages of each coded allocation; the last chunk is whole, its tail stays zero."""
        return self.chunk_count * self.protection.array_pages_per_chunk

    @property
    def array_bytes(self) -> int:
        return self.array_pages * self.protection.page_bytes

    def group_of(self, chunk: int) -> int:
        return chunk // self.protection.chunks_per_group

    def chunks_of(self, group: int) -> range:
        size = self.protection.chunks_per_group
        return range(group * size, min((group + 1) * size, self.chunk_count))

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """Elements [first, stop) of the chunk that are real, not padding."""
        size = self.protection.chunk_elements
        return chunk * size, min((chunk + 1) * size, self.element_count)

    def chunk_segments(self, chunk: int) -> tuple[Segment, ...]:
        """The chunk's elements cut along parameters, clipped to the chunk, in order."""
        first, stop = self.chunk_range(chunk)
        return tuple(
            Segment(
                name=s.name,
                first=max(first, s.first),
                count=min(stop, s.stop) - max(first, s.first),
                optimizer=s.optimizer,
                param_group=s.param_group,
            )
            for s in self.segments
            if max(first, s.first) < min(stop, s.stop)
        )

    def chunk_pages(self, chunk: int) -> tuple[PlacedPage, ...]:
        """The chunk's pages in undo-buffer order, with their columns in the chunk's group."""
        per_array = self.protection.array_pages_per_chunk
        base = (chunk % self.protection.chunks_per_group) * self.protection.chunk_columns
        return tuple(
            PlacedPage(base + a * per_array + k, Page(allocation, chunk * per_array + k))
            for a, allocation in enumerate(CODED_ARRAYS)
            for k in range(per_array)
        )

    def group_pages(self, group: int) -> tuple[PlacedPage, ...]:
        """Every present data page of the group."""
        return tuple(p for chunk in self.chunks_of(group) for p in self.chunk_pages(chunk))

    def layout_hash(self) -> str:
        """Agreed by every process that attaches (U41): same hash, same meaning of every byte."""
        text = json.dumps([asdict(self.protection), [asdict(s) for s in self.segments]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class GradientGeometry:
    """Which pages of the gradient buffers the update reads, in groups of their own (U3b, U11).

    Gradient parity covers the pages that hold owned shards and nothing else; each group has at most ``data_pages`` of them.
    """

    protection: Protection
    pages: tuple[Page, ...]

    @property
    def group_count(self) -> int:
        return -(-len(self.pages) // self.protection.data_pages)

    def group_pages(self, group: int) -> tuple[PlacedPage, ...]:
        size = self.protection.data_pages
        return tuple(PlacedPage(c, p) for c, p in enumerate(self.pages[group * size : (group + 1) * size]))


def pages_of_bytes(allocation: str, first_byte: int, byte_count: int, page_bytes: int) -> Iterator[Page]:
    """Pages of the allocation that the byte range touches."""
    for index in range(first_byte // page_bytes, (first_byte + byte_count - 1) // page_bytes + 1):
        yield Page(allocation, index)
