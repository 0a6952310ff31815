"""The update of one iteration as data (paper 5.2, Pseudocode 1; U2, U17, U35).

A plan is the ordered list of operations that one rank still has to do, each with the mark it publishes when it is done. The
executor carries plans out, the explorer runs prefixes of them, a CUDA backend enqueues them on its lanes. A crash point is
(operation, progress inside it). A plan is made from the rank's Progress, so resuming is not a special case: it is the
suffix, led by RESTORE when a chunk was in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from leto.core.geometry import CodedGeometry
from leto.core.markers import Mark, Phase, Progress, StepDone, Word, step_mark


class OpKind(Enum):
    """Operations, with their line of Pseudocode 1."""

    FETCH = "fetch"  # 6: Q <- H_i
    SAVE_UNDO = "save-undo"  # 8: U <- C_j
    RESTORE = "restore"  # recovery only: C_j <- U
    UPDATE = "update"  # 9: C_j <- Update(C_j, G_j) in place
    PARITY = "parity"  # 10: Q' <- Q xor RS_j(U xor C_j)
    COMMIT = "commit"  # 11: the mark itself makes Q' speak
    WRITE_BACK = "write-back"  # 12: H_i <- Q
    TIER2 = "tier2"  # T_i <- xor of H_i's rows, taken from Q


class Lane(Enum):
    """An ordered queue of operations: a stream on a GPU, the calling thread on the host."""

    COMPUTE = "compute"
    COPY = "copy"


@dataclass(frozen=True)
class Publish:
    """Store this mark in this word, in all mirrors, when the operation is done."""

    word: Word
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation. ``index`` is its place in the plan, ``depends_on`` the places of what must be done before."""

    index: int
    kind: OpKind
    group: int
    chunk: int | None = None  # global chunk number, None for operations on a whole group
    source_slot: int = 0  # parity slot (0 or 1) that speaks before the operation
    target_slot: int = 0  # parity slot it writes; differs from source_slot for PARITY only (never in place)
    lane: Lane = Lane.COMPUTE
    depends_on: tuple[int, ...] = ()
    publish: Publish | None = None

    def describe(self) -> str:
        where = f"group {self.group}" if self.chunk is None else f"group {self.group} chunk {self.chunk}"
        return f"{self.kind.value} of {where}"


PARITY_SLOTS = 2
"""Parity buffer and scratch: commits in a group alternate between them, so "which speaks" is parity of the commit count."""


def speaking_slot(commits_in_group: int) -> int:
    """The parity slot that encodes the last committed boundary of the group being updated (U10)."""
    return commits_in_group % PARITY_SLOTS


def plan_update(geometry: CodedGeometry, iteration: int, progress: Progress, *, skipped: bool = False) -> tuple[Operation, ...]:
    """What is still to do of update ``iteration`` on a rank that came as far as ``progress``.

    A skipped step (U25) is an empty plan. Words of another iteration count as nothing done. Operations are serial: each
    depends on the one before it.
    """
    if skipped:
        return ()
    if progress.iteration != iteration or progress.phase < Phase.BEGIN:
        progress = Progress(phase=Phase.BEGIN, iteration=iteration)
    if progress.phase >= Phase.COMPLETE:
        return ()
    steps = list(_remaining(geometry, iteration, progress))
    return tuple(
        Operation(index=n, depends_on=(n - 1,) if n else (), **fields)  # type: ignore[arg-type]
        for n, fields in enumerate(steps)
    )


def _remaining(geometry: CodedGeometry, t: int, progress: Progress) -> Iterator[dict[str, object]]:
    for group in range(progress.written_back, geometry.group_count):
        chunks = geometry.chunks_of(group)
        if progress.fetched <= group:
            yield {
                "kind": OpKind.FETCH,
                "group": group,
                "publish": Publish(Word.FETCHED, Mark(t, group + 1)),
            }
        for chunk in chunks:
            if chunk >= progress.committed_chunks:
                yield from _chunk(t, group, chunk, chunk - chunks.start, progress)
        last = speaking_slot(len(chunks))
        yield {"kind": OpKind.WRITE_BACK, "group": group, "source_slot": last, "target_slot": last}
        yield {
            "kind": OpKind.TIER2,
            "group": group,
            "source_slot": last,
            "target_slot": last,
            "publish": Publish(Word.WRITTEN_BACK, Mark(t, group + 1)),
        }


def _chunk(t: int, group: int, chunk: int, commits: int, progress: Progress) -> Iterator[dict[str, object]]:
    source, target = speaking_slot(commits), speaking_slot(commits + 1)
    base: dict[str, object] = {"group": group, "chunk": chunk, "source_slot": source, "target_slot": source}
    in_flight = progress.in_flight is not None and progress.in_flight[0] == chunk
    if in_flight:
        yield {**base, "kind": OpKind.RESTORE}  # one path for every crash after operation 8: restore, redo 9 to 11
    else:
        yield {**base, "kind": OpKind.SAVE_UNDO, "publish": _step(t, chunk, StepDone.UNDO_SAVED)}
    yield {**base, "kind": OpKind.UPDATE, "publish": _step(t, chunk, StepDone.UPDATED)}
    yield {**base, "kind": OpKind.PARITY, "target_slot": target, "publish": _step(t, chunk, StepDone.PARITY_UPDATED)}
    yield {**base, "kind": OpKind.COMMIT, "target_slot": target, "publish": _step(t, chunk, StepDone.COMMITTED)}


def _step(t: int, chunk: int, done: StepDone) -> Publish:
    return Publish(Word.STEP, step_mark(t, chunk, done))
