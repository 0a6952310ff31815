"""Lost pages as recorded: exactly those that the bench lost are found, and rebuilt before anybody trains on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verify.checkers import REFUSED, CheckResult, Judgement, outcome_in
from verify.history import Entry

_NAME = "losses"


@dataclass
class _Count:
    """What was lost, what of it is still to be found and rebuilt, and what that took of the parity."""

    pages: int = 0
    unseen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # by rank, no failure since they were lost
    lost: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # by rank, not rebuilt yet
    found: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # by rank, as localised last
    budgets: list[Mapping[str, Any]] = field(default_factory=list)
    mirrors: int = 0  # most mirrors of a marker lost at once, and carried over from the others


def losses_repaired(history: Sequence[Entry], *, refusal: bool = False) -> CheckResult:
    """Every loss is followed by a localisation of exactly the pages lost and not yet rebuilt, and by their repair before the
    recovery ends. Where a refusal is expected, being found is enough.
    """
    count = _Count()
    for entry in history:
        wrong = _follow(count, entry)
        if wrong:
            return CheckResult(name=_NAME, judgement=Judgement.FALSE, reason=wrong)
    _due(count)
    open_ranks = [rank for rank, pages in count.lost.items() if pages]
    refused = refusal and outcome_in(history)[0] == REFUSED
    for rank in open_ranks:
        if not refused or count.found[rank] != count.lost[rank]:
            reason = f"the run ended before {_state(count, rank)}"
            return CheckResult(name=_NAME, judgement=Judgement.UNKNOWN, reason=reason)
    if open_ranks:
        reason = f"{count.pages} of {count.pages} lost pages found; the job refused before any was rebuilt"
        return CheckResult(name=_NAME, judgement=Judgement.TRUE, reason=reason, details={"pages": count.pages})
    mirrors = f"; at most {count.mirrors} mirrors of a marker lost" if count.mirrors else ""
    reason = f"{count.pages} of {count.pages} lost pages found and rebuilt; {_used(count.budgets)}{mirrors}"
    return CheckResult(name=_NAME, judgement=Judgement.TRUE, reason=reason, details={"pages": count.pages})


def _state(count: _Count, rank: int) -> str:
    """``12 lost pages of rank 1 were found``, for what did not happen to them."""
    what = "rebuilt" if count.found[rank] == count.lost[rank] else "found"
    return f"{len(count.lost[rank])} lost pages of rank {rank} were {what}"


def _follow(count: _Count, entry: Entry) -> str:
    """What is wrong with the entry after those before it, "" when nothing."""
    f = entry.fields
    if entry.name == "lose":
        count.pages += len(f["pages"])
        count.unseen[f["rank"]] |= set(f["pages"])
    elif entry.name == "failure":  # what was lost before it is this failure's, and no business of an earlier recovery's
        _due(count)
    elif entry.name == "localised":
        count.found[f["rank"]] = set(f["pages"])
        return _difference(f["rank"], count.lost[f["rank"]], count.found[f["rank"]])
    elif entry.name == "repaired":
        return _repaired(count, f)
    elif entry.name == "carried":
        return _carried(count, f)
    elif entry.name == "recovered":
        left = next((rank for rank, pages in count.lost.items() if pages), None)
        return "" if left is None else f"epoch {f['epoch']} recovered before {_state(count, left)}"
    return ""


def _due(count: _Count) -> None:
    for rank, pages in count.unseen.items():
        count.lost[rank] |= pages
    count.unseen.clear()


def _difference(rank: int, lost: set[str], found: set[str]) -> str:
    for what, pages in (("lost pages were not found", lost - found), ("pages were found that are not lost", found - lost)):
        if pages:
            return f"rank {rank}: {len(pages)} {what}, first {min(pages)}"
    return ""


def _repaired(count: _Count, f: Mapping[str, Any]) -> str:
    lost, found = count.lost[f["rank"]], count.found[f["rank"]]
    if f["pages"] != len(lost) or lost != found:
        return f"rank {f['rank']} repaired {f['pages']} pages, {len(lost)} were lost and {len(found)} found"
    count.lost[f["rank"]], count.found[f["rank"]] = set(), set()
    count.budgets += f["budgets"]
    return ""


def _carried(count: _Count, f: Mapping[str, Any]) -> str:
    """Lost mirrors of a marker are not rebuilt: fresh marker pages say what the others said."""
    pages, found = set(f["pages"]), count.found[f["rank"]]
    if not pages <= found:
        return f"rank {f['rank']} carried over {min(pages - found)}, which was not found to be lost"
    count.lost[f["rank"]] -= pages
    found -= pages
    count.mirrors = max(count.mirrors, len(pages))
    return ""


def _used(budgets: Sequence[Mapping[str, Any]]) -> str:
    """``at most 16 of 16 rows used, no check possible in 3 of 8 code words``"""
    if not budgets:
        return "no parity was needed"
    most = max(budgets, key=lambda b: b["lost_pages"] + b["lost_rows"])
    unchecked = sum(b["spare_rows"] == 0 for b in budgets)
    used = f"at most {most['lost_pages'] + most['lost_rows']} of {most['rows']} rows of a code word used"
    return f"{used}, no check possible in {unchecked} of {len(budgets)} code words"
