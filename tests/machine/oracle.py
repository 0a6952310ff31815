"""What was seen of a rank, and from that alone what every page must hold and whether a recovery must be refused."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.explore.invariants import Account
from leto.core.geometry import Page
from leto.core.layout import TIER2, PageClass, gradient_parity, parity_slot, tier1
from leto.core.markers import STEPS_PER_CHUNK, Mark, Phase, Word
from leto.core.recovery import Action
from leto.core.update_plan import Operation, OpKind
from tests.machine.crash_free import CrashFree, values
from tests.machine.peer import Place
from tests.machine.pooled_rank import PooledRank


class Oracle:
    """``account`` counts marks, ``committed`` are the chunks of this iteration, ``lost`` the pages that were lost since a
    process acknowledged the last ones."""

    def __init__(self, rank: PooledRank, model: CrashFree) -> None:
        self._rank = rank
        self._model = model
        self.account = Account()
        self.committed: set[int] = set()
        self.lost: set[Page] = set()

    @property
    def place(self) -> Place:
        return self.account.iteration, self.account.phase

    def done(self, op: Operation) -> None:
        """Whether its mark is stored or not."""
        if op.kind in (OpKind.PARITY, OpKind.UPDATE_AND_PARITY):
            self.account.filled = parity_slot(op.target_slot)

    def marked(self, word: Word, mark: Mark) -> None:
        if word is Word.PHASE and mark.ordinal == Phase.BEGIN:
            self.committed.clear()
        elif word is Word.STEP and mark.ordinal % STEPS_PER_CHUNK == 0:
            self.committed.add(mark.ordinal // STEPS_PER_CHUNK - 1)
        self.account.marked(self._rank, word, mark.iteration, mark.ordinal)

    def goes_back_to_header(self) -> None:
        """A decision has its compute phase done again."""
        self.account.phase = Phase.HEADER

    @property
    def _gradients_are_covered(self) -> bool:
        """And needed: a skipped update reads none."""
        return self.account.phase in (Phase.GRADS_PROTECTED, Phase.BEGIN) and not values(self.account.iteration).skipped

    def beyond_the_budget(self) -> str | None:
        """Which code word lost more than its parity can solve, or which record."""
        if self.account.phase is Phase.NONE:
            return None
        for page in self.lost:
            if self._rank.classes[page.allocation] is PageClass.RECORDS:
                return f"{page} is a record"
        for group in range(self._rank.coded.group_count):
            speaking = self.account.parity_of(group)
            rows = self._lost_of(speaking)
            if speaking == tier1(group) and rows == 1 and self._tier2_of(group) not in (None, *self.lost):
                rows = 0
            data = [placed.page for placed in self.account.boundary(self._rank, group)]
            if self._unsolvable(data, rows):
                return f"group {group} lost more than its parity solves"
        for group in range(self._rank.gradients.group_count if self._gradients_are_covered else 0):
            data = [placed.page for placed in self._rank.gradients.group_pages(group)]
            if self._unsolvable(data, self._lost_of(gradient_parity(group))):
                return f"gradient group {group} lost more than its parity solves"
        return None

    def _unsolvable(self, data: list[Page], lost_rows: int) -> bool:
        lost = len(self.lost & set(data))
        return lost > 0 and lost + lost_rows > self._rank.coded.protection.tier1_pages

    def _lost_of(self, allocation: str) -> int:
        return sum(page.allocation == allocation for page in self.lost)

    def _tier2_of(self, group: int) -> Page | None:
        return Page(TIER2, group) if self._rank.coded.protection.tier2_pages else None

    def wrong_pages(self) -> list[str]:
        """Pages that do not hold what they must, of those that are not lost."""
        must = self._must_hold() if self.account.phase is not Phase.NONE else iter(())
        wrong = [page for page, content in must if page not in self.lost and self._rank.read(page) != content]
        return [f"page {page.page_index} of {page.allocation}" for page in wrong]

    def _must_hold(self) -> Iterator[tuple[Page, bytes]]:
        for group in range(self._rank.coded.group_count):
            yield from self._group_must_hold(group)
        if self._gradients_are_covered:
            for group in range(self._rank.gradients.group_count):
                yield from self._gradients_must_hold(group)

    def _group_must_hold(self, group: int) -> Iterator[tuple[Page, bytes]]:
        """INV-P, byte for byte: the last committed boundary, and the parity that speaks for it."""
        t = self.account.iteration - (self.account.phase < Phase.BEGIN)  # the update that stands, or is under way
        updating = self.account.phase is Phase.BEGIN
        older = frozenset(self._rank.coded.chunks_of(group)) - self.committed if updating else frozenset()
        kept = iter(self.account.boundary(self._rank, group))
        for chunk in self._rank.coded.chunks_of(group):
            for placed in self._rank.coded.chunk_pages(chunk):
                yield next(kept).page, self._model.page(t - (chunk in older), placed.page)
        rows, speaking = self._model.rows(t, group, older), self.account.parity_of(group)
        yield from ((Page(speaking, k), row) for k, row in enumerate(rows))
        tier2 = self._tier2_of(group)
        if speaking == tier1(group) and tier2 is not None:
            yield tier2, self._model.tier2(t, group, older)

    def _gradients_must_hold(self, group: int) -> Iterator[tuple[Page, bytes]]:
        t = self.account.iteration
        for placed in self._rank.gradients.group_pages(group):
            yield placed.page, self._model.page(t, placed.page)
        rows = self._model.gradient_rows(t, group)
        yield from ((Page(gradient_parity(group), k), row) for k, row in enumerate(rows))


def expected_decision(*places: Place) -> tuple[Action, int]:
    """An update that somebody has begun is finished when somebody has not completed it; before HEADER(1) nothing counts."""
    if any(phase is Phase.NONE for _, phase in places):
        return Action.COLD, 0
    begun = max(t if phase >= Phase.BEGIN else t - 1 for t, phase in places)
    if all((t, phase) >= (begun, Phase.COMPLETE) for t, phase in places):
        return Action.RESTART, begun + 1
    return Action.FINISH, begun
