"""What is wrong with a scenario, said so that it can be put right: file, line, key, remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from chaos.loss import LossClass
from chaos.yaml_source import Path, Source, dotted
from leto.core.errors import ConfigError
from leto.core.failpoints import Kernel, Point
from leto.core.geometry import Protection
from leto.core.markers import MIRRORS
from leto.core.wording import one_of

Mistake = tuple[Path, str]
KERNELS_OUTSIDE_UPDATE = (Kernel.RS_ENCODE,)
KERNELS_OF_MUON = (Kernel.MUON_MOMENTUM, Kernel.MUON_APPLY)
"""Gradient parity is encoded before anybody may begin, so it is no part of the update phase."""


class ScenarioError(ConfigError):
    """Everything that is wrong with a scenario; ``lines`` holds one line a mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class Origin:
    """Where the values of a scenario come from: lines of a file, and overrides of the command line."""

    def __init__(self, file: str, source: Source) -> None:
        self._file, self._source = file, source
        self._overridden: dict[Path, str] = {}

    def override(self, text: str) -> None:
        """Apply one ``dotted.key=value``. Raises ScenarioError when it cannot be placed."""
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ScenarioError([f"--set {text}: write key=value, like workload.iterations=20"])
        path = tuple(int(part) if part.isdecimal() else part for part in re.split(r"[.\[]", key.replace("]", "")))
        try:
            parsed = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):
            raise ScenarioError([f"--set {text}: {value!r} is not a YAML value"]) from None
        if not _place(self._source.data, path, parsed):
            raise ScenarioError([f"--set {text}: there is no {dotted(path[:-1])!r} to set {path[-1]!r} in"])
        self._overridden[path] = f"--set {text}"

    def error(self, mistakes: Iterable[Mistake]) -> ScenarioError:
        placed = sorted({(self._source.line_of(path), self._line(path, what)) for path, what in mistakes})
        return ScenarioError([line for _, line in placed])

    def _line(self, path: Path, what: str) -> str:
        where = next((o for p, o in self._overridden.items() if path[: len(p)] == p), None)
        where = where or f"{self._file}:{self._source.line_of(path)}"
        return f"{where}: {dotted(path)}: {what}" if path else f"{where}: {what}"


def _place(data: Any, path: Path, value: Any) -> bool:
    for part in path[:-1]:
        inner = _child(data, part)
        if inner is None and isinstance(data, dict):
            inner = data[part] = {}
        data = inner
    last = path[-1]
    if isinstance(data, dict) and isinstance(last, str):
        data[last] = value
        return True
    if isinstance(data, list) and isinstance(last, int) and last < len(data):
        data[last] = value
        return True
    return False


def _child(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return None


def _dig(data: Any, *path: str | int) -> Any:
    for part in path:
        data = _child(data, part)
    return data


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[Mistake]:
    """The mistakes in pydantic's report, in words that name a remedy."""
    errors = error.errors(include_url=False)
    for e in errors:
        path: Path = tuple(e["loc"])
        if e["type"] == "too_short" and e["ctx"]["actual_length"] == 0 and e["input"]:
            continue  # the items are there, each with its own mistake
        yield path, _explain_one(e["type"], e["msg"], e.get("ctx", {}), e["input"], path, root)


def _explain_one(kind: str, message: str, context: dict[str, Any], given: Any, path: Path, root: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        model = _model_at(root, path[:-1])
        noun = "unknown fault" if model.__name__ in ("Action", "Do") else "unknown key"
        return f"{noun}; {one_of(_keys(model), str(path[-1]))}"
    if kind == "missing":
        return "is missing; add this key"
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        return "is empty; write a fault, or a cycle of faults"
    if kind in ("enum", "literal_error"):
        known = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        return f"{given!r} is unknown; {one_of(known, str(given))}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{given!r} is not a mapping; write its keys: {', '.join(_keys(_model_at(root, path)))}"
    if kind == "bool_type":
        return f"{given!r} is wrong; write true or false"
    return f"{given!r} is wrong; {message[0].lower()}{message[1:].replace('valid integer', 'whole number')}"


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                model = _inner_model(field.annotation) or model
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _inner_model(argument))), None)


