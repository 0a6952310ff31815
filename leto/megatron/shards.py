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
    reduced) and ``derived`` (the model's precision) are flat views of the model's buffers, of the same length. In plain
    Megatron the master of an fp32 parameter is ``derived`` itself; bound to coded memory it is apart from it (U31).
    ``param_group`` indexes the inner optimizer's groups.
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

    ``names`` are those of the model's parameters.
    """
    return tuple(shard for index, optimizer in enumerate(chained.chained_optimizers) for shard in _of(index, optimizer, names))


def _of(index: int, optimizer: Any, names: Mapping[Any, str]) -> Iterator[Shard]:
    masters = dict(_masters(optimizer))
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


def _masters(optimizer: Any) -> Iterator[tuple[Any, tuple[int, torch.Tensor]]]:
    """(parameter, (param_group, master)): masters of bf16 parameters are copies, those of fp32 parameters views of them."""
    copies = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
    views = zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True)
    for kind in (copies, views):
        for group, (parameters, masters) in enumerate(kind):
            for parameter, master in zip(parameters, masters, strict=True):
                yield parameter, (group, master)
