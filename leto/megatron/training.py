"""Plain Megatron-Core training of one rank: groups, model, optimizer, one iteration. Knows nothing of Leto.

The reference run and Leto's trainer share this class, so that they differ only in who updates the state (U46): the reference
calls ``plain_step``; Leto calls ``prepare_update``, updates the coded state itself, then ``set_applied_steps``,
``cast_derived`` and ``gather_derived`` (U49).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from leto.core.config import Workload
from leto.core.errors import ProtocolViolation
from leto.core.hooks import StateEntry
from leto.core.records import IterationResult, LiveState, UpdateValues
from leto.megatron import build, live, mcore
from leto.megatron.corpus import shakespeare, tokenizer
from leto.megatron.data import batch, gpt_dataset, sample_index
from leto.megatron.models import model_spec
from leto.megatron.shards import owned_shards
from leto.megatron.unenrolled import BuiltState

CLIP_EPSILON = 1.0e-6
"""Megatron's clip_grad_by_total_norm_fp32 adds it to the norm."""


def join_process_groups(workload: Workload, *, store: dist.Store, rank: int, timeout_s: float) -> None:
    """The default gloo group over ``store`` (a c10d store of this generation) and Megatron's groups. Collective.

    No collective waits longer than ``timeout_s``.
    """
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workload.world_size, timeout=timeout)
    mcore.parallel_state.initialize_model_parallel(
        expert_model_parallel_size=workload.expert_parallel,
        distributed_timeout_minutes=timeout_s / 60,
        create_gloo_process_groups=False,  # the default groups are gloo already
    )


