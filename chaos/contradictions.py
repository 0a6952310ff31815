"""What no single key of a scenario shows: two that contradict each other, and aims that the file alone tells cannot happen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaos.loss import LossClass
from chaos.mistakes import Mistake, dig
from chaos.targets.aims import KERNELS_OF_GROUPS
from chaos.yaml_source import Path
from leto.core.errors import ConfigError
from leto.core.failpoints import Kernel, Point
from leto.core.geometry import Protection
from leto.core.markers import MIRRORS
from leto.core.wording import numbered

KERNELS_OUTSIDE_UPDATE = (Kernel.RS_ENCODE,)
"""Gradient parity is encoded before anybody may begin, so it is no part of the update phase."""
KERNELS_OF_MUON = (Kernel.MUON_MOMENTUM, Kernel.MUON_APPLY)
GROUPED = (LossClass.CODED, LossClass.GRADIENTS, LossClass.GRADIENT_PARITY, LossClass.TIER1, LossClass.TIER2)
"""Classes whose pages are in groups."""


def find_contradictions(data: Any) -> Iterator[Mistake]:
    """What no single key shows. Looks at plain data that may be wrong in other ways, so that one look finds everything."""
    yield from _in_protection(data)
    faults = dig(data, "faults")
    seen: set[str] = set()
    for n, fault in enumerate(faults if isinstance(faults, list) else ()):
        where: Path = ("faults", n)
        name = dig(fault, "id")
        if isinstance(name, str) and name in seen:
            yield (*where, "id"), f"{name!r} is the id of an earlier fault; ids are unique"
        seen.add(str(name))
        yield from _in_time(data, fault, where)
        yield from _in_rank(data, dig(fault, "where", "rank"), (*where, "where", "rank"))
        yield from _in_holds(data, fault, where)
        yield from _in_steps(data, fault, where)
        yield from _in_kernels(data, fault, where)
        for path, action in _actions(fault, where):
            yield from _in_action(fault, action, path)
    yield from _in_expect(data)


def _in_protection(data: Any) -> Iterator[Mistake]:
    pages, chunk = dig(data, "protection", "data_pages"), dig(data, "protection", "chunk_pages")
    if is_count(pages) and is_count(chunk) and chunk % 3 == 0:
        try:
            Protection(data_pages=pages, chunk_pages=chunk)
        except ConfigError as error:
            key, _, what = str(error).partition(": ")
            yield ("protection", key), f"{what}; a chunk lies inside one group"


def _in_time(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    last, when = dig(data, "workload", "iterations"), dig(fault, "when")
    for key in ("every", "iteration"):
        time = dig(when, key)
        if is_count(time) and is_count(last) and time > last:
            yield (*where, "when", key), f"{time} is beyond the workload; it has iterations 1 to {last}"
    random = dig(when, "random")
    if is_count(random) and is_count(last) and random >= last:
        what = f"{random} kills need {random} iterations before the last; the workload has {last - 1}"
        yield (*where, "when", "random"), what
    for key in ("at", "phase", "shadows"):
        if random is not None and dig(when, key) is not None:
            yield (*where, "when", key), f"a random kill parks nowhere; leave {key!r} out"
    if dig(when, "shadows") is not None and dig(when, "at") == Point.BEFORE_FIRST_HEADER.value:
        yield (*where, "when", "shadows"), "shadows are made beside training, which has not begun there; leave it out"
    yield from _at_an_edge(dig(when, "at"), dig(when, "iteration"), last, (*where, "when"))


def _at_an_edge(point: Any, iteration: Any, last: Any, where: Path) -> Iterator[Mistake]:
    """Two points are passed once a job."""
    edges = {Point.BEFORE_FIRST_HEADER.value: 1, Point.ENDED.value: last}
    if point in edges and iteration != edges[point]:
        yield (*where, "at"), f"{point!r} is passed once a job; write 'iteration: {edges[point]}' beside it"


def _in_rank(data: Any, rank: Any, path: Path) -> Iterator[Mistake]:
    dp = dig(data, "workload", "parallel", "dp")
    if is_count(dp) and isinstance(rank, int) and rank >= dp:
        yield path, f"there is no rank {rank}; the workload has ranks 0 to {dp - 1}"


def _in_holds(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    holds = _holds(fault, where)
    if holds and dig(fault, "when", "random") is not None:
        yield (*where, "hold"), "a random kill waits for nobody; leave 'hold' out"
    taken = {dig(fault, "where", "rank")}
    if holds and taken == {"seeded"}:
        yield (*where, "where", "rank"), "'seeded' may draw the rank that is held; write a number"
    for path, hold in holds:
        rank = dig(hold, "rank")
        yield from _in_rank(data, rank, (*path, "rank"))
        if isinstance(rank, int) and rank in taken:
            yield (*path, "rank"), f"rank {rank} parks elsewhere already; a rank parks at one place"
        taken.add(rank)
        yield from _in_hold_time(data, fault, hold, path)


def _in_hold_time(data: Any, fault: Any, hold: Any, path: Path) -> Iterator[Mistake]:
    held, own = dig(hold, "iteration"), dig(fault, "when", "iteration")
    if is_count(held) and not is_count(own):
        yield (*path, "iteration"), "names an iteration, the fault does not; write 'iteration' in 'when', or leave it out here"
    elif is_count(held) and abs(held - own) > 1:
        yield (*path, "iteration"), f"{held} is more than one from {own}; ranks are never further apart"
    last = dig(data, "workload", "iterations")
    if is_count(held) and is_count(last) and held > last:
        yield (*path, "iteration"), f"{held} is beyond the workload; it has iterations 1 to {last}"
    yield from _at_an_edge(dig(hold, "at"), held or own, last, path)


def _holds(fault: Any, where: Path) -> list[tuple[Path, Any]]:
    """One hold is written as a mapping, several as a list; validation makes a list of both."""
    raw = dig(fault, "hold")
    return [((*where, "hold", n), hold) for n, hold in enumerate(raw if isinstance(raw, list) else [raw] if raw else ())]


def _actions(fault: Any, where: Path) -> Iterator[tuple[Path, Any]]:
    steps = dig(fault, "do")
    for n, step in enumerate(steps if isinstance(steps, list) else ()):
        cycle = dig(step, "cycle")
        if isinstance(cycle, list):
            yield from (((*where, "do", n, "cycle", c), action) for c, action in enumerate(cycle))
        else:
            yield (*where, "do", n), step


def _in_steps(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    """The first step ends the rank, the others lose pages before that."""
    steps = dig(fault, "do")
    losing = [dig(step, "lose-pages") is not None for step in steps] if isinstance(steps, list) else []
    for n, step in enumerate(steps if losing else ()):
        path = (*where, "do", n)
        if n == 0 and losing[n]:
            yield path, f"comes first; begin with what ends the rank: {', '.join(_ENDINGS)}"
        if n > 0 and not losing[n]:
            yield path, "comes second; one fault ends the rank, every later step is a 'lose-pages'"
        if losing[n]:
            yield from _in_loss(data, dig(step, "lose-pages"), (*path, "lose-pages"))
    random = dig(fault, "when", "random") is not None
    if any(losing) and random:
        yield (*where, "do", losing.index(True)), "pages are lost while the rank stands parked, a random kill parks nobody"


_ENDINGS = ("abort-kernel", "torn-copy", "kill", "natural", "cycle")


def _in_loss(data: Any, loss: Any, path: Path) -> Iterator[Mistake]:
    name, count, per_group = dig(loss, "class"), dig(loss, "count"), dig(loss, "per") == "group"
    grouped = [c.value for c in GROUPED]
    for key in ("per", "group"):
        if (per_group if key == "per" else dig(loss, key) is not None) and name not in grouped:
            yield (*path, key), f"pages of class {name!r} are in no groups; classes with groups: {', '.join(grouped)}"
    if dig(loss, "group") is not None and not per_group and name in grouped:
        yield (*path, "group"), "goes with 'per: group'"
    most, solvable = _most(data, name), dig(data, "protection", "tier1")
    refused = dig(data, "expect", "fallback") == "refused"
    must_survive = name == LossClass.CODED.value and per_group and not refused
    if not is_count(count):
        return
    if most is not None and count > most and (per_group or name not in grouped):
        yield (*path, "count"), f"{'a group' if per_group else 'a rank'} has at most {most} pages of class {name!r}"
    elif must_survive and is_count(solvable) and count > solvable:
        yield (*path, "count"), f"tier1 solves {solvable} of a group; lose fewer, or expect 'fallback: refused'"
    elif name == LossClass.MARKERS.value and count == MIRRORS and not refused:
        yield (*path, "count"), "of all mirrors nothing is left to read; lose fewer, or expect 'fallback: refused'"


def _most(data: Any, name: Any) -> int | None:
    """How many pages of a class one group has, or one rank of a class without groups, as far as the file alone tells."""
    keys = {
        LossClass.CODED.value: "data_pages",
        LossClass.GRADIENTS.value: "data_pages",
        LossClass.GRADIENT_PARITY.value: "tier1",
        LossClass.TIER1.value: "tier1",
        LossClass.TIER2.value: "tier2",
        LossClass.PARITY.value: "tier1",
        LossClass.UNDO.value: "chunk_pages",
        LossClass.IN_FLIGHT.value: "chunk_pages",
    }
    if name == LossClass.MARKERS.value:
        return MIRRORS
    most = dig(data, "protection", keys.get(name, "") if isinstance(name, str) else "")
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def _in_action(fault: Any, action: Any, path: Path) -> Iterator[Mistake]:
    if not isinstance(action, dict):
        return
    at, phase, random = (dig(fault, "when", key) for key in ("at", "phase", "random"))
    for name in ("kill", "natural"):
        if name in action and at is None and (random is None or name == "natural"):
            yield (*path, name), f"needs a point; add 'at' to 'when', one of {', '.join(p.value for p in Point)}"
    if "natural" in action and not any(dig(step, "lose-pages") for step in dig(fault, "do")):
        yield (*path, "natural"), "dies of a lost page; add a step 'lose-pages'"
    for name in ("abort-kernel", "torn-copy"):
        if name in action and at is not None:
            yield (*path, name), "parks inside a kernel; leave 'at' out of 'when', or use kill"
        if name in action and random is not None:
            yield (*path, name), "parks inside a kernel and a random kill parks nowhere; use kill"
    victim = dig(action, "kill", "rank")
    parked = [dig(fault, "where", "rank"), *(dig(hold, "rank") for _, hold in _holds(fault, path))]
    if victim is not None and victim not in parked:
        yield (*path, "kill", "rank"), f"rank {victim} is not parked; hold it, or kill one of {', '.join(map(str, parked))}"
    kernel = dig(action, "abort-kernel", "kernel")
    if phase == "update" and kernel in [k.value for k in KERNELS_OUTSIDE_UPDATE]:
        yield (*path, "abort-kernel", "kernel"), f"{kernel!r} does not run in the update phase; leave 'phase' out"


def _in_kernels(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    for path, action in _actions(fault, where):
        for name, key in (("abort-kernel", "kernel"), ("torn-copy", "copy")):
            yield from _in_kernel(data, dig(action, name), key, (*path, name))
    for path, hold in _holds(fault, where):
        yield from _in_kernel(data, hold, "kernel", path)


def _in_kernel(data: Any, aim: Any, key: str, path: Path) -> Iterator[Mistake]:
    kernel, chunk = dig(aim, key), dig(aim, "chunk")
    if kernel in [k.value for k in KERNELS_OF_MUON] and dig(data, "workload", "optimizer") in (None, "adam"):
        what = f"{kernel!r} does not run without Muon; write 'optimizer: muon' in 'workload', or aim at 'adam'"
        yield (*path, key), what
    if kernel == Kernel.TIER2.value and dig(data, "protection", "tier2") == 0:
        yield (*path, key), f"{kernel!r} does not run without tier 2; write 'tier2: 1' in 'protection', or aim at another"
    if chunk is not None and kernel in [k.value for k in KERNELS_OF_GROUPS]:
        yield (*path, "chunk"), f"{kernel!r} runs once a group; leave 'chunk' out"
        return
    pages, each = dig(data, "protection", "data_pages"), dig(data, "protection", "chunk_pages")
    if is_count(chunk) and is_count(pages) and is_count(each) and each <= pages and chunk >= pages // each:
        yield (*path, "chunk"), f"there is no chunk {chunk}; a group has {numbered('chunk', range(pages // each))}"


def _in_skipped(data: Any) -> Iterator[Mistake]:
    skipped, precision = dig(data, "expect", "skipped"), dig(data, "workload", "precision") or "bf16"
    last = dig(data, "workload", "iterations")
    if skipped is not None and precision != "fp16":
        yield ("expect", "skipped"), f"no step of {precision} is skipped; write 'precision: fp16', or leave it out"
    elif is_count(skipped) and is_count(last) and skipped > last:
        yield ("expect", "skipped"), f"{skipped} is more than there are; the workload has iterations 1 to {last}"


def _in_expect(data: Any) -> Iterator[Mistake]:
    faults, expected = dig(data, "faults"), dig(data, "expect", "recoveries")
    if not faults and is_count(expected):
        yield ("expect", "recoveries"), f"{expected} recoveries are expected of no faults; expect 0 or add faults"
    rules = dig(data, "expect", "rules")
    if rules is not None and dig(data, "expect", "rule") is not None:
        yield ("expect", "rules"), "is beside 'rule'; keep one of them"
    counts = list(rules.values()) if isinstance(rules, dict) else []
    if counts and all(map(is_count, counts)) and isinstance(expected, int) and sum(counts) != expected:
        yield ("expect", "rules"), f"name {sum(counts)} recoveries, 'recoveries' says {expected}"
    yield from _in_skipped(data)
    fallback, reason = dig(data, "expect", "fallback"), dig(data, "expect", "reason")
    if fallback == "refused" and reason is None:
        yield ("expect", "fallback"), "needs the reason of the refusal; add 'reason', a text or a regular expression"
    if fallback != "refused" and reason is not None:
        yield ("expect", "reason"), "is that of a refusal; write 'fallback: refused' beside it"
    if not faults and dig(data, "control") is not None:
        yield ("control",), "a run without faults has nothing to control; leave it out"


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
