"""Planted bugs: each must make the scenario that aims at it fail, or the bench is blind to that bug."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.mistakes import one_of
from leto.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``plugin`` is the import path of a function that takes a TrainerContext and plants the bug in that trainer."""

    name: str
    plugin: str
    bug: str
    caught_by: str  # the check that is expected to turn false


_ALL = (
    Mutant(
        name="no-undo",
        plugin="chaos.targets.planted:no_undo",
        bug="recovery redoes a half updated chunk without restoring it from the undo buffer",
        caught_by="exact",
    ),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}


def find_mutant(name: str) -> Mutant:
    """Raises ConfigError with the known names."""
    if name not in MUTANTS:
        raise ConfigError(f"--mutant {name}: no such planted bug; {one_of(list(MUTANTS), name)}")
    return MUTANTS[name]
