"""The field GF(2^32) that the erasure code computes in: 32-bit words, x^32 + x^7 + x^6 + x^2 + 1.

A field element is a 32-bit word whose bit k is the coefficient of x^k. Addition is xor. The polynomial is primitive, so
x generates every non-zero element, and its low word is short, so two folds reduce a 63-bit product.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

POLYNOMIAL = 0x1_0000_00C5
WORD_BITS = 32

Words = npt.NDArray[np.uint32]


def multiply(a: int, b: int) -> int:
    """Product of two field elements: shift and add, reduced at every step."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> WORD_BITS:
            a ^= POLYNOMIAL
        b >>= 1
    return product


def power(a: int, exponent: int) -> int:
    """``a`` to a non-negative exponent, by squaring."""
    result = 1
    while exponent:
        if exponent & 1:
            result = multiply(result, a)
        a = multiply(a, a)
        exponent >>= 1
    return result


@lru_cache(maxsize=1 << 16)
def inverse(a: int) -> int:
    """The element whose product with ``a`` is 1: Euclid's algorithm on polynomials. Raises ZeroDivisionError for 0."""
    if a == 0:
        raise ZeroDivisionError("0 has no inverse in GF(2^32)")
    high, low = POLYNOMIAL, a  # each is (its cofactor) * a modulo the polynomial
    high_cofactor, low_cofactor = 0, 1
    while low != 1:
        shift = high.bit_length() - low.bit_length()
        if shift < 0:
            high, low, high_cofactor, low_cofactor = low, high, low_cofactor, high_cofactor
        else:
            high ^= low << shift
            high_cofactor ^= low_cofactor << shift
    return low_cofactor


@lru_cache(maxsize=4096)
def _byte_products(constant: int) -> tuple[Words, Words, Words, Words]:
    """Products of ``constant`` with every word that has one non-zero byte, a table of 256 per byte position."""
    tables = []
    image = constant  # constant * x^k, for the next bit k
    for _ in range(WORD_BITS // 8):
        table = np.zeros(256, np.uint32)
        for bit in range(8):
            table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(image)
            image = multiply(image, 2)
        table.flags.writeable = False
        tables.append(table)
    return tables[0], tables[1], tables[2], tables[3]


def scale(words: Words, constant: int) -> Words:
    """Every word times ``constant``, as a new array. Multiplication is linear over xor, so the four bytes go apart."""
    byte0, byte1, byte2, byte3 = _byte_products(constant)
    low: Words = byte0[words & 0xFF] ^ byte1[(words >> 8) & 0xFF]
    high: Words = byte2[(words >> 16) & 0xFF] ^ byte3[words >> 24]
    return low ^ high
