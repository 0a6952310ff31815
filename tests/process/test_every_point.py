"""Real SIGKILLs at every point between operations and inside every kernel of an iteration, one an iteration, in one job each.

Every completed iteration must equal plain Megatron bit for bit, and each point must lead to the rule that the decision table
gives it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.schedule import Injection, logical_time
from chaos.targets.leto import LetoTarget
from leto.core.config import Workload
from leto.core.failpoints import Kernel, Point
from leto.core.geometry import Protection
from tests.process.jobs import PROTECTION, olmoe, run_job
from tests.process.references import References
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


ADAM = olmoe(26)
"""One reference for all of them, with room for most kills in one job."""
MUON = olmoe(14, optimizer="muon")

Decisions = list[tuple[str, int]]
"""What the coordinator decided, and of which iteration, in order."""
Check = Callable[..., Decisions]


@pytest.fixture
def check(references: References, tmp_path: Path) -> Check:
    """Runs a job; asserts that every completed iteration is that of the reference and both tiers are those of the data."""

    def check(injections: tuple[Injection, ...], protection: Protection = PROTECTION, workload: Workload = ADAM) -> Decisions:
        reference = references.ledgers(workload)
        events, ledgers = run_job(LetoTarget(), tmp_path, workload, injections, protection=protection)
        comparison = compare_runs(reference, ledgers, workload.iterations)
        assert comparison.first is None, comparison.first
        audits = [e.fields for e in events if e.name == "audit"]
        assert not [a for a in audits if a["tier1_wrong"] or a["tier2_wrong"]]
        return [(e.fields["action"], e.fields["iteration"]) for e in events if e.name == "decided"]

    return check


def test_a_kill_at_every_point_between_operations(check: Check) -> None:
    points = [*RESTARTS, Point.AFTER_BARRIER, *FINISHES, *ENDS_THE_UPDATE]
    assert set(points) | {Point.BEFORE_FIRST_HEADER} >= set(Point) - {p for p in Point if p.value == "ended"}
    injections = tuple(injection(n, n + 1, point=point) for n, point in enumerate(points, start=1))
    decisions = dict(zip(points, check(injections), strict=True))
    for point in RESTARTS:
        assert decisions[point][0] == "restart", point
    for point in FINISHES:
        assert decisions[point][0] == "finish", point
    for point in ENDS_THE_UPDATE:  # the other rank decides: it may wait in the gather or stand at COMPLETE
        assert decisions[point][0] in ("finish", "restart"), point


def test_a_kill_inside_every_kernel(check: Check) -> None:
    """Last of all a second failure during the recovery from the first: the same chunk, torn again (U36)."""
    places = [(kernel, progress) for kernel in KERNELS for progress in PROGRESS]
    injections = [injection(n, n + 1, kernel=k, progress=p) for n, (k, p) in enumerate(places, start=1)]
    last, token = 2 + len(places), 2 * len(places) + 1  # of an odd token: rank 1
    injections += [
        injection(token, last, kernel=Kernel.ADAM, progress=0.5, group=0, chunk=1),
        injection(token + 2, last, kernel=Kernel.UNDO_RESTORE, progress=0.5, group=0, chunk=1),
    ]
    decisions = check(tuple(injections))
    # Gradient parity: nobody can have begun.
    actions = ["restart" if kernel is Kernel.RS_ENCODE else "finish" for kernel, _ in places]
    assert decisions == [*((action, n) for n, action in enumerate(actions, start=2)), ("finish", last), ("finish", last)]


PIPELINED = Protection(page_bytes=16384, data_pages=36, tier1_pages=16, tier2_pages=1, chunk_pages=12, pipelined=True)
"""Three chunks a group, ten groups a rank: more than enough for every slot to be used again."""
OF_LANES = KERNELS[1:]


def in_kernels_of_lanes(progress: float, first: int) -> list[Injection]:
    """One an iteration from ``first`` on, in a group that has others before and after it."""
    return [injection(t, t, kernel=kernel, progress=progress, group=4) for t, kernel in enumerate(OF_LANES, start=first)]


def test_kills_in_two_lanes(check: Check) -> None:
    """Inside every kernel, the other lane parked between two operations; then, parking nobody, wherever both have come to."""
    parked = in_kernels_of_lanes(0.37, first=2)
    shares = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85)  # of the failpoints of an iteration, most of which are the update's
    free = [
        replace(injection(t, t, point=Point.BEGIN), point=None, moment=logical_time(t, share))
        for t, share in zip(range(10, 10 + 2 * len(shares), 2), shares, strict=True)
    ]
    decisions = check((*parked, *free), PIPELINED)
    assert decisions[: len(parked)] == [("finish", i.iteration) for i in parked]
    of_free = decisions[len(parked) :]
    assert len(of_free) == len(free)
    assert [iteration for action, iteration in of_free if action == "finish"], "no kill hit an update"


@pytest.mark.slow
def test_a_kill_at_either_end_of_every_kernel_of_two_lanes(check: Check) -> None:
    injections = (*in_kernels_of_lanes(0.0, first=2), *in_kernels_of_lanes(1.0, first=2 + len(OF_LANES)))
    assert check(injections, PIPELINED) == [("finish", i.iteration) for i in injections]


def test_a_kill_inside_muons_kernels_in_two_lanes(check: Check) -> None:
    """Anywhere in the chunks of either, which a serial update of the same job has in the same groups."""
    places = [(kernel, progress) for kernel in (Kernel.MUON_MOMENTUM, Kernel.MUON_APPLY) for progress in PROGRESS]
    injections = tuple(injection(n, n + 1, kernel=k, progress=p) for n, (k, p) in enumerate(places, start=1))
    assert check(injections, PIPELINED, MUON) == [("finish", n + 1) for n in range(1, len(injections) + 1)]
