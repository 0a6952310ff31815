"""What an armed adam leaves behind, and on how many threads it runs (U50)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from kernel_chunks import COEFFICIENTS, adam_arrays, adam_chunk
from kernel_parking import parked

from leto.device.host_kernels import ADAM_BLOCK, HostKernels

LARGE = 700 * ADAM_BLOCK + 77
"""Worth several threads."""


@pytest.mark.parametrize("threads", [2, 5])
def test_adam_has_the_same_bits_on_any_number_of_threads(threads: int) -> None:
    alone, together = adam_arrays(LARGE), adam_arrays(LARGE)
    cuts = [100, LARGE // 2 + 333, LARGE]
    HostKernels().adam(adam_chunk(alone, cuts))
    HostKernels(threads=threads).adam(adam_chunk(together, cuts))
    assert all(np.array_equal(a.view(np.int32), b.view(np.int32)) for a, b in zip(alone, together, strict=True))


def test_the_library_of_the_square_root_is_told_to_start_no_threads() -> None:
    """On each thread of the call before its work, and told afterwards what it had been told before."""
    told: list[int] = []

    def set_threads(count: int) -> int:
        told.append(count)
        return 7

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(set_threads)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    HostKernels(threads=3, library_threads_address=address).adam(adam_chunk(adam_arrays(LARGE), [LARGE]))
    assert (told[0], told[-1], sorted(told)) == (1, 7, [1, 1, 1, 7, 7, 7])


@pytest.mark.parametrize(("count", "threads"), [(5 * ADAM_BLOCK + 77, 1), (LARGE, 1), (LARGE, 3)])
@pytest.mark.parametrize("progress", [0.0, 0.41, 0.999, 1.0])
def test_parked_adam_leaves_a_torn_chunk(progress: float, count: int, threads: int) -> None:
    cuts = [100, 2 * ADAM_BLOCK + 333, count]
    before, plain, torn = adam_arrays(count), adam_arrays(count), adam_arrays(count)
    kernels = HostKernels(threads=threads)
    kernels.adam(adam_chunk(plain, cuts))
    cut = int(progress * count)
    stop = min(count, cut + ADAM_BLOCK)
    block = slice(cut, stop)
    decayed = before[0] * np.float32(1 - COEFFICIENTS.lr * COEFFICIENTS.weight_decay)
    with parked(lambda park: kernels.adam(adam_chunk(torn, cuts), park), progress):
        for now, new, old in zip(torn[:3], plain[:3], before[:3], strict=True):
            assert np.array_equal(now[:cut], new[:cut])
            assert np.array_equal(now[stop:], old[stop:])
        assert np.array_equal(torn[0][block], decayed[block])
        assert np.array_equal(torn[1][block], plain[1][block])
        assert np.array_equal(torn[2][block], before[2][block])
    assert all(np.array_equal(now, new) for now, new in zip(torn, plain, strict=True))
    assert not np.array_equal(plain[2], before[2])
