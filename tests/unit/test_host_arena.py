"""The host device: accounting, sharing by descriptor, discarding, and that children never inherit a mapping (INV-F)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leto.core.errors import RetainedStateError
from leto.device.host import HostArena, HostMapping

PAGE_BYTES = 4096


@pytest.fixture
def arena() -> Iterator[HostArena]:
    arena = HostArena("leto-test", 4 * PAGE_BYTES)
    yield arena
    arena.close()


@contextlib.contextmanager
def mapped(arena: HostArena) -> Iterator[HostMapping]:
    mapping = HostMapping(arena.export())
    yield mapping
    mapping.close()


def test_create_hands_out_whole_pages_in_order(arena: HostArena) -> None:
    handles = [arena.create(PAGE_BYTES), arena.create(2 * PAGE_BYTES), arena.create(PAGE_BYTES)]
    assert handles == [0, PAGE_BYTES, 3 * PAGE_BYTES]
    assert arena.used_bytes == arena.capacity_bytes == 4 * PAGE_BYTES


def test_create_beyond_the_capacity_is_refused_and_costs_nothing(arena: HostArena) -> None:
    arena.create(3 * PAGE_BYTES)
    with pytest.raises(RetainedStateError, match=f"leto-test: {2 * PAGE_BYTES} bytes wanted, {PAGE_BYTES} of"):
        arena.create(2 * PAGE_BYTES)
    assert arena.create(PAGE_BYTES) == 3 * PAGE_BYTES


@pytest.mark.parametrize("byte_count", [0, -PAGE_BYTES, PAGE_BYTES - 1])
def test_create_of_less_than_whole_pages_is_refused(arena: HostArena, byte_count: int) -> None:
    with pytest.raises(RetainedStateError, match=f"leto-test: {byte_count} bytes is not"):
        arena.create(byte_count)


@pytest.mark.parametrize("byte_count", [PAGE_BYTES, 8 * PAGE_BYTES])
def test_nobody_can_resize_the_file_under_the_others(arena: HostArena, byte_count: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.export(), byte_count)


def test_two_mappings_share_one_memory(arena: HostArena) -> None:
    with mapped(arena) as one, mapped(arena) as other:
        assert one.byte_count == 4 * PAGE_BYTES
        one.bytes_at(PAGE_BYTES, 4)[:] = [1, 2, 3, 4]
        assert other.bytes_at(PAGE_BYTES, 4).tolist() == [1, 2, 3, 4]
        assert other.bytes_at(0, 4).tolist() == [0, 0, 0, 0]
        assert one.bytes_at(PAGE_BYTES, 4).ctypes.data == one.address + PAGE_BYTES


def test_memory_outlives_its_owner_while_it_is_mapped() -> None:
    arena = HostArena("leto-test", PAGE_BYTES)
    with mapped(arena) as mapping:
        arena.close()
        mapping.bytes_at(0, PAGE_BYTES)[:] = 7
        assert mapping.bytes_at(0, PAGE_BYTES).sum() == 7 * PAGE_BYTES


def test_discarded_pages_read_as_zeros_in_every_mapping(arena: HostArena) -> None:
    with mapped(arena) as mapping:
        mapping.bytes_at(0, 3 * PAGE_BYTES)[:] = 9
        arena.discard(PAGE_BYTES, PAGE_BYTES)
        pages = mapping.bytes_at(0, 3 * PAGE_BYTES).reshape(3, PAGE_BYTES)
        assert [int(page.max()) for page in pages] == [9, 0, 9]
        del pages


def test_discard_of_an_impossible_range_says_which(arena: HostArena) -> None:
    with pytest.raises(OSError, match="leto-test: cannot discard 4096 bytes at -4096"):
        arena.discard(-PAGE_BYTES, PAGE_BYTES)


def test_a_mapping_does_not_close_under_a_live_view(arena: HostArena) -> None:
    mapping = HostMapping(arena.export())
    view = mapping.bytes_at(0, 8)
    with pytest.raises(BufferError):
        mapping.close()
    del view
    mapping.close()


def flags_of_mapping(address: int) -> list[str]:
    """The kernel's flags of the mapping that starts at ``address``."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            return next(line for line in lines if line.startswith("VmFlags:")).split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_children_do_not_inherit_the_mapping(arena: HostArena) -> None:
    with mapped(arena) as mapping:
        flags = flags_of_mapping(mapping.address)
        assert "sh" in flags  # shared
        assert "dc" in flags  # do not copy on fork


def test_the_descriptor_is_closed_on_exec(arena: HostArena) -> None:
    assert not os.get_inheritable(arena.export())


def test_importing_the_device_does_not_import_numpy() -> None:
    program = "import sys, leto.device.host; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_views_are_flat_writable_bytes(arena: HostArena) -> None:
    with mapped(arena) as mapping:
        view = mapping.bytes_at(8, 24)
        assert (view.dtype, view.shape, view.flags.writeable) == (np.uint8, (24,), True)
        del view
