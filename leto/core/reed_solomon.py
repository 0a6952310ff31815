"""The erasure code, readable: the definition that every native kernel must reproduce byte for byte (paper 4.1, U15).

Symbols are the natural little-endian 32-bit words of the pages, elements of GF(2^32). All words at one offset form one code
word, so the code is described for a single offset and applied to whole pages.

    parity[j] = xor over data columns i of P[i][j] * data[i]              0 <= j < tier1

Construction. Round ``tier1`` up to a power of two, the transform size m. Parity row j sits at the point j and data column i
at the point m + i; the points are distinct, because rows stay below m and columns start there. Columns come in blocks of m.
For every block let f be the polynomial of degree < m through the block's points and data; row j is the sum of f(j) over all
blocks. Since {0..m-1} is closed under xor, Lagrange's formula collapses to

    P[i][j] = u_b / ((m + i) xor j)     u_b = s(m * (1 + b)) / (1 * 2 * ... * (m - 1))     b = i // m

with s the subspace polynomial of {0..m-1}, which vanishes exactly there. So u_b is never zero.

Why any H erasures decode (MDS). P is a Cauchy matrix 1 / (x_i xor y_j) over distinct points, its columns scaled by non-zero
u_b. Every square submatrix of a Cauchy matrix is non-singular; hence any e lost columns can be solved from any e surviving
rows, and rows dropped from the end (tier1 < m) change nothing about that. A systematic Vandermonde matrix lacks this.

Why columns are numbered by position in the group: a page keeps its coefficients whichever chunk carries it, and absent
columns, being zeros, cost nothing (U14). The same matrix is an additive FFT of size m, which fast kernels may use.

Tier 2 is one row over the tier-1 rows: their plain xor.

A page is a flat uint8 array; its length is a multiple of four. Nothing here mutates its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from leto.core.errors import Unrecoverable
from leto.core.gf32 import Words, inverse, multiply, scale

Page = npt.NDArray[np.uint8]


def transform_size(tier1_pages: int) -> int:
    """The power of two m at or above the number of parity rows; data points start at m."""
    return 1 << (tier1_pages - 1).bit_length()


def subspace_polynomial(m: int, x: int) -> int:
    """s(x) = product over v in {0..m-1} of (x xor v): zero on {0..m-1} and nowhere else."""
    value = x
    for v in range(1, m):
        value = multiply(value, x ^ v)
    return value


@lru_cache(maxsize=4096)
def block_scale(m: int, block: int) -> int:
    """u_b, the factor that all columns of a block share."""
    units = 1
    for v in range(1, m):
        units = multiply(units, v)
    return multiply(subspace_polynomial(m, m * (1 + block)), inverse(units))


def coefficient(tier1_pages: int, column: int, row: int) -> int:
    """P[column][row]: the factor of data page ``column`` in parity page ``row``."""
    m = transform_size(tier1_pages)
    return multiply(block_scale(m, column // m), inverse((m + column) ^ row))


def encode(tier1_pages: int, columns: Sequence[int], data: Sequence[Page]) -> list[Page]:
    """Parity pages of the data pages at ``columns`` (paper, Pseudocode 1, lines 2-3). Raises ValueError without data."""
    if not data:
        raise ValueError("encode needs at least one data page")
    zero = np.zeros_like(data[0])
    return [_add_products(tier1_pages, row, columns, data, zero) for row in range(tier1_pages)]


def update(
    tier1_pages: int, columns: Sequence[int], old: Sequence[Page], new: Sequence[Page], parity: Sequence[Page]
) -> list[Page]:
    """Parity after the pages at ``columns`` changed from ``old`` to ``new`` (line 10): new pages, ``parity`` is only read."""
    difference = [a ^ b for a, b in zip(old, new, strict=True)]
    return [_add_products(tier1_pages, row, columns, difference, page) for row, page in enumerate(parity)]


def reconstruct(
    tier1_pages: int,
    columns: Sequence[int],
    data: Sequence[Page],
    lost_columns: Sequence[int],
    rows: Sequence[int],
    parity: Sequence[Page],
) -> list[Page]:
    """The pages of ``lost_columns``, from the intact data pages and the intact parity pages at ``rows``.

    Lost parity rows are simply not in ``rows``; encode them again once the data are whole. The first rows solve, the others
    are spare and must agree with the result (U16). With no lost column this only checks.

    Raises Unrecoverable when more columns are lost than rows are intact, or when a spare row contradicts the result.
    """
    lost = len(lost_columns)
    if lost > len(rows):
        raise Unrecoverable(f"{lost} pages of the group are lost, {len(rows)} solvable")
    solving = rows[:lost]
    # What the lost columns contribute to each solving row: a Cauchy system, solved by its explicit inverse.
    sums = [_add_products(tier1_pages, row, columns, data, page) for row, page in zip(solving, parity, strict=False)]
    pages = [_solve(tier1_pages, lost_columns, position, solving, sums) for position in range(lost)]
    if not check(tier1_pages, [*columns, *lost_columns], [*data, *pages], rows[lost:], parity[lost:]):
        raise Unrecoverable(f"a spare parity row contradicts the reconstruction of {lost} pages")
    return pages


def check(tier1_pages: int, columns: Sequence[int], data: Sequence[Page], rows: Sequence[int], parity: Sequence[Page]) -> bool:
    """Whether the parity pages at ``rows`` are those of the data, which must be complete: the syndrome is zero (U16)."""
    return not any(_add_products(tier1_pages, row, columns, data, page).any() for row, page in zip(rows, parity, strict=True))


def xor_pages(pages: Sequence[Page]) -> Page:
    """Tier 2: the xor of all pages."""
    total = pages[0].copy()
    for page in pages[1:]:
        total ^= page
    return total


def cauchy_inverse(x: Sequence[int], y: Sequence[int], column: int, row: int) -> int:
    """Entry (column, row) of the inverse of C[r][c] = 1 / (x[c] xor y[r]), by its explicit formula.

    numerator    product over k of (x[column] xor y[k]) * (x[k] xor y[row])
    denominator  (x[column] xor y[row]) * product over other k of (x[column] xor x[k]) * (y[row] xor y[k])
    """
    numerator, denominator = 1, x[column] ^ y[row]
    for k in range(len(x)):
        numerator = multiply(numerator, multiply(x[column] ^ y[k], x[k] ^ y[row]))
        if k != column:
            denominator = multiply(denominator, x[column] ^ x[k])
        if k != row:
            denominator = multiply(denominator, y[row] ^ y[k])
    return multiply(numerator, inverse(denominator))


def _solve(tier1_pages: int, lost_columns: Sequence[int], position: int, rows: Sequence[int], sums: Sequence[Page]) -> Page:
    """Page ``position`` of the lost columns, from what all of them contribute to each row."""
    m = transform_size(tier1_pages)
    points = [m + column for column in lost_columns]
    total = np.zeros_like(_words(sums[0]))
    for k, page in enumerate(sums):
        total ^= scale(_words(page), cauchy_inverse(points, rows, position, k))
    unscale = inverse(block_scale(m, lost_columns[position] // m))
    return scale(total, unscale).view(np.uint8)


def _add_products(tier1_pages: int, row: int, columns: Sequence[int], data: Sequence[Page], start: Page) -> Page:
    """``start`` plus the contribution of the data pages at ``columns`` to parity row ``row``."""
    total = _words(start).copy()
    for column, page in zip(columns, data, strict=True):
        total ^= scale(_words(page), coefficient(tier1_pages, column, row))
    return total.view(np.uint8)


def _words(page: Page) -> Words:
    return page.view("<u4")
