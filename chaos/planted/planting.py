"""What a planted bug is, and how it is planted: from outside, in code that knows nothing of it, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self


class Where(Enum):
    """Where a bug is run. Each has a check that says which checker fired first (``chaos.planted.trial``)."""

    EXPLORED = "explored"  # the explorer: crash points and losses, in this process
    SKIPPING = "skipping"  # the same, of a job that skips a step
    MUON = "muon"  # the same, of a job with Muon's matrices
    PIPELINED = "pipelined"  # every cut of two lanes, in a job without crashes
    JUDGED = "judged"  # recorded runs that differ in one thing, compared and judged
    KERNEL = "kernel"  # kernels beside the readable definition of what they compute
    PARTS = "parts"  # what the update stands on, one real part at a time: fences, marker pages, lanes; with light processes
    PROCESS = "process"  # a whole run of real trainers

    @property
    def in_process(self) -> bool:
        """Whether no trainer is started."""
        return self is not Where.PROCESS


class Patch:
    """Replaces attributes of modules and classes, and puts back what was there when it is left, the last one first."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            setattr(owner, name, value)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner`` itself must have the attribute: a bug that changes nothing is none. Raises KeyError."""
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, bug: Callable[[Any], Any]) -> None:
        """``bug`` makes the replacement from what is there."""
        self.set(owner, name, bug(getattr(owner, name)))


Plant = Callable[[Patch], None]
OR = " or "
"""Between two checkers of which either may be the first."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``against`` is the answer or invariant of docs/protocol.md that the bug breaks, ``caught_by`` the checker that must be
    the first to fire, by where the bug is run.

    "bytes or spare row": a page that is solved wrongly contradicts a spare row where one is left, and ends as other bytes where
    none is. Which comes first is the draw of losses, so both are named.
    """

    name: str
    bug: str
    against: str
    caught_by: Mapping[Where, str]
    plant: Plant

    @property
    def plugin(self) -> str:
        """Import path of the plugin that plants it in a trainer."""
        return f"chaos.targets.planted:{self.name.replace('-', '_')}"


def planted(against: str, **caught_by: str) -> Callable[[Plant], Mutant]:
    """Makes a mutant of the function that plants it: named like the function, its docstring says what the bug is.

    ``caught_by`` names checkers by a value of Where.
    """

    def mutant(plant: Plant) -> Mutant:
        assert plant.__doc__ is not None, plant
        return Mutant(
            name=plant.__name__.replace("_", "-"),
            bug=" ".join(plant.__doc__.split()),
            against=against,
            caught_by={Where(where): checker for where, checker in caught_by.items()},
            plant=plant,
        )

    return mutant


def skip(*arguments: Any, **options: Any) -> None:
    """Does nothing, in place of a function that should have."""
