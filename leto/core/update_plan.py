"""The update of one iteration as data (paper 5.2, Pseudocode 1; U2, U17, U35).

A plan is the ordered list of operations that one rank still has to do, each with the mark it publishes when it is done. The
executor carries plans out, the explorer runs prefixes of them, a CUDA backend enqueues them on its lanes. A crash point is
(operation, progress inside it). A plan is made from the rank's Progress, so resuming is not a special case: it is the
suffix, led by RESTORE when a chunk was in flight.

A serial plan has one lane. In a pipelined one parity is copied beside the computation:

    compute   chunks of 0      | chunks of 1           | chunks of 2           | chunks of 3       ...
    copy      F0 F1 F2         | W0 T0 F3              | W1 T1 F4              | W2 T2 F5          ...

Fi is FETCH, Wi and Ti are WRITE_BACK and TIER2 of group i. The order inside a lane is that of the plan, and two things order
the lanes: a group's first PARITY comes after its FETCH, its WRITE_BACK after its last COMMIT. Everything else follows: F3 fills
the slot that W0 has read, and is behind T0 in its lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    UPDATE_AND_PARITY = "update-and-parity"  # 9 and 10 in one pass over the chunk, which loads every page once
    COMMIT = "commit"  # 11: the mark itself makes Q' speak
    WRITE_BACK = "write-back"  # 12: H_i <- Q
    TIER2 = "tier2"  # T_i <- xor of H_i's rows, taken from Q


class Lane(Enum):
    """An ordered queue of operations: a stream on a GPU, a thread on the host."""

    COMPUTE = "compute"
    COPY = "copy"


COPY_LANE = frozenset({OpKind.FETCH, OpKind.WRITE_BACK, OpKind.TIER2})
"""What a pipelined plan does on its copy lane; its marks are the words FETCHED and WRITTEN_BACK, and no other lane's."""


@dataclass(frozen=True)
class Publish:
    """Store this mark in this word, in all mirrors, when the operation is done."""

    word: Word
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation. ``index`` is its place in the plan.

    ``depends_on`` are the places of operations of the other lane whose marks must be durable before; those of its own lane that
    stand before it in the plan must be too, and are not named.
    """

    index: int
    kind: OpKind
    group: int
    chunk: int | None = None  # global chunk number, None for operations on a whole group
    source_slot: int = 0  # parity slot that speaks before the operation
    target_slot: int = 0  # parity slot it writes; differs from source_slot where parity is updated (never in place)
    lane: Lane = Lane.COMPUTE
    depends_on: tuple[int, ...] = ()
    publish: Publish | None = None

    def describe(self) -> str:
        where = f"group {self.group}" if self.chunk is None else f"group {self.group} chunk {self.chunk}"
        return f"{self.kind.value} of {where}"


def speaking_slot(geometry: CodedGeometry, group: int, commits: int) -> int:
    """The parity slot that encodes the last committed boundary of ``group`` after ``commits`` of its chunks (U10, U35).

    Before the first commit it is the group's home, into which it is fetched. Commits alternate between home and scratch; where
    they end is written back, and the other one is the next group's scratch. So with s slots the last commit of group i is in
    the home of group i + s - 1, the first group that has to wait for its write-back:

        chunks a group   home           scratch          4 slots, homes (scratch) of groups 0, 1, 2, ...
        even             i mod (s-1)    s-1              0(3) 1(3) 2(3) 0(3) 1(3) ...
        odd              i mod s        (i-1) mod s      0(3) 1(0) 2(1) 3(2) 0(3) ...

    The last group may have fewer chunks; no group comes after it. A serial plan has s = 2: the same ring, so that one rule says
    what speaks, with no slots for a group before and one after the one being updated.
    """
    slots = geometry.protection.parity_slots
    if geometry.protection.chunks_per_group % 2 == 0:
        home, scratch = group % (slots - 1), slots - 1
    else:
        home, scratch = group % slots, (group - 1) % slots
    return scratch if commits % 2 else home


def plan_update(
    geometry: CodedGeometry, iteration: int, progress: Progress, *, skipped: bool = False, fused: bool = False
) -> tuple[Operation, ...]:
    """What is still to do of update ``iteration`` on a rank that came as far as ``progress``.

    A skipped step (U25) is an empty plan. Words of another iteration count as nothing done. The plan's own order is one of the
    orders that its lanes allow. ``fused`` joins operations 9 and 10 of AdamW; either kind of plan resumes what the other left.
    """
    if skipped:
        return ()
    if progress.iteration != iteration or progress.phase < Phase.BEGIN:
        progress = Progress(phase=Phase.BEGIN, iteration=iteration)
    if progress.phase >= Phase.COMPLETE:
        return ()
    steps = list(_remaining(geometry, iteration, progress))
    if fused:
        steps = list(_in_one_pass(geometry, steps))
    return tuple(_on_lanes(steps) if geometry.protection.pipelined else _on_one_lane(steps))


def _in_one_pass(geometry: CodedGeometry, steps: Sequence[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Every update that its parity follows becomes one with it, where the kernels update the chunk. UPDATED is not published:
    until the commit every mark of a chunk says the same, that its undo copy is whole."""
    both = [OpKind.UPDATE, OpKind.PARITY]
    by_kernels = geometry.regions[0].chunks
    kinds = [step["kind"] if step.get("chunk") in by_kernels else None for step in steps]
    for n, step in enumerate(steps):
        if kinds[n - 1 : n + 1] == both:
            yield {**step, "kind": OpKind.UPDATE_AND_PARITY}
        elif kinds[n : n + 2] != both:
            yield step


