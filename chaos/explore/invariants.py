"""INV-G, INV-P, INV-B and INV-1 as checkers over what was observed: marks that were stored, pages that were written.

They keep an account of their own. Which parity speaks for a group and where its last committed boundary lies is counted from
the steps that were seen, never asked of the code that is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from chaos.explore.names import mark_name
from chaos.explore.rank import GRADIENTS, KERNELS, RetainedRank
from leto.core.failpoints import Kernel, Site
from leto.core.geometry import Page, PlacedPage
from leto.core.layout import UNDO, gradient_parity, tier1
from leto.core.markers import STEPS_PER_CHUNK, Mark, Phase, StepDone, Word, pack, unpack
from leto.core.update_plan import Publish
from leto.device.base import CodeShape
from leto.update.scratch import ScratchPages


class Violated(AssertionError):
    """An invariant of docs/protocol.md does not hold; the message begins with its name."""


@dataclass
class Account:
    """One rank, as its steps were seen. ``speaks`` names the allocation that holds a group's parity, tier 1 when absent."""

    iteration: int = 0
    phase: Phase = Phase.NONE
    speaks: dict[int, str] = field(default_factory=dict)
    written_back: set[int] = field(default_factory=set)
    fetched: set[int] = field(default_factory=set)
    in_flight: int | None = None
    filled: str = ""  # the parity slot that was written last

    def copy(self) -> Account:
        return replace(self, speaks=dict(self.speaks), written_back=set(self.written_back), fetched=set(self.fetched))

    def parity_of(self, group: int) -> str:
        return self.speaks.get(group, tier1(group))

    def marked(self, rank: RetainedRank, word: Word, iteration: int, ordinal: int) -> None:
        if word is Word.PHASE:
            self.iteration, self.phase = iteration, Phase(ordinal)
            if self.phase in (Phase.HEADER, Phase.BEGIN):
                self.speaks, self.written_back, self.fetched = {}, set(), set()
        elif word is Word.FETCHED:
            self.fetched.add(ordinal - 1)
        elif word is Word.WRITTEN_BACK:
            self.speaks.pop(ordinal - 1, None)
            self.written_back.add(ordinal - 1)
        elif ordinal % STEPS_PER_CHUNK == StepDone.UNDO_SAVED:
            self.in_flight = ordinal // STEPS_PER_CHUNK
        elif ordinal % STEPS_PER_CHUNK == 0:
            assert self.in_flight is not None
            self.speaks[rank.coded.group_of(self.in_flight)] = self.filled
            self.in_flight = None

    def boundary(self, rank: RetainedRank, group: int) -> list[PlacedPage]:
        """The pages that hold the group's last committed boundary, by column."""
        pages: list[PlacedPage] = []
        for chunk in rank.coded.chunks_of(group):
            of_chunk = rank.coded.chunk_pages(chunk)
            if chunk == self.in_flight:
                of_chunk = tuple(PlacedPage(placed.column, Page(UNDO, k)) for k, placed in enumerate(of_chunk))
            pages += of_chunk
        return pages


class Invariants:
    """Judges the steps of all ranks of a job. Raises Violated."""

    def __init__(self, ranks: Sequence[RetainedRank], skips: frozenset[int] = frozenset()) -> None:
        """``skips`` are the iterations that update nothing (U25)."""
        self._ranks = ranks
        self._skips = skips
        self.accounts = [Account() for _ in ranks]
        protection = ranks[0].coded.protection
        self._shape = CodeShape.of(protection)
        self._scratch = ScratchPages(protection.tier1_pages, protection.page_bytes)

    def watch(self, number: int) -> RankWatch:
        return RankWatch(self, number)

    def at_failure(self) -> None:
        """INV-1."""
        iterations = [account.iteration for account in self.accounts]
        if max(iterations) - min(iterations) > 1:
            raise Violated(f"INV-1: ranks are at iterations {iterations}")

    def parity_speaks(self, number: int) -> None:
        """INV-P, once a rank has parity at all."""
        rank, account = self._ranks[number], self.accounts[number]
        if account.phase is Phase.NONE:
            return
        for group in range(rank.coded.group_count):
            if not self._encodes(rank, account.boundary(rank, group), account.parity_of(group)):
                name = account.parity_of(group)
                raise Violated(f"INV-P: {name} of rank {number} does not encode the last boundary of group {group}")

    def before_update(self, number: int, iteration: int) -> None:
        """INV-B: BEGIN(t) is in every mirror before the first write of model state."""
        rank = self._ranks[number]
        begun = pack(rank.epoch, Mark(iteration, Phase.BEGIN))
        if any(mirror[Word.PHASE] != begun for mirror in rank.markers.mirrors(rank.epoch)):
            raise Violated(f"INV-B: rank {number} writes model state of iteration {iteration} without BEGIN({iteration})")

    def begins(self, number: int, iteration: int) -> None:
        """INV-G, at BEGIN(t): everybody's gradients of t are covered, and this rank's parity really covers them. In a skipped
        step nobody reads them, and those that were lost are not rebuilt."""
        for other, account in enumerate(self.accounts):
            if (account.iteration, account.phase) < (iteration, Phase.GRADS_PROTECTED):
                where = f"{account.phase.name}({account.iteration})"
                raise Violated(f"INV-G: rank {number} begins {iteration} while rank {other} is at {where}")
        rank = self._ranks[number]
        for group in range(rank.gradients.group_count if iteration not in self._skips else 0):
            if not self._encodes(rank, rank.gradients.group_pages(group), gradient_parity(group)):
                raise Violated(f"INV-G: gradient parity of rank {number} does not cover {GRADIENTS} in iteration {iteration}")

    def _encodes(self, rank: RetainedRank, pages: Sequence[PlacedPage], parity: str) -> bool:
        addresses = [rank.memory.page_address(placed.page) for placed in pages]
        KERNELS.encode(self._shape, [placed.column for placed in pages], addresses, self._scratch.addresses)
        first, page_bytes = rank.memory.address(parity), self._shape.page_bytes
        rows = [first + row * page_bytes for row in range(self._shape.tier1_pages)]
        return not KERNELS.equal_pages(self._scratch.addresses, rows, page_bytes)


class RankWatch:
    """What one process of a rank does, as the invariants see it."""

    def __init__(self, invariants: Invariants, number: int) -> None:
        self._invariants = invariants
        self._number = number
        self._rank = invariants._ranks[number]
        addresses = self._rank.markers.word_addresses
        self._words = {addresses(self._rank.epoch, word)[0]: word for word in Word}

    def before(self, kernel: Kernel, site: Site, touched: tuple[str, ...]) -> None:
        parity = [name for name in touched if name not in self._rank.coded_arrays]
        if len(parity) < len(touched):
            self._invariants.before_update(self._number, site.iteration)
        if kernel is Kernel.RS_UPDATE:
            (self._invariants.accounts[self._number].filled,) = parity

    def marked(self, word_address: int, value: int) -> None:
        word = self._words[word_address]
        _, mark = unpack(value)
        if word is Word.PHASE and mark.ordinal == Phase.BEGIN:
            self._invariants.begins(self._number, mark.iteration)
        self._invariants.accounts[self._number].marked(self._rank, word, mark.iteration, mark.ordinal)

    def name(self, word_address: int, value: int) -> str:
        _, mark = unpack(value)
        return mark_name(Publish(self._words[word_address], mark))
