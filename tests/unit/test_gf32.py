"""The field: its axioms on random elements, and that the polynomial is primitive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core import gf32

elements = st.integers(0, 2**32 - 1)
units = st.integers(1, 2**32 - 1)


def carryless_product_then_remainder(a: int, b: int) -> int:
    """The schoolbook product of two polynomials, and its remainder by long division."""
    product = 0
    for bit in range(32):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(63, 31, -1):
        if product >> bit & 1:
            product ^= gf32.POLYNOMIAL << (bit - 32)
    return product


@given(elements, elements)
def test_multiply_is_the_remainder_of_the_polynomial_product(a: int, b: int) -> None:
    assert gf32.multiply(a, b) == carryless_product_then_remainder(a, b)


@given(elements, elements, elements)
def test_multiply_distributes_over_xor(a: int, b: int, c: int) -> None:
    assert gf32.multiply(a, b ^ c) == gf32.multiply(a, b) ^ gf32.multiply(a, c)


@given(units)
def test_inverse(a: int) -> None:
    assert gf32.multiply(a, gf32.inverse(a)) == 1


def test_zero_has_no_inverse() -> None:
    with pytest.raises(ZeroDivisionError):
        gf32.inverse(0)


@given(units)
def test_inverse_is_fermats_power(a: int) -> None:
    assert gf32.power(a, 2**32 - 2) == gf32.inverse(a)


def test_x_generates_the_field() -> None:
    order = 2**32 - 1
    assert gf32.power(2, order) == 1
    assert all(gf32.power(2, order // prime) != 1 for prime in (3, 5, 17, 257, 65537))


@given(st.lists(elements, min_size=1, max_size=20), elements)
def test_scale_multiplies_every_word(words: list[int], constant: int) -> None:
    scaled = gf32.scale(np.array(words, np.uint32), constant)
    assert scaled.tolist() == [gf32.multiply(word, constant) for word in words]
