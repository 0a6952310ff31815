"""Crashes that also lose pages: within the budget everything comes back bit for bit, beyond it nothing is written (R35-R38).

The test keeps its own account of what may be lost: from the operations that ran it knows which parity speaks for a group and
where the last committed boundary lies. It loses up to H1 pages of each code word and its speaking rows, one tier-1 row more
where tier 2 can give it back, and anything at all of what nothing depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.explore.rank import KERNELS, InMemoryRank, values
from leto.core.errors import Unrecoverable
from leto.core.failpoints import Park
from leto.core.geometry import Page
from leto.core.layout import TIER2, UNDO, PageClass, gradient_parity, parity_slot, tier1
from leto.core.markers import Mark, Phase, Word
from leto.core.recovery import Action, Decision
from leto.core.repair import RepairPlan, plan_repair, written_by
from leto.core.update_plan import Operation, OpKind, plan_update
from leto.device.host_kernels import HostKernels
from leto.update.executor import PlanExecutor
from leto.update.repair import RepairExecutor
from tests.crash.interleavings import legal_order, next_of
from tests.crash.test_chunk_transactions import PROTECTION, T, counts, rank_of, target_of

H1 = PROTECTION.tier1_pages


@dataclass(kw_only=True)
class Account:
    """What the operations that ran say about one group."""

    parity: str | None = None  # the slot that speaks, None when tier 1 does
    undo_of: int | None = None


@dataclass(kw_only=True)
class Accounts:
    groups: dict[int, Account] = field(default_factory=dict)

    def of(self, group: int) -> Account:
        return self.groups.setdefault(group, Account())

    def add(self, done: Sequence[Operation]) -> None:
        for op in done:
            account = self.of(op.group)
            if op.kind is OpKind.SAVE_UNDO:
                account.undo_of = op.chunk
            elif op.kind is OpKind.COMMIT:
                account.undo_of, account.parity = None, parity_slot(op.target_slot)
            elif op.kind is OpKind.TIER2:
                account.parity = None


def lose(rank: InMemoryRank, pages: set[Page]) -> None:
    """What a trainer that attaches later finds there."""
    for page in pages:
        rank.memory.page(page)[:] = 0


def rows(allocation: str) -> list[Page]:
    return [Page(allocation, row) for row in range(H1)]


def draw_losses(draw: st.DataObject, rank: InMemoryRank, accounts: Accounts, *, updating: bool) -> set[Page]:
    """Pages of every class, within the budget of every code word."""
    lost: set[Page] = set()

    def some(pages: Sequence[Page], most: int) -> set[Page]:
        return draw.draw(st.sets(st.sampled_from(pages), max_size=most)) if pages else set()

    slots = [row for slot in range(rank.coded.protection.parity_slots) for row in rows(parity_slot(slot))]
    free = [Page(UNDO, k) for k in range(PROTECTION.chunk_pages)] + slots
    for group in range(rank.coded.group_count):
        account = accounts.of(group) if updating else Account()
        chunks = {chunk: [p.page for p in rank.coded.chunk_pages(chunk)] for chunk in rank.coded.chunks_of(group)}
        boundary = dict(chunks)
        if account.undo_of is not None:
            boundary[account.undo_of] = [Page(UNDO, k) for k in range(PROTECTION.chunk_pages)]
            free = [page for page in free if page.allocation != UNDO] + chunks[account.undo_of]
        word = [page for pages in boundary.values() for page in pages]
        tiers = [*rows(tier1(group)), Page(TIER2, group)]
        if account.parity is None:
            one_row_more = draw.draw(st.booleans())
            if one_row_more:  # tier 2 gives one row back
                lost |= some(word, H1) | {draw.draw(st.sampled_from(rows(tier1(group))))}
            else:
                lost |= some([*word, *rows(tier1(group))], H1) | some([Page(TIER2, group)], 1)
        else:
            free = [page for page in free if page.allocation != account.parity] + tiers
            lost |= some([*word, *rows(account.parity)], H1)
    for group in range(rank.gradients.group_count):
        word = [p.page for p in rank.gradients.group_pages(group)] + rows(gradient_parity(group))
        lost |= some(word, H1 if updating else len(word))
    return lost | some(free, len(free))


def plan_of(rank: InMemoryRank, decision: Decision, lost: set[Page]) -> RepairPlan:
    return plan_repair(
        coded=rank.coded,
        gradients=rank.gradients,
        classes=rank.classes,
        action=decision.action,
        target=decision.target,
        progress=rank.process().marks.progress(),
        lost=lost,
    )


def repair(rank: InMemoryRank, plan: RepairPlan, stop: int | None = None) -> None:
    parts = rank.process().parts
    RepairExecutor(rank.memory, KERNELS, parts.shape).run(plan.operations[:stop])


def whole_memory(rank: InMemoryRank, without: set[Page]) -> dict[Page, bytes]:
    pages = (Page(name, k) for name, a in rank.memory.arrays.items() for k in range(a.size // PROTECTION.page_bytes))
    return {page: rank.memory.page(page).tobytes() for page in pages if page not in without}


def start(rank: InMemoryRank) -> None:
    process = rank.process()
    process.updater.protect_gradients(T)
    process.begin(T)


def run_to_the_end(rank: InMemoryRank) -> dict[str, bytes]:
    process = rank.process()
    process.updater.run(values(T), process.marks.progress())
    assert process.updater.audit().equal
    return rank.durable()


def run_until(rank: InMemoryRank, where: float, seed: int, accounts: Accounts) -> None:
    """The first part of what is left of the update, in any order that lanes allow; what they are at then is left torn."""
    process = rank.process()
    plan = plan_update(rank.coded, T, process.marks.progress())
    ran = legal_order(plan, Random(seed))[: int(where * len(plan))]
    PlanExecutor(process.parts, values(T)).run(ran)
    accounts.add(ran)
    garbage = np.random.default_rng(seed)
    for op in next_of(plan, {op.index for op in ran}):
        for page in target_of(rank, op):
            rank.memory.page(page)[:] = garbage.integers(0, 256, PROTECTION.page_bytes, dtype=np.uint8)


@settings(max_examples=300, deadline=None)
@given(st.data(), counts, st.booleans(), st.lists(st.floats(0, 1), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_losses_within_the_budget_come_back_bit_for_bit(
    draw: st.DataObject, sizes: list[int], pipelined: bool, crashes: list[float], seed: int
) -> None:
    reference = rank_of(sizes)
    start(reference)
    expected = run_to_the_end(reference)
    rank, accounts, garbage = rank_of(sizes, pipelined=pipelined), Accounts(), np.random.default_rng(seed)
    start(rank)
    for where in crashes:
        run_until(rank, where, seed, accounts)
        decision = rank.crash()
        assert decision.action is Action.FINISH
        lost = draw_losses(draw, rank, accounts, updating=True)
        intact = whole_memory(rank, lost)
        lose(rank, lost)
        interrupt = draw.draw(st.floats(0, 1))
        plan = plan_of(rank, decision, lost)
        stop = int(interrupt * len(plan.operations))
        repair(rank, plan, stop)
        for page in written_by(plan.operations[stop]) if stop < len(plan.operations) else ():
            rank.memory.page(page)[:] = garbage.integers(0, 256, PROTECTION.page_bytes, dtype=np.uint8)
        decision = rank.crash()  # inside the repair: the marks are still there
        repair(rank, plan_of(rank, decision, lost))
        assert whole_memory(rank, lost) == intact
    assert run_to_the_end(rank) == expected


@settings(max_examples=40, deadline=None)
@given(st.data(), counts, st.sampled_from([Phase.COMPLETE, Phase.HEADER, Phase.GRADS_PROTECTED]))
def test_between_updates_tier_1_and_2_speak_and_the_rest_is_left(draw: st.DataObject, sizes: list[int], phase: Phase) -> None:
    rank = rank_of(sizes)
    start(rank)
    expected = run_to_the_end(rank)
    iteration = T if phase is Phase.COMPLETE else T + 1
    rank.process().marks.publish(Word.PHASE, Mark(iteration, phase))
    decision = rank.crash()
    assert (decision.action, decision.iteration) == (Action.RESTART, T + 1)
    lost = draw_losses(draw, rank, Accounts(), updating=False)
    intact = whole_memory(rank, lost)
    lose(rank, lost)
    plan = plan_of(rank, decision, lost)
    repair(rank, plan)
    assert whole_memory(rank, lost) == intact
    assert rank.durable() == expected
    assert rank.process().updater.audit().equal
    assert {page for page, _ in plan.left} == {p for p in lost if rank.classes[p.allocation] in UNNEEDED}


UNNEEDED = {PageClass.UNDO, PageClass.PARITY, PageClass.GRADIENTS, PageClass.GRADIENT_PARITY}


def in_flight(sizes: list[int], chunk: int) -> tuple[InMemoryRank, Decision]:
    """A rank that was killed inside the update of ``chunk``."""
    rank = rank_of(sizes)
    start(rank)
    plan = plan_update(rank.coded, T, rank.process().marks.progress())
    stop = next(op.index for op in plan if op.chunk == chunk and op.kind is OpKind.UPDATE)
    PlanExecutor(rank.process().parts, values(T)).run(plan[:stop])
    for page in target_of(rank, plan[stop]):
        rank.memory.page(page)[:] = 0x5A
    return rank, rank.crash()


SIZES = [3 * 2048 * 2]  # chunks of 2048 elements: six, two a group


def test_every_page_of_the_chunk_in_flight_may_be_lost_while_undo_is_whole() -> None:
    reference = rank_of(SIZES)
    start(reference)
    expected = run_to_the_end(reference)
    rank, decision = in_flight(SIZES, 3)
    lost = {placed.page for placed in rank.coded.chunk_pages(3)}
    assert len(lost) > H1
    lose(rank, lost)
    plan = plan_of(rank, decision, lost)
    assert plan.operations == ()  # it costs no parity (U7)
    assert run_to_the_end(rank) == expected


def in_undo(rank: InMemoryRank) -> list[Page]:
    return [Page(UNDO, k) for k in range(PROTECTION.chunk_pages)]


def of_the_neighbour(rank: InMemoryRank) -> list[Page]:
    return [placed.page for placed in rank.coded.chunk_pages(2)]


def speaking(rank: InMemoryRank) -> list[Page]:
    return rows(parity_slot(1))


def gradients_0(rank: InMemoryRank) -> list[Page]:
    return [placed.page for placed in rank.gradients.group_pages(0)]


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({in_undo: H1 + 1}, "5 of 12 pages of group 1 are lost, 4 solvable"),
        ({of_the_neighbour: H1 + 1}, "5 of 12 pages of group 1 are lost, 4 solvable"),
        ({in_undo: 2, of_the_neighbour: 2, speaking: 1}, "4 of 12 pages of group 1 are lost, 3 solvable"),
        ({speaking: H1, in_undo: 1}, "1 of 12 pages of group 1 are lost, 0 solvable"),
        ({gradients_0: H1 + 1}, "5 of 12 pages of gradient group 0 are lost, 4 solvable"),
    ],
    ids=["undo", "data", "split", "no-parity", "gradients"],
)
def test_one_page_beyond_the_budget_is_refused_and_nothing_is_written(split: dict[object, int], text: str) -> None:
    rank, decision = in_flight(SIZES, 3)
    lost = {page for pages, count in split.items() for page in pages(rank)[:count]}  # type: ignore[operator]
    lost.add(Page(tier1(0), 0))  # could be repaired, and is not
    lose(rank, lost)
    before = whole_memory(rank, set())
    with pytest.raises(Unrecoverable) as refused:
        plan_of(rank, decision, lost)
    assert str(refused.value).startswith(text)
    assert whole_memory(rank, set()) == before
    smaller = lost - {sorted(p for p in lost if p.allocation not in (tier1(0),))[0]}
    repair(rank, plan_of(rank, decision, smaller))  # one fewer is enough


def test_a_corrupt_page_beside_lost_ones_is_refused_by_a_spare_row() -> None:
    rank, decision = in_flight(SIZES, 3)
    lost = {Page(UNDO, 0), Page("master", 4)}
    lose(rank, lost)
    rank.memory.bytes("exp_avg")[4 * PROTECTION.page_bytes + 9] ^= 1
    with pytest.raises(Unrecoverable, match="spare parity row"):
        repair(rank, plan_of(rank, decision, lost))


class DiesAfterEncoding(HostKernels):
    """The process is gone before what was encoded has been copied to where it belongs."""

    def copy_pages(self, source: Sequence[int], target: Sequence[int], page_bytes: int, park: Park | None = None) -> None:
        raise Killed


class Killed(Exception):
    pass


def test_rows_are_encoded_again_without_touching_those_that_still_speak() -> None:
    """The encoder writes all rows: a repair that dies inside it must leave the intact ones whole."""
    rank, decision = in_flight(SIZES, 3)
    lost = {Page(parity_slot(1), 2)}
    lose(rank, lost)
    before = whole_memory(rank, set())
    plan = plan_of(rank, decision, lost)
    with pytest.raises(Killed):
        RepairExecutor(rank.memory, DiesAfterEncoding(), rank.process().parts.shape).run(plan.operations)
    assert whole_memory(rank, set()) == before
    repair(rank, plan)
    assert whole_memory(rank, set()) != before
