"""Which tensors of a training session live in retained memory, and how they get there.

Two batches, because the sizes of the second are known only when the optimizer exists:

    DDP built        buffer_allocations(ddp)     gradients/dense0, derived/dense0, gradients/expert0, ...
                     bind_buffers(ddp, place)    parameters, gradients, buckets become views of the pool
    optimizer built  coded_segments(session)     -> CodedGeometry -> leto.core.layout.updater_allocations
                     bind_optimizer(session, place)   masters and moments become views of the coded arrays
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from leto.core.geometry import GradientGeometry, Protection, Segment
from leto.core.layout import Allocation
from leto.megatron.training import TrainingSession

Place = Callable[[str], npt.NDArray[np.uint8]]
"""The pool's memory of an allocation, as a flat writable view of all its bytes; must outlive the session."""


def buffer_allocations(ddp: Any, page_bytes: int) -> tuple[Allocation, ...]:
    """Gradient and derived-parameter allocations of the model's buffers, in whole code pages."""
    raise NotImplementedError


def bind_buffers(ddp: Any, place: Place, *, initial: bool) -> None:
    """Parameters and gradients become views of the pool.

    ``initial`` copies the model's values in; else retained values win and only the padding, which derives from nothing, is
    zeroed (U31).
    """
    raise NotImplementedError


def coded_segments(session: TrainingSession) -> tuple[Segment, ...]:
    """The flat coded arrays cut along parameters, in bucket-shard order over all chained optimizers."""
    raise NotImplementedError


def gradient_geometry(session: TrainingSession, protection: Protection) -> GradientGeometry:
    """The pages of the gradient allocations that hold owned shards (U11). Gradient buffers must be bound."""
    raise NotImplementedError


def bind_optimizer(session: TrainingSession, place: Place, *, initial: bool) -> None:
    """Masters and moments become views of the coded arrays. ``initial`` copies the session's values in, else retained ones win."""
    raise NotImplementedError


class GradientAddresses:
    """Where the update finds the gradient of a segment (the owned, reduced fp32 shard)."""

    def __init__(self, session: TrainingSession) -> None:
        raise NotImplementedError

    def address(self, segment: Segment) -> int:
        """Address of the gradient of ``segment.first``; ``segment`` may be clipped to a chunk."""
        raise NotImplementedError
