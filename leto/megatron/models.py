"""The models that can be trained, by name, with the recipe that goes with each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leto.core.config import Workload
from leto.core.errors import ConfigError
from leto.core.wording import one_of

BYTE_VOCABULARY = 256
"""A token is a byte; no text contains 0, which ends a document, or 1, which Megatron pads with."""


@dataclass(frozen=True, kw_only=True)
class MoeSpec:
    """What makes a model a mixture of experts: every MLP becomes ``experts`` of them behind a router."""

    experts: int
    experts_per_token: int
    aux_loss: float


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """Megatron's dynamic loss scaler, with which fp16 is trained: halved by overflows, doubled after steps without one."""

    initial: float
    growth_interval: int  # steps without an overflow
    hysteresis: int  # overflows until the scale is halved; later ones halve it too, until it has grown again


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model and its recipe. Sizes in elements, batch sizes in samples, ``global_batch`` over all ranks.

    ``mutable`` enrols the buffers that compute changes, by name; ``*`` stands for anything (U30).

    ``key_value_heads`` are shared by equal groups of ``heads`` query heads. ``ffn`` is the width of an MLP, or of each expert.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    ffn: int
    moe: MoeSpec | None
    tied_embeddings: bool
    sequence: int
    vocabulary: int
    micro_batch: int
    global_batch: int
    dropout: float
    init_std: float
    max_learning_rate: float
    min_learning_rate: float
    start_weight_decay: float
    end_weight_decay: float
    adam_betas: tuple[float, float]
    muon_momentum: float
    clip: float
    warmup_fraction: float
    loss_scaling: LossScaling
    mutable: tuple[str, ...]

    def micro_batches(self, data_parallel: int) -> int:
        """Micro-batches of one rank in one iteration."""
        return self.global_batch // (self.micro_batch * data_parallel)


# A scale model of OLMoE (paper A.1): RMSNorm, SwiGLU experts, query and key norms, untied embeddings; with the sigmoid router
# of DeepSeek-V3, because the bias that balances it is state that the compute phase changes (U30). The recipe is the
# paper's with three exceptions. The learning rate is ten times larger, as fits a model this small. Weight decay rises to
# the paper's 0.1 instead of resting there, so that a recovery with a stale value shows in the bits. Clipping is at 0.01,
# below every gradient norm of this model, so that it is always active.
_OLMOE_TINY = ModelSpec(
    name="olmoe-tiny",
    layers=2,
    hidden=128,
    heads=4,
    key_value_heads=4,
    ffn=128,
    moe=MoeSpec(experts=8, experts_per_token=2, aux_loss=0.01),
    tied_embeddings=False,
    sequence=64,
    vocabulary=BYTE_VOCABULARY,
    micro_batch=2,
    global_batch=8,
    dropout=0.1,
    init_std=0.006,
    max_learning_rate=2.2e-3,
    min_learning_rate=2.2e-4,
    start_weight_decay=0.01,
    end_weight_decay=0.1,
    adam_betas=(0.9, 0.95),
    muon_momentum=0.95,
    clip=0.01,
    warmup_fraction=0.1,
    loss_scaling=LossScaling(initial=2.0**20, growth_interval=4, hysteresis=2),
    mutable=("decoder.layers.*.mlp.router.expert_bias",),
)

# A scale model of the small dense models of Qwen3 (paper A.1): RMSNorm, SwiGLU, query and key norms, key and value heads
# shared by groups of query heads, tied embeddings, no dropout. The recipe is olmoe-tiny's, for the same reasons.
_QWEN_TINY = replace(
    _OLMOE_TINY,
    name="qwen-tiny",
    layers=4,
    hidden=192,
    heads=6,
    key_value_heads=2,
    ffn=448,
    moe=None,
    mutable=(),
    tied_embeddings=True,
    dropout=0.0,
)

# The same with 182 million parameters, in order to fill whole protection groups at the paper's page size on one rank: wide
# rather than deep, and few tokens, so that the state is large and an iteration short.
_QWEN_WIDE = replace(
    _QWEN_TINY,
    name="qwen-wide",
    layers=12,
    hidden=1024,
    heads=8,
    ffn=4096,
    sequence=16,
    micro_batch=1,
    global_batch=4,
)

MODELS = {spec.name: spec for spec in (_OLMOE_TINY, _QWEN_TINY, _QWEN_WIDE)}
DATA_SETS = ("shakespeare",)
PRECISIONS = ("bf16", "fp16", "fp32")
OPTIMIZERS = ("adam", "muon")


def model_spec(workload: Workload) -> ModelSpec:
    """The workload's model. Raises ConfigError, which begins with the key, for what is unknown or cannot be trained."""
    spec = MODELS.get(workload.model)
    if spec is None:
        raise ConfigError(f"model: unknown model {workload.model!r}; {one_of(sorted(MODELS), workload.model)}")
    if workload.data not in DATA_SETS:
        raise ConfigError(f"data: unknown data set {workload.data!r}; {one_of(DATA_SETS, workload.data)}")
    if workload.precision not in PRECISIONS:
        raise ConfigError(f"precision: unknown precision {workload.precision!r}; {one_of(PRECISIONS, workload.precision)}")
    if workload.optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer: unknown optimizer {workload.optimizer!r}; {one_of(OPTIMIZERS, workload.optimizer)}")
    if workload.optimizer == "muon" and workload.precision == "fp16":
        raise ConfigError("optimizer: 'muon' has no loss scaling in Megatron and cannot train in fp16; write bf16 or fp32")
    if workload.iterations < 1:
        raise ConfigError(f"iterations: {workload.iterations} is not positive")
    if workload.seed < 0:
        raise ConfigError(f"seed: {workload.seed} is negative")
    _check_parallel(spec, workload.data_parallel, workload.expert_parallel)
    return spec


def _check_parallel(spec: ModelSpec, data_parallel: int, expert_parallel: int) -> None:
    if data_parallel < 1 or spec.global_batch % (spec.micro_batch * data_parallel):
        raise ConfigError(
            f"data_parallel: {data_parallel} ranks cannot share {spec.name}'s global batch of {spec.global_batch} samples"
            f" in micro-batches of {spec.micro_batch}"
        )
    if spec.moe is None:
        if expert_parallel != 1:
            raise ConfigError(f"expert_parallel: {expert_parallel} ranks cannot share experts: {spec.name} has none; write 1")
        return
    if expert_parallel < 1 or data_parallel % expert_parallel:
        raise ConfigError(f"expert_parallel: {expert_parallel} does not divide the {data_parallel} data-parallel ranks")
    if spec.moe.experts % expert_parallel:
        raise ConfigError(f"expert_parallel: {expert_parallel} does not divide the {spec.moe.experts} experts of {spec.name}")
