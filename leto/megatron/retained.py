"""Which tensors of a training session live in retained memory, and how they get there.

Two batches, because the sizes of the second are known only when the optimizer exists:

    DDP built        buffer_allocations(ddp, page_bytes)    gradients/dense0, derived/dense0, gradients/expert0, ...
                     bind_buffers(ddp, place)               parameters, gradients and buckets become views of the pool
    optimizer built  coded_geometry(session, protection)    -> leto.core.layout.updater_allocations
                     bind_optimizer(session, place)         masters and moments become views of the coded arrays
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leto.core.geometry import (
    CODED_ARRAYS,
    ELEMENT_BYTES,
    MOMENTUM_BUFFER,
    MUON_MASTER,
    CodedGeometry,
    GradientGeometry,
    Matrix,
    Page,
    Protection,
    Segment,
    pages_of_bytes,
)
from leto.core.layout import Allocation, PageClass
from leto.megatron.shards import Shard
from leto.megatron.training import TrainingSession

Place = Callable[[str], npt.NDArray[np.uint8]]
"""The pool's memory of an allocation: a flat writable view of all its bytes, which must outlive the session."""


def _named_buffers(ddp: Any) -> Iterator[tuple[str, Any]]:
    """Megatron's flat buffers with the names their allocations share: dense0, ..., expert0, ..."""
    for kind, buffers in (("dense", ddp.buffers), ("expert", ddp.expert_parallel_buffers)):
        for index, buffer in enumerate(buffers):
            yield f"{kind}{index}", buffer


def _gradients(name: str) -> str:
    return f"gradients/{name}"


def _derived(name: str) -> str:
    return f"derived/{name}"


def buffer_allocations(ddp: Any, page_bytes: int) -> tuple[Allocation, ...]:
    """Gradient and derived-parameter allocations of the model's buffers, in whole code pages."""

    def whole_pages(byte_count: int) -> int:
        return -(-byte_count // page_bytes) * page_bytes

    allocations = []
    for name, buffer in _named_buffers(ddp):
        gradients, derived = (buffer.numel * dtype.itemsize for dtype in (buffer.grad_dtype, buffer.param_dtype))
        allocations += [
            Allocation(name=_gradients(name), page_class=PageClass.GRADIENTS, byte_count=whole_pages(gradients)),
            Allocation(name=_derived(name), page_class=PageClass.DERIVED, byte_count=whole_pages(derived)),
        ]
    return tuple(allocations)


def bind_buffers(ddp: Any, place: Place) -> None:
    """Parameters and gradients become views of reserved memory, which receives the model's values; between DDP and optimizer.

    What a takeover maps beneath them is the retained state (leto.runtime.built).
    """
    for name, buffer in _named_buffers(ddp):
        parameters = _view(place(_derived(name)), buffer.numel, buffer.param_dtype)
        _rebind(buffer, parameters, _view(place(_gradients(name)), buffer.numel, buffer.grad_dtype))


def _view(memory: npt.NDArray[np.uint8], count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(memory[: count * dtype.itemsize]).view(dtype)


def _rebind(buffer: Any, parameters: torch.Tensor, gradients: torch.Tensor) -> None:
    """Everything that is a view of Megatron's storage: the buffer, its parameters, its buckets.

    Without the distributed optimizer Megatron leaves parameters where they were made; here they are laid out like their
    gradients all the same.
    """
    is_gathered = buffer.param_data is not None
    buffer.grad_data = gradients
    for parameter in buffer.params:
        first, stop, _ = buffer.param_index_map[parameter]
        retained = parameters[first:stop].view(parameter.shape)
        retained.copy_(parameter.detach())
        parameter.data = retained
        parameter.main_grad = gradients[first:stop].view(parameter.shape)
    for bucket in buffer.buckets:
        first, stop = buffer.bucket_indices[bucket.bucket_id]
        bucket.grad_data = gradients[first:stop]
        if is_gathered:
            bucket.param_data = parameters[first:stop]
    if is_gathered:
        buffer.param_data = parameters


def coded_geometry(session: TrainingSession, protection: Protection) -> CodedGeometry:
    """The flat coded arrays cut along parameters: those of AdamW and those of Muon, each in the order of the shards."""
    segments: list[Segment] = []
    matrices: list[Matrix] = []
    for shard, first in _placed(session):
        fields: dict[str, Any] = {"name": shard.name, "first": first, "count": shard.count}
        fields |= {"optimizer": shard.optimizer, "param_group": shard.param_group}
        if shard.rows:
            matrices.append(Matrix(**fields, rows=shard.rows))
        else:
            segments.append(Segment(**fields))
    return CodedGeometry(protection=protection, segments=tuple(segments), matrices=tuple(matrices))


def _placed(session: TrainingSession) -> Iterator[tuple[Shard, int]]:
    """Every shard with its first element in the arrays it belongs to: Muon's or AdamW's."""
    stops = {True: 0, False: 0}
    for shard in session.shards:
        is_matrix = shard.rows > 0
        yield shard, stops[is_matrix]
        stops[is_matrix] += shard.count


def bind_optimizer(session: TrainingSession, place: Place) -> None:
    """Masters and moments become views of the coded arrays, which receive the session's values.

    From here on no master shares memory with a parameter, whatever the precision (U31). The arrays' padding is not touched:
    the pool hands it out zeroed and no chunk changes it.
    """
    for shard, first in _placed(session):
        of_masters, *of_moments = (MUON_MASTER, MOMENTUM_BUFFER) if shard.rows else CODED_ARRAYS
        for name, tensor in ((of_masters, shard.master), *((name, shard.moments[name]) for name in of_moments)):
            array = torch.from_numpy(place(name)).view(torch.float32)
            retained = array[first : first + shard.count].view(tensor.shape)
            retained.copy_(tensor.detach())  # the master of an fp32 parameter is a view that autograd follows
            tensor.data = retained


def gradient_geometry(session: TrainingSession, protection: Protection) -> GradientGeometry:
    """The pages of the gradient allocations that hold owned shards, in the order of the allocations (U11)."""
    pages: dict[Page, None] = {}  # neighbours share pages; a dict keeps the order
    for name, buffer in _named_buffers(session.ddp):
        for shard in session.shards:
            offset = shard.gradient.data_ptr() - buffer.grad_data.data_ptr()
            if 0 <= offset < buffer.grad_data.nbytes:
                touched = pages_of_bytes(_gradients(name), offset, shard.gradient.nbytes, protection.page_bytes)
                pages |= dict.fromkeys(touched)
    return GradientGeometry(protection=protection, pages=tuple(pages))


class GradientAddresses:
    """Where the update finds the gradients of a segment: the owned, reduced fp32 shard, which it must not change."""

    def __init__(self, session: TrainingSession) -> None:
        self._base = {shard.name: shard.gradient.data_ptr() - ELEMENT_BYTES * first for shard, first in _placed(session)}

    def of(self, segment: Segment) -> int:
        """Address of the gradient of element ``segment.first``; ``segment`` may be clipped to a chunk."""
        return int(self._base[segment.name] + ELEMENT_BYTES * segment.first)
