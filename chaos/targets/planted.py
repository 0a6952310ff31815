"""Plants a bug in a trainer: ``chaos.targets.planted:no_undo`` is the plugin of the planted bug no-undo."""

from __future__ import annotations

from chaos.mutants import find_mutant
from chaos.planted.planting import Patch
from leto.core.hooks import Plugin, TrainerContext


def __getattr__(name: str) -> Plugin:
    """A plugin by the name of its bug. Raises AttributeError where there is none."""
    if name.startswith("__"):
        raise AttributeError(name)
    mutant = find_mutant(name.replace("_", "-"))

    def plant(context: TrainerContext) -> None:
        mutant.plant(Patch())  # never taken out: the bug lives as long as the trainer

    return plant
