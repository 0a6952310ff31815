"""Scenario and seed -> injections; pure.

Every choice comes from sha256(seed, fault id, occurrence, purpose): a stream of its own, so that adding a fault moves no other
and the workload's generators are never touched.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from leto.core.failpoints import Kernel, Point

if TYPE_CHECKING:
    from chaos.scenario import Action, Fault, Scenario


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One fault at one place of logical time. Exactly one of ``kernel`` and ``point`` is set.

    ``group`` and ``chunk`` (counted inside the group) are None where the scenario leaves them to the seed; the target then
    takes ``group_draw`` and ``chunk_draw`` modulo the real counts of ``rank``.
    """

    fault_id: str
    occurrence: int  # from 1
    iteration: int  # from 1
    rank: int
    action: str  # the scenario's name of the fault: abort-kernel, torn-copy, kill
    kernel: Kernel | None = None
    point: Point | None = None
    progress: float = 0.0  # fraction of the kernel's output that is done when it parks
    group: int | None = None
    chunk: int | None = None
    group_draw: int  # u64
    chunk_draw: int  # u64
    fill_seed: int | None = None  # u64; set when the rest of a torn copy's target is filled with random bytes
    token: int  # what the parked rank stores in its park word; unique in the schedule, never 0

    @property
    def label(self) -> str:
        return f"{self.fault_id} #{self.occurrence}"

    def describe(self) -> str:
        """Where it is aimed, for people: ``iteration 10 rank 1: abort-kernel adam at 0.5``."""
        if self.kernel is None:
            where = f"at {self.point.value}" if self.point else ""
        else:
            where = f"{self.kernel.value} at {self.progress:g}"
        return f"iteration {self.iteration} rank {self.rank}: {self.action} {where}"

    def to_json(self) -> dict[str, Any]:
        """JSON values only; unset fields are left out."""
        raw = asdict(self)
        raw["kernel"] = self.kernel.value if self.kernel else None
        raw["point"] = self.point.value if self.point else None
        return {key: value for key, value in raw.items() if value is not None}


def draw(seed: int, fault_id: str, occurrence: int, purpose: str) -> int:
    """An unsigned 64-bit number that depends on nothing but its arguments."""
    text = "\0".join((str(seed), fault_id, str(occurrence), purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def plan_injections(scenario: Scenario) -> tuple[Injection, ...]:
    """Every injection of the scenario, in the order of iterations, then of the file."""
    placed = [
        (iteration, position, occurrence)
        for position, fault in enumerate(scenario.faults)
        for occurrence, iteration in enumerate(_iterations(fault, scenario.workload.iterations), start=1)
    ]
    return tuple(
        _injection(scenario, scenario.faults[position], occurrence, iteration, token)
        for token, (iteration, position, occurrence) in enumerate(sorted(placed), start=1)
    )


def _iterations(fault: Fault, last: int) -> range:
    if fault.when.every is not None:
        return range(fault.when.every, last + 1, fault.when.every)
    assert fault.when.iteration is not None
    return range(fault.when.iteration, fault.when.iteration + 1)


def _injection(scenario: Scenario, fault: Fault, occurrence: int, iteration: int, token: int) -> Injection:
    def drawn(purpose: str) -> int:
        return draw(scenario.seed, fault.id, occurrence, purpose)

    rank = fault.where.rank
    return Injection(
        fault_id=fault.id,
        occurrence=occurrence,
        iteration=iteration,
        rank=drawn("rank") % scenario.workload.parallel.dp if isinstance(rank, str) else rank,
        group_draw=drawn("group"),
        chunk_draw=drawn("chunk"),
        token=token,
        **_what(fault, fault.action_of(occurrence), drawn("fill")),
    )


def _what(fault: Fault, action: Action, fill_seed: int) -> dict[str, Any]:
    """The fields of an injection that its action decides."""
    if action.abort_kernel is not None:
        a = action.abort_kernel
        return {"action": action.name, "kernel": a.kernel, "progress": a.progress, "group": a.group, "chunk": a.chunk}
    if action.torn_copy is not None:
        c = action.torn_copy
        return {"action": action.name, "kernel": c.copy_, "progress": c.progress, "fill_seed": fill_seed}
    return {"action": action.name, "point": fault.when.at}
