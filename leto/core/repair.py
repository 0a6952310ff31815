"""The repair of one rank's lost pages as data: which are solved from what, in which order, and what the budget allows.

Everything follows from which parity speaks for a group (U10) and where the last committed boundary lies:

    the rank, group i                       data of the code word            parity     tier 1 and 2 of i
    not updating, or i is written back      the group's pages                H_i        hold
    updating, no commit in i                the group's pages *              H_i        hold; a fetched Q is their copy
    updating, a commit in i                 the group's pages *              Q slot     written again from Q, whatever they hold

    * the pages of a chunk in flight stand in the undo buffer; the chunk's own pages hold anything (U6, U7)

Each group is asked by itself. In a pipelined update (U35) up to three slots speak at once, of groups that are committed and not
written back and of the one being updated, and those of fetched groups without a commit are copies of tier 1.

Order (R38): tier 2 repairs tier 1, tier 1 repairs data, whole data repair what is left of the parity. An operation writes lost
pages and nothing else, so a repair that was interrupted is planned again from the same marks and ends the same (U36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from leto.core.errors import Unrecoverable
from leto.core.geometry import CodedGeometry, GradientGeometry, Page, PlacedPage
from leto.core.layout import TIER2, UNDO, PageClass, gradient_parity, parity_slot, tier1
from leto.core.markers import Phase, Progress
from leto.core.recovery import Action
from leto.core.update_plan import speaking_slot


@dataclass(frozen=True, kw_only=True)
class XorPages:
    """target <- xor of the sources: a tier-1 row from tier 2 and the other rows, or tier 2 from all rows."""

    target: Page
    sources: tuple[Page, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Reconstruct:
    """The lost pages of a code word from its intact pages and rows; more rows than lost pages check the result (U16).

    Without a lost page it only checks.
    """

    target: tuple[PlacedPage, ...]
    data: tuple[PlacedPage, ...]
    rows: tuple[int, ...]
    parity: tuple[Page, ...]  # of these rows
    reason: str


@dataclass(frozen=True, kw_only=True)
class EncodeRows:
    """These parity rows from the whole data (U8). The other rows must not be written, not even with the same bytes."""

    rows: tuple[int, ...]
    target: tuple[Page, ...]
    data: tuple[PlacedPage, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class CopyPages:
    source: tuple[Page, ...]
    target: tuple[Page, ...]
    reason: str


RepairOperation = XorPages | Reconstruct | EncodeRows | CopyPages


def written_by(operation: RepairOperation) -> tuple[Page, ...]:
    """The pages the operation writes; all of them were lost."""
    match operation:
        case XorPages():
            return (operation.target,)
        case Reconstruct():
            return tuple(placed.page for placed in operation.target)
        case EncodeRows() | CopyPages():
            return operation.target


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the losses of one code word used of its parity. ``lost_rows`` were not to be had back from tier 2 (U18)."""

    code_word: str  # "group 3" or "gradient group 0"
    pages: int
    lost_pages: int
    lost_rows: int
    rows: int

    @property
    def spare_rows(self) -> int:
        """Rows that are left to check the solution with (U16); negative when there is none."""
        return self.rows - self.lost_rows - self.lost_pages

    def describe(self) -> str:
        used = f"{self.code_word}: {self.lost_pages} pages and {self.lost_rows} rows lost, {self.rows} solvable"
        return f"{used}; no check possible" if self.spare_rows == 0 else f"{used}; checked by {self.spare_rows} spare rows"


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """``left`` are lost pages of which nothing is needed, each with the reason why."""

    operations: tuple[RepairOperation, ...]
    budgets: tuple[Budget, ...]
    left: tuple[tuple[Page, str], ...]


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """How far one group of coded state is in the update that was interrupted."""

    speaking: str  # allocation of the parity that speaks (U10)
    tiers_hold: bool  # tier 1 and tier 2 encode the last committed boundary
    in_flight: int | None = None  # the chunk whose pages stand in the undo buffer
    copy: str | None = None  # a fetched parity buffer without a commit


