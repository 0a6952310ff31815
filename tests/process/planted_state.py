"""``leto train`` for a model that keeps state of the test's own: python planted_state.py PLANT JOB.json, PLANT as below.

The state is a running mean of what the decoder puts out, and the decoder's output depends on it, so forgetting it shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

MEAN = "running_mean"


def preload_with(plant: Callable[[], None]) -> None:
    """What the fork server of a job preloads, then the plant: trainers and shadows inherit it."""
    from leto.runtime.trainer import preload

    preload()
    plant()


def forgotten() -> None:
    preload_with(plant_buffer)


def enrolled() -> None:
    preload_with(plant_buffer)
    from leto.megatron.models import MODELS

    for name, spec in list(MODELS.items()):
        MODELS[name] = replace(spec, mutable=(*spec.mutable, f"decoder.{MEAN}"))


def unguarded() -> None:
    preload_with(plant_buffer)
    from leto.megatron.unenrolled import BuiltState

    def see_nothing(self: BuiltState, iteration: int) -> None:
        return None

    BuiltState.refuse_changes = see_nothing  # type: ignore[method-assign]


def attribute() -> None:
    preload_with(lambda: plant(lambda decoder, mean: setattr(decoder, MEAN, mean)))


def module_level() -> None:
    def plant_global() -> None:
        from megatron.core.transformer import transformer_block

        transformer_block.RUNNING_MEANS = {}
        plant(lambda decoder, mean: transformer_block.RUNNING_MEANS.update({MEAN: mean}))

    preload_with(plant_global)


def plant_buffer() -> None:
    def keep(decoder: Any, mean: Any) -> None:
        if MEAN not in dict(decoder.named_buffers()):
            decoder.register_buffer(MEAN, mean)
        setattr(decoder, MEAN, mean)

    plant(keep)


def plant(keep: Callable[[Any, Any], None]) -> None:
    import torch

    from leto.megatron import build

    gpt_model = build.gpt_model

    def planted(spec: Any, config: Any) -> Any:
        model = gpt_model(spec, config)
        means = [torch.zeros(spec.hidden)]
        keep(model.decoder, means[0])

        def follow(decoder: Any, _: Any, output: Any) -> Any:
            held = getattr(decoder, MEAN, means[0])
            means[0] = 0.9 * held.float() + 0.1 * output.detach().float().abs().mean((0, 1))
            keep(decoder, means[0])
            return output * (1 + means[0]).to(output.dtype)

        model.decoder.register_forward_hook(follow)
        return model

    build.gpt_model = planted


if __name__ == "__main__":
    from leto import cli
    from leto.runtime import services

    services.PRELOAD = f"planted_state:{sys.argv[1]}"
    sys.argv = ["leto", "train", sys.argv[2]]
    cli.main()