def find_contradictions(data: Any) -> Iterator[Mistake]:
    """What no single key shows. Looks at plain data that may be wrong in other ways, so that one look finds everything."""
    yield from _in_protection(data)
    faults = _dig(data, "faults")
    seen: set[str] = set()
    for n, fault in enumerate(faults if isinstance(faults, list) else ()):
        where: Path = ("faults", n)
        name = _dig(fault, "id")
        if isinstance(name, str) and name in seen:
            yield (*where, "id"), f"{name!r} is the id of an earlier fault; ids are unique"
        seen.add(str(name))
        yield from _in_time(data, fault, where)
        yield from _in_rank(data, _dig(fault, "where", "rank"), (*where, "where", "rank"))
        yield from _in_holds(data, fault, where)
        yield from _in_steps(data, fault, where)
        yield from _in_kernels(data, fault, where)
        for path, action in _actions(fault, where):
            yield from _in_action(fault, action, path)
    yield from _in_expect(data)


def _in_protection(data: Any) -> Iterator[Mistake]:
    pages, chunk = _dig(data, "protection", "data_pages"), _dig(data, "protection", "chunk_pages")
    if _is_count(pages) and _is_count(chunk) and chunk % 3 == 0:
        try:
            Protection(data_pages=pages, chunk_pages=chunk)
        except ConfigError as error:
            key, _, what = str(error).partition(": ")
            yield ("protection", key), f"{what}; a chunk lies inside one group"


