"""Plain Megatron-Core training of one rank: groups, model, optimizer, one iteration. Knows nothing of Leto.

The reference run and Leto's trainer share this class, so that they differ only in who updates the state (U46): the reference
calls ``plain_step``; Leto calls ``prepare_update``, updates the coded state itself, then ``cast_derived``, ``gather_derived``
and ``set_applied_steps`` (U49).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leto.core.config import Workload
from leto.core.hooks import StateEntry
from leto.core.records import IterationResult, LiveState, UpdateValues


def join_process_groups(workload: Workload, *, store: Any, rank: int, timeout_s: float) -> None:
    """The default gloo group over ``store`` (a c10d Store of this generation) and Megatron's groups. Collective."""
    raise NotImplementedError


class TrainingSession:
    """Model, DDP, optimizer, scheduler and data of one rank; process groups must have been joined.

    ``bind_buffers(ddp)`` runs after DistributedDataParallel is built and before the optimizer slices views of its buffers.
    ``keep_parameters``: the bound buffers hold a training state already, so nothing is broadcast (a replacement's initial
    weights are thrown away).
    """

    shards: tuple[Any, ...]  # leto.megatron.shards.Shard, bucket-shard order over all chained optimizers
    ddp: Any
    optimizer: Any  # megatron ChainedOptimizer
    scheduler: Any

    def __init__(
        self, workload: Workload, *, rank: int, bind_buffers: Callable[[Any], None] | None = None, keep_parameters: bool = False
    ) -> None:
        raise NotImplementedError

    def compute(
        self, iteration: int, *, before_forward: Callable[[], None] | None = None, after_backward: Callable[[], None] | None = None
    ) -> None:
        """Zero gradients, forward and backward of this rank's micro-batches, gradients reduced. Collective."""
        raise NotImplementedError

    def plain_step(self, iteration: int) -> IterationResult:
        """Megatron's own optimizer step and the scheduler's: the reference. Collective."""
        raise NotImplementedError

    def prepare_update(self, iteration: int) -> tuple[UpdateValues, IterationResult]:
        """Everything of the step that comes before the first write of coded state; gradients are final and not clipped.

        Afterwards ``live_state`` is what t+1 starts from: POST's ``next_live``. Collective.
        """
        raise NotImplementedError

    def live_state(self) -> LiveState:
        raise NotImplementedError

    def restore_live(self, live: LiveState) -> None:
        """Generators, data position, counters, scheduler, scalers, enrolled buffers and step tensors become ``live``."""
        raise NotImplementedError

    def set_applied_steps(self, applied_steps: int) -> None:
        """Adam's step tensors become the applied step (U29)."""
        raise NotImplementedError

    def cast_derived(self) -> None:
        """The owned shard of every bf16 parameter <- its fp32 master, rounded to nearest even. Local."""
        raise NotImplementedError

    def gather_derived(self) -> None:
        """One parameter all-gather over all bucket groups (U49). Collective."""
        raise NotImplementedError

    def entries(self) -> Iterable[StateEntry]:
        """The ledger's view of this rank: ``param/``, ``master/``, ``exp_avg/``, ``exp_avg_sq/``, ``step/`` of each parameter."""
        raise NotImplementedError
