"""Parity follows the data: an update in any chunking equals encoding again, and the code is linear."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, addresses, blank, random_pages, same

from leto.device.base import CodeShape

every_backend = pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)


@st.composite
def chunkings(draw: st.DrawFn) -> list[list[int]]:
    """Positions 0..n-1 cut into chunks of any size, chunks in any order."""
    count = draw(st.integers(1, 20))
    cuts = sorted(draw(st.sets(st.integers(1, count), max_size=5)) | {0, count})
    chunks = [list(range(first, stop)) for first, stop in itertools.pairwise(cuts)]
    return draw(st.permutations(chunks))


@every_backend
@settings(max_examples=60, deadline=None)
@given(tier1=st.integers(1, 16), chunks=chunkings(), first_column=st.integers(0, 1000), seed=st.integers(0, 99))
def test_updates_in_any_chunking_equal_encoding_again(
    kernels: Backend, tier1: int, chunks: list[list[int]], first_column: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = CodeShape(page_bytes=48, tier1_pages=tier1)
    columns = [first_column + k for k in range(sum(map(len, chunks)))]
    old, new = (random_pages(rng, len(columns), shape.page_bytes) for _ in range(2))
    parity, expected = blank(tier1, shape.page_bytes), blank(tier1, shape.page_bytes)
    kernels.encode(shape, columns, addresses(old), addresses(parity))
    kernels.encode(shape, columns, addresses(new), addresses(expected))
    for chunk in chunks:
        after = blank(tier1, shape.page_bytes)
        undo, data = [old[k] for k in chunk], [new[k] for k in chunk]
        kernels.update_parity(
            shape, [columns[k] for k in chunk], addresses(undo), addresses(data), addresses(parity), addresses(after)
        )
        parity = after
    assert same(parity, expected)


@every_backend
@settings(max_examples=40, deadline=None)
@given(tier1=st.integers(1, 16), count=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_code_is_linear(kernels: Backend, tier1: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = CodeShape(page_bytes=32, tier1_pages=tier1)
    columns = [int(c) for c in rng.choice(100, size=count, replace=False)]
    left, right = (random_pages(rng, count, shape.page_bytes) for _ in range(2))
    parities = []
    for data in (left, right, [a ^ b for a, b in zip(left, right, strict=True)]):
        target = blank(tier1, shape.page_bytes)
        kernels.encode(shape, columns, addresses(data), addresses(target))
        parities.append(target)
    assert same([a ^ b for a, b in zip(parities[0], parities[1], strict=True)], parities[2])
