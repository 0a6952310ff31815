"""What must hold between two epochs, tried on the real parts with light processes."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from leto.core.errors import FencedError, LetoError, RetainedStateError, Unrecoverable
from leto.core.geometry import OS_PAGE_BYTES, Page
from leto.core.layout import CONTROL_BYTES, DECISION_OFFSET, DECISION_SLOT_BYTES, Allocation, PageClass, marker_page_offset
from leto.core.markers import MIRRORS, Mark, Phase, Progress, Word, pack, words_of
from leto.core.recovery import MAX_FAILURES_WITHOUT_PROGRESS, Action
from leto.device.host import HostArena, HostMapping
from leto.device.host_kernels import HostKernels
from leto.memory.client import PoolAgent
from leto.memory.control import DECISION_SLOTS, ControlPage
from leto.memory.retained_state import RetainedState
from leto.memory.state_manager import Server
from leto.runtime.coordinator import Coordinator, cold_start
from leto.runtime.fork_client import ForkedChild
from leto.runtime.process import kill_group

TIMEOUT_S = 10.0
PAGE_BYTES = 4 * OS_PAGE_BYTES
DATA = Allocation(name="data", page_class=PageClass.CODED, byte_count=4 * PAGE_BYTES)


@contextmanager
def _retained() -> Iterator[RetainedState]:
    """What a state manager owns, in its first epoch."""
    state = RetainedState(0, device_bytes=DATA.byte_count, host_bytes=DATA.byte_count, page_bytes=PAGE_BYTES)
    try:
        state.advance(1)
        yield state
    finally:
        state.close()


# Fences (INV-F)


def _children_do_not_map() -> bool:
    """The kernel's flags of a retained mapping say that a fork leaves it out."""
    arena = HostArena("leto-planted", OS_PAGE_BYTES)
    mapping = HostMapping(arena.export())
    try:
        return "dc" in _flags_of_mapping(mapping.address)
    finally:
        mapping.close()
        arena.close()


def _flags_of_mapping(address: int) -> list[str]:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    begin = next(line for line in lines if line.startswith(f"{address:x}-"))
    return next((line.split() for line in lines if line.startswith("VmFlags:")), [begin])


_FAMILY = """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        break
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.write(1, b"%10d" % os.getpid())
while True:
    signal.pause()
"""
"""Runs only when nobody else wants its processor, so that it dies when whoever has killed it waits, and not before."""
_MEMBERS = 5
_PID_BYTES = 10


@contextmanager
def _on_one_processor() -> Iterator[None]:
    """This thread and the processes that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _nobody_outlives_the_fence() -> bool:
    """A trainer and what it has forked, all of its process group, at the moment in which the fence returns."""
    with _on_one_processor():
        return _is_gone_when_the_fence_returns()


def _is_gone_when_the_fence_returns() -> bool:
    family = subprocess.Popen([sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    assert family.stdout is not None
    members: list[int] = []
    try:
        pids = [int(family.stdout.read(_PID_BYTES)) for _ in range(_MEMBERS)]
        members = [os.pidfd_open(pid) for pid in pids]
        leader = ForkedChild(pid=family.pid, epoch=1, pidfd=members[pids.index(family.pid)], log_path=Path(os.devnull))
        leader.fence(TIMEOUT_S)
        return all(select.select([member], [], [], 0)[0] for member in members)
    finally:
        kill_group(family.pid, TIMEOUT_S)
        family.wait(TIMEOUT_S)
        family.stdout.close()
        for member in members:
            os.close(member)


@contextmanager
def _served(state: RetainedState) -> Iterator[Path]:
    """The state manager's server over ``state``, in a thread."""
    stop, stopped = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="leto-planted-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        path = Path(folder) / "r0"
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=Server(state, listener).run, args=(stop,))
        server.start()
        try:
            yield path
        finally:
            os.write(stopped, b"x")
            server.join(TIMEOUT_S)
            os.close(stop)
            os.close(stopped)


def _old_epochs_are_refused() -> bool:
    """Who was connected when the epoch ended, and who comes with it afterwards."""
    with _retained() as state, _served(state) as path:
        late = PoolAgent(path, rank=0, epoch=1, timeout_s=TIMEOUT_S)
        state.advance(2)
        refused = _is_fenced(late.usage)
        late.close()
        return refused and _is_fenced(lambda: PoolAgent(path, rank=0, epoch=1, timeout_s=TIMEOUT_S).close())


