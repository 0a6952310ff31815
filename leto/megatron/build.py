"""Megatron's objects for a model of leto.megatron.models: every setting that is not Megatron's default, in one place."""

from __future__ import annotations

from typing import Any

import torch

from leto.core.config import Workload
from leto.megatron import mcore
from leto.megatron.models import ModelSpec, MoeSpec
from leto.megatron.muon import muon_optimizer

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Of parameters and activations; gradients are reduced, and masters and moments kept, in fp32 whatever it is."""


def transformer_config(spec: ModelSpec, workload: Workload) -> Any:
    dtype = _DTYPES[workload.precision]
    return mcore.TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads,
        num_query_groups=spec.key_value_heads,
        ffn_hidden_size=spec.ffn,
        normalization="RMSNorm",
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=spec.dropout,
        attention_dropout=spec.dropout,
        attention_softmax_in_fp32=True,
        init_method_std=spec.init_std,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        deterministic_mode=True,
        # Fusions are CUDA kernels.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cuda_graph_scope=[],  # the default is a deprecated name that warns
        **({} if spec.moe is None else _moe_settings(spec.moe, spec.ffn, workload)),
    )


def _moe_settings(moe: MoeSpec, ffn: int, workload: Workload) -> dict[str, Any]:
    return {
        "num_moe_experts": moe.experts,
        "moe_ffn_hidden_size": ffn,
        "moe_router_topk": moe.experts_per_token,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_router_dtype": "fp32",
        "moe_aux_loss_coeff": moe.aux_loss,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": False,  # a CUDA kernel
        "expert_model_parallel_size": workload.expert_parallel,
    }


def gpt_model(spec: ModelSpec, config: Any) -> Any:
    """The bare model; parameter and buffer names are its own, without the prefixes of wrappers."""
    layers = mcore.get_gpt_layer_local_spec(
        num_experts=None if spec.moe is None else spec.moe.experts,
        moe_grouped_gemm=False,
        qk_layernorm=True,
        normalization=config.normalization,
    )
    model = mcore.GPTModel(
        config,
        layers,
        vocab_size=spec.vocabulary,
        max_sequence_length=spec.sequence,
        parallel_output=True,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=spec.tied_embeddings,
    )
    model.model_type = mcore.ModelType.encoder_or_decoder
    for parameter in model.parameters():
        mcore.tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return model


def data_parallel(config: Any, model: Any, workload: Workload) -> Any:
    """DistributedDataParallel with all gradients in flat buffers, one set dense and one set expert; parameters too, where the
    distributed optimizer gathers them."""
    ddp_config = mcore.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=_is_sharded(workload),
        check_for_nan_in_grad=not config.fp16,  # there an overflow skips the step and is no mistake
    )
    module = mcore.Float16Module(config, model) if config.bf16 or config.fp16 else model
    return mcore.DistributedDataParallel(config=config, ddp_config=ddp_config, module=module)


def _is_sharded(workload: Workload) -> bool:
    """Megatron's Muon works on whole matrices and has no distributed optimizer."""
    return workload.optimizer != "muon"


def optimizer(spec: ModelSpec, workload: Workload, ddp: Any) -> Any:
    """Megatron's ChainedOptimizer: a DistributedOptimizer over torch's AdamW for dense, another for expert parameters; or that
    of ``leto.megatron.muon``."""
    dtype = _DTYPES[workload.precision]
    config = mcore.OptimizerConfig(
        optimizer="adam",
        lr=spec.max_learning_rate,
        min_lr=spec.min_learning_rate,
        weight_decay=spec.end_weight_decay,
        adam_beta1=spec.adam_betas[0],
        adam_beta2=spec.adam_betas[1],
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        initial_loss_scale=spec.loss_scaling.initial,
        loss_scale_window=spec.loss_scaling.growth_interval,
        hysteresis=spec.loss_scaling.hysteresis,
        params_dtype=dtype,
        clip_grad=spec.clip,
        use_distributed_optimizer=_is_sharded(workload),
    )
    if workload.optimizer == "muon":
        return muon_optimizer(config, ddp, momentum=spec.muon_momentum)
    return mcore.get_megatron_optimizer(config, [ddp], use_gloo_process_groups=False)


def scheduler(spec: ModelSpec, workload: Workload, chained: Any) -> Any:
    """Linear warm-up, then cosine to the last iteration; weight decay rises linearly. Counted in samples, as Megatron does."""
    samples = workload.iterations * spec.global_batch
    return mcore.OptimizerParamScheduler(
        chained,
        init_lr=spec.min_learning_rate,
        max_lr=spec.max_learning_rate,
        min_lr=spec.min_learning_rate,
        lr_warmup_steps=int(samples * spec.warmup_fraction),
        lr_decay_steps=samples,
        lr_decay_style="cosine",
        start_wd=spec.start_weight_decay,
        end_wd=spec.end_weight_decay,
        wd_incr_steps=samples,
        wd_incr_style="linear",
    )


def connect(config: Any, chained: Any) -> None:
    """What Megatron's schedule calls back into."""
    config.finalize_model_grads_func = mcore.finalize_model_grads
    config.grad_scale_func = chained.scale_loss