def _on_one_lane(steps: Iterable[dict[str, object]]) -> Iterator[Operation]:
    for index, fields in enumerate(steps):
        yield Operation(index=index, **fields)  # type: ignore[arg-type]


def _on_lanes(steps: Iterable[dict[str, object]]) -> Iterator[Operation]:
    fetches: dict[int, int] = {}  # group -> place of its fetch, until a parity operation has waited for it
    commits: dict[int, int] = {}  # group -> place of its last commit
    for op in _on_one_lane(steps):
        awaited = None
        if op.kind is OpKind.FETCH:
            fetches[op.group] = op.index
        elif op.kind in (OpKind.PARITY, OpKind.UPDATE_AND_PARITY):
            awaited = fetches.pop(op.group, None)
        elif op.kind is OpKind.COMMIT:
            commits[op.group] = op.index
        elif op.kind is OpKind.WRITE_BACK:
            awaited = commits.get(op.group)
        lane = Lane.COPY if op.kind in COPY_LANE else Lane.COMPUTE
        yield replace(op, lane=lane, depends_on=() if awaited is None else (awaited,))


def _remaining(geometry: CodedGeometry, t: int, progress: Progress) -> Iterator[dict[str, object]]:
    ahead = geometry.protection.parity_slots - 2  # groups whose slots are free while another is under way
    fetched = progress.fetched
    for group in range(progress.written_back, geometry.group_count):
        for coming in range(fetched, min(group + ahead + 1, geometry.group_count)):
            yield _fetch(geometry, t, coming)
            fetched = coming + 1
        chunks = geometry.chunks_of(group)
        for chunk in chunks:
            if chunk >= progress.committed_chunks:
                yield from _chunk(geometry, t, chunk, progress)
        yield from _write_back(geometry, t, group)


def _fetch(geometry: CodedGeometry, t: int, group: int) -> dict[str, object]:
    home = speaking_slot(geometry, group, 0)
    publish = Publish(Word.FETCHED, Mark(t, group + 1))
    return {"kind": OpKind.FETCH, "group": group, "source_slot": home, "target_slot": home, "publish": publish}


def _chunk(geometry: CodedGeometry, t: int, chunk: int, progress: Progress) -> Iterator[dict[str, object]]:
    group = geometry.group_of(chunk)
    commits = chunk - geometry.chunks_of(group).start
    source, target = speaking_slot(geometry, group, commits), speaking_slot(geometry, group, commits + 1)
    base: dict[str, object] = {"group": group, "chunk": chunk, "source_slot": source, "target_slot": source}
    in_flight = progress.in_flight is not None and progress.in_flight[0] == chunk
    if in_flight:
        yield {**base, "kind": OpKind.RESTORE}  # one path for every crash after operation 8: restore, redo 9 to 11
    else:
        yield {**base, "kind": OpKind.SAVE_UNDO, "publish": _step(t, chunk, StepDone.UNDO_SAVED)}
    yield {**base, "kind": OpKind.UPDATE, "publish": _step(t, chunk, StepDone.UPDATED)}
    yield {**base, "kind": OpKind.PARITY, "target_slot": target, "publish": _step(t, chunk, StepDone.PARITY_UPDATED)}
    yield {**base, "kind": OpKind.COMMIT, "target_slot": target, "publish": _step(t, chunk, StepDone.COMMITTED)}


def _write_back(geometry: CodedGeometry, t: int, group: int) -> Iterator[dict[str, object]]:
    last = speaking_slot(geometry, group, len(geometry.chunks_of(group)))
    base: dict[str, object] = {"group": group, "source_slot": last, "target_slot": last}
    yield {**base, "kind": OpKind.WRITE_BACK}
    yield {**base, "kind": OpKind.TIER2, "publish": Publish(Word.WRITTEN_BACK, Mark(t, group + 1))}


def _step(t: int, chunk: int, done: StepDone) -> Publish:
    return Publish(Word.STEP, step_mark(t, chunk, done))
