"""What a job must come to: every update without a crash, from the definitions alone.

AdamW is numpy's own fp32 arithmetic and the code is ``leto.core.reed_solomon``: no plan, no executor, no kernel. Kernels give
the same bits with the IEEE square root and without fused multiply-add (``KERNELS``).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import cache

import numpy as np
import numpy.typing as npt

from chaos.explore.rank import GRADIENTS, HYPER, RATES
from leto.core import reed_solomon
from leto.core.geometry import CODED_ARRAYS, CodedGeometry, GradientGeometry, Page, Segment
from leto.core.records import Header, IterationResult, LiveState, Post, UpdateValues
from leto.device.host_kernels import HostKernels

KERNELS = HostKernels(sqrt_address=0, fused_multiply_add=False)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
State = dict[str, Floats]

SKIPPED_EVERY = 3
"""Of so many updates one is skipped (U25)."""


def values(iteration: int) -> UpdateValues:
    return UpdateValues(
        iteration=iteration,
        skipped=iteration % SKIPPED_EVERY == 0,
        applied_step=iteration - iteration // SKIPPED_EVERY,
        clip=(0.5).hex(),
        learning_rates=RATES,
    )


def live(iteration: int) -> LiveState:
    return LiveState(
        generators={"draws": str(iteration)},
        data_cursor=iteration,
        consumed_samples=iteration,
        scheduler_steps=iteration - 1,
        applied_steps=values(iteration - 1).applied_step,
        learning_rates=values(iteration).learning_rates,
    )


class CrashFree:
    """Contents of one rank's pages after each update, computed once. Iteration 0 is the state that the job starts with."""

    def __init__(self, coded: CodedGeometry, gradients: GradientGeometry) -> None:
        self._coded = coded
        self._gradients = gradients
        self._h1 = coded.protection.tier1_pages
        self.page = cache(self._page)
        self.state = cache(self._state)
        self.gradient = cache(self._gradient)
        self.gradient_rows = cache(self._gradient_rows)
        self.rows = cache(self._rows)
        self._contribution = cache(self._contribution_of)

    def header(self, iteration: int) -> Header:
        if iteration > 1:
            return self.post(iteration - 1).next_header()
        return Header(iteration=1, layout_hash=self._coded.layout_hash(), live=live(1), previous=None)

    def post(self, iteration: int) -> Post:
        result = IterationResult(
            iteration=iteration,
            loss=(1 / iteration).hex(),
            grad_norm=(2.0).hex(),
            skipped=values(iteration).skipped,
            samples=(iteration,),
        )
        return Post(
            iteration=iteration,
            layout_hash=self._coded.layout_hash(),
            next_live=live(iteration + 1),
            values=values(iteration),
            result=result,
        )

    def _page(self, iteration: int, page: Page) -> bytes:
        """A data page, of coded state after update ``iteration`` or of that iteration's gradients."""
        array = self.gradient(iteration) if page.allocation == GRADIENTS else self.state(iteration)[page.allocation]
        return _page_of(array, page, self._coded.protection.page_bytes).tobytes()

    def tier2(self, iteration: int, group: int, older: AbstractSet[int]) -> bytes:
        rows = self.rows(iteration, group, older)
        return reed_solomon.xor_pages([np.frombuffer(row, np.uint8) for row in rows]).tobytes()

    def _state(self, iteration: int) -> State:
        if iteration:
            return self._updated(iteration)
        generator = np.random.default_rng(self._coded.element_count)
        start = {name: self._padded(generator.standard_normal(self._coded.element_count)) for name in CODED_ARRAYS}
        return start | {"exp_avg_sq": np.abs(start["exp_avg_sq"])}

    def _gradient(self, iteration: int) -> Floats:
        generator = np.random.default_rng((self._coded.element_count, iteration))
        page_floats = self._coded.protection.page_bytes // 4
        whole = np.zeros(len(self._gradients.pages) * page_floats, np.float32)
        whole[: self._coded.element_count] = generator.standard_normal(self._coded.element_count)
        if values(iteration).skipped:
            whole[0] = np.inf
        return whole

    def _padded(self, numbers: npt.NDArray[np.float64]) -> Floats:
        whole = np.zeros(self._coded.regions[0].array_bytes // 4, np.float32)
        whole[: numbers.size] = numbers
        return whole

    def _updated(self, iteration: int) -> State:
        state = {name: array.copy() for name, array in self.state(iteration - 1).items()}
        if values(iteration).skipped:
            return state
        for segment in self._coded.segments:
            part = slice(segment.first, segment.stop)
            arrays = [state[name][part] for name in CODED_ARRAYS]
            adam(*arrays, self.gradient(iteration)[part], segment, iteration)
        return state

    def _rows(self, iteration: int, group: int, older: AbstractSet[int]) -> tuple[bytes, ...]:
        """Parity of a group after update ``iteration``, with the ``older`` chunks still as they were before it."""
        rows = [np.zeros(self._coded.protection.page_bytes, np.uint8) for _ in range(self._h1)]
        for chunk in self._coded.chunks_of(group):
            for row, part in zip(rows, self._contribution(iteration - (chunk in older), chunk), strict=True):
                row ^= part
        return tuple(row.tobytes() for row in rows)

    def _contribution_of(self, iteration: int, chunk: int) -> list[Bytes]:
        """What a chunk gives to every row: the code is linear."""
        placed = self._coded.chunk_pages(chunk)
        pages = [np.frombuffer(self.page(iteration, p.page), np.uint8) for p in placed]
        return reed_solomon.encode(self._h1, [p.column for p in placed], pages)

    def _gradient_rows(self, iteration: int, group: int) -> tuple[bytes, ...]:
        placed = self._gradients.group_pages(group)
        pages = [np.frombuffer(self.page(iteration, p.page), np.uint8) for p in placed]
        return tuple(row.tobytes() for row in reed_solomon.encode(self._h1, [p.column for p in placed], pages))


def _page_of(array: Floats, page: Page, page_bytes: int) -> Floats:
    floats = page_bytes // 4
    return array[page.page_index * floats : (page.page_index + 1) * floats]


def adam(p: Floats, m: Floats, v: Floats, gradient: Floats, segment: Segment, iteration: int) -> None:
    """AdamW on one segment, in place: scalars are doubles rounded to fp32 once, then every operation rounds."""
    update, f32 = values(iteration), np.float32
    lr, decay = update.learning_rates[segment.optimizer][segment.param_group]
    correction1, correction2 = (1 - beta ** float(update.applied_step) for beta in (HYPER.beta1, HYPER.beta2))
    g = gradient * f32(float.fromhex(update.clip))
    if decay:
        p *= f32(1 - lr * decay)
    m += f32(1 - HYPER.beta1) * (g - m)
    v *= f32(HYPER.beta2)
    v += f32(1 - HYPER.beta2) * g * g
    p += f32(-(lr / correction1)) * m / (np.sqrt(v) / f32(correction2**0.5) + f32(HYPER.eps))
