"""Losses as recorded: found exactly, rebuilt before training goes on, and what that took of the parity."""

from typing import Any

import pytest
from test_checkers import DECIDED, DONE, FAILURE, FENCED, KILLED, RECOVERED, history

from verify.checkers import CheckResult, Judgement
from verify.losses import losses_repaired

Named = tuple[str, dict[str, Any]]


def lose(*pages: str, rank: int = 0) -> Named:
    return "lose", {"token": 1, "rank": rank, "page_class": "coded", "pages": list(pages)}


def localised(*pages: str, rank: int = 0) -> Named:
    return "localised", {
        "rank": rank,
        "pages": list(pages),
        "found": len(pages),
        "lost": len(pages),
        "epoch": 1,
        "seconds": 0.1,
    }


def repaired(pages: int, rank: int = 0, rows: int = 4) -> Named:
    budget = {"code_word": "group 0", "pages": 6, "lost_pages": pages, "lost_rows": 0, "rows": rows, "spare_rows": rows - pages}
    return "repaired", {"rank": rank, "pages": pages, "rebuilt": pages, "budgets": [budget], "epoch": 2}


REFUSED = ("outcome", {"status": "refused", "reason": "unrecoverable"})


def judged(*middle: Named, end: Named = DONE, refusal: bool = False) -> CheckResult:
    return losses_repaired(history(*middle, end), refusal=refusal)


def recovery(*after_fence: Named) -> tuple[Named, ...]:
    return (KILLED, FAILURE, FENCED, *after_fence)


def test_found_and_rebuilt_with_the_budget_that_took() -> None:
    result = judged(lose("a:1", "a:2"), *recovery(localised("a:1", "a:2"), DECIDED, repaired(2), RECOVERED))
    assert result.judgement is Judgement.TRUE
    assert result.reason == (
        "2 of 2 lost pages found and rebuilt; at most 2 of 4 rows of a code word used, no check possible in 0 of 1 code words"
    )


def carried(*pages: str, rank: int = 0) -> Named:
    return "carried", {"rank": rank, "pages": list(pages), "epoch": 2}


def test_lost_mirrors_are_carried_over_and_not_rebuilt() -> None:
    lost = lose("a:1", "markers:0", "markers:2")
    found = localised("a:1", "markers:0", "markers:2")
    result = judged(lost, *recovery(found, DECIDED, carried("markers:0", "markers:2"), repaired(1), RECOVERED))
    assert result.judgement is Judgement.TRUE
    assert result.reason.startswith("3 of 3 lost pages found and rebuilt;")
    assert result.reason.endswith("; at most 2 mirrors of a marker lost")


def test_a_lost_mirror_that_is_not_carried_over_fails() -> None:
    result = judged(lose("markers:1"), *recovery(localised("markers:1"), DECIDED, RECOVERED))
    assert result.judgement is Judgement.FALSE
    assert result.reason == "epoch 2 recovered before 1 lost pages of rank 0 were rebuilt"


def test_only_what_was_found_to_be_lost_is_carried_over() -> None:
    result = judged(lose("markers:1"), *recovery(localised("markers:1"), DECIDED, carried("markers:2"), RECOVERED))
    assert result.reason == "rank 0 carried over markers:2, which was not found to be lost"


def test_a_budget_without_a_spare_row_is_counted() -> None:
    result = judged(lose("a:1", "a:2"), *recovery(localised("a:1", "a:2"), DECIDED, repaired(2, rows=2), RECOVERED))
    assert result.reason.endswith("at most 2 of 2 rows of a code word used, no check possible in 1 of 1 code words")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (("a:1",), "rank 0: 1 lost pages were not found, first a:2"),
        (("a:1", "a:2", "b:7"), "rank 0: 1 pages were found that are not lost, first b:7"),
        ((), "epoch 2 recovered before 2 lost pages of rank 0 were found"),
    ],
)
def test_other_pages_than_the_lost_ones_are_false(found: tuple[str, ...], reason: str) -> None:
    events = [localised(*found)] if found else []
    result = judged(lose("a:1", "a:2"), *recovery(*events, DECIDED, RECOVERED))
    assert (result.judgement, result.reason) == (Judgement.FALSE, reason)


def test_a_recovery_that_goes_on_without_rebuilding_is_false() -> None:
    result = judged(lose("a:1"), *recovery(localised("a:1"), DECIDED, RECOVERED))
    assert (result.judgement, result.reason) == (
        Judgement.FALSE,
        "epoch 2 recovered before 1 lost pages of rank 0 were rebuilt",
    )


def test_a_repair_of_more_than_was_lost_is_false() -> None:
    result = judged(lose("a:1"), *recovery(localised("a:1"), DECIDED, repaired(2), RECOVERED))
    assert (result.judgement, result.reason) == (Judgement.FALSE, "rank 0 repaired 2 pages, 1 were lost and 1 found")


def test_a_loss_on_one_rank_is_not_made_good_on_another() -> None:
    result = judged(lose("a:1", rank=1), *recovery(localised("a:1", rank=0), DECIDED, repaired(1), RECOVERED))
    assert (result.judgement, result.reason) == (Judgement.FALSE, "rank 0: 1 pages were found that are not lost, first a:1")


def test_marks_of_a_repair_that_was_hit_stay_until_it_is_done() -> None:
    """U36: the second failure comes before the repair, with a loss of its own; both are found again together."""
    first = recovery(localised("a:1"), DECIDED)
    second = recovery(localised("a:1", "a:2"), DECIDED, repaired(2), RECOVERED)
    assert judged(lose("a:1"), *first, lose("a:2"), *second).judgement is Judgement.TRUE
    forgotten = recovery(localised("a:2"), DECIDED, repaired(1), RECOVERED)
    assert judged(lose("a:1"), *first, lose("a:2"), *forgotten).judgement is Judgement.FALSE


def test_what_is_refused_must_have_been_found() -> None:
    result = judged(lose("a:1"), *recovery(localised("a:1"), DECIDED), end=REFUSED, refusal=True)
    assert (result.judgement, result.reason) == (
        Judgement.TRUE,
        "1 of 1 lost pages found; the job refused before any was rebuilt",
    )
    unfound = judged(lose("a:1"), *recovery(DECIDED), end=REFUSED, refusal=True)
    assert (unfound.judgement, unfound.reason) == (
        Judgement.UNKNOWN,
        "the run ended before 1 lost pages of rank 0 were found",
    )


def test_a_refusal_that_nobody_expected_leaves_losses_open() -> None:
    assert judged(lose("a:1"), *recovery(localised("a:1"), DECIDED), end=REFUSED).judgement is Judgement.UNKNOWN
    assert judged(lose("a:1"), *recovery(localised("a:1"), DECIDED), refusal=True).judgement is Judgement.UNKNOWN


def test_a_recovery_that_is_told_after_the_next_loss_is_not_that_losss() -> None:
    """A rank can park for the next fault before the bench has read that its recovery is over."""
    first = (lose("a:1"), KILLED, FAILURE, FENCED, localised("a:1"), DECIDED, repaired(1))
    second = (lose("a:2"), KILLED, RECOVERED, FAILURE, FENCED, localised("a:2"), DECIDED, repaired(1), RECOVERED)
    assert judged(*first, *second).judgement is Judgement.TRUE
    unrepaired = (lose("a:2"), KILLED, RECOVERED, FAILURE, FENCED, localised("a:2"), DECIDED, RECOVERED)
    assert judged(*first, *unrepaired).judgement is Judgement.FALSE
