"""Planted bugs in Muon's two transactions: the order of chunks, the direction of a matrix and when it is computed, columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from chaos.planted.planting import Patch, planted
from leto.core import repair
from leto.core.geometry import MOMENTUM_BUFFER, MUON_MASTER, CodedGeometry, PlacedPage, Region, Rule
from leto.core.update_plan import Operation
from leto.update.executor import PlanExecutor
from leto.update.pieces import MuonMatrix, MuonPiece


def _keep_directions(patch: Patch, key: Callable[[MuonMatrix], object]) -> None:
    """The direction of every matrix is kept, not of the last one alone; the same ``key`` means the same direction."""
    from leto.update.muon import TorchMuon

    def keeping(direction_of: Any) -> Any:
        kept: WeakKeyDictionary[TorchMuon, dict[object, Any]] = WeakKeyDictionary()  # a process begins without any

        def once(self: TorchMuon, matrix: MuonMatrix) -> Any:
            own = kept.setdefault(self, {})
            if key(matrix) not in own:
                own[key(matrix)] = direction_of(self, matrix)
            return own[key(matrix)]

        return once

    patch.wrap(TorchMuon, "_direction_of", keeping)


@planted("U32", muon="bytes")
def masters_right_after_momentum(patch: Patch) -> None:
    """A chunk of masters comes right after the chunk of momentum of the same elements: the momentum of a matrix is not all
    committed when its direction is computed, and a crash finds more of it than there was."""

    def in_turn(region_of: Any) -> Any:
        def alternating(self: CodedGeometry, chunk: int) -> Region:
            if len(self.regions) == 1 or chunk in self.regions[0].chunks:
                return region_of(self, chunk)  # type: ignore[no-any-return]
            number, is_masters = divmod(chunk - self.regions[0].chunks.stop, 2)
            return replace(self.regions[1 + is_masters], first_chunk=chunk - number)

        return alternating

    patch.wrap(CodedGeometry, "region_of", in_turn)


@planted("U32", muon="bytes")
def direction_with_the_first_momentum(patch: Patch) -> None:
    """The direction of a matrix is computed as soon as a chunk of its momentum is updated, and kept for its masters."""
    from leto.update.muon import TorchMuon

    def eager(momentum: Any) -> Any:
        def with_direction(self: TorchMuon, pieces: Sequence[MuonPiece], park: Any = None) -> None:
            momentum(self, pieces, park)
            for piece in pieces:
                self._direction_of(piece.matrix)

        return with_direction

    _keep_directions(patch, key=lambda matrix: matrix)
    patch.wrap(TorchMuon, "momentum", eager)


@planted("U32", muon="bytes")
def direction_before_the_restore(patch: Patch) -> None:
    """A process that takes over computes directions from momentum as it finds it, before the chunk in flight is restored."""

    def looking_first(restore: Any) -> Any:
        def computed_then_restored(self: PlanExecutor, op: Operation) -> None:
            assert op.chunk is not None
            steps: Any = self._parts.muon  # the explorer's, around torch's
            if self._parts.coded.region_of(op.chunk).rule is Rule.MUON_MOMENTUM:
                for piece in self._matrices.pieces(op.chunk, self._values):
                    steps._muon._direction_of(piece.matrix)
            restore(self, op)

        return computed_then_restored

    _keep_directions(patch, key=lambda matrix: matrix)
    patch.wrap(PlanExecutor, "_restore", looking_first)


@planted("U32", muon="bytes")
def direction_of_the_last_iteration(patch: Patch) -> None:
    """The direction of a matrix is kept beyond its update, so that a new process goes on with another one."""
    _keep_directions(patch, key=lambda matrix: matrix.name)


@planted("U32", muon="bytes")
def momentum_not_restored(patch: Patch) -> None:
    """A chunk of momentum in flight is not restored from the undo buffer: gradients are added to it a second time."""

    def all_but_momentum(restore: Any) -> Any:
        def restored(self: PlanExecutor, op: Operation) -> None:
            assert op.chunk is not None
            if self._parts.coded.region_of(op.chunk).rule is not Rule.MUON_MOMENTUM:
                restore(self, op)

        return restored

    patch.wrap(PlanExecutor, "_restore", all_but_momentum)


@planted("U12", muon="bytes or spare row")
def gradient_of_muon_clipped_in_place(patch: Patch) -> None:
    """The clip factor is multiplied into the retained gradients of matrices, so that momentum and direction see it twice."""
    from leto.update import muon

    def in_place(matrix: MuonMatrix, gradient: Any) -> Any:
        return gradient if matrix.clip is None else gradient.mul_(matrix.clip)

    patch.set(muon, "_clipped", in_place)


@planted("U48", muon="bytes or spare row")
def columns_of_muon_turned_in_repair(patch: Patch) -> None:
    """Repair solves pages of Muon's arrays in each other's columns."""

    def turned(boundary: Any) -> Any:
        def placed(self: Any, group: int, standing: Any) -> tuple[PlacedPage, ...]:
            pages: tuple[PlacedPage, ...] = boundary(self, group, standing)
            own = [n for n, one in enumerate(pages) if one.page.allocation in (MOMENTUM_BUFFER, MUON_MASTER)]
            columns = {n: pages[m].column for n, m in zip(own, reversed(own), strict=True)}
            return tuple(PlacedPage(columns.get(n, one.column), one.page) for n, one in enumerate(pages))

        return placed

    patch.wrap(repair._Planner, "_boundary_pages", turned)


# What torch's Muon computes (U46)


@planted("U46", kernel="muon")
def nesterov_forgotten(patch: Patch) -> None:
    """The direction is that of the momentum alone, without the gradient's own share."""
    from leto.update.muon import TorchMuon

    def of_momentum(direction_of: Any) -> Any:
        def alone(self: TorchMuon, matrix: MuonMatrix) -> Any:
            hyper = self._hyper
            self._hyper = replace(hyper, momentum=1.0)
            direction = direction_of(self, matrix)
            self._hyper = hyper
            return direction

        return alone

    patch.wrap(TorchMuon, "_direction_of", of_momentum)


@planted("U46", kernel="muon")
def rate_not_adjusted(patch: Patch) -> None:
    """Masters move by the learning rate as it is, whatever the shape of their matrix."""
    from leto.update import muon

    patch.set(muon, "_adjust_lr", lambda lr, adjust_lr_fn, shape: lr)
