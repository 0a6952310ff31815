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


def _planted(name: str, bug: str) -> Mutant:
    """A bug in a trainer that the comparison with the reference must see."""
    plugin = f"chaos.targets.planted:{name.replace('-', '_')}"
    return Mutant(name=name, plugin=plugin, bug=bug, caught_by="exact")


_ALL = (
    _planted("no-undo", "recovery redoes a half updated chunk without restoring it from the undo buffer"),
    _planted("header-rng", "FINISH goes on with the generators of HEADER instead of those after the backward pass"),
    _planted("lr-recomputed", "a resumed update takes learning rate and weight decay from the scheduler instead of POST"),
    _planted("begin-late", "BEGIN is published after the first write of model state"),
    _planted("clip-in-place", "the clip factor is multiplied into the retained gradients"),
    _planted("no-regather", "recovery does not gather derived parameters"),
    _planted("zero-fill", "a lost page is taken as zeros: repair acknowledges it without rebuilding"),
    _planted("stale-parity", "the first write-back to tier 1 is skipped, and lost pages are solved from what stands there"),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}


def find_mutant(name: str) -> Mutant:
    """Raises ConfigError with the known names."""
    if name not in MUTANTS:
        raise ConfigError(f"--mutant {name}: no such planted bug; {one_of(list(MUTANTS), name)}")
    return MUTANTS[name]
