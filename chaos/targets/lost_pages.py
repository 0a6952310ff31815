"""Which pages of a parked rank a loss comes to: pure, from the rank's geometry, its marks and a seed."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.loss import EXPENDABLE, Loss, LossClass, LostPages
from chaos.schedule import draw
from chaos.targets.base import FaultNotInjected
from chaos.targets.rank_geometry import RankGeometry
from leto.core.geometry import CodedGeometry, Page
from leto.core.layout import MARKERS, TIER2, UNDO, Allocation, PageClass, gradient_parity, parity_slot, tier1
from leto.core.markers import MIRRORS, Phase, Progress
from leto.core.update_plan import speaking_slot


def choose(
    losses: Sequence[Loss], geometry: RankGeometry, allocations: Sequence[Allocation], progress: Progress
) -> tuple[LostPages, ...]:
    """The pages of every loss; no page twice. ``progress`` says where the rank stands.

    Raises FaultNotInjected when a class has fewer pages there than are to be lost of it.
    """
    taken: set[Page] = set()
    chosen = []
    for loss in losses:
        groups = pages_of(loss.page_class, geometry, allocations, progress)
        pages = [page for group in _selected(loss, groups) for page in _pick(loss, group, taken)]
        if not pages:
            raise FaultNotInjected(f"cannot lose {loss.describe()}: there are none where the rank stands")
        taken.update(pages)
        chosen.append(LostPages(page_class=loss.page_class, pages=tuple(pages)))
    return tuple(chosen)


def _selected(loss: Loss, groups: Sequence[tuple[Page, ...]]) -> Sequence[tuple[Page, ...]]:
    """The sets of pages of each of which ``count`` are lost."""
    if not loss.per_group:
        return [tuple(page for group in groups for page in group)]
    if loss.group is None:
        return groups
    if loss.group >= len(groups):
        raise FaultNotInjected(f"cannot lose {loss.describe()}: there are {len(groups)} groups, the first is 0")
    return [groups[loss.group]]


def _pick(loss: Loss, pages: Sequence[Page], taken: set[Page]) -> list[Page]:
    """In an order that only the seed decides: losing more keeps those of losing fewer."""
    left = [page for page in pages if page not in taken]
    if len(left) < loss.count and loss.page_class not in EXPENDABLE:
        raise FaultNotInjected(f"cannot lose {loss.describe()}: there are {len(left)} where the rank stands")
    by_draw = sorted(left, key=lambda page: draw(loss.seed, page.allocation, page.page_index, "lose"))
    return sorted(by_draw[: loss.count])


def pages_of(
    page_class: LossClass, geometry: RankGeometry, allocations: Sequence[Allocation], progress: Progress
) -> tuple[tuple[Page, ...], ...]:
    """All pages of a class by group; one group where the class has none."""
    coded, gradients = geometry.coded, geometry.gradients
    rows = coded.protection.tier1_pages
    match page_class:
        case LossClass.CODED:
            return tuple(tuple(p.page for p in coded.group_pages(group)) for group in range(coded.group_count))
        case LossClass.IN_FLIGHT:
            flight = progress.in_flight
            return (tuple(p.page for p in coded.chunk_pages(flight[0])) if flight else (),)
        case LossClass.GRADIENTS:
            return tuple(tuple(p.page for p in gradients.group_pages(group)) for group in range(gradients.group_count))
        case LossClass.TIER1:
            return tuple(_pages(tier1(group), rows) for group in range(coded.group_count))
        case LossClass.TIER2:
            return tuple((Page(TIER2, g),) * coded.protection.tier2_pages for g in range(coded.group_count))
        case LossClass.GRADIENT_PARITY:
            return tuple(_pages(gradient_parity(group), rows) for group in range(gradients.group_count))
        case LossClass.UNDO:
            return (_pages(UNDO, coded.protection.chunk_pages),)
        case LossClass.PARITY | LossClass.SCRATCH:
            slots = parity_in_use(coded, progress)
            scratch = [slot for slot in range(coded.protection.parity_slots) if slot not in slots]
            wanted = slots if page_class is LossClass.PARITY else scratch
            return (tuple(page for slot in wanted for page in _pages(parity_slot(slot), rows)),)
        case LossClass.DERIVED:
            page_bytes = coded.protection.page_bytes
            derived = [a for a in allocations if a.page_class is PageClass.DERIVED]
            return (tuple(page for a in derived for page in _pages(a.name, a.byte_count // page_bytes)),)
        case LossClass.MARKERS:
            return (_pages(MARKERS, MIRRORS),)


def parity_in_use(coded: CodedGeometry, progress: Progress) -> list[int]:
    """The parity slots that hold the parity of a group under way (U10, U35): it speaks, or is a fetched copy of what does.

    A group is under way from its fetch to its write-back: one in a serial update, up to three in a pipelined one.
    """
    if progress.phase is not Phase.BEGIN:
        return []
    under_way = range(progress.written_back, progress.fetched)
    return [speaking_slot(coded, group, progress.commits_in(coded.chunks_of(group))) for group in under_way]


def _pages(allocation: str, count: int) -> tuple[Page, ...]:
    return tuple(Page(allocation, index) for index in range(count))
