"""Planted bugs in what stands between two epochs: fences, fencing epochs, marker pages, marks of lost pages, giving up."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from chaos.planted.planting import Patch, planted, skip
from leto.core.layout import marker_page_offset
from leto.core.markers import Word
from leto.device import host
from leto.memory import control
from leto.memory.control import ControlPage
from leto.memory.retained_state import RetainedState
from leto.memory.state_manager import Server
from leto.runtime import coordinator
from leto.runtime.coordinator import Coordinator
from leto.runtime.fork_client import ForkedChild


@planted("U5", parts="inherited mapping")
def child_still_maps(patch: Patch) -> None:
    """Children inherit retained mappings and go on writing when their parent is fenced."""
    patch.set(host, "madvise", skip)


@planted("INV-F", parts="fence")
def signalled_not_reaped(patch: Patch) -> None:
    """A survivor counts as fenced when it has been sent SIGKILL."""
    patch.set(ForkedChild, "fence", lambda self, timeout_s: os.killpg(self.pid, signal.SIGKILL))


@planted("INV-F", parts="fence")
def helpers_outlive_the_fence(patch: Patch) -> None:
    """The fence ends a trainer and not what it has forked."""

    def leader_only(self: ForkedChild, timeout_s: float) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        assert self.ended(timeout_s)

    patch.set(ForkedChild, "fence", leader_only)


@planted("INV-F", parts="stale epoch")
def stale_epoch_accepted(patch: Patch) -> None:
    """The state manager serves processes of an epoch that a decision has ended."""
    patch.set(Server, "_check_epoch", skip)


@planted("U5", parts="stale marks")
def marker_pages_reused(patch: Patch) -> None:
    """Every epoch has the same marker pages, in which a process of an older one still writes."""
    patch.set(control, "marker_page_offset", lambda epoch, mirror: marker_page_offset(0, mirror))


@planted("U4", parts="lost mirrors")
def lost_mirrors_read_as_words(patch: Patch) -> None:
    """Mirrors that are lost are read like the others, as the zeros that stand in their place."""

    def all_of_them(mirror_words: Any) -> Any:
        return lambda self, epoch, lost=(): mirror_words(self, epoch)

    patch.wrap(ControlPage, "mirror_words", all_of_them)


@planted("U5", parts="lost mirrors")
def carried_into_one_mirror(patch: Patch) -> None:
    """What an epoch begins with stands in the first mirror of its marker pages only."""

    def write_words(self: ControlPage, epoch: int, words: Sequence[int]) -> None:
        for word, value in enumerate(words):
            self._store(control._word_offsets(epoch, Word(word))[0], value)

    patch.set(ControlPage, "write_words", write_words)


@planted("U21", parts="torn decision")
def decision_over_the_last_one(patch: Patch) -> None:
    """A decision is written over the one before it."""

    def same_slot(write_slot: Any) -> Any:
        return lambda self, slot, epoch, payload: write_slot(self, 0, epoch, payload)

    patch.wrap(ControlPage, "_write_slot", same_slot)


@planted("U21", parts="torn decision")
def torn_decision_acted_on(patch: Patch) -> None:
    """A decision counts as durable when a part of it is."""
    patch.set(control, "_decision_crc", lambda epoch, payload: 0)


@planted("U36", parts="marks of lost pages")
def lost_marks_end_with_the_epoch(patch: Patch) -> None:
    """Marks of lost pages are forgotten when the next epoch begins, rebuilt or not."""

    def forgetting(advance: Any) -> Any:
        def advance_then_forget(self: RetainedState, epoch: int) -> None:
            advance(self, epoch)
            self._lost.clear()

        return advance_then_forget

    patch.wrap(RetainedState, "advance", forgetting)


@planted("U36", parts="marks of lost pages")
def second_search_forgets_the_first(patch: Patch) -> None:
    """Pages found lost at an earlier failure count as whole when a later one finds them replaced."""

    def anew(localise: Any) -> Any:
        def forget_then_search(self: RetainedState) -> int:
            self._lost.clear()
            found: int = localise(self)
            return found

        return forget_then_search

    patch.wrap(RetainedState, "localise", anew)


@planted("U41", parts="another layout")
def layout_not_checked(patch: Patch) -> None:
    """A trainer attaches to what was laid out under another geometry."""
    patch.set(RetainedState, "_check_layout", skip)


@planted("U19", parts="marks of lost pages")
def first_mark_clears_all(patch: Patch) -> None:
    """The acknowledgement of one rebuilt page clears the marks of all."""
    patch.set(RetainedState, "rebuilt", lambda self, pages: self._lost.clear())


@planted("U37", parts="crash loop")
def crash_loop_not_counted(patch: Patch) -> None:
    """Failures without progress are repeated for ever."""
    patch.set(coordinator, "crash_loop", lambda failures: None)


@planted("U4", parts="lost marker")
def lost_marker_taken_as_none(patch: Patch) -> None:
    """A job whose marks are all gone counts as one that never began, and starts cold."""
    patch.set(Coordinator, "_fallen_back", lambda self, ranks: None)
