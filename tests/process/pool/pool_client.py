"""A pool client in a process of its own: python pool_client.py {write|hold} SOCKET EPOCH. Says when it is done, then waits."""

from __future__ import annotations

import os
import signal
import sys

from leto.core.layout import Allocation, PageClass
from leto.memory.client import Pool
from leto.memory.regions import Regions

PAGE_BYTES = 8192
LAYOUT = "layout-of-test"
ALLOCATIONS = (
    Allocation(name="master", page_class=PageClass.CODED, byte_count=4 * PAGE_BYTES),
    Allocation(name="undo", page_class=PageClass.UNDO, byte_count=PAGE_BYTES),
    Allocation(name="tier1/0", page_class=PageClass.TIER1, byte_count=2 * PAGE_BYTES),
)


def pattern(position: int) -> int:
    return 0x51 + position


def main(mode: str, socket_path: str, epoch: str) -> None:
    pool = Pool(socket_path, rank=0, epoch=int(epoch), timeout_s=10.0)
    regions = Regions(PAGE_BYTES)
    if mode == "write":
        pool.obtain(regions, ALLOCATIONS, LAYOUT, create=True)
        for position, allocation in enumerate(ALLOCATIONS):
            regions.bytes(allocation.name)[:] = pattern(position)
    os.write(1, b"done\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
