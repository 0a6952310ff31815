"""The erasure code against ISA-L and against reading memory (run: make bench-coding).

Every round runs Leto, ISA-L and the reading of memory one after the other in one process, on one thread; a figure is the median
over the rounds of the ratio of CPU times within a round, so that whatever else the machine does weighs on both sides. Rows of
other instruction sets are measured in processes of their own in the same way.

ISA-L encodes 32 data pages a call, which is what GF(2^8) with 16 parity pages is used for; Leto's whole group is one call. An
update leaves the old parity whole and writes the new one elsewhere; ISA-L only updates in place, so the same result is a copy
followed by its update. Its time without the copy is recorded too (``isal_in_place``).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import cpu_seconds
from benchmarks.coding_report import missed_targets, write_report
from benchmarks.isal import Isal, version
from benchmarks.memory_read import memory_reader
from benchmarks.results import save
from leto import _kernels
from leto.device.base import CodeShape
from leto.device.host_kernels import HostKernels

PAGE_BYTES = 2 << 20
MAX_DATA_PAGES = 1024
MAX_PARITY_PAGES = 16
PARITY_SETS = 4  # so that no set is in the cache when its turn comes
UNDO_PAGES = 64
ISAL_DATA_PAGES = 32
ROUNDS = 9
ROW_TIMEOUT_S = 1200.0

ENCODE_DATA_PAGES = (64, 256, 1024)
ENCODE_PARITY_PAGES = (1, 2, 4, 8, 16)
UPDATE_PAGES = (1, 4, 16, 64)
RECONSTRUCT_PAGES = (1, 4, 16)

Job = Callable[[], None]
Round = dict[str, float]
"""CPU seconds of each job."""


class Memory:
    """All pages that the jobs work on, by address: 2.4 GiB in huge pages."""

    def __init__(self) -> None:
        self._mappings: list[mmap.mmap] = []
        self.data = self._pages(MAX_DATA_PAGES)
        self.undo = self._pages(UNDO_PAGES)
        self.parity = [self._pages(MAX_PARITY_PAGES) for _ in range(PARITY_SETS)]
        self.scratch = self._pages(1)[0]

    def _pages(self, count: int) -> list[int]:
        mapping = mmap.mmap(-1, (count + 1) * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
        self._mappings.append(mapping)
        words = np.frombuffer(mapping, np.uint64)
        pattern = np.random.default_rng(count).integers(0, 1 << 63, PAGE_BYTES // 8, dtype=np.uint64)
        for page in range(count + 1):
            words[page * pattern.size : (page + 1) * pattern.size] = pattern * np.uint64(2 * page + 1)
        first = -(-words.ctypes.data // PAGE_BYTES) * PAGE_BYTES
        return [first + page * PAGE_BYTES for page in range(count)]


class Jobs:
    """What is measured. Every method gives one job per contender; all of a dictionary's jobs move the same data."""

    def __init__(self, memory: Memory, folder: Path) -> None:
        self._memory = memory
        self._kernels = HostKernels()
        self._read = memory_reader(folder, PAGE_BYTES)
        self._isal = {rows: Isal(ISAL_DATA_PAGES, rows, PAGE_BYTES) for rows in ENCODE_PARITY_PAGES}

    def encode(self, data_pages: int, parity_pages: int) -> dict[str, Job]:
        data, parity = self._memory.data[:data_pages], self._memory.parity[0][:parity_pages]
        shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=parity_pages)
        isal = self._isal[parity_pages]

        def isal_encode() -> None:
            for first in range(0, data_pages, ISAL_DATA_PAGES):
                isal.encode(data[first : first + ISAL_DATA_PAGES], parity)

        return {
            "leto": lambda: self._kernels.encode(shape, range(data_pages), data, parity),
            "isal": isal_encode,
            "read": lambda: self._read(data),
        }

    def update(self, pages: int) -> dict[str, Job]:
        """As many updates of ``pages`` pages as there are parity sets, each from one set to the next."""
        shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=MAX_PARITY_PAGES)
        sets = self._memory.parity
        turns = [(range(n * pages, (n + 1) * pages), sets[n], sets[(n + 1) % PARITY_SETS]) for n in range(PARITY_SETS)]
        undo = self._memory.undo[:pages]

        def leto() -> None:
            for columns, old, new in turns:
                changed = [self._memory.data[c] for c in columns]
                self._kernels.update_parity(shape, columns, undo, changed, old, new)

        def isal_in_place() -> None:
            for columns, _, parity in turns:
                self._isal_update(columns, undo, parity)

        def isal() -> None:
            for columns, old, new in turns:
                for source, target in zip(old, new, strict=True):
                    ctypes.memmove(target, source, PAGE_BYTES)
                self._isal_update(columns, undo, new)

        return {"leto": leto, "isal": isal, "isal_in_place": isal_in_place}

    def _isal_update(self, columns: range, undo: list[int], parity: list[int]) -> None:
        for column, before in zip(columns, undo, strict=True):
            data, scratch = self._memory.data[column], self._memory.scratch
            self._isal[MAX_PARITY_PAGES].update(column % ISAL_DATA_PAGES, before, data, scratch, parity)

    def reconstruct(self, lost: int) -> dict[str, Job]:
        """``lost`` pages of a full group, with all parity rows at hand: those not needed are checked."""
        shape = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=MAX_PARITY_PAGES)
        data, parity, target = self._memory.data, self._memory.parity[0], self._memory.undo[:lost]
        kept = range(lost, MAX_DATA_PAGES)
        self._kernels.encode(shape, range(MAX_DATA_PAGES), data, parity)
        survivors = [*data[lost:], *parity]
        survivors = survivors[: len(survivors) // 4 * 4]

        def leto() -> None:
            rows = range(MAX_PARITY_PAGES)
            self._kernels.reconstruct(shape, kept, data[lost:], range(lost), target, rows, parity)

        return {"leto": leto, "read": lambda: self._read(survivors)}

    def second_tier(self) -> dict[str, Job]:
        """Xor of 16 pages, for all data pages in turn."""
        data, targets = self._memory.data, self._memory.parity[0]
        groups = [data[first : first + MAX_PARITY_PAGES] for first in range(0, MAX_DATA_PAGES, MAX_PARITY_PAGES)]

        def leto() -> None:
            for n, group in enumerate(groups):
                self._kernels.xor_pages(group, targets[n % len(targets)], PAGE_BYTES)

        return {"leto": leto, "read": lambda: self._read(data)}


def measured(jobs: dict[str, Job], data_bytes: int) -> dict[str, float]:
    """Median over the rounds: GB/s of each contender, and Leto's speed as a multiple of each other one's."""
    for job in jobs.values():
        job()  # tables and pages are there
    rounds: list[Round] = [{name: cpu_seconds(job) for name, job in jobs.items()} for _ in range(ROUNDS)]
    speeds = {f"{name}_gb_s": data_bytes / statistics.median(r[name] for r in rounds) / 1e9 for name in jobs}
    ratios = {f"times_{name}": statistics.median(r[name] / r["leto"] for r in rounds) for name in jobs if name != "leto"}
    return speeds | ratios


def measure_row() -> dict[str, Any]:
    """Everything on the best row; on the others one encode, since that is what they are held to."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(Memory(), Path(folder))
        if _kernels.row != _kernels.supported_rows[-1]:
            data_pages = ENCODE_DATA_PAGES[0] if _kernels.row == "portable" else MAX_DATA_PAGES
            return {"encode": {f"{data_pages}+16": measured(jobs.encode(data_pages, 16), data_pages * PAGE_BYTES)}}
        return {
            "encode": {
                f"{d}+{h}": measured(jobs.encode(d, h), d * PAGE_BYTES) for d in ENCODE_DATA_PAGES for h in ENCODE_PARITY_PAGES
            },
            "update": {str(n): measured(jobs.update(n), n * PARITY_SETS * PAGE_BYTES) for n in UPDATE_PAGES},
            "reconstruct": {str(e): measured(jobs.reconstruct(e), MAX_DATA_PAGES * PAGE_BYTES) for e in RECONSTRUCT_PAGES},
            "second_tier": {"16": measured(jobs.second_tier(), MAX_DATA_PAGES * PAGE_BYTES)},
            "isal": version(),
        }


def row_in_a_process(row: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.coding", "--row"]
    environment = os.environ | {"LETO_KERNEL": row}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=ROW_TIMEOUT_S, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    if sys.argv[1:] == ["--row"]:
        print(json.dumps(measure_row()))
        return
    rows = {row: row_in_a_process(row) for row in reversed(_kernels.supported_rows)}
    best = _kernels.supported_rows[-1]
    figures = {"page_bytes": PAGE_BYTES, "rounds": ROUNDS, "isal": rows[best].pop("isal"), "best_row": best, "rows": rows}
    write_report(save("coding", figures))
    if missed := missed_targets(figures):
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
