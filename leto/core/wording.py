"""Words for what a person got wrong."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def one_of(known: Sequence[str], given: str) -> str:
    """``known: a, b, c (did you mean b?)``"""
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    return f"known: {', '.join(known)}" + (f" (did you mean {close[0]}?)" if close else "")


def numbered(noun: str, numbers: range) -> str:
    """``chunks 0 to 4``, ``chunk 0 only``; of at least one number."""
    first, last = numbers[0], numbers[-1]
    return f"{noun}s {first} to {last}" if last > first else f"{noun} {first} only"
