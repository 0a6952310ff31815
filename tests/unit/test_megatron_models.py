"""Model registry: what is refused, and how the batch is shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leto.core.config import Workload
from leto.core.errors import ConfigError
from leto.megatron.models import MODELS, OPTIMIZERS, PRECISIONS, model_spec

GOOD = Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "olmoe"}, "model: unknown model 'olmoe'; known: olmoe-tiny, qwen-tiny, qwen-wide (did you mean"),
        ({"data": "fineweb"}, "data: unknown data set 'fineweb'; known: shakespeare"),
        ({"precision": "fp8"}, "precision: unknown precision 'fp8'; known: bf16, fp16, fp32"),
        ({"optimizer": "sgd"}, "optimizer: unknown optimizer 'sgd'; known: adam, muon"),
        ({"optimizer": "muon", "precision": "fp16"}, "optimizer: 'muon' has no loss scaling in Megatron"),
        ({"iterations": 0}, "iterations: 0 is not positive"),
        ({"seed": -1}, "seed: -1 is negative"),
        ({"data_parallel": 0}, "data_parallel: 0 ranks cannot share"),
        ({"data_parallel": 3}, "data_parallel: 3 ranks cannot share"),
        ({"expert_parallel": 0}, "expert_parallel: 0 does not divide the 2 data-parallel ranks"),
        ({"data_parallel": 4, "expert_parallel": 3}, "expert_parallel: 3 does not divide the 4 data-parallel ranks"),
        ({"data_parallel": 1}, "expert_parallel: 2 does not divide the 1 data-parallel ranks"),
        ({"model": "qwen-tiny"}, "expert_parallel: 2 ranks cannot share experts: qwen-tiny has none; write 1"),
    ],
)
def test_refused_with_the_key_and_what_would_be_right(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_spec(replace(GOOD, **change))  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_micro_batches_share_the_global_batch(model: str, ranks: int) -> None:
    spec = model_spec(replace(GOOD, model=model, data_parallel=ranks, expert_parallel=1))
    assert spec.micro_batches(ranks) * spec.micro_batch * ranks == spec.global_batch


def test_models_are_registered_under_their_own_names() -> None:
    assert all(spec.name == name for name, spec in MODELS.items())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_in_every_precision(model: str, precision: str) -> None:
    for optimizer in OPTIMIZERS if precision != "fp16" else ("adam",):
        workload = replace(GOOD, model=model, precision=precision, expert_parallel=1, optimizer=optimizer)
        assert model_spec(workload) is MODELS[model]


def test_heads_share_keys_and_values_in_equal_groups() -> None:
    assert all(spec.heads % spec.key_value_heads == 0 for spec in MODELS.values())
    assert any(spec.heads > spec.key_value_heads for spec in MODELS.values())
