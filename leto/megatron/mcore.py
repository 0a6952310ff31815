"""Everything that Leto uses of megatron-core, imported in the only order that works: the CPU shim first.

The one module that imports megatron, so that no other can get the order wrong. Importing it takes a second or two and
starts no thread and no process group.
"""

from __future__ import annotations

import logging
import warnings

from leto.megatron import cpu_shim

cpu_shim.install_without_cuda()

with warnings.catch_warnings():
    # Six modules say at import that Transformer Engine and Apex are missing; two more that they will move.
    warnings.filterwarnings("ignore", message=r"(Transformer Engine and )?Apex (is|are) not installed", category=UserWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.datasets import helpers  # noqa: F401  (GPTDataset would import it when it is built)
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer import _get_param_groups as get_param_groups
    from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tokenizers import MegatronTokenizer
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
    from megatron.core.transformer.transformer_config import TransformerConfig

# 0.16.1 calls collectives by the names they had before torch 2.13, every iteration.
warnings.filterwarnings(
    "ignore", message=r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated", category=FutureWarning
)
# Says at warning level that it is switched off.
logging.getLogger("megatron.core.rerun_state_machine").setLevel(logging.ERROR)
# Warns that the index of a GPTDataset is not kept in files.
logging.getLogger("megatron.core.datasets.gpt_dataset").setLevel(logging.ERROR)

__all__ = [
    "ChainedOptimizer",
    "DType",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "FP32Optimizer",
    "Float16Module",
    "Float16OptimizerWithFloat16Params",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTModel",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "MegatronTokenizer",
    "ModelType",
    "OptimizerConfig",
    "OptimizerParamScheduler",
    "Split",
    "TransformerConfig",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "get_moe_layer_wise_logging_tracker",
    "get_param_groups",
    "parallel_state",
    "tensor_parallel",
]
