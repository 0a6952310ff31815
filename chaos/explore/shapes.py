"""Small geometries: two groups and a partial one, four parity rows, parameters that end inside chunks."""

from __future__ import annotations

from chaos.explore.job import Shape
from leto.core.errors import ConfigError
from leto.core.geometry import Protection, Segment

PAGE_BYTES = 4096
H1 = 4
SPANS = (3500, 3000)
"""Elements of the first parameters; one more takes the rest."""


def _shape(name: str, chunk_pages: int, data_pages: int, elements: int) -> Shape:
    segments, first = [], 0
    for n, count in enumerate((*SPANS, elements - sum(SPANS))):
        segments.append(Segment(name=f"p{n}", first=first, count=count, optimizer=n % 2, param_group=n // 2))
        first += count
    protection = Protection(
        page_bytes=PAGE_BYTES, data_pages=data_pages, tier1_pages=H1, tier2_pages=1, chunk_pages=chunk_pages
    )
    return Shape(name=name, protection=protection, segments=tuple(segments))


_ALL = (
    _shape("narrow", chunk_pages=3, data_pages=9, elements=6 * 1024 + 600),  # chunks 3 + 3 + 1; less undo than parity
    _shape("wide", chunk_pages=6, data_pages=13, elements=4 * 2048 + 700),  # chunks 2 + 2 + 1; more undo than parity
)
SHAPES = {shape.name: shape for shape in _ALL}


def find_shape(name: str) -> Shape:
    """Raises ConfigError with the known names."""
    if name not in SHAPES:
        raise ConfigError(f"--shape {name}: no such shape; one of {', '.join(SHAPES)}")
    return SHAPES[name]