def plan_repair(
    *,
    coded: CodedGeometry,
    gradients: GradientGeometry,
    classes: Mapping[str, PageClass],
    action: Action,
    target: int,
    progress: Progress,
    lost: AbstractSet[Page],
    skipped: bool = False,
) -> RepairPlan:
    """How this rank gets back what ``action`` at iteration ``target`` needs of its ``lost`` pages.

    A ``skipped`` step updates nothing: it needs no gradients, and both tiers hold (U25). ``classes`` gives the class of every
    allocation of the rank. Raises Unrecoverable, before anything is written, when a code word lost more than its parity
    solves (``17 of 60 pages of group 3 are lost, 16 solvable``), or a record is lost.
    """
    if action is Action.COLD:
        return RepairPlan(operations=(), budgets=(), left=_left(lost, "a cold start builds everything from the seed"))
    refuse_lost_records(classes, lost)
    planner = _Planner(coded, lost)
    updating = action is Action.FINISH and progress.iteration == target and progress.phase < Phase.COMPLETE and not skipped
    for group in range(coded.group_count):
        planner.coded_group(group, _standing(coded, group, progress) if updating else _at_rest(group))
    if updating:
        for group in range(gradients.group_count):
            planner.gradient_group(group, gradients.group_pages(group))
    written = {page for operation in planner.operations for page in written_by(operation)}
    reasons = _reasons(progress if updating else None)
    return RepairPlan(
        operations=tuple(planner.operations),
        budgets=tuple(planner.budgets),
        left=tuple((page, reasons[classes[page.allocation]]) for page in sorted(lost - written)),
    )


def _at_rest(group: int) -> _Standing:
    return _Standing(speaking=tier1(group), tiers_hold=True)


def _standing(coded: CodedGeometry, group: int, progress: Progress) -> _Standing:
    """Of a rank that is inside the update, or about to begin it."""
    if group < progress.written_back:
        return _at_rest(group)
    chunks = coded.chunks_of(group)
    commits = progress.commits_in(chunks)
    flight = progress.in_flight[0] if progress.in_flight and progress.in_flight[0] in chunks else None
    if commits:
        return _Standing(speaking=parity_slot(speaking_slot(coded, group, commits)), tiers_hold=False, in_flight=flight)
    copy = parity_slot(speaking_slot(coded, group, 0)) if progress.fetched > group else None
    return _Standing(speaking=tier1(group), tiers_hold=True, in_flight=flight, copy=copy)


