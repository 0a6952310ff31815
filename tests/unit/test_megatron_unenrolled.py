"""What counts as state that compute changed, and what does not (U30)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from leto.core.errors import ConfigError, UnenrolledState
from leto.megatron.live import enrolled_buffers
from leto.megatron.unenrolled import BuiltState


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.tensor([0.0, float("nan")]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.calls = 0
        self.means: dict[str, Any] = {"out": [torch.zeros(2)]}
        self.table = np.zeros(3)
        self.current_microbatch: int | None = None


@pytest.fixture
def model() -> Any:
    model = torch.nn.Module()
    model.layer = Layer()
    return model


CHANGES: dict[str, Callable[[Any], object]] = {
    "buffer layer.mask": lambda layer: layer.mask.add_(1),
    "buffer layer.scratch": lambda layer: layer.scratch.neg_(),  # -0.0 is not 0.0
    "buffer layer.late": lambda layer: layer.register_buffer("late", torch.zeros(1)),
    "attribute layer.calls": lambda layer: setattr(layer, "calls", 1),
    "attribute layer.means": lambda layer: layer.means["out"][0].add_(1),
    "attribute layer.table": lambda layer: layer.table.__setitem__(1, 2.0),
    "attribute layer.late": lambda layer: setattr(layer, "late", torch.zeros(1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_compute_changed_is_named(model: Any, what: str) -> None:
    built = BuiltState(model, lambda name: False)
    CHANGES[what](model.layer)
    with pytest.raises(UnenrolledState, match=rf"^iteration 7 changed the {what}, which no record holds"):
        built.refuse_changes(7)


def test_the_dtype_alone_is_a_change(model: Any) -> None:
    built = BuiltState(model, lambda name: False)
    model.layer.scratch.data = model.layer.scratch.half()
    with pytest.raises(UnenrolledState, match=r"layer\.scratch"):
        built.refuse_changes(1)


def test_more_than_one_change_is_counted(model: Any) -> None:
    built = BuiltState(model, lambda name: False)
    model.layer.mask.add_(1)
    model.layer.calls = 1
    with pytest.raises(UnenrolledState, match=r"changed the attribute layer\.calls and 1 more, which"):
        built.refuse_changes(1)


def test_equal_values_in_other_places_enrolled_buffers_and_parameters_are_no_change(model: Any) -> None:
    built = BuiltState(model, lambda name: name == "layer.mask")
    layer = model.layer
    layer.scratch = layer.scratch.clone()
    layer.means = {"out": [torch.zeros(2)]}
    layer.mask = torch.ones(5)
    layer.weight.data += 1
    layer.current_microbatch = 3  # the schedule's, before every micro-batch
    layer.train(False)
    built.refuse_changes(1)


def test_module_level_state_is_looked_at(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe import moe_utils

    built = BuiltState(model, lambda name: False)
    monkeypatch.setattr(moe_utils, "HAVE_TE", "changed")
    with pytest.raises(UnenrolledState, match=r"the module level megatron\.core\.transformer\.moe\.moe_utils:HAVE_TE, .*live$"):
        built.refuse_changes(1)


def test_a_pattern_enrols_what_it_names_and_must_name_something(model: Any) -> None:
    assert enrolled_buffers(model, ()) == {}
    assert list(enrolled_buffers(model, ("*.mask",))) == ["layer.mask"]
    with pytest.raises(ConfigError, match=r"mutable: the model has no buffer '\*\.msk'; it has layer\.mask, layer\.scratch$"):
        enrolled_buffers(model, ("*.msk",))
