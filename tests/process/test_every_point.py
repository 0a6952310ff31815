"""Real SIGKILLs at every point between operations and inside every kernel of an iteration, one an iteration, in one job each.

Every completed iteration must equal plain Megatron bit for bit, and each point must lead to the rule that the decision table
gives it.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.schedule import Injection, logical_time
from chaos.targets.leto import LetoTarget
from chaos.targets.plain import PlainTarget
from leto.core.config import Workload
from leto.core.failpoints import Kernel, Point
from leto.core.geometry import Protection
from tests.process.test_job import PROTECTION, run_job
from verify.compare import compare_runs

pytestmark = pytest.mark.process

# Point -> what the job does when rank 0 dies there and rank 1 went as far as it could.
# Rank 1 passes the barrier only when rank 0 has, and then completes its update: from there on FINISH.
RESTARTS = (Point.HEADER, Point.FORWARD, Point.BACKWARD, Point.OWNED, Point.GRADIENT_PARITY, Point.POST, Point.BEFORE_BARRIER)
FINISHES = (Point.BEGIN,)
ENDS_THE_UPDATE = (Point.COMPLETE, Point.CAST, Point.GATHER, Point.LEDGER, Point.NEXT_HEADER)
KERNELS = (
    Kernel.RS_ENCODE,
    Kernel.PARITY_FETCH,
    Kernel.UNDO_SAVE,
    Kernel.ADAM,
    Kernel.RS_UPDATE,
    Kernel.PARITY_WRITEBACK,
    Kernel.TIER2,
)
PROGRESS = (0.0, 0.37, 1.0)


def injection(token: int, iteration: int, **where: object) -> Injection:
    return Injection(
        fault_id="kill",
        occurrence=token,
        iteration=iteration,
        rank=token % 2,
        action="kill" if "point" in where else "abort-kernel",
        group_draw=token,
        chunk_draw=token * 7,
        token=token,
        **where,  # type: ignore[arg-type]
    )


def check(
    tmp_path: Path, injections: tuple[Injection, ...], protection: Protection = PROTECTION, optimizer: str = "adam"
) -> list[tuple[str, int]]:
    """Runs reference and job; returns the decisions."""
    iterations = injections[-1].iteration + 1
    workload = Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=iterations, optimizer=optimizer)
    _, reference = run_job(PlainTarget(), tmp_path / "reference", workload=workload)
    events, ledgers = run_job(LetoTarget(), tmp_path / "run", injections, workload=workload, protection=protection)
    comparison = compare_runs(reference, ledgers, iterations)
    assert comparison.first is None, comparison.first
    audits = [e.fields for e in events if e.name == "audit"]
    assert not [a for a in audits if a["tier1_wrong"] or a["tier2_wrong"]]
    return [(e.fields["action"], e.fields["iteration"]) for e in events if e.name == "decided"]


def test_a_kill_at_every_point_between_operations(tmp_path: Path) -> None:
    points = [*RESTARTS, Point.AFTER_BARRIER, *FINISHES, *ENDS_THE_UPDATE]
    assert set(points) | {Point.BEFORE_FIRST_HEADER} >= set(Point) - {p for p in Point if p.value == "ended"}
    injections = tuple(injection(n, n + 1, point=point) for n, point in enumerate(points, start=1))
    decisions = dict(zip(points, check(tmp_path, injections), strict=True))
    for point in RESTARTS:
        assert decisions[point][0] == "restart", point
    for point in FINISHES:
        assert decisions[point][0] == "finish", point
    for point in ENDS_THE_UPDATE:  # the other rank decides: it may wait in the gather or stand at COMPLETE
        assert decisions[point][0] in ("finish", "restart"), point


@pytest.mark.parametrize("progress", PROGRESS)
def test_a_kill_inside_every_kernel(tmp_path: Path, progress: float) -> None:
    injections = tuple(injection(n, n + 1, kernel=kernel, progress=progress) for n, kernel in enumerate(KERNELS, start=1))
    decisions = check(tmp_path, injections)
    assert decisions[0] == ("restart", 2)  # gradient parity: nobody can have begun
    assert [action for action, _ in decisions[1:]] == ["finish"] * (len(KERNELS) - 1)
    assert [iteration for _, iteration in decisions[1:]] == list(range(3, 2 + len(KERNELS)))


PIPELINED = Protection(page_bytes=16384, data_pages=36, tier1_pages=16, tier2_pages=1, chunk_pages=12, pipelined=True)
"""Three chunks a group, ten groups a rank: more than enough for every slot to be used again."""


@pytest.mark.parametrize("progress", [0.37, *(pytest.param(p, marks=pytest.mark.slow) for p in (0.0, 1.0))])
def test_a_kill_inside_every_kernel_of_two_lanes(tmp_path: Path, progress: float) -> None:
    """Each parks with the other lane between two operations, in a group that has others before and after it."""
    of_lanes = KERNELS[1:]
    injections = tuple(injection(n, n + 1, kernel=k, progress=progress, group=4) for n, k in enumerate(of_lanes, start=1))
    assert check(tmp_path, injections, PIPELINED) == [("finish", n + 1) for n in range(1, len(injections) + 1)]


def test_a_kill_inside_muons_kernels_in_two_lanes(tmp_path: Path) -> None:
    """Anywhere in the chunks of either, which a serial update of the same job has in the same groups."""
    places = [(kernel, progress) for kernel in (Kernel.MUON_MOMENTUM, Kernel.MUON_APPLY) for progress in PROGRESS]
    injections = tuple(injection(n, n + 1, kernel=k, progress=p) for n, (k, p) in enumerate(places, start=1))
    decisions = check(tmp_path, injections, PIPELINED, optimizer="muon")
    assert decisions == [("finish", n + 1) for n in range(1, len(injections) + 1)]


def test_kills_that_park_nobody_while_both_lanes_run(tmp_path: Path) -> None:
    """Wherever the copies and the computation have come to, each by itself."""
    shares = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85)  # of the failpoints of an iteration, most of which are the update's
    injections = tuple(
        replace(injection(n, 2 * n, point=Point.BEGIN), point=None, moment=logical_time(2 * n, share))
        for n, share in enumerate(shares, start=1)
    )
    decisions = check(tmp_path, injections, PIPELINED)
    assert len(decisions) == len(injections)
    assert [iteration for action, iteration in decisions if action == "finish"], "no kill hit an update"


def test_a_kill_while_a_chunk_is_being_restored(tmp_path: Path) -> None:
    """A second failure during the recovery from the first: the same chunk, torn again (U36)."""
    first = injection(1, 3, kernel=Kernel.ADAM, progress=0.5, group=0, chunk=1)
    second = injection(3, 3, kernel=Kernel.UNDO_RESTORE, progress=0.5, group=0, chunk=1)
    assert check(tmp_path, (first, second)) == [("finish", 3), ("finish", 3)]
