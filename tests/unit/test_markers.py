"""Marker words and their mirrors (U1, U4, U5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.errors import ProtocolViolation, Unrecoverable
from leto.core.markers import (
    Mark,
    Phase,
    Progress,
    StepDone,
    Word,
    pack,
    progress_of,
    read_mirrors,
    step_mark,
    unpack,
    words_of,
)

BEGUN = [pack(3, Mark(9, Phase.BEGIN)), pack(3, step_mark(9, 4, StepDone.UPDATED)), pack(3, Mark(9, 1)), 0]


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1))
def test_words_round_trip(epoch: int, iteration: int, ordinal: int) -> None:
    assert unpack(pack(epoch, Mark(iteration, ordinal))) == (epoch, Mark(iteration, ordinal))


@pytest.mark.parametrize("mark", [Mark(1 << 24, 0), Mark(0, 1 << 24), Mark(-1, 0)])
def test_a_field_that_does_not_fit_is_a_violation(mark: Mark) -> None:
    with pytest.raises(ProtocolViolation, match="does not fit"):
        pack(1, mark)


def test_reader_takes_the_maximum_of_the_mirrors() -> None:
    newer = list(BEGUN)
    newer[1] = pack(3, step_mark(9, 4, StepDone.PARITY_UPDATED))
    for mirrors in ([newer, BEGUN, BEGUN], [BEGUN, newer, None], [newer, None, None]):
        assert read_mirrors(3, mirrors).in_flight == (4, StepDone.PARITY_UPDATED)


def test_all_mirrors_lost_is_never_guessed() -> None:
    with pytest.raises(Unrecoverable, match="all 3 mirrors"):
        read_mirrors(3, [None, None, None])


def test_a_mirror_of_another_epoch_is_not_valid() -> None:
    stale = [pack(2, Mark(99, Phase.COMPLETE)), 0, 0, 0]
    assert read_mirrors(3, [stale, BEGUN, BEGUN]).iteration == 9


def test_mirrors_more_than_one_mark_apart_are_lost() -> None:
    other = [pack(3, Mark(9, Phase.COMPLETE)), BEGUN[1], BEGUN[2], pack(3, Mark(9, 2))]
    with pytest.raises(Unrecoverable, match="more than one mark apart"):
        read_mirrors(3, [other, BEGUN, BEGUN])


@pytest.mark.parametrize("word", [Word.FETCHED, Word.WRITTEN_BACK])
def test_two_lanes_may_have_a_mark_in_flight_each(word: Word) -> None:
    """U35: whatever mirror each of them has come to, the words' maxima are read."""
    computed, copied, both = list(BEGUN), list(BEGUN), list(BEGUN)
    computed[Word.STEP] = both[Word.STEP] = pack(3, step_mark(9, 4, StepDone.PARITY_UPDATED))
    copied[word] = both[word] = pack(3, Mark(9, 2))
    for mirrors in ([both, BEGUN, BEGUN], [both, computed, BEGUN], [both, copied, None], [copied, None, computed]):
        said = read_mirrors(3, mirrors)
        assert said.in_flight == (4, StepDone.PARITY_UPDATED)
        assert (said.fetched, said.written_back) == ((2, 0) if word is Word.FETCHED else (1, 2))


@pytest.mark.parametrize(
    "words",
    [{Word.FETCHED, Word.WRITTEN_BACK}, {Word.PHASE, Word.FETCHED}, {Word.STEP, Word.FETCHED, Word.WRITTEN_BACK}],
    ids=str,
)
def test_words_of_one_lane_are_never_in_flight_together(words: set[Word]) -> None:
    """Nor is a phase with anything: no copy lane runs while phases change."""
    other = [pack(3, Mark(9, 6)) if word in words else BEGUN[word] for word in Word]
    with pytest.raises(Unrecoverable, match=f"differ in {len(words)} words"):
        read_mirrors(3, [other, BEGUN, BEGUN])


@given(st.integers(0, 40), st.integers(0, 12), st.integers(1, 12))
def test_chunks_of_a_group_that_are_committed(committed: int, first: int, count: int) -> None:
    progress = Progress(phase=Phase.BEGIN, iteration=9, step=4 * committed)
    assert progress.commits_in(range(first, first + count)) == sum(chunk < committed for chunk in range(first, first + count))


def test_words_of_an_older_iteration_read_as_nothing() -> None:
    progress = progress_of([Mark(10, Phase.HEADER), step_mark(9, 4, StepDone.COMMITTED), Mark(9, 2), Mark(9, 2)])
    assert progress == Progress(phase=Phase.HEADER, iteration=10)


def test_begun_and_completed_follow_from_a_later_header() -> None:
    header = Progress(phase=Phase.HEADER, iteration=10)
    assert (header.begun, header.completed) == (9, 9)
    begin = Progress(phase=Phase.BEGIN, iteration=10)
    assert (begin.begun, begin.completed) == (10, 9)


@given(
    st.sampled_from([Phase.HEADER, Phase.GRADS_PROTECTED, Phase.BEGIN, Phase.COMPLETE]),
    st.integers(1, 1000),
    st.integers(0, 100),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_carried_words_say_the_same_in_the_next_epoch(phase: Phase, t: int, step: int, fetched: int, written: int) -> None:
    said = progress_of([Mark(t, phase), Mark(t, step), Mark(t, fetched), Mark(t, written)])
    assert read_mirrors(5, [words_of(5, said)] * 3) == said
