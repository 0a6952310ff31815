"""The explorer's check: which of its checkers was the first to find something wrong."""

from __future__ import annotations

import re

import numpy as np

from chaos.explore.campaign import Result, run_campaign
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.shapes import SHAPES

SHAPE = "narrow"
POINTS = 200
"""Drawn beyond every crash point once: the second crashes are among them."""

_WORDS = (
    (r"\bViolated: (INV-\w+)", r"\1"),
    (r"\bends with other bytes\b", "bytes"),
    (r"\bends with another HEADER\b", "header"),
    (r"\btells other results\b", "results"),
    (r"\bwent on although it had to refuse\b|\brefused with\b|\bbefore it refused\b", "refusal"),
    (r"\bUnrecoverable: spare parity row\b", "spare row"),
    (r"\bUnrecoverable: ", "refused"),
    (r"\bProtocolViolation: ", "protocol"),
)
"""How a failure reads, and the checker that speaks so."""


class Crashed(Exception):
    """Planted code failed by itself: no checker has said anything."""


class _Found(Exception):
    """The first failure: the rest is not explored."""


def first_failure() -> str | None:
    """The checker that fires first, None when nothing is found. Raises Crashed for a failure that is no checker's word."""
    with np.errstate(all="ignore"):  # bugs make numbers that are none, which is for checkers to say
        message = _message()
    return None if message is None else checker_of(message)


def checker_of(message: str) -> str:
    """Raises Crashed."""
    for pattern, word in _WORDS:
        match = re.search(pattern, message)
        if match is not None:
            return match.expand(word)
    raise Crashed(message)


def _message() -> str | None:
    found: list[Result] = []

    def stop_at_the_first(result: Result) -> None:
        if result.failures:
            found.append(result)
            raise _Found

    try:
        explorer = Explorer(SHAPES[SHAPE])
        result = run_campaign(explorer, exhaustive=False, points=POINTS, seed=0, tick=stop_at_the_first)
    except Failed as failure:  # the job without crashes shows it already
        return str(failure)
    except _Found:
        (result,) = found
    return result.failures[0].message if result.failures else result.unlike_plan
