"""A stand-in for one rank's training: a few numbers that depend on everything a recovery has to bring back.

Gradients are a function of the derived parameters, the data cursor and the generator's position, so that a recovery which
reloads one of them wrongly ends in other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from chaos.explore.rank import GRADIENTS, RATES, RetainedRank
from chaos.explore.steps import Steps
from leto.core.hooks import StateEntry
from leto.core.records import IterationResult, LiveState, LossScale, UpdateValues

Floats = npt.NDArray[np.float32]
SAMPLES = 4
DRAWS = 3


@cache
def _noise(seed: tuple[int, ...], count: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def _moved(scale: LossScale, *, skipped: bool) -> LossScale:
    if skipped:
        return replace(scale, scale=(float.fromhex(scale.scale) / 2).hex(), growth_tracker=0)
    return replace(scale, growth_tracker=scale.growth_tracker + 1)


class Session:
    """What a process holds beside retained memory; all of it is gone with a crash."""

    def __init__(self, number: int, rank: RetainedRank, steps: Steps, skips: frozenset[int]) -> None:
        self._number = number
        self._skips = skips
        self._rank = rank
        self._steps = steps
        self._derived: Floats = np.zeros_like(rank.array(GRADIENTS))
        self._cursor = 0
        self._draws = 0
        self._scheduler_steps = 0
        self._applied_steps = 0
        self._loss_scale = LossScale(scale=(1024.0).hex(), growth_tracker=0, hysteresis_tracker=1)

    def initialise(self) -> None:
        """Coded state from the seed, when the job starts."""
        rank = self._rank
        targets = tuple((rank.memory.address(name), rank.array(name).nbytes) for name in rank.coded_arrays)
        self._steps.write(
            "initialise the state", rank.coded_arrays, lambda: targets, lambda: rank.fill(np.random.default_rng(self._number))
        )

    def compute(self, iteration: int, *, before_forward: Callable[[], None], after_backward: Callable[[], None]) -> None:
        before_forward()
        self._cursor += SAMPLES
        self._draws += DRAWS
        gradients = _noise((self._number, self._cursor, self._draws), self._derived.size) + self._derived
        target = self._rank.array(GRADIENTS)

        def accumulate() -> None:
            target[:] = gradients

        place = (self._rank.memory.address(GRADIENTS), target.nbytes)
        self._steps.write("compute", (GRADIENTS,), lambda: (place,), accumulate)
        after_backward()

    def prepare_update(self, iteration: int) -> tuple[UpdateValues, IterationResult]:
        """A step that is skipped moves neither the schedule nor Adam's count of steps, but the loss scale (U25, U28)."""
        gradients = self._rank.array(GRADIENTS)
        skipped = iteration in self._skips
        rates = self._rates()
        self._scheduler_steps += not skipped
        self._applied_steps += not skipped
        self._loss_scale = _moved(self._loss_scale, skipped=skipped)
        values = UpdateValues(
            iteration=iteration,
            skipped=skipped,
            applied_step=self._applied_steps,
            clip="" if skipped else (0.5).hex(),
            learning_rates=rates,
        )
        result = IterationResult(
            iteration=iteration,
            loss=float(gradients[0]).hex(),
            grad_norm="" if skipped else float(np.abs(gradients).max()).hex(),
            skipped=skipped,
            samples=tuple(range(self._cursor - SAMPLES, self._cursor)),
        )
        return values, result

    def _rates(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """A schedule: every step has rates of its own."""
        factor = 1 / (1 + self._scheduler_steps)
        return tuple(tuple((lr * factor, decay) for lr, decay in optimizer) for optimizer in RATES)

    def live_state(self) -> LiveState:
        return LiveState(
            generators={"draws": str(self._draws)},
            data_cursor=self._cursor,
            consumed_samples=self._cursor,
            scheduler_steps=self._scheduler_steps,
            applied_steps=self._applied_steps,
            learning_rates=self._rates(),
            loss_scales=(self._loss_scale,),
        )

    def restore_live(self, state: LiveState) -> None:
        self._draws = int(state.generators["draws"])
        self._cursor = state.data_cursor
        self._scheduler_steps = state.scheduler_steps
        self._applied_steps = state.applied_steps
        (self._loss_scale,) = state.loss_scales

    def set_applied_steps(self, applied_steps: int) -> None:
        """The step count of Adam is in the update's values."""

    def cast_derived(self) -> None:
        self._derived = self._rank.masters()

    def gather_derived(self) -> None:
        """Each rank is a shard of its own."""

    def entries(self) -> Iterable[StateEntry]:
        yield from (StateEntry(f"{n}/all", "float32", self._rank.array(n).view(np.uint8)) for n in self._rank.coded_arrays)
