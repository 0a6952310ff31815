"""Every planted bug is caught by the checker named for it, and by none before; without a bug nothing is found.

Those that need trainers are left to ``leto-chaos mutants``, but for one (tests/process/test_losses_in_jobs.py).
"""

from __future__ import annotations

import pytest

from chaos.mutants import MUTANTS
from chaos.planted.planting import Mutant, Where
from chaos.planted.trial import CHECKS, try_in_process

PLACES = [(mutant, where) for mutant in MUTANTS.values() for where in mutant.caught_by if where.in_process]


@pytest.mark.parametrize("where", CHECKS, ids=lambda where: where.value)
def test_without_a_bug_nothing_is_found(where: Where) -> None:
    trial = try_in_process(None, where)
    assert trial.passed, trial.describe()


@pytest.mark.parametrize(("mutant", "where"), PLACES, ids=[f"{m.name}-{where.value}" for m, where in PLACES])
def test_a_planted_bug_is_caught(mutant: Mutant, where: Where) -> None:
    trial = try_in_process(mutant, where)
    assert trial.passed, trial.describe()
