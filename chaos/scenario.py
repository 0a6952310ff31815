"""The scenario language: every key, as a frozen Scenario (chaos.loading reads one from a file)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from chaos.loss import LossClass
from leto.core.config import Workload as CoreWorkload
from leto.core.errors import ConfigError
from leto.core.failpoints import COPIES, Kernel, Point
from leto.core.geometry import OS_PAGE_BYTES
from leto.core.geometry import Protection as CoreProtection
from leto.core.wording import one_of

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(rf"(\d+) ?({'|'.join(_UNITS)})")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a number and a unit, like 64KiB or 2MiB")
    return int(match[1]) * _UNITS[match[2]]


def _rank(value: object) -> object:
    if value != "seeded" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{value!r} is not a rank; write 'seeded' or a number from 0")
    return value


def _one_or_more(value: object) -> object:
    if not isinstance(value, dict | list | tuple):
        raise ValueError(f"{value!r} is not a hold; write {{rank: N, at: POINT}}, or a list of holds")
    return (value,) if isinstance(value, dict) else value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name; use lower case letters, digits and single hyphens")
    return value


def _copy(value: Kernel) -> Kernel:
    if value not in COPIES:
        raise ValueError(f"{value.value!r} is not a copy; {one_of([k.value for k in COPIES], value.value)}")
    return value


def _seen_by_core(**fields: Any) -> int:
    """Ask the core whether one field alone can be right, so that its rules stand in one place."""
    try:
        CoreProtection(**fields)
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    value: int = next(iter(fields.values()))
    return value


Name = Annotated[str, BeforeValidator(lambda v: _name(v) if isinstance(v, str) else v)]
Count = Annotated[int, Field(ge=1)]
Progress = Annotated[float, Field(ge=0, le=1)]
TornProgress = Annotated[float, Field(ge=0, lt=1)]
"""Something of the target must be left to fill."""
Rank = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Parallel(_Model):
    dp: Count
    ep: Count = 1


class Workload(_Model):
    model: str
    parallel: Parallel
    precision: str = "bf16"
    optimizer: str = "adam"
    iterations: Count
    data: str = "shakespeare"
    seed: Annotated[int, Field(ge=0)] = 42

    def to_core(self) -> CoreWorkload:
        return CoreWorkload(
            model=self.model,
            data_parallel=self.parallel.dp,
            expert_parallel=self.parallel.ep,
            precision=self.precision,
            optimizer=self.optimizer,
            iterations=self.iterations,
            data=self.data,
            seed=self.seed,
        )


class Protection(_Model):
    page: Annotated[int, BeforeValidator(_size, json_schema_input_type=str)]
    data_pages: Count
    tier1: int
    tier2: int
    chunk_pages: int
    pipelined: bool = False

    @field_validator("page")
    @classmethod
    def _page(cls, value: int) -> int:
        try:
            return _seen_by_core(page_bytes=value)
        except ValueError as error:
            below, above = value // OS_PAGE_BYTES, -(-value // OS_PAGE_BYTES)
            near = dict.fromkeys(_size_text(max(n, 1) * OS_PAGE_BYTES) for n in (below, above))
            raise ValueError(f"{error}; near it lie {' and '.join(near)}") from None

    @field_validator("tier1")
    @classmethod
    def _tier1(cls, value: int) -> int:
        return _seen_by_core(tier1_pages=value)

    @field_validator("tier2")
    @classmethod
    def _tier2(cls, value: int) -> int:
        return _seen_by_core(tier2_pages=value)

    @field_validator("chunk_pages")
    @classmethod
    def _chunk_pages(cls, value: int) -> int:
        return _seen_by_core(chunk_pages=value, data_pages=max(value, 1))

    def to_core(self) -> CoreProtection:
        return CoreProtection(
            page_bytes=self.page,
            data_pages=self.data_pages,
            tier1_pages=self.tier1,
            tier2_pages=self.tier2,
            chunk_pages=self.chunk_pages,
            pipelined=self.pipelined,
        )


class When(_Model):
    """Logical time only. ``random: N`` is N free-running kills: seeded times of distinct iterations, at which nobody parks.

    ``shadows`` holds the rank at the beginning of the iteration until shadows of that level stand by.
    """

    every: Count | None = None
    iteration: Count | None = None
    random: Count | None = None
    phase: Literal["update"] | None = None
    at: Annotated[Point, Field(strict=False)] | None = None
    shadows: Literal["L3"] | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if sum(time is not None for time in (self.every, self.iteration, self.random)) != 1:
            raise ValueError("needs exactly one of 'every', 'iteration' and 'random'")
        if self.phase is not None and self.at is not None:
            raise ValueError("has both 'phase' and 'at'; a point is in one phase already, leave 'phase' out")
        return self


class Where(_Model):
    rank: Annotated[int | Literal["seeded"], BeforeValidator(_rank)]


class AbortKernel(_Model):
    """Park inside a kernel, then kill. The group, and the chunk inside the group, are seeded when absent."""

    kernel: Annotated[Kernel, Field(strict=False)]
    progress: Progress
    group: Annotated[int, Field(ge=0)] | None = None
    chunk: Annotated[int, Field(ge=0)] | None = None


class TornCopy(_Model):
    """Park inside a copy, fill the part of its target that is not written yet, then kill."""

    copy_: Annotated[Kernel, Field(strict=False, alias="copy")]
    progress: TornProgress
    fill: Literal["random"]

    @field_validator("copy_")
    @classmethod
    def _is_copy(cls, value: Kernel) -> Kernel:
        return _copy(value)


class Kill(_Model):
    """Park at the point named by ``when: {at: POINT}``, then kill; ``rank`` kills a held rank instead."""

    rank: Rank | None = None


class Natural(_Model):
    """Lose pages under a live rank at the point of ``when`` and let it go on: nobody kills, it dies of touching one (U20)."""


class LosePages(_Model):
    """Lose pages of one class of the fault's rank, while it stands parked, in every mapping of it (U51)."""

    class_: Annotated[LossClass, Field(strict=False, alias="class")]
    per: Literal["group", "rank"] = "rank"
    count: Count
    group: Annotated[int, Field(ge=0)] | None = None


