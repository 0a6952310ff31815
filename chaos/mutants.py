"""All planted bugs, by name."""

from __future__ import annotations

from chaos.planted import in_agent, in_decision, in_judgement, in_kernels, in_lanes, in_muon, in_repair, in_update
from chaos.planted.planting import Mutant, Where
from leto.core.errors import ConfigError
from leto.core.wording import one_of

_MODULES = (in_update, in_lanes, in_muon, in_repair, in_decision, in_agent, in_kernels, in_judgement)
MUTANTS = {found.name: found for module in _MODULES for found in vars(module).values() if isinstance(found, Mutant)}


def find_mutant(name: str, option: str = "--mutant") -> Mutant:
    """Raises ConfigError with the known names."""
    if name not in MUTANTS:
        raise ConfigError(f"{option} {name}: no such planted bug; {one_of(list(MUTANTS), name)}")
    return MUTANTS[name]


def find_run_mutant(name: str) -> Mutant:
    """One that is caught by a run of trainers. Raises ConfigError for the others as well."""
    mutant = find_mutant(name)
    if Where.PROCESS not in mutant.caught_by:
        where = " and ".join(where.value for where in mutant.caught_by)
        raise ConfigError(f"--mutant {name}: this planted bug is {where} without trainers: leto-chaos mutants --only {name}")
    return mutant
