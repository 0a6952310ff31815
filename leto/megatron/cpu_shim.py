"""Lets unmodified megatron-core 0.16.1 run on CPU torch and gloo.

Megatron names the device "cuda" in string constants and calls torch.cuda directly. The shim is an import hook that rewrites
those constants while megatron.core modules are compiled, stand-ins for a few functions of torch.cuda, and a named fix for each
module that assumes Transformer Engine or a GPU generator. No file on disk changes, and where CUDA is available nothing is
patched at all. What is not patched raises when it is called, so a part of Megatron that needs more says so.

It must be installed before megatron.core is imported, and it knows exactly one release: another one is refused, because a
constant that moved would be a silent difference between what runs here and what runs on a GPU.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import logging
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leto.core.errors import ConfigError

MEGATRON_VERSION = "0.16.1"

_CONSTANTS = {
    "cuda": "cpu",
    "torch.cuda.FloatTensor": "torch.FloatTensor",
    "torch.cuda.HalfTensor": "torch.HalfTensor",
    "torch.cuda.BFloat16Tensor": "torch.BFloat16Tensor",
}


def install_without_cuda() -> None:
    """Install the shim, once, unless CUDA is available. Raises ConfigError where it cannot work."""
    if torch.cuda.is_available() or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    version = importlib.metadata.version("megatron-core")
    if version != MEGATRON_VERSION:
        raise ConfigError(f"megatron-core {version} is installed; without a GPU only {MEGATRON_VERSION} is supported")
    if any(name == "megatron.core" or name.startswith("megatron.core.") for name in sys.modules):
        raise ConfigError("megatron.core was imported before leto.megatron: on a machine without a GPU it must come after")
    sys.meta_path.insert(0, _Finder())
    _replace_torch_cuda()


class _Finder:
    """Gives every source module below megatron.core the rewriting loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "megatron.core" and not name.startswith("megatron.core."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType | None:
        code = super().get_code(fullname)
        return None if code is None else _rewrite_code(code)

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        fix = _FIXES.get(module.__name__)
        if fix is not None:
            fix(module)


def _rewrite_code(code: types.CodeType) -> types.CodeType:
    return code.replace(co_consts=tuple(_rewrite(constant) for constant in code.co_consts))


def _rewrite(constant: Any) -> Any:
    """Exact string constants that name the device, also inside tuples, sets and nested functions."""
    if isinstance(constant, str):
        return _CONSTANTS.get(constant, constant)
    if isinstance(constant, tuple):
        return tuple(_rewrite(item) for item in constant)
    if isinstance(constant, frozenset):
        return frozenset(_rewrite(item) for item in constant)
    if isinstance(constant, types.CodeType):
        return _rewrite_code(constant)
    return constant


# Fixes: one function a module, run right after the module's own code.


def _fix_jit(module: Any) -> None:
    """Helpers would be wrapped in torch.compile, and every process would run a C++ compiler at its first iteration."""
    module.disable_jit_fuser()


def _fix_moe_utils(module: Any) -> None:
    """0.16.1 reads te_general_gemm unconditionally but binds it only with Transformer Engine; gloo's all_to_all wants lists."""
    if not module.HAVE_TE:
        module.te_general_gemm = None

    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor

    module.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu


def _fix_random(module: Any) -> None:
    """The model-parallel tracker swaps generator states: here they are those of torch's default generator."""

    def set_state(state: torch.Tensor, device: int = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    module._set_cuda_rng_state = set_state
    # Written for GPUs, where dropout must not touch the CPU generator; here it is the only one.
    logging.getLogger(module.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())


_FIXES: dict[str, Callable[[Any], None]] = {
    "megatron.core.jit": _fix_jit,
    "megatron.core.tensor_parallel.random": _fix_random,
    "megatron.core.transformer.moe.moe_utils": _fix_moe_utils,
}


class _Null:
    """A stream, an event, or the context of one: every method does nothing and returns the object."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Null:
        return self

    def __exit__(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., _Null]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


def _replace_torch_cuda() -> None:
    """The current device, streams, and the device generator, which is here the default one.

    torch.cuda's own generator functions would not raise without a GPU: they queue what to do once there is one.
    """
    cuda: Any = torch.cuda
    cpu, null = torch.device("cpu"), _Null()
    cuda.current_device = lambda: cpu
    cuda.current_stream = cuda.default_stream = cuda.stream = lambda *_, **__: null
    cuda.Stream = cuda.Event = _Null
    torch.Tensor.cuda = lambda tensor, device=None: tensor  # it is on the current device

    def seed_default(seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    cuda.manual_seed = cuda.manual_seed_all = seed_default
    cuda.get_rng_state = cuda.random.get_rng_state = get_state
    cuda.set_rng_state = cuda.random.set_rng_state = set_state
