"""What the bench puts into Leto's trainers: armed faults, the ledger and the parity audit. Runs inside the trainer.

Options (JobConfig.plugin_options):

    armed_file     JSON list of Injection.to_json(); read when a trainer starts, so a fired one is never armed again
    aimed_dir      where an armed kernel writes what it is about to hit, before it runs
    ledger_dir     ledgers, one a rank
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chaos.schedule import Injection, Place, logical_time
from chaos.targets.aims import aim_of
from chaos.targets.rank_geometry import RankGeometry
from leto.core.events import Event
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.geometry import CodedGeometry, GradientGeometry, Page
from leto.core.hooks import IterationView, ParityAudit, TrainerContext
from leto.core.layout import TIER2, UNDO, parity_slot, tier1
from leto.core.markers import Phase, Progress
from leto.core.update_plan import OpKind, plan_update, speaking_slot
from leto.update.parking import park_here
from verify.ledger import LedgerWriter, digest, ledger_path, live_digests


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Where an armed kernel parks: which group and chunk, and the pages it writes, in writing order."""

    token: int
    group: int
    chunk: int | None
    target: tuple[Page, ...]

    def write(self, directory: Path) -> None:
        aim_path(directory, self.token).write_text(json.dumps(asdict(self)))


def aim_path(directory: Path, token: int) -> Path:
    return directory / f"aim-{token}.json"


def read_aim(directory: Path, token: int) -> Aim:
    raw = json.loads(aim_path(directory, token).read_text())
    return Aim(**dict(raw, target=tuple(Page(**page) for page in raw["target"])))


POINTS_OUTSIDE_ITERATIONS = (Point.BEFORE_FIRST_HEADER, Point.ENDED)


def failpoints_an_iteration(coded: CodedGeometry, gradients: GradientGeometry) -> int:
    """How many failpoints a rank passes in a whole iteration that no failure interrupts and whose step is not skipped."""
    points = len(Point) - len(POINTS_OUTSIDE_ITERATIONS)
    silent = {OpKind.COMMIT} if coded.protection.tier2_pages else {OpKind.COMMIT, OpKind.TIER2}
    begun = Progress(phase=Phase.BEGIN, iteration=1)
    return points + gradients.group_count + sum(op.kind not in silent for op in plan_update(coded, 1, begun))


class LogicalClock:
    """Publishes the rank's logical time in its heartbeat word, so that the bench can kill without parking anybody.

    Lanes of an update pass failpoints from two threads; time must not go back.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._word = ctypes.c_uint64.from_address(context.heartbeat_address)
        self._word.value = 0  # what the rank's last process said is over
        self._iteration, self._passed, self._of = -1, 0, 0
        self._passing = threading.Lock()

    def pass_failpoint(self, iteration: int) -> None:
        """A recovery passes some of an iteration's failpoints again and counts them from 0."""
        with self._passing:
            if iteration != self._iteration:
                self._iteration, self._passed, self._of = iteration, 0, self._whole()
            self._word.value = logical_time(iteration, self._passed / self._of)
            self._passed += 1

    def _whole(self) -> int:
        coded, gradients = self._context.coded, self._context.gradients
        assert coded is not None and gradients is not None, "failpoints are passed after the geometry is known"
        return failpoints_an_iteration(coded, gradients)


class ArmedFailpoints:
    """Parks the trainer where an injection of its rank is aimed, at its gate before that, or where another rank's holds it."""

    def __init__(self, context: TrainerContext, injections: Sequence[Injection], aimed_dir: Path) -> None:
        self._context = context
        places = [place for i in injections for place in (i.gate, *i.places)]
        self._places = [place for place in places if place is not None and place.rank == context.rank]
        self._aimed_dir = aimed_dir
        self._clock = LogicalClock(context)

    def reach(self, point: Point, site: Site) -> None:
        self._clock.pass_failpoint(site.iteration)
        for place in self._places:
            if place.point is point and place.iteration == site.iteration:
                park_here(self._park(place))

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        self._clock.pass_failpoint(site.iteration)
        for place in self._places:
            if place.kernel is kernel and place.iteration == site.iteration and self._is_aimed_at(place, site):
                self._write_aim(place, kernel, site)
                return self._park(place)
        return None

    def _park(self, place: Place) -> Park:
        return Park(word_address=self._context.park_word_address, token=place.token, progress=place.progress)

    def _is_aimed_at(self, place: Place, site: Site) -> bool:
        """A restore without group and chunk is hit in whatever chunk was in flight."""
        coded, gradients = self._context.coded, self._context.gradients
        assert coded is not None and gradients is not None, "kernels run after the geometry is known"
        if place.kernel is Kernel.UNDO_RESTORE and place.group is None and place.chunk is None:
            return True
        return (site.group, site.chunk) == aim_of(place, RankGeometry(coded=coded, gradients=gradients))

    def _write_aim(self, place: Place, kernel: Kernel, site: Site) -> None:
        assert site.group is not None
        coded = self._context.coded
        assert coded is not None
        target = target_pages(coded, kernel, site)
        Aim(token=place.token, group=site.group, chunk=site.chunk, target=target).write(self._aimed_dir)


def target_pages(coded: CodedGeometry, kernel: Kernel, site: Site) -> tuple[Page, ...]:
    """The pages a copy writes, in writing order; empty for kernels whose target the bench does not fill."""
    p = coded.protection
    assert site.group is not None
    if kernel is Kernel.PARITY_WRITEBACK:
        return _pages(tier1(site.group), range(p.tier1_pages))
    if kernel is Kernel.PARITY_FETCH:
        return _pages(parity_slot(speaking_slot(coded, site.group, 0)), range(p.tier1_pages))
    if kernel is Kernel.UNDO_SAVE:
        return _pages(UNDO, range(p.chunk_pages))
    if kernel is Kernel.TIER2:
        return _pages(TIER2, range(site.group, site.group + 1))
    if kernel is Kernel.UNDO_RESTORE and site.chunk is not None:
        return tuple(placed.page for placed in coded.chunk_pages(site.chunk))
    return ()


def _pages(allocation: str, indices: range) -> tuple[Page, ...]:
    return tuple(Page(allocation, k) for k in indices)


def install_faults(context: TrainerContext) -> None:
    injections = [Injection.from_json(raw) for raw in json.loads(Path(context.options["armed_file"]).read_text())]
    context.failpoints = ArmedFailpoints(context, injections, Path(context.options["aimed_dir"]))


def install_ledger(context: TrainerContext) -> None:
    path = ledger_path(Path(context.options["ledger_dir"]), context.rank)
    writer = LedgerWriter(path, context.rank, context.world_size)

    def write(view: IterationView) -> None:
        state = {entry.name: digest(entry.data) for entry in view.entries()}
        writer.write(view.result, state, live_digests(view.live))

    context.on_iteration.append(write)


def install_audit(context: TrainerContext) -> None:
    def report(iteration: int, audit: Callable[[], ParityAudit]) -> None:
        found = audit()
        fields = {"rank": context.rank, "epoch": context.epoch, "iteration": iteration, "groups": found.groups}
        wrong = {"tier1_wrong": list(found.tier1_wrong), "tier2_wrong": list(found.tier2_wrong)}
        context.report(Event("audit", fields | wrong))

    context.on_audit.append(report)


PROBES = tuple(f"{__name__}:{f.__name__}" for f in (install_faults, install_ledger, install_audit))
"""The plugins of every Leto run of the bench."""
