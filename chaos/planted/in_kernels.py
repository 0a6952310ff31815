"""Planted bugs in kernels: wrong results from right arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos.planted.planting import Patch, planted
from leto.device import host_kernels
from leto.device.host_kernels import HostKernels


@planted("U15", kernel="encode")
def column_off_by_one(patch: Patch) -> None:
    """Encoding takes the coefficients of the next column."""

    def next_columns(encode: Any) -> Any:
        return lambda self, shape, columns, *rest: encode(self, shape, [c + 1 for c in columns], *rest)

    patch.wrap(HostKernels, "encode", next_columns)


@planted("U15", kernel="update-parity")
def old_parity_forgotten(patch: Patch) -> None:
    """Updated parity is that of the change alone."""

    def alone(update: Any) -> Any:
        def without_parity(
            self: Any, shape: Any, columns: Any, undo: Any, data: Any, parity: Any, target: Any, *rest: Any
        ) -> None:
            update(self, shape, columns, undo, undo, parity, target, *rest)

        return without_parity

    patch.wrap(HostKernels, "update_parity", alone)


@planted("U15", kernel="update-chunk")
def columns_of_other_arrays(patch: Patch) -> None:
    """Updated and encoded in one pass, the pages of a chunk's arrays change places in the code."""

    def reversed_columns(update: Any) -> Any:
        return lambda self, shape, columns, *rest, **parks: update(self, shape, [*reversed(columns)], *rest, **parks)

    patch.wrap(HostKernels, "update_chunk", reversed_columns)


@planted("U15", kernel="reconstruct")
def solutions_swapped(patch: Patch) -> None:
    """The first two lost pages are written into each other's place."""

    def swapped(reconstruct: Any) -> Any:
        def crosswise(self: Any, shape: Any, columns: Any, data: Any, lost: Any, target: Any, *rest: Any) -> None:
            reconstruct(self, shape, columns, data, lost, [*reversed(target[:2]), *target[2:]], *rest)

        return crosswise

    patch.wrap(HostKernels, "reconstruct", swapped)


@planted("U17", kernel="xor")
def last_row_left_out(patch: Patch) -> None:
    """Tier 2 is the xor of all rows but the last."""
    patch.wrap(HostKernels, "xor_pages", lambda xor: lambda self, source, *rest: xor(self, source[:-1], *rest))


@planted("U2", kernel="copy")
def copy_cut_short(patch: Patch) -> None:
    """A copy leaves out its last page."""
    patch.wrap(HostKernels, "copy_pages", lambda copy: lambda self, s, t, *rest: copy(self, s[:-1], t[:-1], *rest))


@planted("U55", kernel="equal")
def blind_audit(patch: Patch) -> None:
    """The audit's comparison finds all pages equal."""
    patch.set(HostKernels, "equal_pages", lambda self, left, right, page_bytes: [])


@planted("U4", kernel="publish")
def one_mirror_published(patch: Patch) -> None:
    """A mark is stored in its first mirror only."""
    patch.wrap(HostKernels, "publish", lambda publish: lambda self, addresses, value: publish(self, addresses[:1], value))


@planted("U47", kernel="fill")
def lent_buffers_kept(patch: Patch) -> None:
    """Lent buffers are not scribbled over, so that nobody sees who trusts them."""
    patch.set(HostKernels, "fill", lambda self, address, byte_count, pattern: None)


@planted("U46", kernel="adam")
def bias_correction_one_step_off(patch: Patch) -> None:
    """Adam's bias correction counts one step too many."""

    def later(segment: Any) -> Any:
        return lambda s: segment(replace(s, coefficients=replace(s.coefficients, step=s.coefficients.step + 1)))

    patch.wrap(host_kernels, "_segment", later)
