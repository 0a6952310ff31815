"""The shards of one rank: which slice of which parameter it owns, and the tensors that belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The slice of one parameter that this rank updates (distributed optimizer).

    ``master`` is the very tensor the inner AdamW holds, so rebinding its ``.data`` rebinds the optimizer. ``gradient`` (fp32,
    reduced) and ``derived`` (bf16) are flat views of the model's buffers, of the same length. ``param_group`` indexes the
    inner optimizer's groups.
    """

    name: str
    optimizer: int
    param_group: int
    master: torch.Tensor
    gradient: torch.Tensor
    derived: torch.Tensor
    inner: torch.optim.Optimizer

    @property
    def count(self) -> int:
        return int(self.master.numel())

    @property
    def moments(self) -> dict[str, torch.Tensor]:
        """AdamW's own state of this shard: step, exp_avg, exp_avg_sq."""
        state: dict[str, torch.Tensor] = self.inner.state[self.master]
        return state


def owned_shards(chained: Any, names: Mapping[Any, str]) -> tuple[Shard, ...]:
    """Every shard of this rank in bucket-shard order: optimizer, buffer, bucket, offset in the bucket.

    ``names`` are those of the model's parameters. Every parameter must have an fp32 master beside its bf16 copy (U31).
    """
    return tuple(shard for index, optimizer in enumerate(chained.chained_optimizers) for shard in _of(index, optimizer, names))


def _of(index: int, optimizer: Any, names: Mapping[Any, str]) -> Iterator[Shard]:
    assert not any(optimizer.shard_fp32_groups), "a parameter without a master of its own"
    masters = {
        parameter: (group, master)
        for group, (parameters, group_masters) in enumerate(
            zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
        )
        for parameter, master in zip(parameters, group_masters, strict=True)
    }
    ranges = {parameter: optimizer._get_model_param_range_map(parameter) for parameter in masters}

    def place(parameter: Any) -> tuple[int, int, int]:
        buffer, _, bucket = optimizer.model_param_gbuf_map[parameter]
        return buffer, bucket, ranges[parameter]["gbuf_world_in_bucket"].start

    for parameter in sorted(masters, key=place):
        buffer, bucket, _ = place(parameter)
        own, in_bucket = ranges[parameter]["param"], ranges[parameter]["gbuf_world_in_bucket"]
        group, master = masters[parameter]
        yield Shard(
            name=names[parameter],
            optimizer=index,
            param_group=group,
            master=master,
            gradient=parameter.main_grad.view(-1)[own.start : own.end],
            derived=optimizer.buffers[buffer].buckets[bucket].param_data.view(-1)[in_bucket.start : in_bucket.end],
            inner=optimizer.optimizer,
        )
