"""Pages, chunks, groups and columns (U31, U48)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.errors import ConfigError
from leto.core.geometry import CODED_ARRAYS, CodedGeometry, GradientGeometry, Page, Protection, Segment, pages_of_bytes


def protection(**changes: int) -> Protection:
    return Protection(**{"page_bytes": 4096, "data_pages": 13, "tier1_pages": 4, "tier2_pages": 1, "chunk_pages": 6} | changes)


@st.composite
def geometries(draw: st.DrawFn) -> CodedGeometry:
    segments, first = [], 0
    for n, count in enumerate(draw(st.lists(st.integers(1, 5000), min_size=1, max_size=8))):
        segments.append(Segment(name=f"p{n}", first=first, count=count, optimizer=n % 2, param_group=n % 3))
        first += count
    return CodedGeometry(protection=protection(), segments=tuple(segments))


@given(geometries())
def test_chunk_segments_partition_all_elements(geometry: CodedGeometry) -> None:
    pieces = [s for chunk in range(geometry.chunk_count) for s in geometry.chunk_segments(chunk)]
    assert [s.first for s in pieces] == [0, *(s.stop for s in pieces[:-1])]
    assert pieces[-1].stop == geometry.element_count


@given(geometries())
def test_every_coded_page_has_exactly_one_column(geometry: CodedGeometry) -> None:
    seen = []
    for group in range(geometry.group_count):
        pages = geometry.group_pages(group)
        columns = [p.column for p in pages]
        assert len(set(columns)) == len(columns)
        assert all(0 <= c < geometry.protection.data_pages for c in columns)
        seen += [p.page for p in pages]
    expected = {Page(a, n) for a in CODED_ARRAYS for n in range(geometry.array_pages)}
    assert len(seen) == len(expected)
    assert set(seen) == expected


@given(geometries())
def test_a_chunk_is_the_same_elements_of_all_arrays(geometry: CodedGeometry) -> None:
    for chunk in range(geometry.chunk_count):
        indices = {a: [p.page.page_index for p in geometry.chunk_pages(chunk) if p.page.allocation == a] for a in CODED_ARRAYS}
        assert indices["master"] == indices["exp_avg"] == indices["exp_avg_sq"]
        assert indices["master"][0] * 1024 == geometry.chunk_range(chunk)[0]


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"data_pages": 1024, "tier1_pages": 16, "chunk_pages": 63}, 64),  # the paper's: 16 chunks of 63 fill it either way
        ({"data_pages": 1023, "tier1_pages": 16, "chunk_pages": 63}, 63),  # 16 chunks of 64 columns do not fit
        ({"data_pages": 16, "tier1_pages": 3, "chunk_pages": 6}, 8),
        ({"data_pages": 13, "tier1_pages": 4, "chunk_pages": 6}, 6),
        ({"data_pages": 20, "tier1_pages": 1, "chunk_pages": 3}, 3),
    ],
)
def test_chunks_begin_at_whole_blocks_of_the_code_where_no_chunk_is_lost_by_it(changes: dict[str, int], columns: int) -> None:
    shape = protection(**changes)
    assert shape.chunk_columns == columns
    segment = Segment(name="w", first=0, count=shape.chunk_elements * shape.chunks_per_group, optimizer=0, param_group=0)
    geometry = CodedGeometry(protection=shape, segments=(segment,))
    firsts = [geometry.chunk_pages(chunk)[0].column for chunk in geometry.chunks_of(0)]
    assert firsts == [columns * n for n in range(shape.chunks_per_group)]
    assert geometry.group_count == 1
    assert geometry.group_pages(0)[-1].column < shape.data_pages


def test_leftover_columns_of_a_group_are_absent() -> None:
    segment = Segment(name="w", first=0, count=2048 * 3, optimizer=0, param_group=0)
    geometry = CodedGeometry(protection=protection(), segments=(segment,))
    assert geometry.group_count == 2
    assert [len(geometry.group_pages(g)) for g in range(2)] == [12, 6]  # 13 columns hold two chunks of 6


def test_the_layout_hash_moves_with_anything_that_moves_a_byte() -> None:
    def of(count: int, **changes: int) -> str:
        segment = Segment(name="w", first=0, count=count, optimizer=0, param_group=0)
        return CodedGeometry(protection=protection(**changes), segments=(segment,)).layout_hash()

    assert len({of(10), of(11), of(10, chunk_pages=9), of(10, tier1_pages=5), of(10, pipelined=True)}) == 5
    assert of(10) == of(10)


def test_gradient_groups_have_their_own_geometry() -> None:
    pages = tuple(Page("gradients/dense0", n) for n in range(20))
    geometry = GradientGeometry(protection=protection(), pages=pages)
    assert geometry.group_count == 2
    assert [p.column for p in geometry.group_pages(1)] == list(range(7))
    assert geometry.group_pages(1)[0].page == pages[13]


def test_pages_that_a_byte_range_touches() -> None:
    assert [p.page_index for p in pages_of_bytes("g", 4095, 2, 4096)] == [0, 1]
    assert [p.page_index for p in pages_of_bytes("g", 4096, 4096, 4096)] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_bytes": 5000}, "page: 5000 bytes is not a multiple of 4 KiB"),
        ({"chunk_pages": 8}, "chunk_pages: 8 is not a positive multiple of 3"),
        ({"tier1_pages": 17}, "tier1: 17 is not between 1 and 16"),
        ({"tier2_pages": 2}, "tier2: 2 is not 0 or 1"),
        ({"data_pages": 3}, "data_pages: 3 is less than chunk_pages (6)"),
    ],
)
def test_a_wrong_shape_names_its_key(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        protection(**changes)


def test_segments_must_be_contiguous() -> None:
    with pytest.raises(ConfigError, match="starts at 5, expected 0"):
        CodedGeometry(protection=protection(), segments=(Segment(name="w", first=5, count=1, optimizer=0, param_group=0),))
