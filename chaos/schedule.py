"""Scenario and seed -> injections; pure.

Every choice comes from sha256(seed, fault id, occurrence, purpose): a stream of its own, so that adding a fault moves no other
and the workload's generators are never touched.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from chaos.loss import Loss, LossClass
from leto.core.failpoints import Kernel, Point

if TYPE_CHECKING:
    from chaos.scenario import Action, Fault, Hold, LosePages, Scenario

NATURAL = "natural"

_SHARE_BITS = 24
_SHARE_MASK = (1 << _SHARE_BITS) - 1


def logical_time(iteration: int, share: float) -> int:
    """Logical time as one comparable word: ``share``, from 0 up to 1, of the failpoints of ``iteration`` are passed.

    A share, not a count: how many failpoints an iteration has is the model's, and a schedule knows no model.
    """
    return iteration << _SHARE_BITS | min(int(share * (1 << _SHARE_BITS)), _SHARE_MASK)


def describe_time(word: int) -> str:
    """``iteration 7 after 0.412 of its failpoints``"""
    return f"iteration {word >> _SHARE_BITS} after {(word & _SHARE_MASK) / (1 << _SHARE_BITS):.3f} of its failpoints"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank parks in logical time: at a point, or inside a kernel at a fraction of its output.

    ``group`` and ``chunk`` (counted inside the group) are None where the scenario leaves them to the seed; the target then
    takes ``group_draw`` and ``chunk_draw`` modulo the real counts of ``rank``.
    """

    iteration: int  # from 1
    rank: int
    kernel: Kernel | None = None
    point: Point | None = None
    progress: float = 0.0  # fraction of the kernel's output that is done when it parks
    group: int | None = None
    chunk: int | None = None
    group_draw: int  # u64
    chunk_draw: int  # u64
    token: int  # what the parked rank stores in its park word; unique in the schedule, never 0

    @property
    def site(self) -> str:
        """``adam at 0.5``, ``at begin``"""
        if self.kernel is not None:
            return f"{self.kernel.value} at {self.progress:g}"
        return f"at {self.point.value}" if self.point else ""

    @property
    def aim(self) -> str:
        """``adam at 0.5 in group 1 chunk 2``: the site, with what the scenario says of where that is."""
        given = [f"{noun} {n}" for noun, n in (("group", self.group), ("chunk", self.chunk)) if n is not None]
        return f"{self.site} in {' '.join(given)}" if given else self.site


@dataclass(frozen=True, kw_only=True)
class Injection(Place):
    """One fault. Its own rank parks at ``kernel`` or ``point``, unless ``moment`` says that it fires without parking.

    A fault with holds fires when its own rank and every held one stand parked, each at its own token. One with a gate lets its
    rank pass the gate only when shadows stand by.
    """

    fault_id: str
    occurrence: int  # from 1
    action: str  # the scenario's name of the fault: abort-kernel, torn-copy, kill, natural
    fill_seed: int | None = None  # u64; set when the rest of a torn copy's target is filled with random bytes
    moment: int | None = None  # free-running: fires as soon as the rank has reached or passed this logical time
    victim: int | None = None  # the parked rank that is killed; None is the fault's own
    holds: tuple[Place, ...] = ()
    gate: Place | None = None  # where its own rank waits for shadows, before it comes to its place
    losses: tuple[Loss, ...] = ()  # pages of its own rank

    @property
    def label(self) -> str:
        return f"{self.fault_id} #{self.occurrence}"

    @property
    def places(self) -> tuple[Place, ...]:
        """Everything that must stand parked before it fires; empty for a free-running kill."""
        return () if self.moment is not None else (self, *self.holds)

    @property
    def natural(self) -> bool:
        """Nobody kills: the rank goes on and dies of a lost page."""
        return self.action == NATURAL

    @property
    def killed_rank(self) -> int:
        return self.rank if self.victim is None else self.victim

    def describe(self) -> str:
        """Where it is aimed, for people: ``iteration 10 rank 1: abort-kernel adam at 0.5, rank 0 held at begin``."""
        if self.moment is not None:
            return f"rank {self.rank}: {self.action} without parking in {describe_time(self.moment)}"
        held = "".join(f", rank {h.rank} held {self._of(h)}{h.aim}" for h in self.holds)
        killed = "" if self.victim is None else f", rank {self.victim} is killed"
        lost = "".join(f", {loss.describe()} lost" for loss in self.losses)
        return f"iteration {self.iteration} rank {self.rank}: {self.action} {self.aim}{held}{killed}{lost}"

    def _of(self, hold: Place) -> str:
        return "" if hold.iteration == self.iteration else f"in iteration {hold.iteration} "

    def to_json(self) -> dict[str, Any]:
        """JSON values only; unset fields are left out."""
        raw = _plain(self)
        raw["holds"] = [_plain(hold) for hold in self.holds] or None
        raw["gate"] = self.gate and _plain(self.gate)
        raw["losses"] = [asdict(loss) | {"page_class": loss.page_class.value} for loss in self.losses] or None
        return {key: value for key, value in raw.items() if value is not None}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Injection:
        nested = {
            "holds": tuple(Place(**_typed(hold)) for hold in raw.get("holds", ())),
            "gate": Place(**_typed(raw["gate"])) if "gate" in raw else None,
            "losses": tuple(Loss(**{**loss, "page_class": LossClass(loss["page_class"])}) for loss in raw.get("losses", ())),
        }
        return Injection(**(_typed(raw) | nested))


