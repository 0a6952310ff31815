"""A trainer whose memory is about to be lost: python losing_client.py SOCKET MEMORY_DIR PAGES.

Retains PAGES code pages of coded state and of tier 1, fills them, hands its userfaultfd over, says "ready", then reads from
stdin which page to load from, and answers with its first byte, as long as it lives. Of a mirror it stores the phase again.
"""

from __future__ import annotations

import ctypes
import sys

from chaos.faults.hand_over import install_in_trainer
from leto.core.hooks import TrainerContext
from leto.core.layout import MARKERS, Allocation, PageClass
from leto.core.markers import Word
from leto.memory.client import Pool
from leto.memory.regions import Regions

PAGE_BYTES = 8192
LAYOUT = "layout-of-test"
DATA, PARITY = "master", "tier1/0"


def allocations(pages: int) -> tuple[Allocation, ...]:
    return (
        Allocation(name=DATA, page_class=PageClass.CODED, byte_count=pages * PAGE_BYTES),
        Allocation(name="undo", page_class=PageClass.UNDO, byte_count=PAGE_BYTES),
        Allocation(name=PARITY, page_class=PageClass.TIER1, byte_count=pages * PAGE_BYTES),
    )


def pattern(page_index: int) -> int:
    return 1 + page_index % 255


def main(socket_path: str, memory_dir: str, pages: str) -> None:
    pool = Pool(socket_path, rank=0, epoch=1, timeout_s=10.0)
    context = TrainerContext(
        rank=0,
        epoch=1,
        world_size=1,
        output_dir=memory_dir,
        options={"memory_dir": memory_dir},
        park_word_address=pool.control.park_word_address,
        heartbeat_address=pool.control.heartbeat_address,
        report=lambda event: None,
    )
    install_in_trainer(context)
    regions = Regions(PAGE_BYTES)
    pool.obtain(regions, allocations(int(pages)), LAYOUT, create=True)
    for name in (DATA, PARITY):
        for index in range(int(pages)):
            regions.bytes(name)[index * PAGE_BYTES : (index + 1) * PAGE_BYTES] = pattern(index)
    for listen in context.on_attached:
        listen({name: regions.address(name) for name in regions.names})
    print("ready", flush=True)
    for line in sys.stdin:
        name, index = line.split()
        if name == MARKERS:
            _store_again(pool.control.word_addresses(1, Word.PHASE)[int(index)])
            continue
        print(regions.bytes(name)[int(index) * PAGE_BYTES], flush=True)


def _store_again(address: int) -> None:
    word = ctypes.c_uint64.from_address(address)
    word.value = 0
    print(word.value, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
