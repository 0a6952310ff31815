"""Native AdamW equals torch's non-fused AdamW, bit for bit, with every instruction set that torch can be told to use (U46)."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.optim.adamw import adamw

from leto.device.base import AdamChunk, AdamCoefficients, AdamSegment
from leto.device.host_kernels import ADAM_BLOCK, HostKernels

STEPS = 30
Floats = npt.NDArray[np.float32]


def mkl_sqrt_address() -> int:
    """torch's square root is MKL's vmsSqrt where it is built with MKL, and not the IEEE one."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function = getattr(library, "vmsSqrt", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def kernels_like_torch() -> HostKernels:
    fused = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    return HostKernels(sqrt_address=mkl_sqrt_address(), fused_multiply_add=fused)


@dataclass
class State:
    """One flat parameter with its moments. Both sides start from equal ones and keep their own."""

    master: Floats
    exp_avg: Floats
    exp_avg_sq: Floats

    @classmethod
    def random(cls, count: int) -> State:
        rng = np.random.default_rng(count)
        return cls(rng.standard_normal(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.float32))

    def bits(self) -> npt.NDArray[np.int32]:
        return np.stack([self.master, self.exp_avg, self.exp_avg_sq]).view(np.int32)


def torch_step(state: State, gradient: Floats, part: slice, c: AdamCoefficients) -> None:
    """torch's own AdamW on a slice, in place."""
    used = torch.from_numpy(gradient[part].copy())
    if c.clip is not None:
        used.mul_(c.clip)
    adamw(
        [torch.from_numpy(state.master[part])],
        [used],
        [torch.from_numpy(state.exp_avg[part])],
        [torch.from_numpy(state.exp_avg_sq[part])],
        [],
        [torch.tensor(c.step - 1, dtype=torch.float32)],
        foreach=False,
        fused=False,
        amsgrad=False,
        beta1=c.beta1,
        beta2=c.beta2,
        lr=c.lr,
        weight_decay=c.weight_decay,
        eps=c.eps,
        maximize=False,
    )


def native_step(kernels: HostKernels, state: State, gradient: Floats, parts: list[tuple[slice, AdamCoefficients]]) -> None:
    kernels.adam(
        AdamChunk(
            master_address=state.master.ctypes.data,
            exp_avg_address=state.exp_avg.ctypes.data,
            exp_avg_sq_address=state.exp_avg_sq.ctypes.data,
            segments=tuple(
                AdamSegment(
                    count=part.stop - part.start,
                    gradient_address=gradient.ctypes.data + 4 * part.start,
                    coefficients=coefficients,
                )
                for part, coefficients in parts
            ),
        )
    )


BASE = AdamCoefficients(lr=1.3e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, step=1, clip=None)
CASES = {
    "plain": BASE,
    "clip": replace(BASE, clip=0.3712345678901234),
    "no-decay": replace(BASE, weight_decay=0.0),
    "clip-no-decay": replace(BASE, weight_decay=0.0, clip=1e-3),
    "other-lerp-branch": replace(BASE, beta1=0.4, clip=0.7),
    "defaults": replace(BASE, beta2=0.999, lr=3e-4, weight_decay=0.01),
}
COUNTS = [1, 3, 17, ADAM_BLOCK - 1, ADAM_BLOCK, ADAM_BLOCK + 1, 5003]


def gradient_of(step: int, count: int) -> Floats:
    """Gradients of very different sizes, some exactly zero."""
    rng = np.random.default_rng([step, count])
    gradient = rng.standard_normal(count, np.float32) * np.float32(10.0) ** rng.integers(-6, 3, count).astype(np.float32)
    gradient[rng.random(count) < 0.05] = 0
    return gradient.astype(np.float32)


def first_difference(case: str, count: int, kernels: HostKernels | None = None) -> str | None:
    """The first step after which torch and the native kernels, set up like torch by default, disagree in any bit."""
    kernels = kernels or kernels_like_torch()
    ours, theirs = State.random(count), State.random(count)
    for step in range(1, STEPS + 1):
        coefficients = replace(CASES[case], step=step, lr=CASES[case].lr * step / STEPS)
        gradient = gradient_of(step, count)
        native_step(kernels, ours, gradient, [(slice(0, count), coefficients)])
        torch_step(theirs, gradient, slice(0, count), coefficients)
        wrong = np.argwhere(ours.bits() != theirs.bits())
        if len(wrong):
            return f"{case}, {count} elements, step {step}: {len(wrong)} bits differ, first at {wrong[0].tolist()}"
    return None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", CASES)
def test_native_equals_torch(case: str, count: int) -> None:
    assert first_difference(case, count) is None


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_native_equals_torch_with_older_instructions(capability: str) -> None:
    """torch fuses multiply and add from AVX2 on, and not below."""
    program = (
        "import torch, test_adam as t;"
        "print(torch.backends.cpu.get_cpu_capability().lower(), [t.first_difference(case, 2051) for case in t.CASES])"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.strip() == f"{capability} {[None] * len(CASES)}", done.stderr


def test_one_chunk_may_span_parameters_of_different_groups() -> None:
    kernels = kernels_like_torch()
    edges = [0, 5, 1111, 1112, 4096, 5003]
    groups = [BASE, replace(BASE, weight_decay=0.0, lr=1e-4), replace(BASE, clip=0.5), BASE, replace(BASE, lr=0.02)]
    parts = [(slice(a, b), group) for (a, b), group in zip(itertools.pairwise(edges), groups, strict=True)]
    ours, theirs = State.random(5003), State.random(5003)
    for step in range(1, STEPS + 1):
        now = [(part, replace(group, step=step)) for part, group in parts]
        gradient = gradient_of(step, 5003)
        native_step(kernels, ours, gradient, now)
        for part, group in now:
            torch_step(theirs, gradient, part, group)
        assert np.array_equal(ours.bits(), theirs.bits()), f"step {step}"


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 3e38, -3e38, 1e-20, 1.0], np.float32)


@pytest.mark.parametrize("case", CASES)
def test_special_values(case: str) -> None:
    """Not-a-number, infinities, denormals and overflow in gradients and in state give torch's bits too."""
    gradient, master, exp_avg, exp_avg_sq = (
        part.ravel().copy() for part in np.meshgrid(SPECIAL, SPECIAL, SPECIAL, np.abs(SPECIAL), indexing="ij")
    )
    ours = State(master.copy(), exp_avg.copy(), exp_avg_sq.copy())
    theirs = State(master.copy(), exp_avg.copy(), exp_avg_sq.copy())
    coefficients = replace(CASES[case], step=7)
    native_step(kernels_like_torch(), ours, gradient, [(slice(0, gradient.size), coefficients)])
    torch_step(theirs, gradient, slice(0, gradient.size), coefficients)
    assert np.array_equal(ours.bits(), theirs.bits())


def test_another_rounding_is_noticed() -> None:
    """The comparison can fail: with the other choice of fused multiply-add the bits differ."""
    fused = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    other = HostKernels(sqrt_address=mkl_sqrt_address(), fused_multiply_add=not fused)
    assert first_difference("plain", 5003, other) is not None