class _Planner:
    """Collects operations and budgets, one code word after the other."""

    def __init__(self, coded: CodedGeometry, lost: AbstractSet[Page]) -> None:
        self._coded = coded
        self._lost = lost
        self.operations: list[RepairOperation] = []
        self.budgets: list[Budget] = []

    def coded_group(self, group: int, standing: _Standing) -> None:
        rows = self._rows(standing.speaking)
        known = set(rows) & self._lost
        if standing.tiers_hold:
            known -= self._rows_from_tier2(group, rows, known)
        self._code_word(f"group {group}", self._boundary_pages(group, standing), rows, known)
        if standing.tiers_hold and Page(TIER2, group) in self._lost:
            reason = f"tier 2 of group {group} from its rows"
            self.operations.append(XorPages(target=Page(TIER2, group), sources=rows, reason=reason))
        if standing.copy is not None:
            self._copy_rows(group, rows, self._rows(standing.copy))

    def gradient_group(self, group: int, pages: tuple[PlacedPage, ...]) -> None:
        rows = self._rows(gradient_parity(group))
        self._code_word(f"gradient group {group}", pages, rows, set(rows) & self._lost)

    def _rows(self, allocation: str) -> tuple[Page, ...]:
        return tuple(Page(allocation, row) for row in range(self._coded.protection.tier1_pages))

    def _boundary_pages(self, group: int, standing: _Standing) -> tuple[PlacedPage, ...]:
        """The pages that hold the last committed boundary, by column."""
        return tuple(
            PlacedPage(placed.column, Page(UNDO, k)) if chunk == standing.in_flight else placed
            for chunk in self._coded.chunks_of(group)
            for k, placed in enumerate(self._coded.chunk_pages(chunk))
        )

    def _rows_from_tier2(self, group: int, rows: tuple[Page, ...], lost_rows: AbstractSet[Page]) -> set[Page]:
        """The one lost row that tier 2 gives back; two lost ones, or tier 2 lost as well, are lost rows (U18)."""
        tier2 = Page(TIER2, group)
        if len(lost_rows) != 1 or not self._coded.protection.tier2_pages or tier2 in self._lost:
            return set()
        (row,) = lost_rows
        sources = (tier2, *(page for page in rows if page != row))
        reason = f"tier-1 row {row.page_index} of group {group} from tier 2"
        self.operations.append(XorPages(target=row, sources=sources, reason=reason))
        return {row}

    def _code_word(
        self, name: str, pages: tuple[PlacedPage, ...], rows: tuple[Page, ...], lost_rows: AbstractSet[Page]
    ) -> None:
        lost = tuple(placed for placed in pages if placed.page in self._lost)
        if not lost and not set(rows) & self._lost:
            return
        budget = Budget(code_word=name, pages=len(pages), lost_pages=len(lost), lost_rows=len(lost_rows), rows=len(rows))
        if budget.spare_rows < 0:
            raise Unrecoverable(_beyond(budget))
        self.budgets.append(budget)
        intact = tuple(page for page in rows if page not in lost_rows)
        if intact:
            self.operations.append(
                Reconstruct(
                    target=lost,
                    data=tuple(placed for placed in pages if placed.page not in self._lost),
                    rows=tuple(page.page_index for page in intact),
                    parity=intact,
                    reason=budget.describe(),
                )
            )
        if lost_rows:
            again = tuple(page for page in rows if page in lost_rows)
            self.operations.append(
                EncodeRows(
                    rows=tuple(page.page_index for page in again),
                    target=again,
                    data=pages,
                    reason=f"{len(again)} rows of {again[0].allocation} from the data of {name}",
                )
            )

    def _copy_rows(self, group: int, rows: Sequence[Page], copies: Sequence[Page]) -> None:
        """A fetched parity buffer without a commit is what tier 1 is (U10)."""
        pairs = [(row, copy) for row, copy in zip(rows, copies, strict=True) if copy in self._lost]
        if pairs:
            self.operations.append(
                CopyPages(
                    source=tuple(row for row, _ in pairs),
                    target=tuple(copy for _, copy in pairs),
                    reason=f"{len(pairs)} fetched rows of group {group} from tier 1",
                )
            )


def _beyond(budget: Budget) -> str:
    solvable = budget.rows - budget.lost_rows
    rows = f" ({budget.lost_rows} of {budget.rows} parity rows are lost)" if budget.lost_rows else ""
    return f"{budget.lost_pages} of {budget.pages} pages of {budget.code_word} are lost, {solvable} solvable{rows}"


def refuse_lost_records(classes: Mapping[str, PageClass], lost: AbstractSet[Page]) -> None:
    """Raises Unrecoverable. Whoever reads a record of a rank that lost pages asks here first."""
    for page in sorted(lost):
        if classes[page.allocation] is PageClass.RECORDS:
            raise Unrecoverable(f"page {page.page_index} of {page.allocation} is lost: records have no parity")


def _left(lost: AbstractSet[Page], reason: str) -> tuple[tuple[Page, str], ...]:
    return tuple((page, reason) for page in sorted(lost))


def _reasons(updating: Progress | None) -> dict[PageClass, str]:
    """Why nothing is needed of a lost page that no operation writes, by class."""
    reasons = {
        PageClass.UNDO: "no chunk is in flight",
        PageClass.PARITY: "this parity buffer does not speak",
        PageClass.TIER1: "written back from the parity buffer, which speaks",
        PageClass.TIER2: "written back from the parity buffer, which speaks",
        PageClass.GRADIENTS: "no update reads it",
        PageClass.GRADIENT_PARITY: "no update reads its gradients",
        PageClass.DERIVED: "cast and gathered again",
    }
    if updating is not None and updating.in_flight is not None:
        reasons[PageClass.CODED] = f"chunk {updating.in_flight[0]} is in flight and restored from undo"
    return reasons
