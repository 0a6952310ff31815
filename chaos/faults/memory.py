"""Losing pages of retained memory in a running job, so that every process that looks finds them lost (U51).

The content is destroyed in the arena and the page is poisoned in every live mapping of the rank: its state manager's, in
which losses are found, its trainer's, which dies of touching it, and, where it holds marks, the agent's, which must not.
Mappings made later read zeros; the state manager's marks say so before anybody attaches.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import ExitStack

from chaos.faults.hand_over import HandOver
from chaos.faults.userfaultfd import Userfaultfd, can_poison
from leto.core.geometry import OS_PAGE_BYTES, Page
from leto.core.layout import MARKERS, Domain, PageClass, marker_page_offset
from leto.core.markers import MIRRORS
from leto.device.linux import punch_hole
from leto.memory.client import PoolObserver
from leto.memory.messages import Place

__all__ = ["can_poison", "poison"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_PIDFD_GETFD = 438


def poison(observer: PoolObserver, processes: Sequence[HandOver], pages: Sequence[Page], *, epoch: int) -> int:
    """Lose these pages of the observer's rank in the mappings of all ``processes``; returns how many bytes that were.

    Marker pages (``MARKERS``) are those of ``epoch``, in mirrors; they are smaller than code pages.
    The rank's trainer must be parked or dead, or its threads may wait for a page until it is poisoned. Raises OSError, with
    the process named, when it is gone or does not let its descriptor be taken.
    """
    places = {**(observer.places or observer.table()), MARKERS: _marker_pages(epoch)}
    byte_count = 0
    with ExitStack() as stack:
        taken = [(process, _take(process)) for process in processes]
        for _, uffd in taken:
            stack.callback(uffd.close)
        for page in pages:
            place = places[page.allocation]
            page_bytes = OS_PAGE_BYTES if place.domain is Domain.CONTROL else observer.regions.page_bytes
            first = page.page_index * page_bytes
            count = min(page_bytes, place.byte_count - first)
            mapped = [(uffd, process.address_of(place)) for process, uffd in taken]
            ranges = [(uffd, address + first) for uffd, address in mapped if address is not None]
            _lose(observer.arenas[place.domain], place.offset + first, count, ranges)
            byte_count += count
    return byte_count


def _marker_pages(epoch: int) -> Place:
    return Place(
        name=MARKERS,
        page_class=PageClass.MARKERS,
        domain=Domain.CONTROL,
        offset=marker_page_offset(epoch, 0),
        byte_count=MIRRORS * OS_PAGE_BYTES,
    )


def _lose(arena_fd: int, offset: int, byte_count: int, ranges: Sequence[tuple[Userfaultfd, int]]) -> None:
    def clear() -> None:
        punch_hole(arena_fd, offset, byte_count)  # takes the pages out of every mapping

    with ExitStack() as registered:
        for uffd, address in ranges:
            uffd.register(address, byte_count)
            registered.callback(uffd.unregister, address, byte_count)
        clear()
        for uffd, address in ranges:
            uffd.poison(address, byte_count, clear)


def _take(process: HandOver) -> Userfaultfd:
    """A descriptor of this process for the other one's userfaultfd."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        raise OSError(error.errno, f"process {process.pid}, whose memory is to be lost: {error.strerror}") from None
    try:
        fd = _LIBC.syscall(_SYS_PIDFD_GETFD, pidfd, process.userfaultfd, 0)
    finally:
        os.close(pidfd)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot take the userfaultfd of process {process.pid}: {os.strerror(number)}")
    return Userfaultfd(fd)
