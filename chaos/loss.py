"""Losses of pages as a scenario orders them: which class, how many, of each group or of the whole rank."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from leto.core.geometry import Page


class LossClass(Enum):
    """Classes of pages that can be lost, as scenario files name them.

    Those of ``leto.core.layout.PageClass`` that a rank can lose and go on, with the two parity buffers told apart by whether
    they speak where the rank stands, and with those coded pages by themselves that belong to the chunk in flight.
    """

    CODED = "coded"
    DERIVED = "derived"
    GRADIENTS = "gradients"
    UNDO = "undo"
    IN_FLIGHT = "in-flight"
    PARITY = "parity"
    SCRATCH = "scratch"
    GRADIENT_PARITY = "gradient-parity"
    TIER1 = "tier1"
    TIER2 = "tier2"
    MARKERS = "markers"


EXPENDABLE = (LossClass.DERIVED, LossClass.SCRATCH)
"""Nothing is ever needed of these, so that losing all there are is as good as losing ``count``."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """``count`` pages of a class, of each of the class's groups or of the whole rank; ``seed`` chooses which."""

    page_class: LossClass
    per_group: bool
    count: int
    group: int | None = None  # of this one only
    seed: int  # u64

    def describe(self) -> str:
        """``16 coded pages per group``"""
        of = f" of group {self.group}" if self.group is not None else " per group" if self.per_group else ""
        return f"{self.count} {self.page_class.value} page{'s' * (self.count > 1)}{of}"


@dataclass(frozen=True, kw_only=True)
class LostPages:
    """What a loss came to on a rank that stands parked."""

    page_class: LossClass
    pages: tuple[Page, ...]
