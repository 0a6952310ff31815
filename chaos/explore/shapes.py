"""Small jobs to explore: parameters that end inside chunks, groups that end inside the code, four parity rows.

narrow      chunks 3 + 3 + 1, less undo than parity
wide        chunks 2 + 1, more undo than parity
untiered    chunks 2 + 1, no tier 2
skipping    chunks 2 + 1, iteration 2 is skipped and iteration 3 is not
fused       chunks 2 + 1, a chunk and its parity are updated in one pass
pipelined   chunks 2 + 2 + 2 + 1 in one pass each, two lanes over a ring of four parity slots, of which group 3 fills the first
            one again
muon        chunks 2 + 2 + 1: one of AdamW in one pass, two of Muon's momentum, two of its masters; the first of two holds a
            whole matrix and the beginning of another one (U32)
"""

from __future__ import annotations

from dataclasses import dataclass

from leto.core.errors import ConfigError
from leto.core.geometry import Matrix, Protection, Segment

PAGE_BYTES = 4096
CHUNK_ELEMENTS = 1024
"""Of a chunk with one page of each array."""
H1 = 4
SPANS = (1500, 1000)
"""Elements of the first parameters; one more takes the rest."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Segments and matrices under a code, trained for ``iterations``, of which ``skips`` apply no update (U25).

    Explored are the cold start, iteration ``explored``, and the end of the job when that is the last one; iterations before
    leave old marks, records and parity behind, and iterations after it show that the job goes on.
    """

    name: str
    protection: Protection
    segments: tuple[Segment, ...]
    matrices: tuple[Matrix, ...] = ()
    iterations: int = 2
    explored: int = 2
    skips: frozenset[int] = frozenset()
    fused: bool = False  # operations 9 and 10 in one pass


def _segments(elements: int) -> tuple[Segment, ...]:
    segments, first = [], 0
    for n, count in enumerate((*SPANS, elements - sum(SPANS))):
        segments.append(Segment(name=f"p{n}", first=first, count=count, optimizer=n % 2, param_group=n // 2))
        first += count
    return tuple(segments)


def _matrices(*shapes: tuple[int, int]) -> tuple[Matrix, ...]:
    """One behind the other, each of an optimizer of its own."""
    matrices, first = [], 0
    for n, (rows, columns) in enumerate(shapes):
        matrices.append(Matrix(name=f"m{n}", first=first, count=rows * columns, rows=rows, optimizer=n, param_group=0))
        first += rows * columns
    return tuple(matrices)


def _code(data_pages: int, chunk_pages: int = 3, *, tier2_pages: int = 1, pipelined: bool = False) -> Protection:
    return Protection(
        page_bytes=PAGE_BYTES,
        data_pages=data_pages,
        tier1_pages=H1,
        tier2_pages=tier2_pages,
        chunk_pages=chunk_pages,
        pipelined=pipelined,
    )


_SMALL = _segments(2 * CHUNK_ELEMENTS + 600)
_ALL = (
    Shape(name="narrow", protection=_code(data_pages=9), segments=_segments(6 * CHUNK_ELEMENTS + 600)),
    Shape(name="wide", protection=_code(data_pages=13, chunk_pages=6), segments=_segments(4 * CHUNK_ELEMENTS + 700)),
    Shape(name="untiered", protection=_code(data_pages=6, tier2_pages=0), segments=_SMALL),
    Shape(
        name="skipping",
        protection=_code(data_pages=6),
        segments=_SMALL,
        iterations=3,
        skips=frozenset({2}),
    ),
    Shape(name="fused", protection=_code(data_pages=6), segments=_SMALL, fused=True),
    Shape(
        name="pipelined",
        protection=_code(data_pages=6, pipelined=True),
        segments=_segments(6 * CHUNK_ELEMENTS + 600),
        fused=True,
    ),
    Shape(
        name="muon",
        protection=_code(data_pages=6),
        segments=(Segment(name="embedding", first=0, count=700, optimizer=0, param_group=1),),
        matrices=_matrices((40, 50), (48, 36)),
        fused=True,
    ),
)
SHAPES = {shape.name: shape for shape in _ALL}


def find_shape(name: str) -> Shape:
    """Raises ConfigError with the known names."""
    if name not in SHAPES:
        raise ConfigError(f"--shape {name}: no such shape; one of {', '.join(SHAPES)}")
    return SHAPES[name]
