"""The repair plan, row by row: which parity speaks, what is solved from what, what is left alone and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leto.core.errors import Unrecoverable
from leto.core.geometry import CODED_ARRAYS, CodedGeometry, GradientGeometry, Page, PlacedPage, Protection, Segment
from leto.core.layout import HEADER_RECORDS, TIER2, UNDO, PageClass, gradient_parity, parity_slot, tier1, updater_allocations
from leto.core.markers import STEPS_PER_CHUNK, Phase, Progress, StepDone
from leto.core.recovery import Action
from leto.core.repair import Budget, CopyPages, EncodeRows, Reconstruct, RepairPlan, XorPages, plan_repair

PROTECTION = Protection(page_bytes=4096, data_pages=6, tier1_pages=3, tier2_pages=1, chunk_pages=3)
CHUNK = 1024  # elements: one page of each array, two chunks a group
CODED = CodedGeometry(
    protection=PROTECTION, segments=(Segment(name="p", first=0, count=4 * CHUNK, optimizer=0, param_group=0),)
)
GRADIENTS = GradientGeometry(protection=PROTECTION, pages=tuple(Page("gradients/dense0", k) for k in (1, 2, 3, 4)))
CLASSES = {a.name: a.page_class for a in updater_allocations(CODED, GRADIENTS, 4096)} | {
    "gradients/dense0": PageClass.GRADIENTS,
    "derived/dense0": PageClass.DERIVED,
}
T = 7
Q0, Q1 = parity_slot(0), parity_slot(1)


def at(*, committed: int = 0, in_flight: int | None = None, fetched: int = 1, written_back: int = 0) -> Progress:
    """A rank inside update T; chunks are counted over all groups."""
    step = STEPS_PER_CHUNK * committed
    if committed:
        step = STEPS_PER_CHUNK * (committed - 1) + StepDone.COMMITTED
    if in_flight is not None:
        step = STEPS_PER_CHUNK * in_flight + StepDone.UPDATED
    return Progress(phase=Phase.BEGIN, iteration=T, step=step, fetched=fetched, written_back=written_back)


def plan(
    *lost: Page,
    progress: Progress | None = None,
    action: Action = Action.FINISH,
    target: int = T,
    skipped: bool = False,
) -> RepairPlan:
    return plan_repair(
        coded=CODED,
        gradients=GRADIENTS,
        classes=CLASSES,
        action=action,
        target=target,
        progress=progress or Progress(phase=Phase.COMPLETE, iteration=T),
        lost=set(lost),
        skipped=skipped,
    )


def rows(allocation: str, *but: int) -> tuple[Page, ...]:
    return tuple(Page(allocation, row) for row in range(3) if row not in but)


def group_pages(group: int, *but: Page) -> tuple[PlacedPage, ...]:
    return tuple(placed for placed in CODED.group_pages(group) if placed.page not in but)


def kinds(repair: RepairPlan) -> list[str]:
    return [type(operation).__name__ for operation in repair.operations]


def solved(repair: RepairPlan) -> Reconstruct:
    (operation,) = [op for op in repair.operations if isinstance(op, Reconstruct)]
    return operation


def left(repair: RepairPlan) -> dict[Page, str]:
    return dict(repair.left)


def test_nothing_lost_is_nothing_to_do() -> None:
    assert plan() == RepairPlan(operations=(), budgets=(), left=())


# Between updates tier 1 speaks.


@pytest.mark.parametrize(
    ("progress", "action", "target"),
    [
        (Progress(phase=Phase.COMPLETE, iteration=T), Action.FINISH, T),
        (Progress(phase=Phase.HEADER, iteration=T + 1), Action.FINISH, T),
        (Progress(phase=Phase.HEADER, iteration=T + 1), Action.RESTART, T),
        (Progress(phase=Phase.COMPLETE, iteration=T), Action.RESTART, T),
        (Progress(phase=Phase.HEADER, iteration=T + 1), Action.ENDED, T),
    ],
)
def test_at_rest_data_are_solved_from_tier_1_and_nothing_lent_is_touched(
    progress: Progress, action: Action, target: int
) -> None:
    data = Page("exp_avg", 2)
    lent = (Page(UNDO, 0), Page(Q0, 1), Page(Q1, 2), Page("gradients/dense0", 1), Page(gradient_parity(0), 0))
    repair = plan(data, *lent, progress=progress, action=action, target=target)
    assert repair.operations == (
        Reconstruct(
            target=(PlacedPage(1, data),),
            data=group_pages(1, data),
            rows=(0, 1, 2),
            parity=rows(tier1(1)),
            reason="group 1: 1 pages and 0 rows lost, 3 solvable; checked by 2 spare rows",
        ),
    )
    assert left(repair).keys() == set(lent)


def test_tier_2_gives_one_row_back_and_the_row_is_checked() -> None:
    repair = plan(Page(tier1(0), 1))
    assert repair.operations == (
        XorPages(
            target=Page(tier1(0), 1),
            sources=(Page(TIER2, 0), *rows(tier1(0), 1)),
            reason="tier-1 row 1 of group 0 from tier 2",
        ),
        Reconstruct(
            target=(),
            data=group_pages(0),
            rows=(0, 1, 2),
            parity=rows(tier1(0)),
            reason="group 0: 0 pages and 0 rows lost, 3 solvable; checked by 3 spare rows",
        ),
    )


def test_tier_2_repairs_tier_1_before_tier_1_repairs_data() -> None:
    """Three pages and a row: one too many without tier 2."""
    lost = [placed.page for placed in CODED.group_pages(0)[:3]]
    repair = plan(Page(tier1(0), 2), *lost)
    assert kinds(repair) == ["XorPages", "Reconstruct"]
    assert repair.budgets == (Budget(code_word="group 0", pages=6, lost_pages=3, lost_rows=0, rows=3),)
    assert repair.budgets[0].describe() == "group 0: 3 pages and 0 rows lost, 3 solvable; no check possible"


@pytest.mark.parametrize("second", [Page(TIER2, 0), Page(tier1(0), 0)], ids=["with-tier2", "two-rows"])
def test_what_tier_2_cannot_give_back_is_encoded_again_from_the_data(second: Page) -> None:
    repair = plan(Page(tier1(0), 1), second)
    encode = next(op for op in repair.operations if isinstance(op, EncodeRows))
    lost_rows = tuple(sorted(page for page in (second, Page(tier1(0), 1)) if page.allocation == tier1(0)))
    assert encode.target == lost_rows
    assert encode.rows == tuple(page.page_index for page in lost_rows)
    assert encode.data == group_pages(0)
    assert solved(repair).rows == tuple(row for row in range(3) if row not in encode.rows)
    expected = ["Reconstruct", "EncodeRows"] + (["XorPages"] if second.allocation == TIER2 else [])
    assert kinds(repair) == expected


def test_a_lost_tier_2_page_is_made_again_from_the_rows() -> None:
    repair = plan(Page(TIER2, 1))
    assert repair.operations == (
        XorPages(target=Page(TIER2, 1), sources=rows(tier1(1)), reason="tier 2 of group 1 from its rows"),
    )
    assert repair.budgets == ()


# Inside the update.


def test_without_a_commit_tier_1_speaks_and_a_fetched_buffer_is_its_copy() -> None:
    data = Page("master", 1)
    repair = plan(data, Page(Q0, 0), Page(Q0, 2), Page(Q1, 1), progress=at(in_flight=None))
    assert repair.operations == (
        Reconstruct(
            target=(PlacedPage(3, data),),
            data=group_pages(0, data),
            rows=(0, 1, 2),
            parity=rows(tier1(0)),
            reason="group 0: 1 pages and 0 rows lost, 3 solvable; checked by 2 spare rows",
        ),
        CopyPages(
            source=(Page(tier1(0), 0), Page(tier1(0), 2)),
            target=(Page(Q0, 0), Page(Q0, 2)),
            reason="2 fetched rows of group 0 from tier 1",
        ),
    )
    assert left(repair) == {Page(Q1, 1): "this parity buffer does not speak"}


def test_a_buffer_that_was_not_fetched_is_left() -> None:
    repair = plan(Page(Q0, 0), progress=at(fetched=0))
    assert (repair.operations, left(repair)) == ((), {Page(Q0, 0): "this parity buffer does not speak"})


@pytest.mark.parametrize(("committed", "speaks", "scratch"), [(1, Q1, Q0), (2, Q0, Q1)])
def test_after_a_commit_the_parity_buffer_speaks_and_both_tiers_are_left(committed: int, speaks: str, scratch: str) -> None:
    data = Page("master", 0)
    tiers = (Page(tier1(0), 0), Page(tier1(0), 1), Page(TIER2, 0))
    repair = plan(data, *tiers, Page(scratch, 1), Page(speaks, 2), progress=at(committed=committed))
    assert solved(repair).parity == rows(speaks, 2)
    assert kinds(repair) == ["Reconstruct", "EncodeRows"]
    assert repair.budgets == (Budget(code_word="group 0", pages=6, lost_pages=1, lost_rows=1, rows=3),)
    assert left(repair) == {
        **dict.fromkeys(tiers, "written back from the parity buffer, which speaks"),
        Page(scratch, 1): "this parity buffer does not speak",
    }


def test_in_a_pipelined_update_every_group_is_asked_by_itself() -> None:
    """U35: group 0 is written back, 1 and 2 are committed, 3 is begun with a chunk in flight, none is like another."""
    coded = CodedGeometry(
        protection=replace(PROTECTION, pipelined=True),
        segments=(Segment(name="p", first=0, count=9 * CHUNK, optimizer=0, param_group=0),),
    )
    lost = [Page("master", 2 * group) for group in range(4)]  # the first page of every group
    rows_too = [Page(parity_slot(slot), 1) for slot in range(4)] + [Page(tier1(group), 0) for group in range(5)]
    repair = plan_repair(
        coded=coded,
        gradients=GRADIENTS,
        classes={a.name: a.page_class for a in updater_allocations(coded, GRADIENTS, 4096)},
        action=Action.FINISH,
        target=T,
        progress=at(committed=7, in_flight=7, fetched=4, written_back=1),
        lost={*lost, *rows_too},
    )
    speaks = {op.parity[0].allocation: [p.page for p in op.target] for op in repair.operations if isinstance(op, Reconstruct)}
    homes, scratch = [parity_slot(slot) for slot in (0, 1, 2)], parity_slot(3)
    # Two commits end in the home, which is 0, 1 or 2 in turn; after one commit group 3 speaks from the scratch.
    assert speaks == dict(zip([tier1(0), homes[1], homes[2], scratch, tier1(4)], [*([p] for p in lost), []], strict=True))
    assert left(repair) == {
        Page(homes[0], 1): "this parity buffer does not speak",  # the home of group 3, whose first commit went to the scratch
        **{Page(tier1(g), 0): "written back from the parity buffer, which speaks" for g in (1, 2, 3)},
    }


def test_what_is_fetched_ahead_is_copied_again() -> None:
    """Three groups are fetched before the first commit, with the first chunk in flight."""
    coded = CodedGeometry(
        protection=replace(PROTECTION, pipelined=True),
        segments=(Segment(name="p", first=0, count=6 * CHUNK, optimizer=0, param_group=0),),
    )
    repair = plan_repair(
        coded=coded,
        gradients=GRADIENTS,
        classes={a.name: a.page_class for a in updater_allocations(coded, GRADIENTS, 4096)},
        action=Action.FINISH,
        target=T,
        progress=at(in_flight=0, fetched=2),
        lost={Page(UNDO, 0), *(Page(parity_slot(slot), 2) for slot in range(4))},
    )
    (undo,) = [op for op in repair.operations if isinstance(op, Reconstruct) and op.target]
    assert (undo.target, undo.parity) == ((PlacedPage(0, Page(UNDO, 0)),), rows(tier1(0)))
    copies = {op.source: op.target for op in repair.operations if isinstance(op, CopyPages)}
    assert copies == {(Page(tier1(g), 2),): (Page(parity_slot(g), 2),) for g in (0, 1)}
    assert set(left(repair)) == {Page(parity_slot(2), 2), Page(parity_slot(3), 2)}


def test_a_group_that_is_written_back_and_one_that_is_not_reached_stand_on_tier_1() -> None:
    lost = (Page("master", 0), Page("master", 3), Page(tier1(0), 0), Page(tier1(1), 0))
    repair = plan(*lost, progress=at(committed=2, written_back=1))
    assert kinds(repair) == ["XorPages", "Reconstruct", "XorPages", "Reconstruct"]
    assert [op.parity for op in repair.operations if isinstance(op, Reconstruct)] == [rows(tier1(0)), rows(tier1(1))]


def test_pages_of_the_chunk_in_flight_cost_nothing_while_undo_is_whole() -> None:
    lost = tuple(Page(name, 1) for name in CODED_ARRAYS)
    repair = plan(*lost, progress=at(committed=1, in_flight=1))
    assert repair.operations == ()
    assert left(repair) == dict.fromkeys(lost, "chunk 1 is in flight and restored from undo")


def test_a_lost_undo_page_is_solved_in_the_column_of_the_page_it_stands_for() -> None:
    repair = plan(Page(UNDO, 2), Page("exp_avg", 0), Page("exp_avg_sq", 1), progress=at(committed=1, in_flight=1))
    operation = solved(repair)
    assert operation.target == (PlacedPage(1, Page("exp_avg", 0)), PlacedPage(5, Page(UNDO, 2)))
    assert operation.parity == rows(Q1)
    assert {placed.page.allocation for placed in operation.data if placed.column >= 3} == {UNDO}
    assert left(repair).keys() == {Page("exp_avg_sq", 1)}


def test_undo_is_nothing_when_no_chunk_is_in_flight() -> None:
    repair = plan(Page(UNDO, 1), progress=at(committed=1))
    assert (repair.operations, left(repair)) == ((), {Page(UNDO, 1): "no chunk is in flight"})


@pytest.mark.parametrize(
    "progress", [at(fetched=0), Progress(phase=Phase.GRADS_PROTECTED, iteration=T)], ids=["begun", "not-begun"]
)
def test_gradients_that_the_update_reads_are_solved_and_their_parity_is_made_again(progress: Progress) -> None:
    lost = (Page("gradients/dense0", 2), Page(gradient_parity(0), 1))
    not_owned = Page("gradients/dense0", 0)
    repair = plan(*lost, not_owned, Page("derived/dense0", 3), progress=progress)
    operation = solved(repair)
    assert operation.target == (PlacedPage(1, lost[0]),)
    assert operation.rows == (0, 2)
    assert repair.operations[1:] == (
        EncodeRows(
            rows=(1,),
            target=(lost[1],),
            data=GRADIENTS.group_pages(0),
            reason="1 rows of gradient-parity/0 from the data of gradient group 0",
        ),
    )
    assert left(repair) == {not_owned: "no update reads it", Page("derived/dense0", 3): "cast and gathered again"}


def test_a_skipped_step_needs_no_gradients() -> None:
    """U25: gradients and their parity lost beyond the budget are no reason to refuse what would not read them."""
    gradients = {Page("gradients/dense0", k) for k in (1, 2, 3, 4)}
    parity = set(rows(gradient_parity(0)))
    begun = at(fetched=0)
    with pytest.raises(Unrecoverable, match="4 of 4 pages of gradient group 0"):
        plan(*gradients, *parity, progress=begun)
    repair = plan(*gradients, *parity, progress=begun, skipped=True)
    assert repair.operations == ()
    expected = dict.fromkeys(gradients, "no update reads it") | dict.fromkeys(parity, "no update reads its gradients")
    assert left(repair) == expected


def test_a_skipped_step_leaves_tier_1_speaking_for_every_group() -> None:
    coded = Page("master", 0)
    assert plan(coded, progress=at(fetched=0), skipped=True).operations == plan(coded).operations


# Refusal.


@pytest.mark.parametrize(
    ("lost", "progress", "text"),
    [
        (group_pages(0)[:4], None, "4 of 6 pages of group 0 are lost, 3 solvable"),
        (
            (*group_pages(0)[:2], PlacedPage(0, Page(Q1, 0)), PlacedPage(0, Page(Q1, 2))),
            at(committed=1),
            "2 of 6 pages of group 0 are lost, 1 solvable (2 of 3 parity rows are lost)",
        ),
        (
            tuple(PlacedPage(0, page) for page in (*GRADIENTS.pages[:3], Page(gradient_parity(0), 0))),
            at(fetched=0),
            "3 of 4 pages of gradient group 0 are lost, 2 solvable (1 of 3 parity rows are lost)",
        ),
        ((PlacedPage(0, Page(HEADER_RECORDS, 0)),), None, "page 0 of record/header is lost: records have no parity"),
    ],
    ids=["data", "split", "gradients", "records"],
)
def test_what_cannot_be_solved_is_named_and_counted(lost: tuple[PlacedPage, ...], progress: Progress | None, text: str) -> None:
    with pytest.raises(Unrecoverable) as refused:
        plan(*(placed.page for placed in lost), progress=progress)
    assert str(refused.value) == text


def test_old_tier_1_does_not_speak_for_a_group_with_a_commit() -> None:
    """All of Q is lost and a data page with it: H is whole, and it is the parity of what was before (U9)."""
    with pytest.raises(Unrecoverable, match="1 of 6 pages of group 0 are lost, 0 solvable"):
        plan(*rows(Q1), Page("master", 0), progress=at(committed=1))


def test_a_cold_start_needs_nothing() -> None:
    repair = plan(Page("master", 0), Page(HEADER_RECORDS, 0), action=Action.COLD, target=0)
    assert repair.operations == ()
    assert set(left(repair).values()) == {"a cold start builds everything from the seed"}


def test_without_tier_2_a_lost_row_is_a_lost_row() -> None:
    protection = Protection(page_bytes=4096, data_pages=6, tier1_pages=3, tier2_pages=0, chunk_pages=3)
    coded = CodedGeometry(protection=protection, segments=CODED.segments)
    repair = plan_repair(
        coded=coded,
        gradients=GRADIENTS,
        classes=CLASSES,
        action=Action.RESTART,
        target=T,
        progress=Progress(phase=Phase.COMPLETE, iteration=T),
        lost={Page(tier1(0), 0)},
    )
    assert kinds(repair) == ["Reconstruct", "EncodeRows"]
