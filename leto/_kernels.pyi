"""Types of the native module; built from kernels/. Pages are addresses. Every call releases the GIL.

``threads`` is how many threads a call may use, the calling one among them; what they change is the time that it takes.
Raises ValueError when the lengths or sizes of a call do not fit together: a caller's bug.
"""

from collections.abc import Sequence
from typing import TypeAlias

Armed: TypeAlias = tuple[int, int, float] | None
"""(park word address, token, progress in [0, 1])"""

Segment: TypeAlias = tuple[int, int, float | None, float | None, float, float, float, float, float, float]
"""(count, gradient address, clip, decay, first_weight, beta2, second_weight, root_divisor, eps, negative_step); each scalar
is a double that the kernel rounds to fp32 once. clip multiplies the gradient, decay the master; None skips the operation."""

row: str
"""Name of the instruction-set row in use: the best supported one, or the one that LETO_KERNEL names."""
supported_rows: list[str]
"""Rows that this processor supports, best last."""
adam_block: int
"""Elements in the block that an armed adam leaves torn."""

def copy_pages(threads: int, source: Sequence[int], target: Sequence[int], page_bytes: int, park: Armed = None) -> None: ...
def xor_pages(threads: int, source: Sequence[int], target: int, page_bytes: int, park: Armed = None) -> None: ...
def equal_pages(left: Sequence[int], right: Sequence[int], page_bytes: int) -> list[int]: ...
def fill(address: int, byte_count: int, pattern: int) -> None: ...
def publish(addresses: Sequence[int], value: int) -> None: ...

class Scratch:
    """Working memory of one call at a time. Grows to the largest call and is kept, so that later calls allocate no pages."""

    def __init__(self) -> None: ...
    @property
    def byte_count(self) -> int: ...

def encode(
    scratch: Scratch,
    threads: int,
    page_bytes: int,
    tier1_pages: int,
    columns: Sequence[int],
    data: Sequence[int],
    target: Sequence[int],
    park: Armed = None,
) -> None: ...
def update_parity(
    scratch: Scratch,
    threads: int,
    page_bytes: int,
    tier1_pages: int,
    columns: Sequence[int],
    undo: Sequence[int],
    data: Sequence[int],
    parity: Sequence[int],
    target: Sequence[int],
    park: Armed = None,
) -> None:
    """An empty ``undo`` says that ``data`` is the difference already."""

def reconstruct(
    scratch: Scratch,
    threads: int,
    page_bytes: int,
    tier1_pages: int,
    columns: Sequence[int],
    data: Sequence[int],
    lost_columns: Sequence[int],
    lost_data: Sequence[int],
    rows: Sequence[int],
    parity: Sequence[int],
    lost_rows: Sequence[int],
    lost_parity: Sequence[int],
) -> int:
    """Writes ``lost_data`` and ``lost_parity``. First spare row that contradicts the result, or -1.

    Needs at least as many rows as lost columns.
    """

def adam(
    threads: int,
    master: int,
    exp_avg: int,
    exp_avg_sq: int,
    segments: Sequence[Segment],
    fused_multiply_add: bool,
    sqrt_function: int,
    library_threads: int,
    park: Armed = None,
) -> None: ...
def update_chunk(
    scratch: Scratch,
    threads: int,
    page_bytes: int,
    tier1_pages: int,
    columns: Sequence[int],
    master: int,
    exp_avg: int,
    exp_avg_sq: int,
    segments: Sequence[Segment],
    fused_multiply_add: bool,
    sqrt_function: int,
    library_threads: int,
    parity: Sequence[int],
    target: Sequence[int],
    adam_park: Armed = None,
    parity_park: Armed = None,
) -> None:
    """``columns`` are those of the pages of master, then of exp_avg, then of exp_avg_sq."""