def _in_time(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    last, when = _dig(data, "workload", "iterations"), _dig(fault, "when")
    for key in ("every", "iteration"):
        time = _dig(when, key)
        if _is_count(time) and _is_count(last) and time > last:
            yield (*where, "when", key), f"{time} is beyond the workload; it has iterations 1 to {last}"
    random = _dig(when, "random")
    if _is_count(random) and _is_count(last) and random >= last:
        what = f"{random} kills need {random} iterations before the last; the workload has {last - 1}"
        yield (*where, "when", "random"), what
    for key in ("at", "phase", "shadows"):
        if random is not None and _dig(when, key) is not None:
            yield (*where, "when", key), f"a random kill parks nowhere; leave {key!r} out"
    if _dig(when, "shadows") is not None and _dig(when, "at") == Point.BEFORE_FIRST_HEADER.value:
        yield (*where, "when", "shadows"), "shadows are made beside training, which has not begun there; leave it out"
    yield from _at_an_edge(_dig(when, "at"), _dig(when, "iteration"), last, (*where, "when"))


def _at_an_edge(point: Any, iteration: Any, last: Any, where: Path) -> Iterator[Mistake]:
    """Two points are passed once a job."""
    edges = {Point.BEFORE_FIRST_HEADER.value: 1, Point.ENDED.value: last}
    if point in edges and iteration != edges[point]:
        yield (*where, "at"), f"{point!r} is passed once a job; write 'iteration: {edges[point]}' beside it"


def _in_rank(data: Any, rank: Any, path: Path) -> Iterator[Mistake]:
    dp = _dig(data, "workload", "parallel", "dp")
    if _is_count(dp) and isinstance(rank, int) and rank >= dp:
        yield path, f"there is no rank {rank}; the workload has ranks 0 to {dp - 1}"


def _in_holds(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    holds = _holds(fault, where)
    if holds and _dig(fault, "when", "random") is not None:
        yield (*where, "hold"), "a random kill waits for nobody; leave 'hold' out"
    taken = {_dig(fault, "where", "rank")}
    if holds and taken == {"seeded"}:
        yield (*where, "where", "rank"), "'seeded' may draw the rank that is held; write a number"
    for path, hold in holds:
        rank = _dig(hold, "rank")
        yield from _in_rank(data, rank, (*path, "rank"))
        if isinstance(rank, int) and rank in taken:
            yield (*path, "rank"), f"rank {rank} parks elsewhere already; a rank parks at one place"
        taken.add(rank)
        yield from _in_hold_time(data, fault, hold, path)


def _in_hold_time(data: Any, fault: Any, hold: Any, path: Path) -> Iterator[Mistake]:
    held, own = _dig(hold, "iteration"), _dig(fault, "when", "iteration")
    if _is_count(held) and not _is_count(own):
        yield (*path, "iteration"), "names an iteration, the fault does not; write 'iteration' in 'when', or leave it out here"
    elif _is_count(held) and abs(held - own) > 1:
        yield (*path, "iteration"), f"{held} is more than one from {own}; ranks are never further apart"
    last = _dig(data, "workload", "iterations")
    if _is_count(held) and _is_count(last) and held > last:
        yield (*path, "iteration"), f"{held} is beyond the workload; it has iterations 1 to {last}"
    yield from _at_an_edge(_dig(hold, "at"), held or own, last, path)


def _holds(fault: Any, where: Path) -> list[tuple[Path, Any]]:
    """One hold is written as a mapping, several as a list; validation makes a list of both."""
    raw = _dig(fault, "hold")
    return [((*where, "hold", n), hold) for n, hold in enumerate(raw if isinstance(raw, list) else [raw] if raw else ())]


def _actions(fault: Any, where: Path) -> Iterator[tuple[Path, Any]]:
    steps = _dig(fault, "do")
    for n, step in enumerate(steps if isinstance(steps, list) else ()):
        cycle = _dig(step, "cycle")
        if isinstance(cycle, list):
            yield from (((*where, "do", n, "cycle", c), action) for c, action in enumerate(cycle))
        else:
            yield (*where, "do", n), step


def _in_steps(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    """The first step ends the rank, the others lose pages before that."""
    steps = _dig(fault, "do")
    losing = [_dig(step, "lose-pages") is not None for step in steps] if isinstance(steps, list) else []
    for n, step in enumerate(steps if losing else ()):
        path = (*where, "do", n)
        if n == 0 and losing[n]:
            yield path, f"comes first; begin with what ends the rank: {', '.join(_ENDINGS)}"
        if n > 0 and not losing[n]:
            yield path, "comes second; one fault ends the rank, every later step is a 'lose-pages'"
        if losing[n]:
            yield from _in_loss(data, _dig(step, "lose-pages"), (*path, "lose-pages"))
    random = _dig(fault, "when", "random") is not None
    if any(losing) and random:
        yield (*where, "do", losing.index(True)), "pages are lost while the rank stands parked, a random kill parks nobody"


_ENDINGS = ("abort-kernel", "torn-copy", "kill", "natural", "cycle")


def _in_loss(data: Any, loss: Any, path: Path) -> Iterator[Mistake]:
    name, count, per_group = _dig(loss, "class"), _dig(loss, "count"), _dig(loss, "per") == "group"
    grouped = [c.value for c in _GROUPED]
    for key in ("per", "group"):
        if (per_group if key == "per" else _dig(loss, key) is not None) and name not in grouped:
            yield (*path, key), f"pages of class {name!r} are in no groups; classes with groups: {', '.join(grouped)}"
    if _dig(loss, "group") is not None and not per_group and name in grouped:
        yield (*path, "group"), "goes with 'per: group'"
    most, solvable = _most(data, name), _dig(data, "protection", "tier1")
    refused = _dig(data, "expect", "fallback") == "refused"
    must_survive = name == LossClass.CODED.value and per_group and not refused
    if not _is_count(count):
        return
    if most is not None and count > most and (per_group or name not in grouped):
        yield (*path, "count"), f"{'a group' if per_group else 'a rank'} has at most {most} pages of class {name!r}"
    elif must_survive and _is_count(solvable) and count > solvable:
        yield (*path, "count"), f"tier1 solves {solvable} of a group; lose fewer, or expect 'fallback: refused'"
    elif name == LossClass.MARKERS.value and count == MIRRORS and not refused:
        yield (*path, "count"), "of all mirrors nothing is left to read; lose fewer, or expect 'fallback: refused'"


_GROUPED = (LossClass.CODED, LossClass.GRADIENTS, LossClass.GRADIENT_PARITY, LossClass.TIER1, LossClass.TIER2)


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
    most = _dig(data, "protection", keys.get(name, "") if isinstance(name, str) else "")
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def _in_action(fault: Any, action: Any, path: Path) -> Iterator[Mistake]:
    if not isinstance(action, dict):
        return
    at, phase, random = (_dig(fault, "when", key) for key in ("at", "phase", "random"))
    for name in ("kill", "natural"):
        if name in action and at is None and (random is None or name == "natural"):
            yield (*path, name), f"needs a point; add 'at' to 'when', one of {', '.join(p.value for p in Point)}"
    if "natural" in action and not any(_dig(step, "lose-pages") for step in _dig(fault, "do")):
        yield (*path, "natural"), "dies of a lost page; add a step 'lose-pages'"
    for name in ("abort-kernel", "torn-copy"):
        if name in action and at is not None:
            yield (*path, name), "parks inside a kernel; leave 'at' out of 'when', or use kill"
        if name in action and random is not None:
            yield (*path, name), "parks inside a kernel and a random kill parks nowhere; use kill"
    victim = _dig(action, "kill", "rank")
    parked = [_dig(fault, "where", "rank"), *(_dig(hold, "rank") for _, hold in _holds(fault, path))]
    if victim is not None and victim not in parked:
        yield (*path, "kill", "rank"), f"rank {victim} is not parked; hold it, or kill one of {', '.join(map(str, parked))}"
    kernel = _dig(action, "abort-kernel", "kernel")
    if phase == "update" and kernel in [k.value for k in KERNELS_OUTSIDE_UPDATE]:
        yield (*path, "abort-kernel", "kernel"), f"{kernel!r} does not run in the update phase; leave 'phase' out"


def _in_kernels(data: Any, fault: Any, where: Path) -> Iterator[Mistake]:
    """Muon's run only where it updates something."""
    if _dig(data, "workload", "optimizer") == "muon":
        return
    aimed = [
        ((*path, "abort-kernel", "kernel"), _dig(action, "abort-kernel", "kernel")) for path, action in _actions(fault, where)
    ]
    aimed += [((*path, "kernel"), _dig(hold, "kernel")) for path, hold in _holds(fault, where)]
    for path, kernel in aimed:
        if kernel in [k.value for k in KERNELS_OF_MUON]:
            yield path, f"{kernel!r} does not run without Muon; write 'optimizer: muon' in 'workload', or aim at 'adam'"


def _in_skipped(data: Any) -> Iterator[Mistake]:
    skipped, precision = _dig(data, "expect", "skipped"), _dig(data, "workload", "precision") or "bf16"
    last = _dig(data, "workload", "iterations")
    if skipped is not None and precision != "fp16":
        yield ("expect", "skipped"), f"no step of {precision} is skipped; write 'precision: fp16', or leave it out"
    elif _is_count(skipped) and _is_count(last) and skipped > last:
        yield ("expect", "skipped"), f"{skipped} is more than there are; the workload has iterations 1 to {last}"


def _in_expect(data: Any) -> Iterator[Mistake]:
    faults, expected = _dig(data, "faults"), _dig(data, "expect", "recoveries")
    if not faults and _is_count(expected):
        yield ("expect", "recoveries"), f"{expected} recoveries are expected of no faults; expect 0 or add faults"
    rules = _dig(data, "expect", "rules")
    if rules is not None and _dig(data, "expect", "rule") is not None:
        yield ("expect", "rules"), "is beside 'rule'; keep one of them"
    counts = list(rules.values()) if isinstance(rules, dict) else []
    if counts and all(map(_is_count, counts)) and isinstance(expected, int) and sum(counts) != expected:
        yield ("expect", "rules"), f"name {sum(counts)} recoveries, 'recoveries' says {expected}"
    yield from _in_skipped(data)
    fallback, reason = _dig(data, "expect", "fallback"), _dig(data, "expect", "reason")
    if fallback == "refused" and reason is None:
        yield ("expect", "fallback"), "needs the reason of the refusal; add 'reason', a text or a regular expression"
    if fallback != "refused" and reason is not None:
        yield ("expect", "reason"), "is that of a refusal; write 'fallback: refused' beside it"
    if not faults and _dig(data, "control") is not None:
        yield ("control",), "a run without faults has nothing to control; leave it out"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
