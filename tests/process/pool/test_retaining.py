"""What the state manager retains: it outlives its clients, stays where it is, and is what was asked for."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pool_client import ALLOCATIONS, LAYOUT, PAGE_BYTES, pattern
from pool_processes import DEVICE_BYTES, HOST_BYTES, TIMEOUT_S, Connect, Observe, start_client

from leto.core.errors import RetainedStateError
from leto.core.geometry import Page
from leto.core.layout import Allocation, Domain, PageClass
from leto.memory.client import PoolAgent
from leto.memory.regions import Regions


def test_bytes_outlive_a_killed_trainer_and_reach_the_next_epoch(agent: PoolAgent, connect: Connect, socket_path: Path) -> None:
    client = start_client("write", socket_path, epoch=1)
    client.kill()
    assert client.wait(TIMEOUT_S) == -signal.SIGKILL
    agent.advance(2)
    trainer = connect()
    assert trainer.pool.layout_hash == LAYOUT
    trainer.attach()
    for position, allocation in enumerate(ALLOCATIONS):
        content = trainer.bytes(allocation.name)
        assert content.size == allocation.byte_count
        assert np.all(content == pattern(position))
        del content


def test_two_processes_see_the_same_page(connect: Connect, observe: Observe) -> None:
    trainer, observer = connect(), observe()
    trainer.allocate()
    trainer.bytes("tier1/0")[PAGE_BYTES] = 77
    assert observer.table().keys() == {a.name for a in ALLOCATIONS}
    assert observer.bytes("tier1/0")[PAGE_BYTES] == 77


def test_allocations_lie_apart_in_their_domains(connect: Connect, observe: Observe) -> None:
    connect().allocate()
    observer = observe()
    places = [observer.table()[a.name] for a in ALLOCATIONS]
    assert [(p.domain, p.offset) for p in places] == [(Domain.DEVICE, 0), (Domain.DEVICE, 4 * PAGE_BYTES), (Domain.HOST, 0)]
    usage = observer.usage()
    assert (usage[Domain.DEVICE].used_bytes, usage[Domain.DEVICE].capacity_bytes) == (5 * PAGE_BYTES, DEVICE_BYTES)
    assert (usage[Domain.HOST].used_bytes, usage[Domain.HOST].capacity_bytes) == (2 * PAGE_BYTES, HOST_BYTES)


def test_a_second_cold_start_gets_the_same_places_and_what_is_missing(
    agent: PoolAgent, connect: Connect, observe: Observe
) -> None:
    connect().allocate(ALLOCATIONS[:2])
    before = dict(observe().table())
    agent.advance(2)
    connect().allocate()
    after = observe().table()
    assert {name: after[name] for name in before} == before
    assert after["tier1/0"].offset == 0


def test_thousands_of_allocations_go_in_batches(connect: Connect, observe: Observe) -> None:
    many = [Allocation(name=f"gradient-parity/{n}", page_class=PageClass.GRADIENT_PARITY, byte_count=4096) for n in range(3000)]
    trainer = connect()
    trainer.allocate(many)
    table = observe().table()
    assert list(table) == [a.name for a in many]
    assert sorted(p.offset for p in table.values()) == list(range(0, 3000 * 4096, 4096))


@pytest.mark.parametrize(
    ("asked", "layout", "reason"),
    [
        (
            replace(ALLOCATIONS[0], byte_count=PAGE_BYTES),
            LAYOUT,
            "'master' is retained as 32768 bytes of coded.* as 8192 bytes",
        ),
        (replace(ALLOCATIONS[0], page_class=PageClass.DERIVED), LAYOUT, "'master' is retained as .* of coded.* of derived"),
        (replace(ALLOCATIONS[0], name="mister"), LAYOUT, "'mister' is not retained"),
        (ALLOCATIONS[0], "another", "layout 'another' asked, layout 'layout-of-test' is retained"),
    ],
)
def test_attaching_to_something_else_is_refused(connect: Connect, asked: Allocation, layout: str, reason: str) -> None:
    trainer = connect()
    trainer.allocate()
    with pytest.raises(RetainedStateError, match=reason):
        trainer.attach([asked], layout)
    trainer.attach()  # a refusal keeps the connection


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            [Allocation(name="big", page_class=PageClass.CODED, byte_count=DEVICE_BYTES)],
            "67112960 more bytes of device memory asked, 67067904 of 67108864 are free",
        ),
        ([Allocation(name="odd", page_class=PageClass.CODED, byte_count=4097)], "4097 bytes are not whole pages"),
        ([Allocation(name="none", page_class=PageClass.CODED, byte_count=0)], "0 bytes are not whole pages"),
        ([Allocation(name="", page_class=PageClass.CODED, byte_count=4096)], "name of 0 characters"),
        ([Allocation(name="twice", page_class=PageClass.CODED, byte_count=4096)] * 2, "asked for twice"),
        ([replace(ALLOCATIONS[0], byte_count=PAGE_BYTES)], "retained as 32768"),
    ],
    ids=["full", "odd", "empty", "unnamed", "twice", "size"],
)
def test_a_refused_allocation_retains_nothing(connect: Connect, observe: Observe, asked: list[Allocation], reason: str) -> None:
    trainer = connect()
    trainer.allocate()
    small = Allocation(name="small", page_class=PageClass.CODED, byte_count=4096)
    with pytest.raises(RetainedStateError, match=reason):
        trainer.allocate([small, *asked], LAYOUT)
    assert set(observe().table()) == {a.name for a in ALLOCATIONS}


def test_views_keep_a_trainer_from_unmapping_what_they_read(connect: Connect) -> None:
    trainer = connect()
    trainer.allocate()
    view = trainer.bytes("undo")
    with pytest.raises(BufferError):
        trainer.close()
    assert view[0] == 0
    del view
    trainer.close()


# Taking over.


def test_tensors_built_on_reserved_addresses_see_retained_memory_after_the_takeover(agent: PoolAgent, connect: Connect) -> None:
    connect().allocate()
    active = connect()
    active.attach()
    active.bytes("master")[:] = 3
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    views = {name: regions.bytes(name) for name in regions.names}
    for view in views.values():
        view[:] = 9  # a warm-up writes wherever it likes
    assert active.bytes("master").max() == 3
    agent.advance(2)
    promoted = connect(regions=regions)
    promoted.pool.attach_all(regions, LAYOUT)
    assert {name: (view.min(), view.max()) for name, view in views.items()} == {
        "master": (3, 3),
        "undo": (0, 0),
        "tier1/0": (0, 0),
    }
    views["undo"][5] = 1
    assert active.bytes("undo")[5] == 1
    views.clear()


def test_dropping_frees_the_scratch_memory_and_nothing_that_is_attached(connect: Connect) -> None:
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    trainer = connect(regions=regions)
    trainer.allocate(ALLOCATIONS[:1])
    for name in regions.names:
        regions.bytes(name)[:] = 7
    regions.drop()
    assert [int(regions.bytes(name).max()) for name in regions.names] == [7, 0, 0]


def test_a_reserved_name_keeps_its_size(connect: Connect) -> None:
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    address = regions.address("undo")
    regions.reserve(ALLOCATIONS)
    assert regions.address("undo") == address
    assert regions.page_address(Page("tier1/0", 1)) == regions.address("tier1/0") + PAGE_BYTES
    with pytest.raises(RetainedStateError, match="'undo' is reserved as 8192 bytes of undo, asked for as 16384 bytes"):
        regions.reserve([replace(ALLOCATIONS[1], byte_count=2 * PAGE_BYTES)])
    with pytest.raises(RetainedStateError, match="'mister' is not reserved"):
        regions.bytes("mister")
    regions.close()
