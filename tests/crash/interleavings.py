"""The orders that the lanes of a plan allow, one operation after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from leto.core.update_plan import Lane, Operation


def next_of(plan: Sequence[Operation], done: Collection[int]) -> list[Operation]:
    """Of each lane the operation that comes next, where what it depends on is done."""
    found = (next((op for op in plan if op.lane is lane and op.index not in done), None) for lane in Lane)
    return [op for op in found if op is not None and set(op.depends_on) <= set(done)]


def legal_order(plan: Sequence[Operation], random: Random) -> list[Operation]:
    """All operations, in an order that the seed decides."""
    done: dict[int, Operation] = {}
    while len(done) < len(plan):
        op = random.choice(next_of(plan, done))
        done[op.index] = op
    return list(done.values())
