"""AdamW on one chunk: the native kernel where it reproduces torch's bits on this machine, torch on slices elsewhere (U46)."""

from __future__ import annotations

import ctypes
import os

import torch
from torch.optim.adamw import adamw

from leto.core.failpoints import Park
from leto.core.geometry import ELEMENT_BYTES
from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment
from leto.device.host_kernels import HostKernels
from leto.update.executor import ChunkAdam
from leto.update.floats import floats_at
from leto.update.parking import park_here


def mkl_address(name: str) -> int:
    """Address of a function of the MKL that torch is built with; 0 where it is built without."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def host_kernels() -> HostKernels:
    """Host kernels set up like this process's torch: its square root, fused multiply-add where its vector path has one, and
    as many threads as it computes with now."""
    capability = torch.backends.cpu.get_cpu_capability()
    return HostKernels(
        sqrt_address=mkl_address("vmsSqrt"),  # what ATen calls, and not the IEEE square root
        library_threads_address=mkl_address("MKL_Set_Num_Threads_Local"),
        fused_multiply_add=capability != "DEFAULT",
        threads=torch.get_num_threads(),
    )


def select_adam(kernels: HostKernels) -> tuple[ChunkAdam, str]:
    """The chunk update for this machine and its name, decided by comparing bits with torch."""
    if reproduces_torch(kernels):
        return kernels.adam, "native"
    return torch_adam, "torch"


def torch_adam(chunk: AdamChunk, park: Park | None = None) -> None:
    """torch's own AdamW on slices, which is bitwise independent of the split. Armed, it parks between two slices."""
    total = sum(s.count for s in chunk.segments)
    stop = total if park is None else int(park.progress * total)
    _torch_range(chunk, 0, stop)
    if park is not None:
        park_here(park)
        _torch_range(chunk, stop, total)


def _torch_range(chunk: AdamChunk, first: int, stop: int) -> None:
    position = 0
    for segment in chunk.segments:
        low, high = max(first, position), min(stop, position + segment.count)
        if low < high:
            _torch_slice(chunk, segment, low, low - position, high - low)
        position += segment.count


def _torch_slice(chunk: AdamChunk, segment: AdamSegment, offset: int, gradient_offset: int, count: int) -> None:
    c = segment.coefficients
    master, m, v = (
        floats_at(address + offset * ELEMENT_BYTES, count)
        for address in (chunk.master_address, chunk.exp_avg_address, chunk.exp_avg_sq_address)
    )
    gradient = floats_at(segment.gradient_address + gradient_offset * ELEMENT_BYTES, count)
    if c.clip is not None:
        gradient = gradient * c.clip
    adamw_reference(master, gradient, m, v, c)


def adamw_reference(
    master: torch.Tensor, gradient: torch.Tensor, m: torch.Tensor, v: torch.Tensor, c: AdamCoefficients
) -> None:
    """torch's for-loop AdamW, mutating master, m and v; ``gradient`` is already clipped."""
    with torch.no_grad():
        adamw(
            [master],
            [gradient],
            [m],
            [v],
            [],
            [torch.tensor(float(c.step - 1))],
            foreach=False,
            capturable=False,
            differentiable=False,
            fused=False,
            has_complex=False,
            amsgrad=False,
            beta1=c.beta1,
            beta2=c.beta2,
            lr=c.lr,
            weight_decay=c.weight_decay,
            eps=c.eps,
            maximize=False,
        )


def reproduces_torch(kernels: HostKernels) -> bool:
    """Three steps over awkward values and sizes, with and without clipping and decay, compared as integers."""
    return all(
        _same_bits(kernels, count, clip, decay) for count in (1, 17, 4099) for clip in (None, 0.37) for decay in (0.0, 0.1)
    )


def _same_bits(kernels: HostKernels, count: int, clip: float | None, decay: float) -> bool:
    generator = torch.Generator().manual_seed(count)
    start = [torch.randn(count, generator=generator), torch.zeros(count), torch.zeros(count)]
    ours, theirs = [t.clone() for t in start], [t.clone() for t in start]
    for step in (1, 2, 3):
        scale = 10.0 ** torch.randint(-12, 4, (count,), generator=generator)
        gradient = torch.randn(count, generator=generator) * scale
        c = AdamCoefficients(lr=1e-3 / step, weight_decay=decay, beta1=0.9, beta2=0.95, eps=1e-8, step=step, clip=clip)
        segment = AdamSegment(count=count, gradient_address=gradient.data_ptr(), coefficients=c)
        kernels.adam(
            AdamChunk(
                master_address=ours[0].data_ptr(),
                exp_avg_address=ours[1].data_ptr(),
                exp_avg_sq_address=ours[2].data_ptr(),
                segments=(segment,),
            )
        )
        adamw_reference(theirs[0], gradient if clip is None else gradient * clip, theirs[1], theirs[2], c)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(ours, theirs, strict=True))
