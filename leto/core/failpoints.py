"""The names of every point a fault can hit, and how a fault gets there (U50).

A failpoint costs nothing when it is not armed: the default Failpoints does nothing, and native kernels have an armed variant
that is chosen only when ``arm`` answers. An armed point parks: it stores a token in the rank's park word and waits there; the
bench sees the token, makes FIRED durable, does its damage and kills from outside. No kernel kills itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self


class _Place(Enum):
    """A member is its name in scenario files; ``meaning`` says where that is."""

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = object.__new__(cls)
        member._value_ = value
        member.meaning = meaning
        return member


class Point(_Place):
    """Points between operations, in the order of one iteration (U49). Reached by the trainer's own thread."""

    BEFORE_FIRST_HEADER = "before-first-header", "once a job: HEADER(1) is written, its mark not published"
    HEADER = "header", "HEADER(t) is durable, compute has not begun"
    FORWARD = "forward", "before the first micro-batch"
    BACKWARD = "backward", "gradients are accumulated and reduced, nothing is recorded"
    OWNED = "owned", "buffers are taken back, gradient parity is not encoded"
    GRADIENT_PARITY = "gradient-parity", "gradient parity is encoded, POST(t) not written"
    POST = "post", "POST(t) is durable"
    BEFORE_BARRIER = "before-barrier", "GRADS_PROTECTED(t) is durable"
    AFTER_BARRIER = "after-barrier", "the barrier is passed, BEGIN(t) not durable"
    BEGIN = "begin", "BEGIN(t) is durable, nothing fetched"
    COMPLETE = "complete", "COMPLETE(t) is durable, derived parameters are stale"
    CAST = "cast", "the rank's own shard is cast, not gathered"
    GATHER = "gather", "derived parameters are gathered"
    LEDGER = "ledger", "results of t are recorded, HEADER(t+1) not durable"
    NEXT_HEADER = "next-header", "HEADER(t+1) is written to its slot, its mark not published"
    ENDED = "ended", "once a job: after the last iteration T, HEADER(T+1) is durable, the final barrier not passed"


class Kernel(_Place):
    """Points inside an operation, reached at a fraction of its output. Named as in scenario files."""

    ADAM = "adam", "operation 9: the chunk's masters and moments, in place"
    MUON_MOMENTUM = "muon-momentum", "operation 9 of a chunk of Muon's momentum, in place"
    MUON_APPLY = "muon-apply", "operation 9 of a chunk of Muon's masters, in place"
    RS_UPDATE = "rs-update", "operation 10: the chunk's difference into the other parity slot"
    RS_ENCODE = "rs-encode", "gradient parity, before POST(t)"
    PARITY_FETCH = "parity-fetch", "copy of operation 6: tier 1 to the parity slot"
    UNDO_SAVE = "undo-save", "copy of operation 8: the chunk to the undo buffer"
    UNDO_RESTORE = "undo-restore", "in a recovery: the undo buffer back to the chunk that was in flight"
    PARITY_WRITEBACK = "parity-writeback", "copy of operation 12: the parity slot to tier 1"
    TIER2 = "tier2", "xor of operation 12: tier 2 from the parity slot"


COPIES = (Kernel.PARITY_FETCH, Kernel.UNDO_SAVE, Kernel.UNDO_RESTORE, Kernel.PARITY_WRITEBACK)


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where the trainer is when it asks: names only logical time and place."""

    iteration: int
    group: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True)
class Park:
    """An armed kernel's order: at ``progress`` of its output store ``token`` at ``word_address`` and wait until it is 0.

    ``progress`` is in [0, 1]; the output of a kernel is what its docstring says, and everything before the point is done.
    """

    word_address: int
    token: int
    progress: float


class Failpoints(Protocol):
    """What the trainer asks of whoever armed faults."""

    def reach(self, point: Point, site: Site) -> None:
        """The trainer is at ``point``; an armed fault parks the calling thread here."""

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        """The park order for the kernel about to run, or None for the plain variant."""


class NoFailpoints:
    """Nothing is armed."""

    def reach(self, point: Point, site: Site) -> None:
        return None

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        return None
