"""Whole jobs of real processes: forked trainers equal fresh plain Megatron, and a killed one continues exactly."""

from pathlib import Path

import pytest

from chaos.schedule import Injection
from chaos.targets.base import Updater
from chaos.targets.leto import LetoTarget
from leto.core.failpoints import Kernel
from tests.process.jobs import olmoe, run_job
from tests.process.references import References
from verify.compare import compare_runs
from verify.ledger import Ledger

pytestmark = pytest.mark.process

ITERATIONS = 4
WORKLOAD = olmoe(ITERATIONS)


def kill_in(kernel: Kernel, iteration: int, rank: int = 0, token: int = 1) -> Injection:
    return Injection(
        fault_id="kill",
        occurrence=token,
        iteration=iteration,
        rank=rank,
        action="abort-kernel",
        kernel=kernel,
        progress=0.5,
        group_draw=1,
        chunk_draw=1,
        token=token,
    )


@pytest.fixture
def reference(references: References) -> dict[int, Ledger]:
    return references.ledgers(WORKLOAD)


def test_forked_trainers_equal_fresh_ones_bit_for_bit(reference: dict[int, Ledger], tmp_path: Path) -> None:
    events, ledgers = run_job(LetoTarget(), tmp_path, WORKLOAD)
    comparison = compare_runs(reference, ledgers, ITERATIONS)
    assert comparison.first is None, comparison
    assert not [e for e in events if e.name == "failure"]


def test_killed_inside_the_update_on_both_ranks_it_continues_bit_for_bit(reference: dict[int, Ledger], tmp_path: Path) -> None:
    kills = (kill_in(Kernel.ADAM, 2, rank=0, token=1), kill_in(Kernel.UNDO_SAVE, 4, rank=1, token=2))
    events, ledgers = run_job(LetoTarget(), tmp_path, WORKLOAD, kills)
    assert compare_runs(reference, ledgers, ITERATIONS).first is None
    decided = [(e.fields["action"], e.fields["iteration"]) for e in events if e.name == "decided"]
    assert decided == [("finish", 2), ("finish", 4)]
    audits = [e for e in events if e.name == "audit"]
    assert len(audits) == 2 * 3  # each rank: at the start and after each recovery, the second of which is the end
    assert all(not e.fields["tier1_wrong"] and not e.fields["tier2_wrong"] for e in audits)


def test_without_undo_it_diverges(reference: dict[int, Ledger], tmp_path: Path) -> None:
    _, ledgers = run_job(LetoTarget(), tmp_path, WORKLOAD, (kill_in(Kernel.ADAM, 2),), mutant="no-undo")
    first = compare_runs(reference, ledgers, ITERATIONS).first
    assert first is not None
    assert first.iteration == 2


@pytest.mark.slow
def test_the_control_without_an_updater_diverges(reference: dict[int, Ledger], tmp_path: Path) -> None:
    events, ledgers = run_job(LetoTarget(), tmp_path, WORKLOAD, (kill_in(Kernel.ADAM, 2),), updater=Updater.NONE)
    assert compare_runs(reference, ledgers, ITERATIONS).first is not None
    assert [e.fields["action"] for e in events if e.name == "decided"] == ["restart"]
