"""Poisoning pages of this process: what is brought back meanwhile is cleared, what is half done is gone on with."""

from __future__ import annotations

import errno
import fcntl
import struct
from collections.abc import Iterator

import pytest

from chaos.faults import userfaultfd
from chaos.faults.userfaultfd import Userfaultfd, can_poison
from leto.device.host import HostArena, HostMapping
from leto.device.linux import populate_read

PAGE = 4096
EHWPOISON = 133
needs_poison = pytest.mark.skipif(can_poison() is not None, reason=f"pages cannot be poisoned here: {can_poison()}")


@pytest.fixture
def arena() -> Iterator[HostArena]:
    arena = HostArena("leto-test", 4 * PAGE)
    yield arena
    arena.close()


@needs_poison
def test_a_page_that_somebody_brought_back_is_cleared_and_poisoned(arena: HostArena) -> None:
    mapping, uffd = HostMapping(arena.export()), Userfaultfd.create()
    mapping.bytes_at(0, 4 * PAGE)[:] = 7
    cleared = []

    def clear() -> None:
        cleared.append(True)
        arena.discard(PAGE, 2 * PAGE)

    uffd.register(mapping.address + PAGE, 2 * PAGE)
    uffd.poison(mapping.address + PAGE, 2 * PAGE, clear)
    uffd.unregister(mapping.address + PAGE, 2 * PAGE)
    assert cleared == [True]
    assert [populate_read(mapping.address + k * PAGE, PAGE) for k in range(4)] == [0, EHWPOISON, EHWPOISON, 0]
    uffd.close()
    mapping.close()


def test_a_half_done_request_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []

    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        start, byte_count, mode, _ = struct.unpack("QQQq", argument)
        ranges.append((start, byte_count))
        if byte_count > PAGE:
            struct.pack_into("QQQq", argument, 0, start, byte_count, mode, PAGE if len(ranges) != 2 else -errno.EAGAIN)
            raise OSError(errno.EAGAIN, "the mapping changes")
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    Userfaultfd(-1).poison(0, 3 * PAGE, lambda: None)
    assert ranges == [(0, 3 * PAGE), (PAGE, 2 * PAGE), (PAGE, 2 * PAGE), (2 * PAGE, PAGE)]


def test_it_gives_up_and_says_how_much_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        raise OSError(errno.EEXIST, "File exists")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(OSError, match="8192 of 8192 bytes at 0x0 could not be poisoned"):
        Userfaultfd(-1).poison(0, 2 * PAGE, lambda: None)


def test_a_kernel_that_cannot_poison_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    if can_poison() is None:  # an older kernel: userfaultfd is there, its poison is not
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "ioctl", refuse)
            assert can_poison() == "userfaultfd cannot poison pages: Invalid argument"
    monkeypatch.setattr(userfaultfd, "_SYS_USERFAULTFD", {})
    reason = can_poison()
    assert reason is not None
    assert "is not known" in reason