def _is_fenced(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except FencedError:
        return True
    return False


# Marks (U4, U5)

_BEGUN = Progress(phase=Phase.BEGIN, iteration=2)


@contextmanager
def _control_page() -> Iterator[ControlPage]:
    arena = HostArena("leto-planted", CONTROL_BYTES)
    mapping = HostMapping(arena.export())
    try:
        yield ControlPage(mapping)
    finally:
        mapping.close()
        arena.close()


def _stale_marks_do_not_count() -> bool:
    """What a process of an old epoch publishes is not read in the new one."""
    with _control_page() as page:
        stale = page.word_addresses(1, Word.PHASE)
        page.write_words(2, words_of(2, _BEGUN))
        HostKernels().publish(stale, pack(1, Mark(3, Phase.HEADER)))
        return _progress(page, 2) == _BEGUN


def _progress(page: ControlPage, epoch: int, lost: Sequence[int] = ()) -> Progress | None:
    """What the marks say, None when they are refused."""
    try:
        return page.read_progress(epoch, lost)
    except Unrecoverable:
        return None


def _one_mirror_is_enough() -> bool:
    """Any one of three speaks for the lost others, which hold zeros; with none left nothing is guessed."""
    with _control_page() as page:
        pages = [marker_page_offset(1, mirror) // OS_PAGE_BYTES for mirror in range(MIRRORS)]
        page.write_words(1, words_of(1, _BEGUN))
        for lost in pages[:2]:
            ctypes.memset(page.address + lost * OS_PAGE_BYTES, 0, OS_PAGE_BYTES)
        return _progress(page, 1, pages[:2]) == _BEGUN and _progress(page, 1, pages) is None


def _torn_decisions_do_not_count() -> bool:
    """The decision before a torn one still stands."""
    with _control_page() as page:
        first = cold_start(1)
        second = replace(first, action=Action.FINISH, iteration=3)
        page.write_decision(1, first)
        page.write_decision(2, second)
        _tear(page, b'"iteration":3')
        return page.read_decision() == (1, first)


def _tear(page: ControlPage, text: bytes) -> None:
    """Changes a bit at the end of ``text``, wherever in the decision record it stands."""
    record = (ctypes.c_uint8 * (DECISION_SLOTS * DECISION_SLOT_BYTES)).from_address(page.address + DECISION_OFFSET)
    record[bytes(record).index(text) + len(text) - 1] ^= 1


def _lost_marks_are_kept() -> bool:
    """One operating-system page of a code page is lost: the code page is marked, until it is acknowledged itself.

    Neither the search of a later failure nor the next epoch ends a mark.
    """
    first, second = Page(DATA.name, 0), Page(DATA.name, 2)
    with _retained() as state:
        (place,) = state.allocate("layout", [DATA])
        lost = [place.offset, place.offset + 2 * PAGE_BYTES + OS_PAGE_BYTES]
        state.arenas[DATA.domain].has_lost = _loses(lost)  # type: ignore[assignment, method-assign]
        state.localise()
        lost.clear()  # they are replaced
        state.localise()
        state.advance(2)
        if state.lost_from(0) != (first, second):
            return False
        state.rebuilt([first])
        return state.lost_from(0) == (second,)


def _loses(lost: list[int]) -> Callable[[int, int], bool]:
    return lambda offset, byte_count: any(offset <= page < offset + byte_count for page in lost)


def _another_layout_is_refused() -> bool:
    with _retained() as state:
        state.allocate("layout", [DATA])
        try:
            state.attach("another layout", [DATA])
        except RetainedStateError:
            return True
        return False


# Decisions (U4, U37)


def _marks_that_are_gone_are_refused() -> bool:
    """Both ranks were carried into the epoch inside an update, and now say that they never began."""
    coordinator = Coordinator(2, 9)
    coordinator.decide([lambda: _BEGUN] * 2)
    try:
        return coordinator.decide([lambda: Progress(phase=Phase.NONE, iteration=0)] * 2).action is Action.CHECKPOINT
    except LetoError:
        return False


def _crash_loops_end() -> bool:
    coordinator = Coordinator(2, 9)
    decided = [coordinator.decide([lambda: _BEGUN] * 2).action for _ in range(MAX_FAILURES_WITHOUT_PROGRESS + 1)]
    return decided == [Action.FINISH] * MAX_FAILURES_WITHOUT_PROGRESS + [Action.CHECKPOINT]


PROMISES: dict[str, Callable[[], bool]] = {
    "inherited mapping": _children_do_not_map,
    "fence": _nobody_outlives_the_fence,
    "stale epoch": _old_epochs_are_refused,
    "stale marks": _stale_marks_do_not_count,
    "lost mirrors": _one_mirror_is_enough,
    "torn decision": _torn_decisions_do_not_count,
    "marks of lost pages": _lost_marks_are_kept,
    "another layout": _another_layout_is_refused,
    "lost marker": _marks_that_are_gone_are_refused,
    "crash loop": _crash_loops_end,
}
