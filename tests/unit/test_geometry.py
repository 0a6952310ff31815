"""Pages, chunks, groups and columns (U31, U48)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.errors import ConfigError
from leto.core.geometry import (
    CODED_ARRAYS,
    CodedGeometry,
    GradientGeometry,
    Matrix,
    Page,
    Protection,
    Rule,
    Segment,
    pages_of_bytes,
)


def protection(**changes: int) -> Protection:
    return Protection(**{"page_bytes": 4096, "data_pages": 13, "tier1_pages": 4, "tier2_pages": 1, "chunk_pages": 6} | changes)


def segments(counts: list[int], prefix: str = "p") -> tuple[Segment, ...]:
    firsts = [sum(counts[:n]) for n in range(len(counts))]
    return tuple(
        Segment(name=f"{prefix}{n}", first=first, count=count, optimizer=n % 2, param_group=n % 3)
        for n, (first, count) in enumerate(zip(firsts, counts, strict=True))
    )


def matrices(shapes: list[tuple[int, int]]) -> tuple[Matrix, ...]:
    cut = segments([rows * columns for rows, columns in shapes], "m")
    return tuple(Matrix(**vars(segment), rows=rows) for segment, (rows, _) in zip(cut, shapes, strict=True))


counts = st.lists(st.integers(1, 5000), min_size=1, max_size=8)
shapes = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), max_size=5)
geometries = st.builds(
    lambda c, s: CodedGeometry(protection=protection(), segments=segments(c), matrices=matrices(s)), counts, shapes
)


@given(geometries)
def test_chunk_segments_partition_all_elements_of_every_region(geometry: CodedGeometry) -> None:
    for region, expected in zip(geometry.regions, (geometry.segments, *2 * (geometry.matrices,)), strict=False):
        pieces = [s for chunk in region.chunks for s in geometry.chunk_segments(chunk)]
        assert [s.first for s in pieces] == [0, *(s.stop for s in pieces[:-1])]
        assert pieces[-1].stop == region.element_count == expected[-1].stop


@given(geometries)
def test_regions_follow_one_another_and_momentum_comes_before_masters(geometry: CodedGeometry) -> None:
    rules = [geometry.region_of(chunk).rule for chunk in range(geometry.chunk_count)]
    assert rules == sorted(rules, key=list(Rule).index)
    assert set(rules) == (set(Rule) if geometry.matrices else {Rule.ADAMW})
    momentum, masters = rules.count(Rule.MUON_MOMENTUM), rules.count(Rule.MUON_APPLY)
    assert momentum == masters


@given(geometries)
def test_every_coded_page_has_exactly_one_column(geometry: CodedGeometry) -> None:
    seen = []
    for group in range(geometry.group_count):
        pages = geometry.group_pages(group)
        columns = [p.column for p in pages]
        assert len(set(columns)) == len(columns)
        assert all(0 <= c < geometry.protection.data_pages for c in columns)
        seen += [p.page for p in pages]
    expected = {Page(a, n) for region in geometry.regions for a in region.arrays for n in range(region.array_pages)}
    assert len(seen) == len(expected)
    assert set(seen) == expected


@given(geometries)
def test_a_chunk_is_the_same_elements_of_all_arrays_of_its_region(geometry: CodedGeometry) -> None:
    for chunk in range(geometry.chunk_count):
        placed = geometry.chunk_pages(chunk)
        arrays = geometry.region_of(chunk).arrays
        indices = {a: [p.page.page_index for p in placed if p.page.allocation == a] for a in arrays}
        assert sum(map(len, indices.values())) == len(placed) == geometry.protection.chunk_pages
        assert len({tuple(pages) for pages in indices.values()}) == 1
        assert indices[arrays[0]][0] * 1024 == geometry.chunk_range(chunk)[0]


def test_fewer_arrays_mean_more_elements_in_a_chunk() -> None:
    geometry = CodedGeometry(protection=protection(), segments=segments([5000]), matrices=matrices([(100, 50)]))
    assert [region.chunk_elements for region in geometry.regions] == [2048, 6144, 6144]
    assert [region.chunks for region in geometry.regions] == [range(3), range(3, 4), range(4, 5)]


def test_without_matrices_nothing_of_muon_is_there() -> None:
    geometry = CodedGeometry(protection=protection(), segments=segments([5000]))
    assert [region.arrays for region in geometry.regions] == [CODED_ARRAYS]


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
    count = 1024 * shape.chunk_pages // len(CODED_ARRAYS) * shape.chunks_per_group
    geometry = CodedGeometry(protection=shape, segments=segments([count]))
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

    muon = CodedGeometry(protection=protection(), segments=segments([10]), matrices=matrices([(2, 6)]))
    other = CodedGeometry(protection=protection(), segments=segments([10]), matrices=matrices([(3, 4)]))
    assert len({of(10), muon.layout_hash(), other.layout_hash()}) == 3
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


def test_a_matrix_is_whole_rows() -> None:
    crooked = Matrix(name="m", first=0, count=10, optimizer=0, param_group=0, rows=4)
    with pytest.raises(ConfigError, match="10 elements of 'm' are not 4 rows"):
        CodedGeometry(protection=protection(), segments=(), matrices=(crooked,))
