"""One update phase of a rank, against what it would cost without protection (run: make bench-update).

The real updater carries out real plans over real arenas: 2 GiB of state in pages of 2 MiB, one group of 1024 pages, chunks of
63. Contenders take turns in one process, each on one thread and on all threads of the affinity mask:

    leto       fetch, then undo, update with parity, commit of 16 chunks, write-back of both tiers; marks included
    unfused    the same with update and parity as two operations
    plain      the native Adam kernel on the same chunks, without undo and parity: the loop of the fused pass
    torch      torch's own AdamW on the same memory, a parameter at a time
    encode     gradient parity of the iteration

A figure is the median over the rounds: of CPU seconds of all threads, of wall seconds, and of ratios of them within a round.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.clock import Spent, cpu_seconds, spent
from benchmarks.results import save
from benchmarks.update_report import WANTED, times_plain, verdict, write_report
from chaos.explore.memory import Markers
from leto import _kernels
from leto.core.failpoints import NoFailpoints
from leto.core.geometry import CODED_ARRAYS, CodedGeometry, GradientGeometry, Protection, Segment, pages_of_bytes
from leto.core.layout import Allocation, PageClass, updater_allocations
from leto.core.markers import Phase, Progress
from leto.core.records import UpdateValues
from leto.core.update_plan import OpKind, plan_update
from leto.device.base import AdamCoefficients
from leto.device.host import HostArena
from leto.memory.regions import Regions
from leto.update.adam import adamw_reference, host_kernels, reproduces_torch
from leto.update.executor import AdamHyper, PlanExecutor, UpdateParts
from leto.update.marks import Marks
from leto.update.record_slots import RECORD_SLOT_BYTES
from leto.update.updater import ChunkUpdater

PROTECTION = Protection()  # the paper's: pages of 2 MiB, 1024 + 16 + 1, chunks of 63
STATE_CHUNKS = 16
PARAMETER_ELEMENTS = 1 << 20
ROUNDS = 9
GRADIENTS = "gradients/all"
HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)
LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-3, 0.1, 0.5

Job = Callable[[int], None]
"""Does the work of one iteration."""


def coded_geometry() -> CodedGeometry:
    state_bytes = STATE_CHUNKS * PROTECTION.chunk_pages * PROTECTION.page_bytes
    count = state_bytes // (12 * PARAMETER_ELEMENTS)  # three arrays of fp32
    segments = tuple(
        Segment(name=f"p{n}", first=n * PARAMETER_ELEMENTS, count=PARAMETER_ELEMENTS, optimizer=0, param_group=0)
        for n in range(count)
    )
    return CodedGeometry(protection=PROTECTION, segments=segments)


class Rank:
    """Retained memory of one rank, filled, with both parity tiers."""

    def __init__(self) -> None:
        self.coded = coded_geometry()
        pages = tuple(pages_of_bytes(GRADIENTS, 0, self.coded.element_count * 4, PROTECTION.page_bytes))
        self.gradients = GradientGeometry(protection=PROTECTION, pages=pages)
        self.regions = Regions(PROTECTION.page_bytes)
        gradient_bytes = len(pages) * PROTECTION.page_bytes
        allocations = [
            *updater_allocations(self.coded, self.gradients, RECORD_SLOT_BYTES),
            Allocation(name=GRADIENTS, page_class=PageClass.GRADIENTS, byte_count=gradient_bytes),
        ]
        self.regions.reserve(allocations)
        self._arena = HostArena("benchmark", sum(a.byte_count for a in allocations))
        for allocation in allocations:
            offset = self._arena.create(allocation.byte_count)
            self.regions.region(allocation.name).attach(self._arena.export(), offset)
        self._fill()
        ChunkUpdater(self.parts(), self.gradients).encode_state()

    def _fill(self) -> None:
        rng = np.random.default_rng(1)
        for name in (*CODED_ARRAYS, GRADIENTS):
            array = self.regions.bytes(name).view(np.float32)
            for first in range(0, array.size, PARAMETER_ELEMENTS):
                values = rng.standard_normal(min(PARAMETER_ELEMENTS, array.size - first), np.float32)
                array[first : first + values.size] = values * values if name == "exp_avg_sq" else values

    def parts(self) -> UpdateParts:
        """On as many threads as torch computes with now."""
        kernels = host_kernels()
        if not reproduces_torch(kernels):
            raise SystemExit("the native Adam does not give torch's bits here: Leto would not use it")
        gradients = self.regions.address(GRADIENTS)
        return UpdateParts(
            coded=self.coded,
            retained=self.regions,
            kernels=kernels,
            adam=kernels.adam,
            hyper=HYPER,
            marks=Marks(kernels, Markers(), 1),
            failpoints=NoFailpoints(),
            gradient_address=lambda segment: gradients + 4 * segment.first,
            fused=True,
        )

    def tensor(self, name: str, segment: Segment) -> torch.Tensor:
        array = self.regions.bytes(name).view(np.float32)
        return torch.from_numpy(array[segment.first : segment.stop])


def values_of(iteration: int) -> UpdateValues:
    rates = (((LEARNING_RATE, WEIGHT_DECAY),),)
    return UpdateValues(iteration=iteration, skipped=False, applied_step=iteration, clip=CLIP.hex(), learning_rates=rates)


def begun(iteration: int) -> Progress:
    return Progress(phase=Phase.BEGIN, iteration=iteration)


def jobs(rank: Rank, parts: UpdateParts) -> dict[str, Job]:
    fused = ChunkUpdater(parts, rank.gradients)
    unfused = ChunkUpdater(replace(parts, fused=False), rank.gradients)

    def plain(iteration: int) -> None:
        executor = PlanExecutor(parts, values_of(iteration))
        for op in plan_update(rank.coded, iteration, begun(iteration)):
            if op.kind is OpKind.UPDATE:
                executor.run_unmarked(op)

    def with_torch(iteration: int) -> None:
        coefficients = AdamCoefficients(
            lr=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            beta1=HYPER.beta1,
            beta2=HYPER.beta2,
            eps=HYPER.eps,
            step=iteration,
            clip=CLIP,
        )
        for segment in rank.coded.segments:
            master, m, v = (rank.tensor(name, segment) for name in CODED_ARRAYS)
            adamw_reference(master, rank.tensor(GRADIENTS, segment) * CLIP, m, v, coefficients)

    return {
        "leto": lambda t: fused.run(values_of(t), begun(t)),
        "plain": plain,
        "encode": fused.protect_gradients,
        "unfused": lambda t: unfused.run(values_of(t), begun(t)),
        "torch": with_torch,
    }


def by_operation(rank: Rank, parts: UpdateParts, iteration: int) -> dict[str, float]:
    """CPU seconds of one update of Leto's, by kind of operation and for all marks together."""
    executor, seconds = PlanExecutor(parts, values_of(iteration)), {"marks": 0.0}
    for op in plan_update(rank.coded, iteration, begun(iteration), fused=True):
        kind = op.kind.value
        seconds[kind] = seconds.get(kind, 0.0) + cpu_seconds(lambda op=op: executor.run_unmarked(op))  # type: ignore[misc]
        if op.publish is not None:
            mark = op.publish
            seconds["marks"] += cpu_seconds(lambda mark=mark: parts.marks.publish(mark.word, mark.mark))  # type: ignore[misc]
    return seconds


