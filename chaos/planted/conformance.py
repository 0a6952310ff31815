"""The kernels' check: each beside the readable definition of what it computes, AdamW and Muon beside torch (U46)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from leto.core import reed_solomon
from leto.core.errors import Unrecoverable
from leto.core.geometry import ELEMENT_BYTES
from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment, CodeShape
from leto.device.host_kernels import HostKernels
from leto.update.pieces import MuonMatrix, MuonPiece

Page = npt.NDArray[np.uint8]
PAGE_BYTES = 256
SHAPE = CodeShape(page_bytes=PAGE_BYTES, tier1_pages=4)
COLUMNS = (3, 4, 9, 20, 31)
ROWS = 8
_FILLING = 0xA5  # what no kernel may leave in its target by accident


def first_difference() -> str | None:
    """The first kernel that does something else than its definition, None when all conform."""
    return next((name for name, conforms in _CHECKS.items() if not conforms(_Pages())), None)


def _blank(count: int) -> list[Page]:
    return [np.full(PAGE_BYTES, _FILLING, np.uint8) for _ in range(count)]


def _addresses(pages: Sequence[npt.NDArray[np.generic]]) -> list[int]:
    return [page.ctypes.data for page in pages]


def _same(left: Sequence[Page], right: Sequence[Page]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True)
class _Pages:
    """A code word before and after some of its pages changed; parity by the definition."""

    kernels: HostKernels = field(default_factory=HostKernels)
    old: list[Page] = field(default_factory=lambda: _random(1))
    new: list[Page] = field(default_factory=lambda: _random(2))

    def parity(self, pages: Sequence[Page]) -> list[Page]:
        return reed_solomon.encode(SHAPE.tier1_pages, COLUMNS, pages)


def _random(seed: int) -> list[Page]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, PAGE_BYTES, dtype=np.uint8) for _ in COLUMNS]


def _encodes(p: _Pages) -> bool:
    target = _blank(SHAPE.tier1_pages)
    p.kernels.encode(SHAPE, COLUMNS, _addresses(p.old), _addresses(target))
    return _same(target, p.parity(p.old))


def _updates_parity(p: _Pages) -> bool:
    before, target = p.parity(p.old), _blank(SHAPE.tier1_pages)
    p.kernels.update_parity(SHAPE, COLUMNS, _addresses(p.old), _addresses(p.new), _addresses(before), _addresses(target))
    return _same(target, p.parity(p.new))


def _updates_chunks(p: _Pages) -> bool:
    """The bits of AdamW, and the parity of what they change."""
    columns, before = COLUMNS[:3], _floats(3)
    gradient, parity = _floats(1)[0], reed_solomon.encode(SHAPE.tier1_pages, columns, before)
    alone, together = [page.copy() for page in before], [page.copy() for page in before]
    p.kernels.adam(_chunk(alone, gradient))
    target = _blank(SHAPE.tier1_pages)
    p.kernels.update_chunk(SHAPE, columns, _chunk(together, gradient), _addresses(parity), _addresses(target))
    return _same(together, alone) and _same(target, reed_solomon.encode(SHAPE.tier1_pages, columns, alone))


def _floats(count: int) -> list[Page]:
    """Pages of positive fp32 numbers."""
    generator = np.random.default_rng(count)
    return [generator.random(PAGE_BYTES // ELEMENT_BYTES, dtype=np.float32).view(np.uint8) for _ in range(count)]


def _chunk(arrays: Sequence[Page], gradient: Page) -> AdamChunk:
    """One page of each array, the last elements of which are padding."""
    rates = AdamCoefficients(lr=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, step=2, clip=0.5)
    count = PAGE_BYTES // ELEMENT_BYTES - 3
    segment = AdamSegment(count=count, gradient_address=gradient.ctypes.data, coefficients=rates)
    master, exp_avg, exp_avg_sq = _addresses(arrays)
    return AdamChunk(master_address=master, exp_avg_address=exp_avg, exp_avg_sq_address=exp_avg_sq, segments=(segment,))


def _reconstructs(p: _Pages) -> bool:
    target, parity = _blank(2), p.parity(p.old)
    _solve(p, target, parity)
    return _same(target, p.old[:2])


def _checks_spare_rows(p: _Pages) -> bool:
    parity = p.parity(p.old)
    parity[-1][0] ^= 1
    try:
        _solve(p, _blank(2), parity)
    except Unrecoverable:
        return True
    return False


def _solve(p: _Pages, target: list[Page], parity: list[Page]) -> None:
    """The first pages, as many as there are targets, from the others and all rows."""
    lost = len(target)
    known = _addresses(p.old[lost:])
    rows = range(SHAPE.tier1_pages)
    p.kernels.reconstruct(SHAPE, COLUMNS[lost:], known, COLUMNS[:lost], _addresses(target), rows, _addresses(parity))


def _xors(p: _Pages) -> bool:
    (target,) = _blank(1)
    p.kernels.xor_pages(_addresses(p.old), target.ctypes.data, PAGE_BYTES)
    return np.array_equal(target, reed_solomon.xor_pages(p.old))


def _copies(p: _Pages) -> bool:
    target = _blank(len(p.old))
    p.kernels.copy_pages(_addresses(p.old), _addresses(target), PAGE_BYTES)
    return _same(target, p.old)


def _finds_unequal_pages(p: _Pages) -> bool:
    other = [page.copy() for page in p.old]
    other[3][-1] ^= 1
    return p.kernels.equal_pages(_addresses(p.old), _addresses(other), PAGE_BYTES) == [3]


def _fills(p: _Pages) -> bool:
    (target,) = _blank(1)
    p.kernels.fill(target.ctypes.data, PAGE_BYTES, 0xDEADBEEF)
    return bool((target.view(np.uint32) == 0xDEADBEEF).all())


def _publishes(p: _Pages) -> bool:
    words = (ctypes.c_uint64 * 3)()
    p.kernels.publish([ctypes.addressof(words) + 8 * k for k in range(3)], 7)
    return list(words) == [7, 7, 7]


def _repeats_torch(p: _Pages) -> bool:
    """Torch is imported by who asks: everything else here does without."""
    from leto.update.adam import host_kernels, reproduces_torch

    return reproduces_torch(host_kernels())


def _repeats_torchs_muon(p: _Pages) -> bool:
    """Of a matrix in two pieces: all momentum, then all masters."""
    from chaos.explore.muon import torch_muon

    momentum, master, gradient = _floats(3)
    moved, updated = momentum.copy(), master.copy()
    matrix = _matrix(momentum, master, gradient)
    _step_of_torch(matrix, moved, updated, gradient)
    pieces = [MuonPiece(matrix=matrix, first=0, count=17), MuonPiece(matrix=matrix, first=17, count=PAGE_BYTES // 4 - 17)]
    muon = torch_muon()
    for update in (muon.momentum, muon.apply):
        for piece in pieces:
            update((piece,), None)
    return _same([momentum, master], [moved, updated])


def _matrix(momentum: Page, master: Page, gradient: Page) -> MuonMatrix:
    return MuonMatrix(
        name="m",
        rows=ROWS,
        columns=PAGE_BYTES // ELEMENT_BYTES // ROWS,
        iteration=1,
        gradient_address=gradient.ctypes.data,
        momentum_address=momentum.ctypes.data,
        master_address=master.ctypes.data,
        lr=1e-2,
        weight_decay=0.1,
        clip=None,
    )


def _step_of_torch(matrix: MuonMatrix, momentum: Page, master: Page, gradient: Page) -> None:
    """torch.optim.Muon itself, in place."""
    import torch

    from chaos.explore.muon import ADJUST_LR, MOMENTUM

    buffer, parameter, grad = (
        torch.from_numpy(page.view(np.float32)).view(matrix.rows, matrix.columns) for page in (momentum, master, gradient)
    )
    parameter = torch.nn.Parameter(parameter)
    parameter.grad = grad
    optimizer = torch.optim.Muon(
        [parameter], lr=matrix.lr, weight_decay=matrix.weight_decay, momentum=MOMENTUM, nesterov=True, adjust_lr_fn=ADJUST_LR
    )
    optimizer.state[parameter]["momentum_buffer"] = buffer
    optimizer.step()


_CHECKS: dict[str, Callable[[_Pages], bool]] = {
    "encode": _encodes,
    "update-parity": _updates_parity,
    "update-chunk": _updates_chunks,
    "reconstruct": _reconstructs,
    "spare rows": _checks_spare_rows,
    "xor": _xors,
    "copy": _copies,
    "equal": _finds_unequal_pages,
    "fill": _fills,
    "publish": _publishes,
    "adam": _repeats_torch,
    "muon": _repeats_torchs_muon,
}
