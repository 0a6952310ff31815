"""Finding and solving 16 lost pages of one protection group, by its size (run: python -m benchmarks.rebuild).

Every round loses other pages of a group of coded state, poisoned as the bench poisons them, lets the state manager's side find
and replace them, solves them with 16 parity rows, compares them with what they held, and reads the survivors once, as four
streams on one thread. CPU seconds, median over the rounds; the ratio to the plain read is taken within a round.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.clock import cpu_seconds
from benchmarks.localise import lose_page
from benchmarks.memory_read import memory_reader
from benchmarks.results import save
from chaos.faults.userfaultfd import Userfaultfd
from leto.core.layout import Allocation, Domain, PageClass
from leto.device.base import CodeShape
from leto.device.host import HostMapping
from leto.device.host_kernels import HostKernels
from leto.memory.retained_state import RetainedState

ROUNDS = 9
LOST = 16
SHAPE = CodeShape(page_bytes=2 << 20, tier1_pages=LOST)
DATA_PAGES = (128, 256, 512, 1024)
CODED, PARITY = "benchmark/coded", "benchmark/parity"


class Group:
    """One full group and its parity in a rank's device arena, as a trainer maps it."""

    def __init__(self, data_pages: int) -> None:
        sizes = {CODED: data_pages * SHAPE.page_bytes, PARITY: LOST * SHAPE.page_bytes}
        classes = {CODED: PageClass.CODED, PARITY: PageClass.PARITY}
        self._state = RetainedState(0, sum(sizes.values()), SHAPE.page_bytes, SHAPE.page_bytes)
        wanted = [Allocation(name=name, page_class=classes[name], byte_count=size) for name, size in sizes.items()]
        places = {place.name: place for place in self._state.allocate("benchmark", wanted)}
        self._arena = self._state.arenas[Domain.DEVICE]
        self._mapping = HostMapping(self._arena.export())
        self._first = places[CODED].offset
        self.data = [self._mapping.address + self._first + n * SHAPE.page_bytes for n in range(data_pages)]
        parity_at = self._mapping.address + places[PARITY].offset
        self.parity = [parity_at + n * SHAPE.page_bytes for n in range(LOST)]
        words = self._mapping.bytes_at(self._first, sizes[CODED]).view(np.uint64)
        words[:] = np.arange(words.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._kernels = HostKernels()
        self._kernels.encode(SHAPE, range(data_pages), self.data, self.parity)
        self._uffd = Userfaultfd.create()

    def round(self, columns: list[int], read: Callable[[list[int]], None]) -> dict[str, float]:
        """CPU seconds of each part. Raises AssertionError when a rebuilt page differs from what it held."""
        held = [self._page(column).copy() for column in columns]
        for column in columns:
            lose_page(self._uffd, self._arena, self._first + column * SHAPE.page_bytes, SHAPE.page_bytes)
        seconds = {"localise": cpu_seconds(self._localise)}
        kept = [column for column in range(len(self.data)) if column not in set(columns)]
        survivors = [self.data[column] for column in kept]
        target = [self.data[column] for column in columns]

        def reconstruct() -> None:
            self._kernels.reconstruct(SHAPE, kept, survivors, columns, target, range(LOST), self.parity)

        seconds["reconstruct"] = cpu_seconds(reconstruct)
        seconds["read"] = cpu_seconds(lambda: read([*survivors, *self.parity]))
        assert all(np.array_equal(self._page(column), was) for column, was in zip(columns, held, strict=True))
        self._state.rebuilt(self._state.lost_from(0))
        return seconds

    def _localise(self) -> None:
        found = self._state.localise()
        assert found == LOST, f"{found} lost pages found"

    def _page(self, column: int) -> np.ndarray:
        return self._mapping.bytes_at(self._first + column * SHAPE.page_bytes, SHAPE.page_bytes)

    def close(self) -> None:
        self._uffd.close()
        self._mapping.close()
        self._state.close()


def measure(data_pages: int, read: Callable[[list[int]], None]) -> dict[str, float]:
    group = Group(data_pages)
    try:
        draws = [sorted(random.Random(seed).sample(range(data_pages), LOST)) for seed in range(ROUNDS + 1)]
        rounds = [group.round(columns, read) for columns in draws][1:]  # page tables are filled by the first one
    finally:
        group.close()
    figures = {f"{part}_s": statistics.median(r[part] for r in rounds) for part in rounds[0]}
    both = statistics.median((r["localise"] + r["reconstruct"]) / r["read"] for r in rounds)
    return {"group_bytes": data_pages * SHAPE.page_bytes, **figures, "localise_and_reconstruct_times_read": both}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        read = memory_reader(Path(folder), SHAPE.page_bytes)
        save("rebuild", {f"{n} pages of 2 MiB, {LOST} lost": measure(n, read) for n in DATA_PAGES})


if __name__ == "__main__":
    main()