class Action(_Model):
    """One fault, by its name."""

    abort_kernel: Annotated[AbortKernel | None, Field(alias="abort-kernel")] = None
    torn_copy: Annotated[TornCopy | None, Field(alias="torn-copy")] = None
    kill: Kill | None = None
    natural: Natural | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self._given) != 1:
            known = (str(field.alias or name) for name, field in type(self).model_fields.items())
            raise ValueError(f"needs exactly one of {', '.join(known)}, each with its keys in braces")
        return self

    @property
    def _given(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    @property
    def name(self) -> str:
        return self._given[0].replace("_", "-")


FAULTS = tuple(str(field.alias or name) for name, field in Action.model_fields.items())


class Do(Action):
    """One step: a fault, a cycle of faults that take turns, or, after the first step, a loss of pages."""

    cycle: Annotated[tuple[Action, ...], Field(min_length=1, strict=False)] | None = None
    lose_pages: Annotated[LosePages | None, Field(alias="lose-pages")] = None


class Hold(_Model):
    """Park another rank first, at a point or inside a kernel, so that the order of the two is forced.

    In the iteration of the fault, unless ``iteration`` names the one before or after it.
    """

    rank: Rank
    iteration: Count | None = None
    at: Annotated[Point, Field(strict=False)] | None = None
    kernel: Annotated[Kernel, Field(strict=False)] | None = None
    progress: Progress | None = None
    group: Annotated[int, Field(ge=0)] | None = None
    chunk: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.at is None) == (self.kernel is None):
            raise ValueError("needs exactly one of 'at' and 'kernel'")
        of_kernel = [key for key in ("progress", "group", "chunk") if getattr(self, key) is not None]
        if self.at is not None and of_kernel:
            raise ValueError(f"has 'at' and {of_kernel[0]!r}; a point has no inside, leave {of_kernel[0]!r} out")
        if self.kernel is not None and self.progress is None:
            raise ValueError("has 'kernel' without 'progress'; add the fraction of its output at which the rank parks, 0 to 1")
        return self


