"""The Kernels protocol on the host, over the native module ``leto._kernels``.

Every call releases the GIL and runs on the calling thread, and on as many others as HostKernels is told to use, which are
started for the call and joined before it returns. The instruction-set row is the best one that the processor has; the
environment variable LETO_KERNEL (portable, avx2 or gfni) forces one. What an armed call leaves behind when it parks (U50),
whatever the number of threads:

    copy_pages, xor_pages      the target's bytes before the point are new, the rest is untouched
    encode, update_parity      the same, at the same offset in every target page: the point is at
                               progress * page_bytes, rounded down to a word
    adam                       elements before the point are done; of the ADAM_BLOCK elements from the point on, master is
                               decayed but not stepped, exp_avg is new, exp_avg_sq is old; the rest is untouched
    update_chunk               in every page of the chunk and of the target everything before the point is done, where the
                               point is as for encode; behind it are torn or done, and nothing else is touched:
                                   adam_park      elements of the first page of each array, as adam leaves them
                                   parity_park    the data of one strip, whose parity is untouched
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from leto import _kernels
from leto.core.errors import Unrecoverable
from leto.core.failpoints import Park
from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment, CodeShape

ADAM_BLOCK = _kernels.adam_block
"""Elements of one block of the adam kernel."""

_local = threading.local()


def thread_scratch() -> _kernels.Scratch:
    """The calling thread's working memory of the code kernels. A call in progress owns it, so threads share none."""
    scratch: _kernels.Scratch | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = _kernels.Scratch()
    return scratch


class HostKernels:
    """Host kernels, bit-equal to the readable reference and, for ``adam``, to torch on the same machine.

    ``sqrt_address`` is the address of MKL's ``vmsSqrt``, which torch calls where it has it; 0 means the IEEE square root.
    ``library_threads_address`` is that of MKL's ``MKL_Set_Num_Threads_Local``, by which it is told to start no threads; 0 where
    there is none.
    ``fused_multiply_add`` says whether torch's vector path fuses here, as it does from AVX2 on. ``threads`` is how many
    threads a call uses where it moves enough for them; bits and what an armed call leaves do not depend on it.
    """

    def __init__(
        self,
        *,
        sqrt_address: int = 0,
        library_threads_address: int = 0,
        fused_multiply_add: bool = True,
        threads: int = 1,
    ) -> None:
        self._sqrt_address = sqrt_address
        self._library_threads_address = library_threads_address
        self._fused_multiply_add = fused_multiply_add
        self._threads = threads

    def copy_pages(self, source: Sequence[int], target: Sequence[int], page_bytes: int, park: Park | None = None) -> None:
        _kernels.copy_pages(self._threads, source, target, page_bytes, _armed(park))

    def encode(
        self, shape: CodeShape, columns: Sequence[int], data: Sequence[int], target: Sequence[int], park: Park | None = None
    ) -> None:
        _kernels.encode(*self._run(shape), columns, data, target, _armed(park))

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
        _kernels.update_parity(*self._run(shape), columns, undo, data, parity, target, _armed(park))

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
        lost = len(lost_columns)
        if lost > len(rows):
            raise Unrecoverable(f"{lost} pages of the group are lost, {len(rows)} solvable")
        contradicting = _kernels.reconstruct(*self._run(shape), columns, data, lost_columns, target, rows, parity, [], [])
        if contradicting >= 0:
            raise Unrecoverable(f"spare parity row {contradicting} contradicts the data with {lost} pages reconstructed")

    def xor_pages(self, source: Sequence[int], target: int, page_bytes: int, park: Park | None = None) -> None:
        _kernels.xor_pages(self._threads, source, target, page_bytes, _armed(park))

    def equal_pages(self, left: Sequence[int], right: Sequence[int], page_bytes: int) -> list[int]:
        return _kernels.equal_pages(left, right, page_bytes)

    def adam(self, chunk: AdamChunk, park: Park | None = None) -> None:
        _kernels.adam(self._threads, *self._adam_arguments(chunk), _armed(park))

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
        _kernels.update_chunk(
            thread_scratch(),
            self._threads,
            shape.page_bytes,
            shape.tier1_pages,
            columns,
            *self._adam_arguments(chunk),
            parity,
            target,
            _armed(adam_park),
            _armed(parity_park),
        )

    def _run(self, shape: CodeShape) -> tuple[_kernels.Scratch, int, int, int]:
        return thread_scratch(), self._threads, shape.page_bytes, shape.tier1_pages

    def _adam_arguments(self, chunk: AdamChunk) -> tuple[int, int, int, list[_kernels.Segment], bool, int, int]:
        return (
            chunk.master_address,
            chunk.exp_avg_address,
            chunk.exp_avg_sq_address,
            [_segment(segment) for segment in chunk.segments],
            self._fused_multiply_add,
            self._sqrt_address,
            self._library_threads_address,
        )

    def fill(self, address: int, byte_count: int, pattern: int) -> None:
        _kernels.fill(address, byte_count, pattern)

    def publish(self, addresses: Sequence[int], value: int) -> None:
        _kernels.publish(addresses, value)


def _armed(park: Park | None) -> tuple[int, int, float] | None:
    return None if park is None else (park.word_address, park.token, park.progress)


def _segment(segment: AdamSegment) -> _kernels.Segment:
    """The segment's scalars, computed as doubles in the same order as torch computes them."""
    c: AdamCoefficients = segment.coefficients
    correction1 = 1 - c.beta1 ** float(c.step)
    correction2 = 1 - c.beta2 ** float(c.step)
    decay = 1 - c.lr * c.weight_decay if c.weight_decay != 0 else None
    return (
        segment.count,
        segment.gradient_address,
        c.clip,
        decay,
        1 - c.beta1,
        c.beta2,
        1 - c.beta2,
        correction2**0.5,
        c.eps,
        -(c.lr / correction1),
    )
