"""What finding and replacing lost pages costs a state manager: 2 GiB of one domain (run: python -m benchmarks.localise)."""

from __future__ import annotations

import random
import statistics
import time
from functools import partial

import numpy as np

from benchmarks.results import save
from chaos.faults.userfaultfd import Userfaultfd
from leto.core.layout import Allocation, Domain, PageClass
from leto.device.host import HostArena, HostMapping
from leto.memory.retained_state import RetainedState

ROUNDS = 7
BYTES = 2 << 30
CLASSES = {Domain.DEVICE: PageClass.CODED, Domain.HOST: PageClass.TIER1}


def measure(domain: Domain, page_bytes: int, lost: int) -> float:
    """Median seconds of one localisation in memory that somebody has written."""
    state = RetainedState(0, BYTES, BYTES, page_bytes)
    name = "benchmark"
    state.allocate("benchmark", [Allocation(name=name, page_class=CLASSES[domain], byte_count=BYTES)])
    arena = state.arenas[domain]
    mapping = HostMapping(arena.export())
    mapping.bytes_at(0, BYTES).view(np.uint64)[:] = 1
    uffd = Userfaultfd.create()
    seconds = []
    for seed in range(ROUNDS):
        pages = random.Random(seed).sample(range(BYTES // page_bytes), lost)
        for page in pages:
            lose_page(uffd, arena, page * page_bytes, page_bytes)
        started_s = time.perf_counter()
        state.localise()
        seconds.append(time.perf_counter() - started_s)
        for page in pages:  # as a trainer does, which rebuilds them
            mapping.bytes_at(page * page_bytes, page_bytes)[:] = 1
    uffd.close()
    mapping.close()
    state.close()
    return statistics.median(seconds)


def lose_page(uffd: Userfaultfd, arena: HostArena, offset: int, byte_count: int) -> None:
    """The bytes are gone, and touching the state manager's own mapping of them is a SIGBUS."""
    address, clear = arena.address + offset, partial(arena.discard, offset, byte_count)
    uffd.register(address, byte_count)
    clear()
    uffd.poison(address, byte_count, clear)
    uffd.unregister(address, byte_count)


def main() -> None:
    save(
        "localise",
        {
            f"{domain.value} {page_bytes >> 10} KiB pages, {lost} lost, s": measure(domain, page_bytes, lost)
            for domain in CLASSES
            for page_bytes in (1 << 16, 2 << 20)
            for lost in (0, 16)
        },
    )


if __name__ == "__main__":
    main()
