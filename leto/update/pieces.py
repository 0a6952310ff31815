"""Operation 9 of Muon as data: which part of which matrices lies in a chunk, and everything its update reads (U32)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from leto.core.failpoints import Park
from leto.core.geometry import ELEMENT_BYTES, MOMENTUM_BUFFER, MUON_MASTER, CodedGeometry, Segment
from leto.core.records import UpdateValues


@dataclass(frozen=True, kw_only=True)
class MuonMatrix:
    """A whole matrix in one update: where its fp32 elements are, and the update's values for it.

    ``clip`` multiplies the gradient first, None when nothing is clipped. Equal values mean the same direction, as long as
    momentum and gradients are those of ``iteration``.
    """

    name: str
    rows: int
    columns: int
    iteration: int
    gradient_address: int
    momentum_address: int
    master_address: int
    lr: float
    weight_decay: float
    clip: float | None


@dataclass(frozen=True, kw_only=True)
class MuonPiece:
    """Elements ``first`` to ``first + count`` of the matrix, counted row by row."""

    matrix: MuonMatrix
    first: int
    count: int


class Muon(Protocol):
    """Muon's two updates of a chunk. An armed one parks with the chunk torn."""

    def momentum(self, pieces: Sequence[MuonPiece], park: Park | None) -> None:
        """The pieces' momentum, in place, from their gradients."""
        ...

    def apply(self, pieces: Sequence[MuonPiece], park: Park | None) -> None:
        """The pieces' masters, in place, from the gradients and the committed momentum of their whole matrices."""
        ...


class Matrices:
    """The matrices of a rank, at their addresses."""

    def __init__(self, coded: CodedGeometry, address: Callable[[str], int], gradient_address: Callable[[Segment], int]) -> None:
        self._coded = coded
        self._matrices = {matrix.name: matrix for matrix in coded.matrices}
        self._address = address
        self._gradient_address = gradient_address

    def pieces(self, chunk: int, values: UpdateValues) -> tuple[MuonPiece, ...]:
        """What of which matrices a chunk of momentum or of masters covers, in order."""
        return tuple(
            MuonPiece(
                matrix=self.whole(segment.name, values),
                first=segment.first - self._matrices[segment.name].first,
                count=segment.count,
            )
            for segment in self._coded.chunk_segments(chunk)
        )

    def whole(self, name: str, values: UpdateValues) -> MuonMatrix:
        matrix = self._matrices[name]
        lr, weight_decay = values.learning_rates[matrix.optimizer][matrix.param_group]
        return MuonMatrix(
            name=name,
            rows=matrix.rows,
            columns=matrix.columns,
            iteration=values.iteration,
            gradient_address=self._gradient_address(matrix),
            momentum_address=self._address(MOMENTUM_BUFFER) + matrix.first * ELEMENT_BYTES,
            master_address=self._address(MUON_MASTER) + matrix.first * ELEMENT_BYTES,
            lr=lr,
            weight_decay=weight_decay,
            clip=float.fromhex(values.clip) if values.clip else None,
        )


def cut(pieces: Sequence[MuonPiece], first: int, stop: int) -> Iterator[MuonPiece]:
    """The pieces clipped to elements ``first`` to ``stop`` of all of them together."""
    position = 0
    for piece in pieces:
        low, high = max(first, position), min(stop, position + piece.count)
        if low < high:
            yield replace(piece, first=piece.first + low - position, count=high - low)
        position += piece.count