def _plain(place: Place) -> dict[str, Any]:
    values = {"kernel": place.kernel and place.kernel.value, "point": place.point and place.point.value}
    return {key: value for key, value in (asdict(place) | values).items() if value is not None}


def _typed(raw: Mapping[str, Any]) -> dict[str, Any]:
    kernel, point = raw.get("kernel"), raw.get("point")
    return {**raw, "kernel": Kernel(kernel) if kernel else None, "point": Point(point) if point else None}


def draw(seed: int, fault_id: str, occurrence: int, purpose: str) -> int:
    """An unsigned 64-bit number that depends on nothing but its arguments."""
    text = "\0".join((str(seed), fault_id, str(occurrence), purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def plan_injections(scenario: Scenario) -> tuple[Injection, ...]:
    """Every injection of the scenario, in the order of iterations, then of the file."""
    placed = [
        (iteration, position, occurrence)
        for position, fault in enumerate(scenario.faults)
        for occurrence, iteration in enumerate(_iterations(scenario, fault), start=1)
    ]
    tokens = itertools.count(1)
    return tuple(
        _injection(scenario, scenario.faults[position], occurrence, iteration, tokens)
        for iteration, position, occurrence in sorted(placed)
    )


def _iterations(scenario: Scenario, fault: Fault) -> list[int]:
    last, when = scenario.workload.iterations, fault.when
    if when.every is not None:
        return list(range(when.every, last + 1, when.every))
    if when.random is not None:  # not the last one: a kill that comes late must still find a trainer
        shuffled = sorted(range(1, last), key=lambda t: draw(scenario.seed, fault.id, t, "iteration"))
        return sorted(shuffled[: when.random])
    assert when.iteration is not None
    return [when.iteration]


def _injection(scenario: Scenario, fault: Fault, occurrence: int, iteration: int, tokens: Iterator[int]) -> Injection:
    def drawn(purpose: str) -> int:
        return draw(scenario.seed, fault.id, occurrence, purpose)

    rank = fault.where.rank
    share = drawn("share") / 2**64
    chosen = drawn("rank") % scenario.workload.parallel.dp if isinstance(rank, str) else rank
    return Injection(
        fault_id=fault.id,
        occurrence=occurrence,
        iteration=iteration,
        rank=chosen,
        group_draw=drawn("group"),
        chunk_draw=drawn("chunk"),
        token=next(tokens),
        moment=None if fault.when.random is None else logical_time(iteration, share),
        holds=tuple(_hold(hold, iteration, drawn, next(tokens)) for hold in fault.hold),
        gate=_gate(iteration, chosen, next(tokens)) if fault.when.shadows else None,
        losses=tuple(_loss(loss, drawn(f"loss {n}")) for n, loss in enumerate(fault.losses, start=1)),
        **_what(fault, fault.action_of(occurrence), drawn("fill")),
    )


def _hold(hold: Hold, iteration: int, drawn: Callable[[str], int], token: int) -> Place:
    return Place(
        iteration=hold.iteration or iteration,
        rank=hold.rank,
        kernel=hold.kernel,
        point=hold.at,
        progress=hold.progress or 0.0,
        group=hold.group,
        chunk=hold.chunk,
        group_draw=drawn(f"group of rank {hold.rank}"),
        chunk_draw=drawn(f"chunk of rank {hold.rank}"),
        token=token,
    )


def _gate(iteration: int, rank: int, token: int) -> Place:
    """At the iteration's boundary: nothing of it is done, so waiting there holds nothing half-way."""
    return Place(iteration=iteration, rank=rank, point=Point.HEADER, group_draw=0, chunk_draw=0, token=token)


def _loss(loss: LosePages, seed: int) -> Loss:
    per_group = loss.per == "group"
    return Loss(page_class=loss.class_, per_group=per_group, count=loss.count, group=loss.group, seed=seed)


def _what(fault: Fault, action: Action, fill_seed: int) -> dict[str, Any]:
    """The fields of an injection that its action decides."""
    if action.abort_kernel is not None:
        a = action.abort_kernel
        return {"action": action.name, "kernel": a.kernel, "progress": a.progress, "group": a.group, "chunk": a.chunk}
    if action.torn_copy is not None:
        c = action.torn_copy
        return {"action": action.name, "kernel": c.copy_, "progress": c.progress, "fill_seed": fill_seed}
    return {"action": action.name, "point": fault.when.at, "victim": action.kill.rank if action.kill else None}
