"""The readable code: its published vectors, that it is MDS, what it refuses, and what importing it costs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from kernel_backends import random_pages, same

from leto.core import reed_solomon as rs
from leto.core.errors import Unrecoverable
from leto.core.gf32 import inverse, multiply

PAGE_BYTES = 64


@pytest.mark.parametrize(("column", "row", "expected"), [(0, 0, 0x06CD8D9B), (15, 3, 0x050A0A14), (16, 0, 0x9D30D2C4)])
def test_coefficients_of_sixteen_rows(column: int, row: int, expected: int) -> None:
    assert rs.coefficient(16, column, row) == expected


@pytest.mark.parametrize(("tier1", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16)])
def test_transform_size_is_the_next_power_of_two(tier1: int, size: int) -> None:
    assert rs.transform_size(tier1) == size


@pytest.mark.parametrize("tier1", range(1, 16))
def test_fewer_rows_are_the_first_rows_of_the_same_transform(tier1: int) -> None:
    m = rs.transform_size(tier1)
    for column, row in itertools.product((0, 1, m, 5 * m + 1), range(tier1)):
        assert rs.coefficient(tier1, column, row) == rs.coefficient(m, column, row)


def test_one_row_is_the_xor_of_the_data() -> None:
    assert [rs.coefficient(1, column, 0) for column in (0, 1, 2, 100)] == [1, 1, 1, 1]


def determinant(matrix: list[list[int]]) -> int:
    """Laplace expansion along the first row; signs vanish in characteristic two."""
    if not matrix:
        return 1
    total = 0
    for k, factor in enumerate(matrix[0]):
        total ^= multiply(factor, determinant([line[:k] + line[k + 1 :] for line in matrix[1:]]))
    return total


def test_every_square_minor_of_a_small_code_is_non_zero() -> None:
    columns = [0, 1, 2, 3, 4, 7, 8, 130]  # inside a block, across a block's edge, far away
    matrix = {(c, r): rs.coefficient(4, c, r) for c in columns for r in range(4)}
    for size in range(1, 5):
        for rows in itertools.combinations(range(4), size):
            for chosen in itertools.combinations(columns, size):
                assert determinant([[matrix[c, r] for c in chosen] for r in rows]) != 0


def test_cauchy_inverse_is_the_inverse() -> None:
    x, y = [16, 17, 33, 1030], [0, 3, 7, 15]
    for i, j in itertools.product(range(4), range(4)):
        entry = 0
        for k in range(4):
            entry ^= multiply(rs.cauchy_inverse(x, y, i, k), inverse(x[j] ^ y[k]))
        assert entry == (i == j)


def test_update_reads_parity_and_returns_new_pages() -> None:
    rng = np.random.default_rng(1)
    old, new, parity = (random_pages(rng, n, PAGE_BYTES) for n in (2, 2, 4))
    kept = [page.copy() for page in parity]
    updated = rs.update(4, [3, 9], old, new, parity)
    assert same(parity, kept)
    assert not any(np.shares_memory(a, b) for a, b in zip(updated, parity, strict=True))


def test_more_lost_than_rows_is_refused_with_both_numbers() -> None:
    rng = np.random.default_rng(2)
    data = random_pages(rng, 4, PAGE_BYTES)
    parity = rs.encode(3, [0, 1, 2, 3], data)
    with pytest.raises(Unrecoverable, match=r"3 pages of the group are lost, 2 solvable"):
        rs.reconstruct(3, [0], data[:1], [1, 2, 3], [0, 2], [parity[0], parity[2]])


def test_a_contradicting_spare_row_is_refused() -> None:
    rng = np.random.default_rng(3)
    data = random_pages(rng, 4, PAGE_BYTES)
    parity = rs.encode(3, [0, 1, 2, 3], data)
    parity[2][17] ^= 4
    with pytest.raises(Unrecoverable, match="contradicts"):
        rs.reconstruct(3, [0, 1], data[:2], [2, 3], [0, 1, 2], parity)


def test_without_a_spare_row_corruption_goes_unseen() -> None:
    """At e = tier1 no check is possible (U16): the result is wrong and nothing can tell."""
    rng = np.random.default_rng(4)
    data = random_pages(rng, 3, PAGE_BYTES)
    parity = rs.encode(2, [0, 1, 2], data)
    parity[1][0] ^= 1
    assert not same(rs.reconstruct(2, [0], data[:1], [1, 2], [0, 1], parity), data[1:])


def test_nothing_lost_is_only_a_check() -> None:
    rng = np.random.default_rng(5)
    data = random_pages(rng, 3, PAGE_BYTES)
    parity = rs.encode(2, [0, 1, 2], data)
    assert rs.reconstruct(2, [0, 1, 2], data, [], [0, 1], parity) == []
    data[1][5] ^= 0x80
    with pytest.raises(Unrecoverable, match="contradicts"):
        rs.reconstruct(2, [0, 1, 2], data, [], [0, 1], parity)


def test_tier_two_gives_back_any_tier_one_page() -> None:
    parity = random_pages(np.random.default_rng(6), 16, PAGE_BYTES)
    tier2 = rs.xor_pages(parity)
    for lost in range(16):
        assert np.array_equal(rs.xor_pages([*parity[:lost], *parity[lost + 1 :], tier2]), parity[lost])


def test_importing_the_code_imports_numpy_and_the_standard_library_only() -> None:
    program = (
        "import json, sys; before = set(sys.modules); import leto.core.reed_solomon;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    assert "leto.core.reed_solomon" in loaded
    assert {name.split(".")[0] for name in loaded} <= {"leto", "numpy", *sys.stdlib_module_names}
    assert {name for name in loaded if name.startswith("leto")} <= {
        "leto",
        "leto.core",
        "leto.core.errors",
        "leto.core.gf32",
        "leto.core.reed_solomon",
    }
