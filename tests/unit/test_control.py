"""The control arena: words, marker pages and the decision record, torn and whole."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leto.core.errors import FencedError, ProtocolViolation, Unrecoverable
from leto.core.geometry import OS_PAGE_BYTES
from leto.core.layout import CONTROL_BYTES, DECISION_OFFSET, DECISION_SLOT_BYTES, MAX_EPOCHS, marker_page_offset
from leto.core.markers import MIRRORS, WORDS, Mark, Phase, Progress, Word, pack, words_of
from leto.core.recovery import Action, Decision
from leto.device.host import HostArena, HostMapping
from leto.memory.control import ControlPage

# One arena serves many examples; each example writes what it reads.
many = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

iterations = st.integers(1, (1 << 24) - 1)
ordinals = st.integers(0, (1 << 24) - 1)
progresses = st.builds(
    Progress,
    phase=st.sampled_from([Phase.BEGIN, Phase.COMPLETE]),
    iteration=iterations,
    step=ordinals,
    fetched=ordinals,
    written_back=ordinals,
)
decisions = st.builds(
    Decision,
    action=st.sampled_from(Action),
    iteration=iterations,
    reason=st.text(max_size=200),
    carried=st.lists(progresses, min_size=1, max_size=8).map(tuple),
)
OLD = Decision(action=Action.RESTART, iteration=7, reason="old", carried=(Progress(phase=Phase.HEADER, iteration=7),))
NEW = Decision(action=Action.FINISH, iteration=8, reason="new", carried=(Progress(phase=Phase.BEGIN, iteration=8, step=6),))


@pytest.fixture
def mapping() -> Iterator[HostMapping]:
    arena = HostArena("leto-test-control", CONTROL_BYTES)
    mapping = HostMapping(arena.export())
    yield mapping
    mapping.close()
    arena.close()


@pytest.fixture
def control(mapping: HostMapping) -> ControlPage:
    return ControlPage(mapping)


def slot_bytes(mapping: HostMapping, slot: int) -> bytes:
    return ctypes.string_at(mapping.address + DECISION_OFFSET + slot * DECISION_SLOT_BYTES, DECISION_SLOT_BYTES)


def set_slot_bytes(mapping: HostMapping, slot: int, image: bytes) -> None:
    ctypes.memmove(mapping.address + DECISION_OFFSET + slot * DECISION_SLOT_BYTES, image, DECISION_SLOT_BYTES)


def test_park_word_and_heartbeat_are_words_of_their_own(control: ControlPage) -> None:
    assert (control.park_token, control.heartbeat) == (0, 0)
    ctypes.c_uint64.from_address(control.park_word_address).value = 0xDEAD_BEEF_0000_0001
    ctypes.c_uint64.from_address(control.heartbeat_address).value = 7
    assert (control.park_token, control.heartbeat) == (0xDEAD_BEEF_0000_0001, 7)
    control.clear_park()
    assert (control.park_token, control.heartbeat) == (0, 7)


def test_a_fresh_arena_says_nothing(control: ControlPage) -> None:
    assert control.read_decision() is None
    assert control.read_progress(1) == Progress(phase=Phase.NONE, iteration=0)


@many
@given(epoch=st.integers(1, MAX_EPOCHS - 1), progress=progresses)
def test_carried_over_words_are_read_back(control: ControlPage, epoch: int, progress: Progress) -> None:
    control.write_words(epoch, words_of(epoch, progress))
    begun = progress.phase >= Phase.BEGIN
    assert control.read_progress(epoch) == (progress if begun else Progress(phase=progress.phase, iteration=progress.iteration))


def test_mirrors_lie_on_pages_of_their_own_and_epochs_share_none(control: ControlPage, mapping: HostMapping) -> None:
    pages = [
        (address - mapping.address) // OS_PAGE_BYTES
        for epoch in (0, 1, 2)
        for address in control.word_addresses(epoch, Word.STEP)
    ]
    assert len(set(pages)) == 3 * MIRRORS
    offsets = [a - mapping.address for a in control.word_addresses(MAX_EPOCHS - 1, Word.WRITTEN_BACK)]
    assert all(0 <= offset <= mapping.byte_count - 8 for offset in offsets)


def test_words_of_one_epoch_do_not_show_in_another(control: ControlPage) -> None:
    control.write_words(3, words_of(3, Progress(phase=Phase.COMPLETE, iteration=9)))
    assert control.read_progress(2).phase is Phase.NONE
    assert control.read_progress(4).phase is Phase.NONE


def test_a_mark_that_reached_one_mirror_counts(control: ControlPage) -> None:
    control.write_words(1, words_of(1, Progress(phase=Phase.POST, iteration=5)))
    first, _, _ = control.word_addresses(1, Word.PHASE)
    ctypes.c_uint64.from_address(first).value = pack(1, Mark(5, Phase.GRADS_PROTECTED))
    assert control.read_progress(1).phase is Phase.GRADS_PROTECTED


def test_nothing_is_loaded_from_a_lost_mirror(control: ControlPage) -> None:
    control.write_words(1, words_of(1, Progress(phase=Phase.POST, iteration=5)))
    for mirror, address in enumerate(control.word_addresses(1, Word.PHASE)[:2]):
        lost = marker_page_offset(1, mirror) // OS_PAGE_BYTES
        ctypes.c_uint64.from_address(address).value = pack(1, Mark(9, Phase.COMPLETE))
        assert control.mirror_words(1, [lost])[mirror] is None
        assert control.mirror_words(2, [lost])[mirror] is not None
    lost_mirrors = [marker_page_offset(1, mirror) // OS_PAGE_BYTES for mirror in (0, 1)]
    assert control.read_progress(1, lost_mirrors) == Progress(phase=Phase.POST, iteration=5)


@pytest.mark.parametrize(("page", "what"), [(0, "the park word"), (1, "a slot of the decision"), (2, "a slot of the decision")])
def test_a_lost_page_without_a_mirror_is_refused_by_name(control: ControlPage, page: int, what: str) -> None:
    with pytest.raises(Unrecoverable, match=f"page {page} of the control arena, {what}.* is lost: it has no mirror"):
        control.read_progress(1, [page])


def test_mirrors_of_foreign_epochs_are_refused(control: ControlPage) -> None:
    control.write_words(1, words_of(2, Progress(phase=Phase.POST, iteration=5)))
    with pytest.raises(Unrecoverable, match="all 3 mirrors"):
        control.read_progress(1)


def test_every_word_has_its_own_addresses(control: ControlPage) -> None:
    control.write_words(1, [11, 12, 13, 14])
    for word in Word:
        for mirror, address in enumerate(control.word_addresses(1, word)):
            assert ctypes.c_uint64.from_address(address).value == 11 + word == control.mirror_words(1)[mirror][word]
    assert len(Word) == WORDS


@many
@given(first=decisions, second=decisions)
def test_the_last_decision_is_read_back(first: Decision, second: Decision) -> None:
    arena = HostArena("leto-test-control", CONTROL_BYTES)
    mapping = HostMapping(arena.export())
    control = ControlPage(mapping)
    control.write_decision(4, first)
    assert control.read_decision() == (4, first)
    control.write_decision(9, second)
    assert control.read_decision() == (9, second)
    mapping.close()
    arena.close()


def test_a_decision_torn_anywhere_leaves_the_one_before(control: ControlPage, mapping: HostMapping) -> None:
    """Whatever prefix of the new record reached the page, over whatever the slot held, the reader sees old or new, whole."""
    control.write_decision(1, OLD)
    stale = slot_bytes(mapping, 1)
    control.write_decision(2, NEW)
    written = slot_bytes(mapping, 1)
    length = len(written.rstrip(b"\x00"))
    for cut in range(length):
        set_slot_bytes(mapping, 1, written[:cut] + stale[cut:])
        assert control.read_decision() == (1, OLD), f"cut at {cut}"
    set_slot_bytes(mapping, 1, written)
    assert control.read_decision() == (2, NEW)


@many
@given(position=st.integers(0, DECISION_SLOT_BYTES - 1), flip=st.integers(1, 255))
def test_a_damaged_byte_never_yields_a_third_decision(
    control: ControlPage, mapping: HostMapping, position: int, flip: int
) -> None:
    set_slot_bytes(mapping, 0, bytes(DECISION_SLOT_BYTES))
    set_slot_bytes(mapping, 1, bytes(DECISION_SLOT_BYTES))
    control.write_decision(1, OLD)
    control.write_decision(2, NEW)
    image = bytearray(slot_bytes(mapping, 1))
    image[position] ^= flip
    set_slot_bytes(mapping, 1, bytes(image))
    assert control.read_decision() in ((1, OLD), (2, NEW))


def test_writing_never_touches_the_slot_that_speaks(control: ControlPage, mapping: HostMapping) -> None:
    control.write_decision(1, OLD)
    reason = OLD.reason
    for epoch in (2, 4, 6, 9):  # gaps, so that no slot follows from the epoch's parity
        speaking = next(s for s in (0, 1) if f'"reason":"{reason}"'.encode() in slot_bytes(mapping, s))
        before = slot_bytes(mapping, speaking)
        reason = f"epoch {epoch}"
        control.write_decision(epoch, Decision(action=Action.COLD, iteration=0, reason=reason, carried=()))
        assert slot_bytes(mapping, speaking) == before


def test_an_epoch_is_decided_once(control: ControlPage) -> None:
    control.write_decision(2, NEW)
    control.write_decision(2, NEW)  # the same one again changes nothing
    with pytest.raises(ProtocolViolation, match="decided twice"):
        control.write_decision(2, OLD)
    with pytest.raises(FencedError, match="epoch 1 comes after one of epoch 2"):
        control.write_decision(1, OLD)
    assert control.read_decision() == (2, NEW)


def test_a_decision_that_does_not_fit_is_refused_before_anything_is_written(control: ControlPage) -> None:
    control.write_decision(1, OLD)
    huge = Decision(action=Action.CHECKPOINT, iteration=0, reason="x" * DECISION_SLOT_BYTES, carried=())
    with pytest.raises(ProtocolViolation, match="does not fit"):
        control.write_decision(2, huge)
    assert control.read_decision() == (1, OLD)


def test_the_decision_of_many_ranks_fits(control: ControlPage) -> None:
    full = Progress(phase=Phase.BEGIN, iteration=(1 << 24) - 1, step=(1 << 24) - 1, fetched=1 << 20, written_back=1 << 20)
    decision = Decision(action=Action.FINISH, iteration=1, reason="r" * 300, carried=(full,) * 64)
    control.write_decision(1, decision)
    assert control.read_decision() == (1, decision)
