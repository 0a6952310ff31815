"""State that compute changes although nobody enrolled it (U30): what is found to differ from how it was built.

A process that takes over builds its model anew and restores what the records hold. Whatever else compute has changed would be
gone, so it must stay as it was built, in every iteration. Looked at are, by name:

    buffer         buffers of the model's modules that are not enrolled
    attribute      tensors, arrays, numbers and texts, also in lists and dicts, that its modules keep as attributes
    module level   the same, kept by the modules, classes and module-level objects of megatron.core

Parameters are not looked at: they derive from coded state, and every recovery casts them again (U22).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import xxhash

from leto.core.errors import UnenrolledState
from leto.megatron.live import byte_view

_NOT_STATE = {
    # Written before it is read, by the schedule before every micro-batch or by whoever asks for it.
    "current_microbatch",
    "megatron.core.transformer.moe.moe_utils:MoEAuxLossAutoScaler.main_loss_backward_scale",
    "megatron.core.parallel_state:_GLOBAL_MEMORY_BUFFER.buffer",
    # Made when it is first asked for, and switched off.
    "megatron.core.rerun_state_machine:_GLOBAL_RERUN_STATE_MACHINE",
    # In every record by other means (leto.megatron.live).
    "megatron.core.tensor_parallel.random:_CUDA_RNG_STATE_TRACKER.states_",
    "megatron.core.transformer.moe.moe_utils:_MOE_LAYER_WISE_LOGGING_TRACKER",
}
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
"""Children, hooks and the training flag."""

_MEGATRON = "megatron.core"
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
_MAX_DEPTH = 4
_REMEDY = {
    "buffer": "name it in the model's ModelSpec.mutable",
    "attribute": "make it a buffer and name that in the model's ModelSpec.mutable",
    "module level": "capture it in leto.megatron.live",
}

_Found = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True)
class _Slot:
    """A name in a namespace of megatron.core. An equal object that is a scalar has not changed, which is most of them."""

    name: str
    namespace: Any  # a mapping
    key: str
    built: Any
    fingerprint: Any

    def changed(self) -> bool:
        value = self.namespace.get(self.key)
        if value is self.built and isinstance(value, _SCALARS):
            return False
        return bool(_fingerprint(value) != self.fingerprint)


class BuiltState:
    """How ``model`` and Megatron's modules are when this is made. ``is_enrolled`` says of a buffer that records hold it."""

    def __init__(self, model: torch.nn.Module, is_enrolled: Callable[[str], bool]) -> None:
        self._model = model
        self._is_enrolled = is_enrolled
        self._slots = tuple(_slots())
        self._built = dict(self._of_model())

    def refuse_changes(self, iteration: int) -> None:
        """Raises UnenrolledState when compute of ``iteration`` changed what no record holds."""
        changed = list(self._changes())
        if not changed:
            return
        kind, name = changed[0]
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UnenrolledState(
            f"iteration {iteration} changed the {kind} {name}{others}, which no record holds, so no recovery could restore it;"
            f" {_REMEDY[kind]}"
        )

    def _changes(self) -> Iterator[_Found]:
        now = dict(self._of_model())
        for found in sorted(now.keys() | self._built.keys()):
            if now.get(found) != self._built.get(found):
                yield found
        yield from (("module level", slot.name) for slot in self._slots if slot.changed())

    def _of_model(self) -> Iterator[tuple[_Found, Any]]:
        for path, module in self._model.named_modules():
            prefix = f"{path}." if path else ""
            for name, buffer in module.named_buffers(recurse=False):
                if not self._is_enrolled(prefix + name):
                    yield ("buffer", prefix + name), _fingerprint(buffer)
            for name, value in vars(module).items():
                fingerprint = None if name in _OF_EVERY_MODULE or name in _NOT_STATE else _fingerprint(value)
                if fingerprint is not None:
                    yield ("attribute", prefix + name), fingerprint


def _slots() -> Iterator[_Slot]:
    """Everything of megatron.core that has a fingerprint, once each, although modules import it from one another."""
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith(_MEGATRON):
            for name, namespace in _namespaces(module_name, module):
                if id(namespace) in seen:
                    continue
                seen.add(id(namespace))
                yield from _slots_in(name, namespace)


def _namespaces(name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The module's own, those of its classes, and those of objects of Megatron's that it keeps."""
    yield f"{name}:", vars(module)
    for key, value in vars(module).items():
        if isinstance(value, type):
            if value.__module__ == name:
                yield f"{name}:{key}.", vars(value)
        elif type(value).__module__.startswith(_MEGATRON) and hasattr(value, "__dict__"):
            yield f"{name}:{key}.", vars(value)


def _slots_in(prefix: str, namespace: Any) -> Iterator[_Slot]:
    for key, value in namespace.items():
        fingerprint = None if key.startswith("__") or prefix + key in _NOT_STATE else _fingerprint(value)
        if fingerprint is not None:
            yield _Slot(prefix + key, namespace, key, value, fingerprint)


def _fingerprint(value: Any, depth: int = 0) -> Any:
    """Equal only for equal values, bit for bit; None for what is no state."""
    if isinstance(value, torch.nn.Parameter):
        return None
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), xxhash.xxh3_128_digest(byte_view(value.contiguous()).data)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, xxhash.xxh3_128_digest(np.ascontiguousarray(value).data)
    if isinstance(value, _SCALARS):
        return type(value), repr(value)
    if depth == _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return dict, tuple((repr(key), _fingerprint(item, depth + 1)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_fingerprint(item, depth + 1) for item in value)
    if isinstance(value, set | frozenset):
        return set, tuple(sorted(map(repr, value)))
    return None
