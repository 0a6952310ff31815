"""What a device offers: pages by handle, and kernels over page addresses.

Pages follow the CUDA VMM API, so that a GPU backend fits the same Protocol; the docstrings name the driver call of each
method. Kernels take addresses, never own memory, mutate only what is named ``target`` and are done when they return (a
stream backend makes ``publish`` the point where order counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leto.core.failpoints import Park
from leto.core.geometry import Protection

if TYPE_CHECKING:  # state managers import this module and never look at contents
    import numpy as np
    import numpy.typing as npt


class Arena(Protocol):
    """Owner's side of a memory domain: creates pages and exports them. Never reads their contents."""

    @property
    def capacity_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def create(self, byte_count: int) -> int:
        """cuMemCreate: the handle of ``byte_count`` zeroed bytes (host: offset in the arena's memfd).

        Raises RetainedStateError when the capacity is exceeded.
        """
        ...

    def populate(self, offset: int, byte_count: int) -> None:
        """Memory for the range now, not when somebody writes it (a GPU: cuMemCreate has done so)."""
        ...

    def export(self) -> int:
        """cuMemExportToShareableHandle: a file descriptor that the arena keeps owning."""
        ...

    def discard(self, offset: int, byte_count: int) -> None:
        """Contents of the range are given up and read as zeros; the handle stays (host: a punched hole)."""
        ...

    def has_lost(self, offset: int, byte_count: int) -> bool:
        """Whether a page of the range is lost, without touching it (a GPU: the state of the page's mapping; host: the page
        table, and MADV_POPULATE_READ where a page is not in it)."""
        ...

    def renew(self, offset: int, byte_count: int) -> None:
        """Fresh zero pages in place of lost ones: cuMemUnmap, cuMemCreate, cuMemMap (host: hole and MADV_DONTNEED)."""
        ...

    def close(self) -> None:
        """cuMemRelease of everything."""
        ...


class Mapping(Protocol):
    """User's side: memory that is mapped into this process at fixed addresses."""

    @property
    def address(self) -> int:
        """First byte."""
        ...

    @property
    def byte_count(self) -> int: ...
    def bytes_at(self, offset: int, byte_count: int) -> npt.NDArray[np.uint8]:
        """A flat writable view; while one lives the mapping cannot be closed."""
        ...

    def close(self) -> None:
        """cuMemUnmap + cuMemAddressFree."""
        ...


class Region(Mapping, Protocol):
    """Addresses reserved for one allocation (cuMemAddressReserve): scratch memory until retained pages are attached."""

    @property
    def attached(self) -> bool: ...
    def attach(self, fd: int, offset: int) -> None:
        """cuMemMap + cuMemSetAccess of an exported arena's bytes from ``offset`` on. Views and addresses stay valid."""
        ...

    def drop(self) -> None:
        """Give back scratch memory; does nothing once attached."""
        ...


@dataclass(frozen=True, kw_only=True)
class CodeShape:
    """Shape of one group's code: pages of ``page_bytes``, ``tier1_pages`` parity rows. Columns are passed with the pages."""

    page_bytes: int
    tier1_pages: int

    @staticmethod
    def of(protection: Protection) -> CodeShape:
        return CodeShape(page_bytes=protection.page_bytes, tier1_pages=protection.tier1_pages)


@dataclass(frozen=True, kw_only=True)
class AdamCoefficients:
    """One parameter group's AdamW values of one update, as doubles; each is rounded to fp32 once, like torch does.

    ``step`` counts from 1. ``clip`` multiplies the gradient first, None when nothing is clipped.
    """

    lr: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    step: int
    clip: float | None


@dataclass(frozen=True, kw_only=True)
class AdamSegment:
    """``count`` consecutive elements of the chunk that read gradients at ``gradient_address`` under ``coefficients``."""

    count: int
    gradient_address: int
    coefficients: AdamCoefficients


@dataclass(frozen=True, kw_only=True)
class AdamChunk:
    """One chunk's update: fp32 master, exp_avg, exp_avg_sq at these addresses, mutated in place; gradients are fp32."""

    master_address: int
    exp_avg_address: int
    exp_avg_sq_address: int
    segments: tuple[AdamSegment, ...]


class Kernels(Protocol):
    """The protocol's kernels. ``park`` selects the armed variant; its progress is over the bytes of ``target``
    (elements of the chunk for adam)."""

    def copy_pages(self, source: Sequence[int], target: Sequence[int], page_bytes: int, park: Park | None = None) -> None:
        """target[k] <- source[k], in order, k = 0, 1, ..."""
        ...

    def encode(
        self, shape: CodeShape, columns: Sequence[int], data: Sequence[int], target: Sequence[int], park: Park | None = None
    ) -> None:
        """target[j] <- sum over k of P[columns[k]][j] * data[k], j < tier1_pages (lines 2-3; absent columns are zero)."""
        ...

    def update_parity(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        undo: Sequence[int],
        data: Sequence[int],
        parity: Sequence[int],
        target: Sequence[int],
        park: Park | None = None,
    ) -> None:
        """target[j] <- parity[j] xor sum over k of P[columns[k]][j] * (undo[k] xor data[k]) (line 10). Never in place."""
        ...

    def reconstruct(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        data: Sequence[int],
        lost_columns: Sequence[int],
        target: Sequence[int],
        rows: Sequence[int],
        parity: Sequence[int],
    ) -> None:
        """target[n] <- page of lost_columns[n], from the intact data pages and the intact parity rows ``rows``.

        Raises Unrecoverable when more columns are lost than rows are intact, or when a spare row contradicts the result
        (U16); the target is then not to be trusted.
        """
        ...

    def xor_pages(self, source: Sequence[int], target: int, page_bytes: int, park: Park | None = None) -> None:
        """target <- xor of all source pages (tier 2)."""
        ...

    def equal_pages(self, left: Sequence[int], right: Sequence[int], page_bytes: int) -> list[int]:
        """Positions k at which left[k] and right[k] differ in any bit."""
        ...

    def adam(self, chunk: AdamChunk, park: Park | None = None) -> None:
        """AdamW on one chunk in place, bit-equal to torch's non-fused AdamW (docs/architecture.md names the arithmetic)."""
        ...

    def update_chunk(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        chunk: AdamChunk,
        parity: Sequence[int],
        target: Sequence[int],
        *,
        adam_park: Park | None = None,
        parity_park: Park | None = None,
    ) -> None:
        """``adam`` on the chunk, and target <- parity updated by what that changes, in one pass (lines 9 and 10).

        The bits of ``adam`` followed by ``update_parity``. Each array of the chunk is whole pages in one piece; ``columns`` are
        those of the pages of master, then of exp_avg, then of exp_avg_sq. Elements behind the segments' last are padding and
        stay. Work goes over all pages at once, data before parity: the progress of both parks is in bytes of a page, and
        before the point data and parity are done, in every page.
        """
        ...

    def fill(self, address: int, byte_count: int, pattern: int) -> None:
        """Every aligned 32-bit word of the range becomes ``pattern``."""
        ...

    def publish(self, addresses: Sequence[int], value: int) -> None:
        """Store the 64-bit ``value`` at each address in order, each with release semantics after everything before it (U1)."""
        ...
