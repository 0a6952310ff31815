"""Retained memory as torch sees it."""

from __future__ import annotations

import ctypes

import torch


def floats_at(address: int, count: int) -> torch.Tensor:
    """The ``count`` fp32 elements at ``address`` as a flat tensor, without copying."""
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
