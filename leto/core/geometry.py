"""Pages, chunks and protection groups: which byte of coded state belongs to which column of which group.

One rank's coded state is an ordered list of regions (U32). A region is a set of flat fp32 arrays of equal length, and a chunk
of it is the same element range of all of them:

    region            arrays                                   what the chunks' updates read
    AdamW             master, exp_avg, exp_avg_sq (U31)        their gradients
    Muon's momentum   momentum_buffer                          their gradients
    Muon's masters    muon_master                              all momentum and gradients of a matrix

A chunk takes at most ``chunk_pages`` pages, so that the fewer arrays its region has, the more elements it covers. Chunks are
numbered through all regions in this order, which is the order of the update: all momentum of a matrix is committed before any
of its masters is touched. What an AdamW chunk looks like:

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
from enum import Enum
from functools import cached_property

from leto.core.errors import ConfigError

OS_PAGE_BYTES = 4096
"""Pages of the code are whole operating-system pages, so that a lost page is a lost mapping."""
ELEMENT_BYTES = 4
"""Coded state is fp32."""
CODED_ARRAYS = ("master", "exp_avg", "exp_avg_sq")
"""The coded allocations of AdamW, in column order inside a chunk."""
MOMENTUM_BUFFER = "momentum_buffer"
MUON_MASTER = "muon_master"
"""The coded allocations of Muon, equally long, each a region of its own."""
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


@dataclass(frozen=True, kw_only=True)
class Matrix(Segment):
    """A parameter that Muon updates, row by row: its direction depends on all of it (U32)."""

    rows: int

    @property
    def columns(self) -> int:
        return self.count // self.rows


class Rule(Enum):
    """What operation 9 does to a chunk."""

    ADAMW = "adamw"
    MUON_MOMENTUM = "muon-momentum"
    MUON_APPLY = "muon-apply"


_ARRAYS = {Rule.ADAMW: CODED_ARRAYS, Rule.MUON_MOMENTUM: (MOMENTUM_BUFFER,), Rule.MUON_APPLY: (MUON_MASTER,)}


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
class Region:
    """Chunks that are updated by one rule, from ``first_chunk`` on. Its arrays are cut along ``segments``."""

    protection: Protection
    rule: Rule
    segments: tuple[Segment, ...]
    first_chunk: int

    @property
    def arrays(self) -> tuple[str, ...]:
        """Its allocations, in column order inside a chunk."""
        return _ARRAYS[self.rule]

    @property
    def array_pages_per_chunk(self) -> int:
        """Pages that one chunk has in each of the arrays."""
        return self.protection.chunk_pages // len(self.arrays)

    @cached_property
    def chunk_elements(self) -> int:
        """fp32 elements of each array in one chunk."""
        return self.array_pages_per_chunk * self.protection.page_bytes // ELEMENT_BYTES

    @property
    def element_count(self) -> int:
        return self.segments[-1].stop if self.segments else 0

    @cached_property
    def chunks(self) -> range:
        return range(self.first_chunk, self.first_chunk + -(-self.element_count // self.chunk_elements))

    @property
    def array_pages(self) -> int:
        """Pages of each array; the last chunk is whole, its tail stays zero."""
        return len(self.chunks) * self.array_pages_per_chunk

    @property
    def array_bytes(self) -> int:
        return self.array_pages * self.protection.page_bytes

    def range_of(self, chunk: int) -> tuple[int, int]:
        """Elements [first, stop) of the chunk that are real, not padding."""
        first = (chunk - self.first_chunk) * self.chunk_elements
        return first, min(first + self.chunk_elements, self.element_count)

    def pages_of(self, chunk: int) -> Iterator[Page]:
        """The chunk's pages in undo-buffer order: array by array."""
        per_array = self.array_pages_per_chunk
        first = (chunk - self.first_chunk) * per_array
        return (Page(array, first + k) for array in self.arrays for k in range(per_array))


@dataclass(frozen=True, kw_only=True)
class CodedGeometry:
    """Layout of one rank's coded state: ``segments`` are what AdamW updates, ``matrices`` what Muon updates."""

    protection: Protection
    segments: tuple[Segment, ...]
    matrices: tuple[Matrix, ...] = ()

    def __post_init__(self) -> None:
        for kind, segments in (("segments", self.segments), ("matrices", self.matrices)):
            expected = 0
            for segment in segments:
                if segment.first != expected or segment.count <= 0:
                    raise ConfigError(f"{kind}: {segment.name!r} starts at {segment.first}, expected {expected}")
                expected = segment.stop
        for matrix in self.matrices:
            if matrix.rows <= 0 or matrix.count % matrix.rows:
                raise ConfigError(f"matrices: {matrix.count} elements of {matrix.name!r} are not {matrix.rows} rows")

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """In the order of the update; a job without Muon has the first one only."""
        regions: list[Region] = []
        for rule in Rule:
            first = regions[-1].chunks.stop if regions else 0
            segments = self.segments if rule is Rule.ADAMW else self.matrices
            regions.append(Region(protection=self.protection, rule=rule, segments=segments, first_chunk=first))
        return tuple(regions) if self.matrices else (regions[0],)

    def region_of(self, chunk: int) -> Region:
        for region in self.regions:
            if chunk in region.chunks:
                return region
        raise IndexError(f"there is no chunk {chunk} of {self.chunk_count}")

    @property
    def element_count(self) -> int:
        """Elements of each array of AdamW."""
        return self.regions[0].element_count

    @property
    def chunk_count(self) -> int:
        return self.regions[-1].chunks.stop

    @property
    def group_count(self) -> int:
        return -(-self.chunk_count // self.protection.chunks_per_group)

    def group_of(self, chunk: int) -> int:
        return chunk // self.protection.chunks_per_group

    def chunks_of(self, group: int) -> range:
        """A group takes the next chunks, whatever their region: one rule says what speaks in which parity slot (U35)."""
        size = self.protection.chunks_per_group
        return range(group * size, min((group + 1) * size, self.chunk_count))

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """Elements [first, stop) of the chunk, in the arrays of its region, that are real, not padding."""
        return self.region_of(chunk).range_of(chunk)

    def chunk_segments(self, chunk: int) -> tuple[Segment, ...]:
        """The chunk's elements cut along parameters, clipped to the chunk, in order."""
        region = self.region_of(chunk)
        first, stop = region.range_of(chunk)
        return tuple(
            Segment(
                name=s.name,
                first=max(first, s.first),
                count=min(stop, s.stop) - max(first, s.first),
                optimizer=s.optimizer,
                param_group=s.param_group,
            )
            for s in region.segments
            if max(first, s.first) < min(stop, s.stop)
        )

    def chunk_pages(self, chunk: int) -> tuple[PlacedPage, ...]:
        """The chunk's pages in undo-buffer order, with their columns in the chunk's group."""
        base = (chunk % self.protection.chunks_per_group) * self.protection.chunk_columns
        return tuple(PlacedPage(base + k, page) for k, page in enumerate(self.region_of(chunk).pages_of(chunk)))

    def group_pages(self, group: int) -> tuple[PlacedPage, ...]:
        """Every present data page of the group."""
        return tuple(p for chunk in self.chunks_of(group) for p in self.chunk_pages(chunk))

    def layout_hash(self) -> str:
        """Agreed by every process that attaches (U41): same hash, same meaning of every byte."""
        parts = [asdict(self.protection), *([asdict(s) for s in kind] for kind in (self.segments, self.matrices))]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


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
