"""One bug in one place: planted, checked, taken out; and what is to be said of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chaos.planted.conformance import first_difference
from chaos.planted.explored import first_failure, first_violation
from chaos.planted.parts import broken_promise
from chaos.planted.planting import OR, Mutant, Patch, Where
from chaos.planted.recorded import overlooked

Check = Callable[[], str | None]
"""The checker that fires first, None when nothing is wrong."""

CHECKS: dict[Where, Check] = {
    Where.EXPLORED: partial(first_failure, "narrow"),
    Where.SKIPPING: partial(first_failure, "skipping"),
    Where.MUON: partial(first_failure, "muon"),
    Where.PIPELINED: partial(first_violation, "pipelined"),
    Where.JUDGED: overlooked,
    Where.KERNEL: first_difference,
    Where.PARTS: broken_promise,
}
"""PROCESS needs a run: ``chaos.planted.runs``."""

NO_BUG = "(no bug)"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of a bug in one place; of no bug at all, which nothing may catch, when ``expected`` is None.

    ``crash`` is an error of the planted code itself, which is no checker's word.
    """

    name: str
    where: Where
    expected: str | None
    caught_by: str | None = None
    crash: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        named = [None] if self.expected is None else self.expected.split(OR)
        return not self.crash and self.caught_by in named

    def describe(self) -> str:
        """``no-undo, explored: caught by INV-P, expected bytes``"""
        return f"{self.name}, {self.where.value}: {self.found}, expected {self.expected or 'nothing'}"

    @property
    def found(self) -> str:
        if self.crash:
            return f"crashed: {self.crash}"
        return f"caught by {self.caught_by}" if self.caught_by else "not caught"


def try_in_process(mutant: Mutant | None, where: Where) -> Trial:
    """Plants the bug in this process, runs the place's check and takes it out again."""
    with Patch() as patch:
        if mutant is not None:
            mutant.plant(patch)
        return timed(mutant, where, CHECKS[where])


def timed(mutant: Mutant | None, where: Where, check: Check) -> Trial:
    """Whatever the check raises is a crash of what it checks."""
    started_s = time.monotonic()
    caught_by, crash = None, ""
    try:
        caught_by = check()
    except Exception as error:
        crash = " ".join(f"{type(error).__name__}: {error}".split())
    return Trial(
        name=NO_BUG if mutant is None else mutant.name,
        where=where,
        expected=None if mutant is None else mutant.caught_by[where],
        caught_by=caught_by,
        crash=crash,
        seconds=time.monotonic() - started_s,
    )
