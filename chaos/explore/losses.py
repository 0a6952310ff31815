"""What a crash can lose: for each class one page, exactly the budget, and one page more, which must be refused; and mixtures.

The budget is counted from an Account: which pages hold the last boundary of a group, and which parity speaks for it.

Mirrors of the marker page are lost beside pages: ``mirrors-02`` loses the first and the last of three, ``mirrors-01+split`` two
of them and the loss set ``split``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations

from chaos.explore.invariants import Account
from chaos.explore.rank import RetainedRank
from leto.core.geometry import Page
from leto.core.layout import HEADER_RECORDS, POST_RECORDS, TIER2, UNDO, gradient_parity, parity_slot, tier1
from leto.core.markers import MIRRORS, Phase

NONE = "none"
EVERYTHING = "everything"
SPLIT = "split"
"""The loss set whose repair is interrupted: it has something of everything."""
TOP_UP = "top-up"
TOP_UP_BEYOND = "top-up-beyond"
AGAIN = (NONE, TOP_UP, TOP_UP_BEYOND)
"""What a second crash loses beside pages that are lost and not rebuilt: nothing, the rest of every budget, a page more."""

_MIRRORS = "mirrors-"
MIRROR_SETS = tuple(lost for count in range(1, MIRRORS + 1) for lost in combinations(range(MIRRORS), count))
WITH_PAGES = MIRROR_SETS[MIRRORS]
"""The two mirrors that are lost beside pages: those with the newest word, where it stands in two."""


def with_mirrors(mirrors: Iterable[int], name: str = NONE) -> str:
    lost = "".join(map(str, mirrors))
    parts = [f"{_MIRRORS}{lost}"] if lost else []
    return "+".join([*parts, name] if name != NONE or not lost else parts)


def split_name(name: str) -> tuple[tuple[int, ...], str]:
    """The mirrors that a loss set loses, and the name of the rest."""
    if not name.startswith(_MIRRORS):
        return (), name
    lost, _, rest = name.removeprefix(_MIRRORS).partition("+")
    return tuple(sorted({int(mirror) for mirror in lost})), rest or NONE


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
    tier2: Page | None = None  # that gives back one lost row

    def beyond(self, lost_data: int, lost_rows: int) -> str:
        solvable = len(self.rows) - lost_rows
        return f"{lost_data} of {len(self.data)} pages of {self.name} are lost, {solvable} solvable"

    def room(self, lost: AbstractSet[Page]) -> int:
        """How many pages more may be lost."""
        rows = sum(row in lost for row in self.rows)
        if rows == 1 and self.tier2 is not None and self.tier2 not in lost:
            rows = 0
        return len(self.rows) - rows - sum(page in lost for page in self.data)

    def intact(self, lost: AbstractSet[Page]) -> list[Page]:
        return [page for page in reversed(self.data) if page not in lost]


def losses_of(rank: RetainedRank, account: Account, *, cold: bool, updating: bool) -> dict[str, Loss]:
    """Every loss set at a crash, by name. ``updating``: the decision makes this rank go on with its update."""
    if cold:
        return {NONE: Loss(), EVERYTHING: Loss(_every_page(rank))}
    return {NONE: Loss(), **dict(_Losses(rank, account, updating).all())}


def lost_beside(rank: RetainedRank, account: Account, name: str, *, cold: bool, updating: bool) -> Loss:
    """What a second crash loses of a rank that has lost pages, ``rank.lost``: one of AGAIN."""
    if name == NONE or cold:
        return Loss()
    losses = _Losses(rank, account, updating)
    more = frozenset(page for word in losses.words() for page in word.intact(rank.lost)[: word.room(rank.lost)])
    if name == TOP_UP:
        return Loss(more)
    word = losses.words()[0]
    lost_data = sum(page in rank.lost for page in word.data)
    spare = word.intact(rank.lost)[: word.room(rank.lost) + 1]
    return Loss(frozenset(spare), f"{lost_data + len(spare)} of {len(word.data)} pages of {word.name} are lost")


def _every_page(rank: RetainedRank) -> frozenset[Page]:
    page_bytes = rank.memory.page_bytes
    return frozenset(Page(n, k) for n, array in rank.memory.arrays.items() for k in range(array.size // page_bytes))


class _Losses:
    def __init__(self, rank: RetainedRank, account: Account, updating: bool) -> None:
        self._rank = rank
        self._updating = updating
        self._account = account if updating else Account(phase=Phase.COMPLETE)
        protection = rank.coded.protection
        self._budget = protection.tier1_pages
        self._tier2 = protection.tier2_pages > 0
        self._slots = [parity_slot(slot) for slot in range(protection.parity_slots)]
        groups = range(rank.coded.group_count)
        self._words = [self._coded_word(group) for group in groups]
        self._gradient_words = [self._gradient_word(group) for group in range(rank.gradients.group_count)]
        self._focus = min(len(self._account.written_back), len(groups) - 1)

    def words(self) -> list[_CodeWord]:
        """Everything that is solved when it is lost."""
        return [*self._words, *self._gradient_words] if self._updating else self._words

    def all(self) -> Iterator[tuple[str, Loss]]:
        word, gradients = self._words[self._focus], self._gradient_words[0]
        yield from self._data("coded", word, [page for page in word.data if page.allocation in self._rank.coded_arrays])
        if self._account.in_flight is None:
            yield from _free("undo", self._pages(UNDO))
        else:
            in_flight = self._words[self._rank.coded.group_of(self._account.in_flight)]
            yield from self._data("undo", in_flight, self._pages(UNDO))
        for place, group in enumerate(sorted(self._account.speaks)):
            yield from self._rows("parity" if place == 0 else f"parity-of-{place}-ahead", self._words[group])
        speaking = set(self._account.speaks.values())
        yield from _free("scratch", [page for slot in self._slots if slot not in speaking for page in self._pages(slot)])
        if self._updating:
            yield from self._data("gradients", gradients, list(gradients.data))
            yield from self._rows("gradient-parity", gradients)
        else:
            yield from _free("gradients", gradients.data)
            yield from _free("gradient-parity", gradients.rows)
        if self._focus in self._account.speaks:
            yield from _free("tier1", self._pages(tier1(self._focus)))
        else:
            yield from self._rows("tier1", word)
        if self._tier2:
            yield from _free("tier2", self._pages(TIER2))
        yield from _records()
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
        yield SPLIT, Loss(frozenset(p for word in self.words() for p in (*word.data[:half], *word.rows[half:])))
        tiers = [word for group, word in enumerate(self._words) if group not in self._account.speaks]
        by_tier2 = [word.rows[-1] for word in tiers if word.tier2 is not None]
        yield "tier-by-tier", Loss(frozenset([*by_tier2, *(p for word in tiers for p in word.data[: self._budget])]))
        focus = self._words[self._focus]
        yield "corrupt", Loss(frozenset(focus.data[:1]), "spare parity row", corrupt=focus.data[1])
        yield "unneeded", Loss(self._unneeded() | {word.data[-1] for word in self._words})

    def _unneeded(self) -> frozenset[Page]:
        """Pages of every code word are needed, and so are records; tier 2 is too where tier 1 speaks, but it costs nothing."""
        needed = {page for word in self.words() for page in (*word.data, *word.rows)}
        return frozenset(p for p in _every_page(self._rank) - needed if not p.allocation.startswith("record/"))

    def _coded_word(self, group: int) -> _CodeWord:
        data = tuple(placed.page for placed in self._account.boundary(self._rank, group))
        rows = tuple(self._pages(self._account.parity_of(group)))
        tier2 = Page(TIER2, group) if self._tier2 and group not in self._account.speaks else None
        return _CodeWord(f"group {group}", data, rows, tier2)

    def _gradient_word(self, group: int) -> _CodeWord:
        data = tuple(placed.page for placed in self._rank.gradients.group_pages(group))
        return _CodeWord(f"gradient group {group}", data, tuple(self._pages(gradient_parity(group))))

    def _pages(self, allocation: str) -> list[Page]:
        count = self._rank.memory.bytes(allocation).size // self._rank.memory.page_bytes
        return [Page(allocation, k) for k in range(count)]


def _records() -> Iterator[tuple[str, Loss]]:
    """Records have no parity: whichever it is, the job has to stop (U54)."""
    for name in (HEADER_RECORDS, POST_RECORDS):
        yield name.replace("/", "-"), Loss(frozenset([Page(name, 0)]), f"page 0 of {name} is lost: records have no parity")


def _free(name: str, pages: Sequence[Page]) -> Iterator[tuple[str, Loss]]:
    """One page, then all of them."""
    yield f"{name}-one", Loss(frozenset(pages[:1]))
    if len(pages) > 1:
        yield f"{name}-budget", Loss(frozenset(pages))
