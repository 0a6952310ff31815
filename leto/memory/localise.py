"""Finding lost pages without touching any (paper 5.3): code pages of an allocation, by asking about ranges of it.

Device memory is asked page by page, as the mappings of a GPU are; host memory by halving, so that an allocation without a
loss costs one question. A lost operating-system page loses the code page around it (U19).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leto.core.layout import Domain

HasLost = Callable[[int, int], bool]
"""Whether a page of the range (offset, byte_count) is lost."""


def page_by_page(has_lost: HasLost, offset: int, byte_count: int, page_bytes: int) -> Iterator[int]:
    """Indices of the lost pages of an allocation, ascending. The last page may be short."""
    for index, first in enumerate(range(0, byte_count, page_bytes)):
        if has_lost(offset + first, min(page_bytes, byte_count - first)):
            yield index


def by_halving(has_lost: HasLost, offset: int, byte_count: int, page_bytes: int) -> Iterator[int]:
    """The same, with one question where nothing is lost and two for each halving where something is."""
    ranges = [(0, -(-byte_count // page_bytes))]  # a stack, the first pages on top
    while ranges:
        first, stop = ranges.pop()
        begin, end = first * page_bytes, min(stop * page_bytes, byte_count)
        if not has_lost(offset + begin, end - begin):
            continue
        if stop - first == 1:
            yield first
            continue
        middle = (first + stop) // 2
        ranges += [(middle, stop), (first, middle)]


SEARCHES = {Domain.DEVICE: page_by_page, Domain.HOST: by_halving}
