"""What the bench puts into Leto's trainers: armed faults, the ledger and the parity audit. Runs inside the trainer.

Options (JobConfig.plugin_options):

    armed_file     JSON list of Injection.to_json(); read when a trainer starts, so a fired one is never armed again
    aimed_dir      where an armed kernel writes what it is about to hit, before it runs
    ledger_dir     ledgers, one a rank
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.schedule import Injection
from leto.core.events import Event
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.geometry import CodedGeometry, Page
from leto.core.hooks import IterationView, ParityAudit, TrainerContext
from leto.core.layout import TIER2, UNDO, parity_slot, tier1
from leto.core.update_plan import PARITY_SLOTS
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


class ArmedFailpoints:
    """Parks the trainer where an injection of its rank is aimed."""

    def __init__(self, context: TrainerContext, injections: Sequence[Injection], aimed_dir: Path) -> None:
        self._context = context
        self._injections = [i for i in injections if i.rank == context.rank]
        self._aimed_dir = aimed_dir

    def reach(self, point: Point, site: Site) -> None:
        for injection in self._injections:
            if injection.point is point and injection.iteration == site.iteration:
                park_here(self._park(injection))

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        for injection in self._injections:
            if injection.kernel is kernel and injection.iteration == site.iteration and self._is_aimed_at(injection, site):
                self._write_aim(injection, kernel, site)
                return self._park(injection)
        return None

    def _park(self, injection: Injection) -> Park:
        return Park(word_address=self._context.park_word_address, token=injection.token, progress=injection.progress)

    def _is_aimed_at(self, injection: Injection, site: Site) -> bool:
        """An injection without group or chunk takes its draw modulo the rank's real counts."""
        coded, gradients = self._context.coded, self._context.gradients
        assert coded is not None and gradients is not None, "kernels run after the geometry is known"
        groups = gradients.group_count if injection.kernel is Kernel.RS_ENCODE else coded.group_count
        group = injection.group_draw % groups if injection.group is None else injection.group
        if site.group != group or site.chunk is None:
            return site.group == group
        chunks = coded.chunks_of(group)
        chunk = injection.chunk_draw % len(chunks) if injection.chunk is None else injection.chunk
        return site.chunk == chunks[0] + chunk

    def _write_aim(self, injection: Injection, kernel: Kernel, site: Site) -> None:
        assert site.group is not None
        coded = self._context.coded
        assert coded is not None
        target = target_pages(coded, kernel, site)
        Aim(token=injection.token, group=site.group, chunk=site.chunk, target=target).write(self._aimed_dir)


def target_pages(coded: CodedGeometry, kernel: Kernel, site: Site) -> tuple[Page, ...]:
    """The pages a copy writes, in writing order; empty for kernels whose target the bench does not fill."""
    p = coded.protection
    assert site.group is not None
    if kernel is Kernel.PARITY_WRITEBACK:
        return _pages(tier1(site.group), range(p.tier1_pages))
    if kernel is Kernel.PARITY_FETCH:
        return _pages(parity_slot(0), range(p.tier1_pages))
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
    injections = [injection_from_json(raw) for raw in json.loads(Path(context.options["armed_file"]).read_text())]
    context.failpoints = ArmedFailpoints(context, injections, Path(context.options["aimed_dir"]))


def injection_from_json(raw: dict[str, Any]) -> Injection:
    kernel, point = raw.get("kernel"), raw.get("point")
    return Injection(**dict(raw, kernel=Kernel(kernel) if kernel else None, point=Point(point) if point else None))


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

assert PARITY_SLOTS == 2, "a fetch always fills slot 0"