def on_threads(threads: int, rank: Rank) -> tuple[UpdateParts, dict[str, Job]]:
    torch.set_num_threads(threads)
    parts = rank.parts()
    return parts, jobs(rank, parts)


def one_round(rank: Rank, threads: int, first_iteration: int) -> tuple[dict[str, Spent], dict[str, float]]:
    """What every contender takes, one after the other, and Leto's operations. torch is last: its threads wait busily."""
    parts, contenders = on_threads(threads, rank)
    operations = by_operation(rank, parts, first_iteration)
    times = {
        name: spent(lambda job=job, t=first_iteration + n: job(t))  # type: ignore[misc]
        for n, (name, job) in enumerate(contenders.items(), 1)
    }
    return times, operations


def measure(rank: Rank) -> dict[str, Any]:
    """Rounds of each number of threads take turns; the first round of each makes tables and touches pages, and is dropped."""
    counts = sorted({1, len(os.sched_getaffinity(0))})
    rounds: dict[int, list[dict[str, Spent]]] = {threads: [] for threads in counts}
    operations: dict[int, list[dict[str, float]]] = {threads: [] for threads in counts}
    iteration = 1
    for _ in range(ROUNDS + 1):
        for threads in counts:
            times, kinds = one_round(rank, threads, iteration)
            rounds[threads].append(times)
            operations[threads].append(kinds)
            iteration += len(times) + 1
    # What plain and torch changed has no parity: an update over it is as long, but its result is no code word.
    return {
        "state_bytes": 3 * rank.coded.regions[0].array_bytes,
        "page_bytes": PROTECTION.page_bytes,
        "chunk_pages": PROTECTION.chunk_pages,
        "rounds": ROUNDS,
        "row": _kernels.row,
        "threads": {str(threads): medians(rounds[threads][1:], operations[threads][1:]) for threads in counts},
    }


def medians(rounds: list[dict[str, Spent]], operations: list[dict[str, float]]) -> dict[str, Any]:
    def over(value: Callable[[dict[str, Spent], str], float]) -> dict[str, float]:
        return {name: statistics.median(value(r, name) for r in rounds) for name in rounds[0]}

    return {
        "cpu_seconds": over(lambda r, name: r[name].cpu_s),
        "wall_seconds": over(lambda r, name: r[name].wall_s),
        "cpu_times_plain": over(lambda r, name: r[name].cpu_s / r["plain"].cpu_s),
        "wall_times_plain": over(lambda r, name: r[name].wall_s / r["plain"].wall_s),
        "operations_cpu_seconds": {kind: statistics.median(o[kind] for o in operations) for kind in operations[0]},
    }


def main() -> None:
    torch.set_num_threads(1)
    figures = measure(Rank())
    write_report(save("update", figures))
    if (reached := times_plain(figures)) > WANTED:
        sys.exit(f"{verdict(reached)} times the plain Adam, at most {WANTED} are wanted")


if __name__ == "__main__":
    main()
