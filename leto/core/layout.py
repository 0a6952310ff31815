"""Names, classes and places of retained memory: what the pool is asked for, and how the control arena is laid out.

One rank's retained memory lives in three arenas, each one memfd on the host backend:

    device    stands for HBM: coded state, gradients, derived parameters, the updater's buffers
    host      tier 1 and tier 2 parity, HEADER and POST records
    control   park word, heartbeat, decision record, marker pages; the only arena that agents map
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from leto.core.geometry import OS_PAGE_BYTES, CodedGeometry, GradientGeometry, Page
from leto.core.markers import MIRRORS
from leto.core.records import RECORD_SLOTS


class Domain(Enum):
    DEVICE = "device"
    HOST = "host"
    CONTROL = "control"


class PageClass(Enum):
    """Classes of retained pages, one vocabulary with the scenario files."""

    CODED = "coded"
    DERIVED = "derived"
    GRADIENTS = "gradients"
    UNDO = "undo"
    PARITY = "parity"  # all slots: which of them speak changes with every commit
    GRADIENT_PARITY = "gradient-parity"
    TIER1 = "tier1"
    TIER2 = "tier2"
    RECORDS = "records"
    MARKERS = "markers"


_HOST_CLASSES = (PageClass.TIER1, PageClass.TIER2, PageClass.RECORDS)

LENT_CLASSES = (PageClass.UNDO, PageClass.PARITY, PageClass.GRADIENT_PARITY)
"""Buffers the updater lends to the compute phase (paper 5.2, U13); nothing in them survives HEADER."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One retained allocation: stable name, class and size. Sizes are whole code pages."""

    name: str
    page_class: PageClass
    byte_count: int

    @property
    def domain(self) -> Domain:
        return Domain.HOST if self.page_class in _HOST_CLASSES else Domain.DEVICE


UNDO = "undo"
TIER2 = "tier2"
HEADER_RECORDS = "record/header"
POST_RECORDS = "record/post"
MARKERS = "markers"
"""The mirrors of an epoch's marker page: no allocation, but they can be lost, and are named, like one."""


def parity_slot(slot: int) -> str:
    return f"parity/{slot}"


def tier1(group: int) -> str:
    return f"tier1/{group}"


def gradient_parity(group: int) -> str:
    return f"gradient-parity/{group}"


def updater_allocations(coded: CodedGeometry, gradients: GradientGeometry, record_slot_bytes: int) -> Iterator[Allocation]:
    """Everything the protocol itself needs, beside the model's gradient and derived buffers."""
    p = coded.protection
    code_rows = p.tier1_pages * p.page_bytes
    for region in coded.regions:
        for name in region.arrays:
            yield Allocation(name=name, page_class=PageClass.CODED, byte_count=region.array_bytes)
    yield Allocation(name=UNDO, page_class=PageClass.UNDO, byte_count=p.chunk_pages * p.page_bytes)
    for slot in range(p.parity_slots):
        yield Allocation(name=parity_slot(slot), page_class=PageClass.PARITY, byte_count=code_rows)
    for group in range(gradients.group_count):
        yield Allocation(name=gradient_parity(group), page_class=PageClass.GRADIENT_PARITY, byte_count=code_rows)
    for group in range(coded.group_count):
        yield Allocation(name=tier1(group), page_class=PageClass.TIER1, byte_count=code_rows)
    if p.tier2_pages:
        yield Allocation(name=TIER2, page_class=PageClass.TIER2, byte_count=coded.group_count * p.page_bytes)
    for name in (HEADER_RECORDS, POST_RECORDS):
        slots = RECORD_SLOTS * record_slot_bytes
        yield Allocation(name=name, page_class=PageClass.RECORDS, byte_count=-(-slots // p.page_bytes) * p.page_bytes)


# The control arena. Marker pages are never reused by a later epoch, so a stale process cannot write into the words of a
# newer one (U5); the memfd is sparse and pages of ended epochs are punched out.
PARK_WORD_OFFSET = 0
HEARTBEAT_OFFSET = 8
DECISION_OFFSET = OS_PAGE_BYTES
DECISION_SLOT_BYTES = OS_PAGE_BYTES
MARKERS_OFFSET = 4 * OS_PAGE_BYTES
MAX_EPOCHS = 1 << 14
CONTROL_BYTES = MARKERS_OFFSET + MAX_EPOCHS * MIRRORS * OS_PAGE_BYTES
FIXED_CONTROL_PAGES = MARKERS_OFFSET // OS_PAGE_BYTES
"""Operating-system pages of the control arena that have no mirror."""


def marker_page_offset(epoch: int, mirror: int) -> int:
    """Offset in the control arena of one mirror's page of marker words."""
    return MARKERS_OFFSET + (epoch * MIRRORS + mirror) * OS_PAGE_BYTES


def control_pages(epoch: int) -> tuple[int, ...]:
    """The operating-system pages of the control arena that are in use in ``epoch``, by index: fixed ones, then mirrors."""
    mirrors = (marker_page_offset(epoch, mirror) // OS_PAGE_BYTES for mirror in range(MIRRORS))
    return (*range(FIXED_CONTROL_PAGES), *mirrors)


def control_page(epoch: int, index: int) -> Page:
    """Of one of these its name: ``markers`` 0 to 2 are the mirrors of the epoch, ``control`` the fixed pages."""
    if index < FIXED_CONTROL_PAGES:
        return Page(Domain.CONTROL.value, index)
    return Page(MARKERS, index - marker_page_offset(epoch, 0) // OS_PAGE_BYTES)
