"""Floats as the integers they are: the only way this project compares them."""

from __future__ import annotations

import math
import struct


def bits_of(value: float) -> int:
    """The 64 bits of a double, unsigned. A NaN keeps its payload, -0.0 is not 0.0."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return int(bits)


def ulp_distance(left: float, right: float) -> int | None:
    """How many doubles lie from ``left`` to ``right``: 0 only for equal bits, 1 from -0.0 to 0.0.

    The largest finite number and infinity are neighbours. None when exactly one is a NaN, or both are with other bits: there is
    no distance then, yet they differ.
    """
    if bits_of(left) == bits_of(right):
        return 0
    if math.isnan(left) or math.isnan(right):
        return None
    return abs(_place(left) - _place(right))


def _place(value: float) -> int:
    """Position on the line of all doubles in increasing order, -0.0 just before 0.0."""
    bits = bits_of(value)
    magnitude = bits & ~(1 << 63)
    return magnitude if bits == magnitude else -magnitude - 1
