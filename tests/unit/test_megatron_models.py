"""Model registry: what is refused, and how the batch is shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leto.core.config import Workload
from leto.core.errors import ConfigError
from leto.megatron.models import MODELS, model_spec

GOOD = Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "olmoe"}, "model: unknown model 'olmoe'; known: olmoe-tiny"),
        ({"data": "fineweb"}, "data: unknown data set 'fineweb'; known: shakespeare"),
        ({"precision": "fp16"}, "precision: 'fp16' is not supported; supported: bf16"),
        ({"iterations": 0}, "iterations: 0 is not positive"),
        ({"seed": -1}, "seed: -1 is negative"),
        ({"data_parallel": 0}, "parallel.dp: 0 ranks cannot share"),
        ({"data_parallel": 3}, "parallel.dp: 3 ranks cannot share"),
        ({"expert_parallel": 0}, "parallel.ep: 0 does not divide the 2 data-parallel ranks"),
        ({"data_parallel": 4, "expert_parallel": 3}, "parallel.ep: 3 does not divide the 4 data-parallel ranks"),
        ({"data_parallel": 1}, "parallel.ep: 2 does not divide the 1 data-parallel ranks"),
    ],
)
def test_refused_with_the_key_and_what_would_be_right(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_spec(replace(GOOD, **change))  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_micro_batches_share_the_global_batch(ranks: int) -> None:
    spec = model_spec(replace(GOOD, data_parallel=ranks, expert_parallel=1))
    assert spec.micro_batches(ranks) * spec.micro_batch * ranks == spec.global_batch


def test_models_are_registered_under_their_own_names() -> None:
    assert all(spec.name == name for name, spec in MODELS.items())
