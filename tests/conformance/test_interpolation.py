"""The code beside an independent library of finite fields: parity is interpolation."""

from __future__ import annotations

import galois
import numpy as np
import pytest
from kernel_backends import BACKEND_NAMES, BACKENDS, Backend, addresses, blank, random_pages

from leto.core.reed_solomon import transform_size
from leto.device.base import CodeShape


@pytest.fixture(scope="module")
def field() -> type[galois.FieldArray]:
    return galois.GF(2**32, irreducible_poly="x^32+x^7+x^6+x^2+1", primitive_element="x", verify=False)


@pytest.mark.parametrize("kernels", BACKENDS, ids=BACKEND_NAMES)
@pytest.mark.parametrize("tier1", [1, 2, 4, 8, 16])
def test_parity_is_interpolation(kernels: Backend, tier1: int, field: type[galois.FieldArray]) -> None:
    """The independent view: row j is the sum over blocks of the value at j of the polynomial through the block's data."""
    shape = CodeShape(page_bytes=16, tier1_pages=tier1)
    m = transform_size(tier1)
    data = random_pages(np.random.default_rng(tier1), 3 * m, shape.page_bytes)
    words = np.array([page.view("<u4") for page in data])
    total = field.Zeros((m, 4))
    at_rows = field([[row**0 if power == 0 else int(field(row) ** power) for power in range(m)] for row in range(m)])
    for block in range(3):
        points = [m + block * m + k for k in range(m)]
        vandermonde = field([[int(field(x) ** power) for power in range(m)] for x in points])
        total += at_rows @ np.linalg.inv(vandermonde) @ field(words[block * m : (block + 1) * m])
    parity = blank(tier1, shape.page_bytes)
    kernels.encode(shape, range(3 * m), addresses(data), addresses(parity))
    assert [page.view("<u4").tolist() for page in parity] == total.tolist()
