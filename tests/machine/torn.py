"""How a kernel is left by a process that dies in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.machine.crash_free import KERNELS
from tests.machine.pooled_rank import Image


@dataclass(frozen=True)
class Torn:
    """What a kernel leaves that is abandoned at ``progress`` of its output."""

    progress: float
    garbage: bool  # what is not done holds anything, not what was there before
    in_parity: bool = False  # of an update that is fused with its parity, the second part


class Killed(Exception):
    """The process is gone in the middle of what it did."""


class KillInCall:
    """Kernels of a process that dies in the call of this number, counted from 0."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            getattr(KERNELS, name)(*arguments)
            self._left -= 1
            if self._left < 0:
                raise Killed

        return call


def with_garbage(parked: Image, done: Image) -> Image:
    """What the kernel had not done when it parked holds anything."""
    torn = {}
    for domain, content in parked.items():
        image = np.frombuffer(content, np.uint8).copy()
        missing = image != np.frombuffer(done[domain], np.uint8)
        image[missing] = _garbage(image.size)[missing]
        torn[domain] = image.tobytes()
    return torn


def torn_between(before: Image, done: Image, torn: Torn) -> Image:
    """Of what a kernel changed, the first part is done."""
    images = {}
    for domain, content in done.items():
        image, old = np.frombuffer(content, np.uint8).copy(), np.frombuffer(before[domain], np.uint8)
        changed = np.flatnonzero(image != old)
        missing = changed[int(torn.progress * changed.size) :]
        image[missing] = _garbage(image.size)[missing] if torn.garbage else old[missing]
        images[domain] = image.tobytes()
    return images


def _garbage(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
