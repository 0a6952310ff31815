"""The explorer's check: which of its checkers was the first to find something wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import numpy as np

from chaos.explore.campaign import Result, run_campaign
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.least import least
from chaos.explore.products import Products
from chaos.explore.shapes import SHAPES

DRAWN_FIRST = 40
"""Cases that find most bugs: anything may be lost in them, and anybody may die twice."""
POINTS = 200
"""Drawn beyond every crash point once, for the bugs that are left."""

_WORDS = (
    (r"\bViolated: (INV-\w+)", r"\1"),
    (r"\bends with other bytes\b", "bytes"),
    (r"\bends with another HEADER\b", "header"),
    (r"\btells other results\b", "results"),
    (r"\bwent on although it had to refuse\b|\brefused with\b|\bbefore it refused\b", "refusal"),
    (r"\bwithout any marker of a rank\b", "guess"),
    (r"\bmay run together and touch\b", "lanes"),
    (r"\bUnrecoverable: spare parity row\b", "spare row"),
    (r"\bUnrecoverable: ", "refused"),
    (r"\bProtocolViolation: ", "protocol"),
)
"""How a failure reads, and the checker that speaks so."""


class Crashed(Exception):
    """Planted code failed by itself: no checker has said anything."""


class _Found(Exception):
    """The first failure: the rest is not explored."""


def first_failure(shape: str) -> str | None:
    """The checker that fires first, None when nothing is found. Raises Crashed for a failure that is no checker's word."""
    return _checker(lambda: _of_draws_and_campaign(Explorer(SHAPES[shape])))


def first_violation(shape: str) -> str | None:
    """The same, of the job without crashes alone: invariants and lanes are judged in every state that a crash can leave."""

    def record() -> None:
        Explorer(SHAPES[shape])

    return _checker(record)


def _checker(message_of: Callable[[], str | None]) -> str | None:
    with np.errstate(all="ignore"):  # bugs make numbers that are none, which is for checkers to say
        try:
            message = message_of()
        except Failed as failure:  # the job without crashes shows it already
            message = str(failure)
    return None if message is None else checker_of(message)


def checker_of(message: str) -> str:
    """Raises Crashed."""
    for pattern, word in _WORDS:
        match = re.search(pattern, message)
        if match is not None:
            return match.expand(word)
    raise Crashed(message)


def _of_draws_and_campaign(explorer: Explorer) -> str | None:
    return _of_draws(explorer) or _of_campaign(explorer)


def _of_draws(explorer: Explorer) -> str | None:
    products = Products(explorer)
    for n in range(DRAWN_FIRST):
        case = products.draw(Random(n))
        message = explorer.fails(case)
        if message is not None:
            return least(explorer, case, message).message  # as a campaign would tell it
    return None


def _of_campaign(explorer: Explorer) -> str | None:
    found: list[Result] = []

    def stop_at_the_first(result: Result) -> None:
        if result.failures:
            found.append(result)
            raise _Found

    try:
        result = run_campaign(explorer, exhaustive=False, points=POINTS, seed=0, tick=stop_at_the_first)
    except _Found:
        (result,) = found
    return result.failures[0].message if result.failures else result.unlike_plan
