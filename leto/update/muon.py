"""Muon on chunks, bit-equal to torch.optim.Muon on whole matrices (U32, U46).

    momentum   m <- lerp(m, g, 1 - mu)                                   element by element: any cut gives the same bits
    apply      d <- NewtonSchulz(lerp(g, m, mu)) of the whole matrix     from committed momentum: again after a crash
               p <- p * (1 - lr * wd) - adjusted lr * d                  element by element

Every line is torch's own operation on one thread, so the direction has the same bits whenever it is computed (U33).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from leto.core.failpoints import Park
from leto.core.geometry import ELEMENT_BYTES
from leto.update.floats import floats_at
from leto.update.parking import park_here
from leto.update.pieces import MuonMatrix, MuonPiece, cut


@dataclass(frozen=True, kw_only=True)
class MuonHyper:
    """What is uniform over a run, as torch.optim.Muon names it; its momentum is Nesterov's."""

    momentum: float
    ns_coefficients: tuple[float, float, float]
    ns_steps: int
    eps: float
    adjust_lr_fn: str | None


class TorchMuon:
    """Implements leto.update.pieces.Muon. Keeps the direction of one matrix for the chunks that follow."""

    def __init__(self, hyper: MuonHyper) -> None:
        self._hyper = hyper
        self._matrix: MuonMatrix | None = None
        self._direction = torch.empty(0)

    def momentum(self, pieces: Sequence[MuonPiece], park: Park | None = None) -> None:
        _armed(self._momentum, pieces, park)

    def apply(self, pieces: Sequence[MuonPiece], park: Park | None = None) -> None:
        _armed(self._apply, pieces, park)

    def _momentum(self, piece: MuonPiece) -> None:
        matrix = piece.matrix
        gradient = _clipped(matrix, _slice(matrix.gradient_address, piece))
        _slice(matrix.momentum_address, piece).lerp_(gradient, 1 - self._hyper.momentum)

    def _apply(self, piece: MuonPiece) -> None:
        matrix = piece.matrix
        direction = self._direction_of(matrix)[piece.first : piece.first + piece.count]
        adjusted_lr = _adjust_lr(matrix.lr, self._hyper.adjust_lr_fn, torch.Size((matrix.rows, matrix.columns)))
        master = _slice(matrix.master_address, piece)
        master.mul_(1 - matrix.lr * matrix.weight_decay)
        master.add_(direction, alpha=-adjusted_lr)

    def _direction_of(self, matrix: MuonMatrix) -> torch.Tensor:
        """Flat, in torch's bf16."""
        if matrix != self._matrix:
            hyper = self._hyper
            count = matrix.rows * matrix.columns
            gradient = _clipped(matrix, floats_at(matrix.gradient_address, count))
            update = gradient.lerp(floats_at(matrix.momentum_address, count), hyper.momentum)
            whole = update.view(matrix.rows, matrix.columns)
            direction = _zeropower_via_newtonschulz(whole, hyper.ns_coefficients, hyper.ns_steps, hyper.eps)
            self._direction, self._matrix = direction.reshape(-1), matrix
        return self._direction


def _armed(update: Callable[[MuonPiece], None], pieces: Sequence[MuonPiece], park: Park | None) -> None:
    """All pieces in order; an armed update parks between two slices, at the park's progress of the chunk's elements."""
    total = sum(piece.count for piece in pieces)
    stop = total if park is None else int(park.progress * total)
    for piece in cut(pieces, 0, stop):
        update(piece)
    if park is not None:
        park_here(park)
        for piece in cut(pieces, stop, total):
            update(piece)


def _slice(matrix_address: int, piece: MuonPiece) -> torch.Tensor:
    return floats_at(matrix_address + piece.first * ELEMENT_BYTES, piece.count)


def _clipped(matrix: MuonMatrix, gradient: torch.Tensor) -> torch.Tensor:
    """One separately rounded product, as Megatron's clipping in place; the gradient itself stays as it is."""
    return gradient if matrix.clip is None else gradient * matrix.clip
