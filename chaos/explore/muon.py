"""Muon as the explorer runs it: torch's on chunks (``leto.update.muon``), each update a step.

Torch is imported by who explores matrices; everything else here does without.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from chaos.explore.steps import Steps, Target
from leto.core.errors import ConfigError
from leto.core.failpoints import Kernel, Park
from leto.core.geometry import ELEMENT_BYTES
from leto.update.pieces import Muon, MuonPiece

MOMENTUM = 0.95
ADJUST_LR = "match_rms_adamw"


def check_torch(what: str, otherwise: str) -> None:
    """Raises ConfigError where matrices cannot be updated."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"{what} needs torch, which is not installed: pip install 'leto-chaos[train]', or {otherwise}")


def torch_muon() -> Muon:
    """Of a new process: without a direction, on one thread (U33)."""
    import torch

    from leto.update.muon import MuonHyper, TorchMuon

    torch.set_num_threads(1)
    coefficients = (3.4445, -4.7750, 2.0315)
    hyper = MuonHyper(momentum=MOMENTUM, ns_coefficients=coefficients, ns_steps=5, eps=1e-7, adjust_lr_fn=ADJUST_LR)
    return TorchMuon(hyper)


class MuonSteps:
    """Implements leto.update.pieces.Muon."""

    def __init__(self, steps: Steps, muon: Muon) -> None:
        self._steps = steps
        self._muon = muon

    def momentum(self, pieces: Sequence[MuonPiece], park: Park | None) -> None:
        targets = tuple(_target(piece.matrix.momentum_address, piece) for piece in pieces)
        self._steps.update_in_place(Kernel.MUON_MOMENTUM.value, targets, lambda p: self._muon.momentum(pieces, p))

    def apply(self, pieces: Sequence[MuonPiece], park: Park | None) -> None:
        targets = tuple(_target(piece.matrix.master_address, piece) for piece in pieces)
        self._steps.update_in_place(Kernel.MUON_APPLY.value, targets, lambda p: self._muon.apply(pieces, p))


def _target(matrix_address: int, piece: MuonPiece) -> Target:
    return matrix_address + piece.first * ELEMENT_BYTES, piece.count * ELEMENT_BYTES
