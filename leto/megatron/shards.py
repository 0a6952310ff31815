"""The shards of one rank: which slice of which parameter it owns, and the tensors that belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The slice of one parameter that this rank updates: with the distributed optimizer a part of it, without it all.

    ``gradient`` (fp32, reduced) and ``derived`` (the model's precision) are flat views of the model's buffers, as long as
    ``master``. Rebinding the master's ``.data`` rebinds the optimizer wherever the master is not the parameter itself: in plain
    Megatron the master of an fp32 parameter is, and shares its memory; bound to coded memory it is apart from it (U31).
    ``parameter`` is what the inner optimizer keeps the state under, ``param_group`` indexes its groups. ``rows`` is that of a
    matrix that Muon updates, 0 of what AdamW updates.
    """

    name: str
    optimizer: int
    param_group: int
    master: torch.Tensor
    gradient: torch.Tensor
    derived: torch.Tensor
    inner: torch.optim.Optimizer
    parameter: torch.Tensor
    rows: int = 0

    @property
    def count(self) -> int:
        return int(self.master.numel())

    @property
    def moments(self) -> dict[str, torch.Tensor]:
        """The inner optimizer's own state of this shard: step, exp_avg, exp_avg_sq of AdamW, momentum_buffer of Muon."""
        state: dict[str, torch.Tensor] = self.inner.state[self.parameter]
        return state


def owned_shards(chained: Any, names: Mapping[Any, str]) -> tuple[Shard, ...]:
    """Every shard of this rank: by optimizer, then in bucket-shard order (buffer, bucket, offset in the bucket), or where
    nothing is sharded in the order of parameter groups.

    ``names`` are those of the model's parameters.
    """
    return tuple(
        shard
        for index, optimizer in enumerate(chained.chained_optimizers)
        for shard in (_sharded if optimizer.config.use_distributed_optimizer else _whole)(index, optimizer, names)
    )


def _sharded(index: int, optimizer: Any, names: Mapping[Any, str]) -> Iterator[Shard]:
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
            parameter=master,
        )


def _masters(optimizer: Any) -> Iterator[tuple[Any, tuple[int, torch.Tensor]]]:
    """(parameter, (param_group, master)): masters of bf16 parameters are copies, those of fp32 parameters views of them."""
    copies = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
    views = zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True)
    for kind in (copies, views):
        for group, (parameters, masters) in enumerate(kind):
            for parameter, master in zip(parameters, masters, strict=True):
                yield parameter, (group, master)


def _whole(index: int, optimizer: Any, names: Mapping[Any, str]) -> Iterator[Shard]:
    is_muon = isinstance(optimizer.optimizer, torch.optim.Muon)
    for group, parameter, kept in _held(optimizer):
        yield Shard(
            name=names[parameter],
            optimizer=index,
            param_group=group,
            master=kept.detach() if kept is parameter else kept,
            gradient=parameter.main_grad.view(-1),
            derived=parameter.detach().view(-1),
            inner=optimizer.optimizer,
            parameter=kept,
            rows=parameter.shape[0] if is_muon else 0,
        )


def _held(optimizer: Any) -> Iterator[tuple[int, Any, torch.Tensor]]:
    """(param_group, parameter, what the inner optimizer holds of it): a copy of a bf16 parameter, an fp32 parameter itself."""
    inner = optimizer.optimizer.param_groups
    model = getattr(optimizer, "float16_groups", None) or [group["params"] for group in inner]
    for index, (parameters, group) in enumerate(zip(model, inner, strict=True)):
        yield from ((index, parameter, held) for parameter, held in zip(parameters, group["params"], strict=True))