class TrainingSession:
    """Model, DDP, optimizer, scheduler and data of one rank; process groups must have been joined.

    ``bind_buffers(ddp)`` runs after DistributedDataParallel is built and before the optimizer slices views of its buffers.
    The counters are public because they are state: ``data_cursor`` (samples this rank has read), ``consumed_samples`` (by the
    job), ``applied_steps`` (updates, a skipped one not counted).
    """

    def __init__(self, workload: Workload, *, rank: int, bind_buffers: Callable[[Any], None] | None = None) -> None:
        self.workload = workload
        self.rank = rank
        self.spec = model_spec(workload)
        live.seed_generators(workload.seed)
        mcore.get_moe_layer_wise_logging_tracker().clear()  # a dict of the module: an earlier session may have filled it
        self.config = build.transformer_config(self.spec, workload)
        self.model = build.gpt_model(self.spec, self.config)
        self.ddp = build.data_parallel(self.config, self.model, workload)
        if bind_buffers is not None:
            bind_buffers(self.ddp)
        self.optimizer = build.optimizer(self.spec, workload, self.ddp)
        self.scheduler = build.scheduler(self.spec, workload, self.optimizer)
        build.connect(self.config, self.optimizer)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.shards = owned_shards(self.optimizer, names)
        self._create_moments()
        self._forward_backward = mcore.get_forward_backward_func()
        self._dataset = gpt_dataset(
            shakespeare(),
            tokenizer(),
            sequence=self.spec.sequence,
            seed=workload.seed,
            samples=workload.iterations * self.spec.global_batch,
        )
        self._losses: list[torch.Tensor] = []
        self._samples: list[int] = []  # read by this rank in the last compute
        self.data_cursor = 0
        self.consumed_samples = 0
        self.applied_steps = 0
        enrolled = live.enrolled_buffers(self.model, self.spec.mutable)
        self._built_state = BuiltState(self.model, enrolled.__contains__)

    def _create_moments(self) -> None:
        """Optimizers would create their state at the first step; it must have names and places before."""
        for shard in self.shards:
            state = {} if shard.rows else {"step": torch.zeros((), dtype=torch.float32)}
            for name in ("momentum_buffer",) if shard.rows else ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(shard.master)
            shard.inner.state[shard.parameter] = state

    # The compute phase.

    def compute(
        self,
        iteration: int,
        *,
        before_forward: Callable[[], None] | None = None,
        after_backward: Callable[[], None] | None = None,
    ) -> None:
        """Zero gradients, forward and backward of this rank's micro-batches, gradients reduced. Collective.

        ``before_forward`` runs once, when gradients are zero; ``after_backward`` when they are accumulated and reduced.
        Raises ProtocolViolation when the data position is not that of ``iteration``.
        """
        expected = (iteration - 1) * self.spec.global_batch
        if self.consumed_samples != expected:
            raise ProtocolViolation(f"iteration {iteration} starts after {expected} samples, not {self.consumed_samples}")
        self._samples.clear()
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        if before_forward is not None:
            before_forward()
        reports = self._forward_backward(
            forward_step_func=self._forward_step,
            data_iterator=None,
            model=self.ddp,
            num_microbatches=self.spec.micro_batches(self.workload.data_parallel),
            seq_length=self.spec.sequence,
            micro_batch_size=self.spec.micro_batch,
            forward_only=False,
        )
        self._losses = [report["loss"] for report in reports]
        self.consumed_samples += self.spec.global_batch
        if after_backward is not None:
            after_backward()

    def _forward_step(self, _: None, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        read = self._next_micro_batch()
        # No mask: attention is causal by the layer spec, and every token of a sample counts.
        per_token = model(read["tokens"], read["position_ids"], None, labels=read["labels"])
        return per_token, _mean_loss

    def _next_micro_batch(self) -> dict[str, torch.Tensor]:
        """A batch of ``micro_batch`` samples; moves ``data_cursor``."""
        size, ranks = self.spec.micro_batch, self.workload.data_parallel
        cursors = range(self.data_cursor, self.data_cursor + size)
        indices = [sample_index(cursor, rank=self.rank, ranks=ranks, micro_batch=size) for cursor in cursors]
        self.data_cursor += size
        self._samples += indices
        return batch(self._dataset, indices)

    # The step: Megatron's own, and the part of it that comes before any state changes.

    def plain_step(self, iteration: int) -> IterationResult:
        """Megatron's own optimizer step, then the scheduler's: the reference. Collective."""
        updated, norm, _ = self.optimizer.step()
        self._advance(skipped=not updated)
        return self._result(iteration, norm if updated else None)

    def prepare_update(self, iteration: int) -> tuple[UpdateValues, IterationResult]:
        """The step up to the first write of coded state: final gradients, never clipped in place, and the update's values.

        Afterwards ``live_state`` is what iteration + 1 starts from (POST's ``next_live``). Collective. Raises UnenrolledState
        when compute has changed what ``live_state`` does not say.
        """
        self._built_state.refuse_changes(iteration)
        skipped = self.optimizer.prepare_grads()
        norm = None if skipped else self.optimizer.get_grad_norm()
        rates = self.learning_rates()  # before the scheduler moves them
        self._advance(skipped=skipped)
        values = UpdateValues(
            iteration=iteration,
            skipped=skipped,
            applied_step=self.applied_steps,
            clip=_clip_factor(self.spec.clip, norm),
            learning_rates=rates,
        )
        return values, self._result(iteration, norm)

    def _advance(self, *, skipped: bool) -> None:
        """A skipped step moves neither the scheduler nor Adam's step count (U25, U28)."""
        if not skipped:
            self.scheduler.step(self.spec.global_batch)
            self.applied_steps += 1

    def _result(self, iteration: int, norm: float | None) -> IterationResult:
        return IterationResult(
            iteration=iteration,
            loss=self.loss_bits(),
            grad_norm="" if norm is None else float(norm).hex(),
            skipped=norm is None,
            samples=tuple(self._samples),
        )

    def loss_bits(self) -> str:
        """float.hex of the loss of the last compute, averaged over micro-batches and ranks. Collective."""
        loss = torch.stack(self._losses).mean()
        dist.all_reduce(loss)
        return float(loss.item() / self.workload.data_parallel).hex()

    def learning_rates(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """[optimizer][param_group] -> (learning rate, weight decay), as the next step would use them."""
        return tuple(
            tuple((group["lr"], group["weight_decay"]) for group in optimizer.param_groups)
            for optimizer in self.optimizer.chained_optimizers
        )

    # What follows an update of the masters that Megatron did not make.

    def set_applied_steps(self, applied_steps: int) -> None:
        """Adam's step tensors become ``applied_steps``; incrementing them in place would not be idempotent (U29)."""
        self.applied_steps = applied_steps
        for shard in self.shards:
            if not shard.rows:
                shard.moments["step"].fill_(float(applied_steps))

    def cast_derived(self) -> None:
        """Every owned shard of the parameters <- its fp32 master: rounded to nearest even in bf16, a copy in fp32. Local."""
        with torch.no_grad():
            for shard in self.shards:
                shard.derived.copy_(shard.master.view(-1))

    def gather_derived(self) -> None:
        """One parameter all-gather over all buckets, dense and expert (U49). Collective.

        Without the distributed optimizer every rank has cast all its parameters, and there is nothing to gather.
        """
        if not self.ddp.ddp_config.use_distributed_optimizer:
            return
        with torch.no_grad():
            for bucket_group in (*self.ddp.bucket_groups, *self.ddp.expert_parallel_bucket_groups):
                bucket_group.start_param_sync()

    # State.

    def live_state(self) -> LiveState:
        """Everything the next iteration depends on that is not a parameter, a master or a moment."""
        return LiveState(
            generators=live.capture_generators(),
            data_cursor=self.data_cursor,
            consumed_samples=self.consumed_samples,
            scheduler_steps=self.scheduler.num_steps,
            applied_steps=self.applied_steps,
            learning_rates=self.learning_rates(),
            loss_scales=live.capture_loss_scales(self.optimizer),
            mutable=live.capture_mutable(live.enrolled_buffers(self.model, self.spec.mutable)),
        )

    def restore_live(self, state: LiveState) -> None:
        """This session continues from ``state``. Raises ProtocolViolation when it cannot be that of this workload."""
        self.data_cursor = state.data_cursor
        self.consumed_samples = state.consumed_samples
        self.scheduler.num_steps = state.scheduler_steps
        self.scheduler.step(0)  # sets the rates of that position
        if self.learning_rates() != state.learning_rates:
            raise ProtocolViolation(f"the schedule at {state.scheduler_steps} does not give the recorded learning rates")
        self.set_applied_steps(state.applied_steps)
        live.restore_loss_scales(state.loss_scales, self.optimizer)
        live.restore_mutable(state.mutable, live.enrolled_buffers(self.model, self.spec.mutable))
        live.restore_generators(state.generators)  # last: nothing above may draw from them

    def entries(self) -> Iterator[StateEntry]:
        """All parameters of this rank, and the master, moments and step of each owned shard, as bytes for the ledger."""
        for name, parameter in self.model.named_parameters():
            yield _entry("param", name, parameter)
        for shard in self.shards:
            yield _entry("master", shard.name, shard.master)
            for kind, tensor in shard.moments.items():
                yield _entry(kind, shard.name, tensor)


def _mean_loss(per_token: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = per_token.float().mean()
    return loss, {"loss": loss.detach().clone()}


def _clip_factor(clip: float, norm: float | None) -> str:
    """float.hex of what Megatron would scale gradients by, "" where it would not touch them."""
    if norm is None:
        return ""
    factor = clip / (norm + CLIP_EPSILON)
    return float(factor).hex() if factor < 1.0 else ""


def _entry(kind: str, name: str, tensor: torch.Tensor) -> StateEntry:
    return StateEntry(name=f"{kind}/{name}", dtype=live.dtype_name(tensor), data=live.byte_view(tensor))
