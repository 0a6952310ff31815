"""Megatron's optimizer for Muon, put together as its get_megatron_muon_optimizer does, around torch's Muon.

0.16.1 takes Muon from a package of its own; the structure here is the same: matrices that are neither embedding nor output go
to Muon, dense ones and expert ones apart, everything else to AdamW, and a ChainedOptimizer steps them in this order. As there,
nothing is sharded by a distributed optimizer: every rank holds the state of all its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leto.megatron import mcore

ADJUST_LR = "match_rms_adamw"
"""Directions are scaled to the size of AdamW's, so that a recipe's learning rates hold for both."""


def is_matrix(parameter: Any) -> bool:
    """Whether Muon updates the parameter."""
    return parameter.dim() == 2 and not getattr(parameter, "is_embedding_or_output_parameter", False)


def muon_optimizer(config: Any, ddp: Any, *, momentum: float) -> Any:
    """A ChainedOptimizer: Muon of dense matrices, Muon of expert matrices where there are any, AdamW of the rest."""
    with _only(ddp, lambda parameter: is_matrix(parameter)):
        groups = mcore.get_param_groups([ddp], config, None)
    dense = [group for group in groups if not group["is_expert_parallel"]]
    experts = [group for group in groups if group["is_expert_parallel"]]
    chained = [_wrapped(_torch_muon(dense, config, momentum), config)]
    if experts:
        expert = _wrapped(_torch_muon(experts, config, momentum), config)
        expert.grad_stats_parallel_group = mcore.parallel_state.get_expert_tensor_model_pipeline_parallel_group()
        chained.append(expert)
    with _only(ddp, lambda parameter: not is_matrix(parameter)):
        rest = mcore.get_megatron_optimizer(config, [ddp], use_gloo_process_groups=False)
    return mcore.ChainedOptimizer([*chained, *rest.chained_optimizers])


@contextmanager
def _only(ddp: Any, wanted: Any) -> Iterator[None]:
    """Megatron makes parameter groups of what requires gradients: for a while, that is what ``wanted`` says."""
    others = [p for p in ddp.parameters() if p.requires_grad and not wanted(p)]
    for parameter in others:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad = True


def _torch_muon(groups: list[dict[str, Any]], config: Any, momentum: float) -> torch.optim.Muon:
    return torch.optim.Muon(
        groups, lr=config.lr, weight_decay=config.weight_decay, momentum=momentum, nesterov=True, adjust_lr_fn=ADJUST_LR
    )


def _wrapped(muon: torch.optim.Muon, config: Any) -> Any:
    """With fp32 masters of bf16 parameters; fp32 parameters are their own."""
    if config.bf16:
        return mcore.Float16OptimizerWithFloat16Params(muon, config, None, None)
    return mcore.FP32Optimizer(muon, config, None)