class Fault(_Model):
    id: Name
    when: When
    where: Where
    hold: Annotated[
        tuple[Hold, ...],
        BeforeValidator(_one_or_more, json_schema_input_type=Hold | tuple[Hold, ...]),
        Field(strict=False),
    ] = ()
    do: Annotated[tuple[Do, ...], Field(min_length=1, strict=False)]

    def action_of(self, occurrence: int) -> Action:
        """The action of the occurrence, counted from 1."""
        actions = self.do[0].cycle or self.do[:1]
        return actions[(occurrence - 1) % len(actions)]

    def path_of(self, occurrence: int) -> tuple[str | int, ...]:
        """Keys from the fault to that action's own."""
        cycle = self.do[0].cycle
        taken = ("cycle", (occurrence - 1) % len(cycle)) if cycle else ()
        return "do", 0, *taken, self.action_of(occurrence).name

    @property
    def losses(self) -> tuple[LosePages, ...]:
        return tuple(step.lose_pages for step in self.do if step.lose_pages is not None)


class Control(_Model):
    """The same faults without the resumable updater (U52); it must fail."""

    updater: Literal["none"]
    expect: Literal["diverges"]


class Rules(_Model):
    """How many of the recoveries go by which rule of the decision table."""

    cold: Count | None = None
    restart: Count | None = None
    finish: Count | None = None
    ended: Count | None = None

    def counts(self) -> dict[str, int]:
        return {name: n for name in type(self).model_fields if (n := getattr(self, name)) is not None}


class Expect(_Model):
    """``rule`` is that of every recovery, ``rules`` counts them; a recovery that is hit again counts once, by its last rule.

    ``skipped`` counts the steps that the loss scaler of fp16 skips, at least one of them hit by a fault (U25).

    ``fallback: refused`` expects the run to end by the system's own decision, for a reason in which ``reason``, a regular
    expression, is found (U54).
    """

    recoveries: Annotated[int, Field(ge=0)]
    rule: Literal["cold", "restart", "finish", "ended"] | None = None
    rules: Rules | None = None
    skipped: Count | None = None
    fallback: Literal["none", "refused"] = "none"
    reason: Annotated[str, Field(min_length=1)] | None = None
    deadline_s: Annotated[float, Field(gt=0)]
    compare: Literal["exact"] = "exact"

    @field_validator("reason")
    @classmethod
    def _is_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        return value

    @property
    def refusal(self) -> str | None:
        """The expression that the reason of an expected refusal must match, None where the run must complete."""
        return self.reason if self.fallback == "refused" else None

    @property
    def counted_rules(self) -> dict[str, int] | None:
        """Recoveries by rule; None where any rule will do."""
        if self.rules is not None:
            return self.rules.counts()
        return None if self.rule is None else {self.rule: self.recoveries}


class Scenario(_Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    claim: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)]
    system: Literal["leto"]
    workload: Workload
    protection: Protection
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = ()
    control: Control | None = None
    expect: Expect

    def resolved_yaml(self) -> str:
        """The scenario with overrides and defaults written out; loads to an equal Scenario."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        plain["protection"]["page"] = _size_text(self.protection.page)
        return yaml.safe_dump(plain, sort_keys=False, width=120)


def _size_text(byte_count: int) -> str:
    unit = next(u for u in reversed(_UNITS) if byte_count % _UNITS[u] == 0)
    return f"{byte_count // _UNITS[unit]}{unit}"
