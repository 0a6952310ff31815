"""What a crash can lose: for each class one page, exactly the budget, and one page more, which must be refused; and mixtures.

The budget is counted from an Account: which pages hold the last boundary of a group, and which parity speaks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.explore.invariants import Account
from chaos.explore.rank import RetainedRank
from leto.core.geometry import CODED_ARRAYS, Page
from leto.core.layout import TIER2, UNDO, gradient_parity, parity_slot, tier1
from leto.core.markers import Phase

NONE = "none"
EVERYTHING = "everything"


@dataclass(frozen=True)
class Loss:
    """``refused`` is how the refusal begins, None when everything must come back. ``corrupt`` is a page that is not lost but
    has a wrong bit: then the refusal comes when the lost pages have been solved, and only they may have been written."""

    pages: frozenset[Page] = frozenset()
    refused: str | None = None
    corrupt: Page | None = None


@dataclass(frozen=True)
class _CodeWord:
    """A group's pages at the last boundary and the rows that speak for them."""

    name: str
    data: tuple[Page, ...]
    rows: tuple[Page, ...]

    def beyond(self, lost_data: int, lost_rows: int) -> str:
        solvable = len(self.rows) - lost_rows
        return f"{lost_data} of {len(self.data)} pages of {self.name} are lost, {solvable} solvable"


def losses_of(rank: RetainedRank, account: Account, *, cold: bool, updating: bool) -> dict[str, Loss]:
    """Every loss set at a crash, by name. ``updating``: the decision makes this rank go on with its update."""
    if cold:
        return {NONE: Loss(), EVERYTHING: Loss(_every_page(rank))}
    return {NONE: Loss(), **dict(_Losses(rank, account, updating).all())}


def _every_page(rank: RetainedRank) -> frozenset[Page]:
    page_bytes = rank.memory.page_bytes
    return frozenset(Page(n, k) for n, array in rank.memory.arrays.items() for k in range(array.size // page_bytes))


class _Losses:
    def __init__(self, rank: RetainedRank, account: Account, updating: bool) -> None:
        self._rank = rank
        self._updating = updating
        self._account = account if updating else Account(phase=Phase.COMPLETE)
        self._budget = rank.coded.protection.tier1_pages
        groups = range(rank.coded.group_count)
        self._words = [self._coded_word(group) for group in groups]
        self._focus = min(len(self._account.written_back), len(groups) - 1)

    def all(self) -> Iterator[tuple[str, Loss]]:
        word, gradients = self._words[self._focus], self._gradient_word()
        speaks = self._account.parity_of(self._focus)
        undo = self._pages(UNDO)
        yield from self._data("coded", word, [page for page in word.data if page.allocation in CODED_ARRAYS])
        if self._account.in_flight is None:
            yield from _free("undo", undo)
        else:
            yield from self._data("undo", word, undo)
        slots = [parity_slot(slot) for slot in range(self._rank.coded.protection.parity_slots)]
        if speaks in slots:
            yield from self._rows("parity", word)
        yield from _free("scratch", [page for slot in slots if slot != speaks for page in self._pages(slot)])
        if self._updating:
            yield from self._data("gradients", gradients, list(gradients.data))
            yield from self._rows("gradient-parity", gradients)
        else:
            yield from _free("gradients", gradients.data)
            yield from _free("gradient-parity", gradients.rows)
        if speaks == tier1(self._focus):
            yield from self._rows("tier1", word)
        else:
            yield from _free("tier1", self._pages(tier1(self._focus)))
        yield from _free("tier2", self._pages(TIER2))
        yield from self._mixed()

    def _data(self, name: str, word: _CodeWord, pages: Sequence[Page]) -> Iterator[tuple[str, Loss]]:
        yield from _free(name, pages[: self._budget])
        if len(pages) > self._budget:
            lost = frozenset(pages[: self._budget + 1])
            yield f"{name}-beyond", Loss(lost, word.beyond(len(lost), 0))

    def _rows(self, name: str, word: _CodeWord) -> Iterator[tuple[str, Loss]]:
        yield from _free(name, word.rows)
        yield f"{name}-beyond", Loss(frozenset([*word.rows, word.data[0]]), word.beyond(1, len(word.rows)))

    def _mixed(self) -> Iterator[tuple[str, Loss]]:
        """Half of every budget in data, half in rows; a row that tier 2 gives back beside a full budget of data; and
        everything that nothing depends on beside a page of every group."""
        half = self._budget // 2
        words = [*self._words, self._gradient_word()] if self._updating else self._words
        yield "split", Loss(frozenset(p for word in words for p in (*word.data[:half], *word.rows[half:])))
        tiers = [word for group, word in enumerate(self._words) if self._account.parity_of(group) == tier1(group)]
        by_tier2 = [word.rows[-1] for word in tiers]
        yield "tier-by-tier", Loss(frozenset([*by_tier2, *(p for word in tiers for p in word.data[: self._budget])]))
        focus = self._words[self._focus]
        yield "corrupt", Loss(frozenset(focus.data[:1]), "spare parity row", corrupt=focus.data[1])
        yield "unneeded", Loss(self._unneeded() | {word.data[-1] for word in self._words})

    def _unneeded(self) -> frozenset[Page]:
        """Pages of every code word are needed, and so are records; tier 2 is too where tier 1 speaks, but it costs nothing."""
        words = [*self._words, self._gradient_word()] if self._updating else self._words
        needed = {page for word in words for page in (*word.data, *word.rows)}
        return frozenset(p for p in _every_page(self._rank) - needed if not p.allocation.startswith("record/"))

    def _coded_word(self, group: int) -> _CodeWord:
        data = tuple(placed.page for placed in self._account.boundary(self._rank, group))
        return _CodeWord(f"group {group}", data, tuple(self._pages(self._account.parity_of(group))))

    def _gradient_word(self) -> _CodeWord:
        data = tuple(placed.page for placed in self._rank.gradients.group_pages(0))
        return _CodeWord("gradient group 0", data, tuple(self._pages(gradient_parity(0))))

    def _pages(self, allocation: str) -> list[Page]:
        count = self._rank.memory.bytes(allocation).size // self._rank.memory.page_bytes
        return [Page(allocation, k) for k in range(count)]


def _free(name: str, pages: Sequence[Page]) -> Iterator[tuple[str, Loss]]:
    """One page, then all of them."""
    yield f"{name}-one", Loss(frozenset(pages[:1]))
    if len(pages) > 1:
        yield f"{name}-budget", Loss(frozenset(pages))
