"""Chunks of AdamW in plain memory, for the suites that call its kernels."""

from __future__ import annotations

import itertools

import numpy as np

from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment

COEFFICIENTS = AdamCoefficients(lr=3e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, step=4, clip=0.5)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""master, exp_avg, exp_avg_sq, gradient"""


def adam_arrays(count: int) -> Arrays:
    rng = np.random.default_rng(16)
    master, exp_avg, exp_avg_sq, gradient = rng.standard_normal((4, count), dtype=np.float32)
    return master, exp_avg, np.square(exp_avg_sq), gradient


def adam_chunk(arrays: Arrays, cuts: list[int]) -> AdamChunk:
    """The arrays as a chunk whose segments end at ``cuts``."""
    master, exp_avg, exp_avg_sq, gradient = arrays
    edges = [0, *cuts]
    return AdamChunk(
        master_address=master.ctypes.data,
        exp_avg_address=exp_avg.ctypes.data,
        exp_avg_sq_address=exp_avg_sq.ctypes.data,
        segments=tuple(
            AdamSegment(count=stop - first, gradient_address=gradient.ctypes.data + 4 * first, coefficients=COEFFICIENTS)
            for first, stop in itertools.pairwise(edges)
        ),
    )
