"""The live state that sits in generators and buffers: to text and back (U27, U30)."""

from __future__ import annotations

import fnmatch
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leto.core.errors import ConfigError, ProtocolViolation
from leto.core.records import LossScale, TensorImage, bytes_to_text, text_to_bytes
from leto.megatron.mcore import get_moe_layer_wise_logging_tracker, tensor_parallel

_TRACKER = "tracker/"
_BUFFER = "buffer/"
_AUX_LOSS = "aux-loss/"


def dtype_name(tensor: torch.Tensor) -> str:
    """torch's name of the dtype without the prefix."""
    return str(tensor.dtype).removeprefix("torch.")


def byte_view(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous tensor, as a flat view."""
    view: npt.NDArray[np.uint8] = tensor.detach().view(-1).view(torch.uint8).numpy()
    return view


def seed_generators(seed: int) -> None:
    """Every generator that training reads, as Megatron seeds them: the same on all data-parallel ranks."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def capture_generators() -> dict[str, str]:
    """The state of every generator by name, as opaque text."""
    states = {
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps(np.random.get_state(legacy=False), default=_array_to_json),
        "torch": bytes_to_text(byte_view(torch.get_rng_state()).tobytes()),
    }
    for name, state in tensor_parallel.get_cuda_rng_tracker().get_states().items():
        states[_TRACKER + name] = bytes_to_text(byte_view(state).tobytes())
    return states


def restore_generators(states: Mapping[str, str]) -> None:
    version, words, gauss = json.loads(states["python"])
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(json.loads(states["numpy"], object_hook=_array_from_json))
    torch.set_rng_state(_uint8_tensor(states["torch"]))
    trackers = {name.removeprefix(_TRACKER): text for name, text in states.items() if name.startswith(_TRACKER)}
    tensor_parallel.get_cuda_rng_tracker().set_states({name: _uint8_tensor(text) for name, text in trackers.items()})


def capture_loss_scales(chained: Any) -> tuple[LossScale, ...]:
    """Of each chained optimizer, in order; they have one only in fp16."""
    states = [scaler.state_dict() for scaler in _scalers(chained)]
    return tuple(
        LossScale(
            scale=float(state["scale"].item()).hex(),
            growth_tracker=state["growth_tracker"],
            hysteresis_tracker=state["hysteresis_tracker"],
        )
        for state in states
    )


def _scalers(chained: Any) -> list[Any]:
    """Megatron's FP32Optimizer has not even the attribute."""
    scalers = [getattr(one, "grad_scaler", None) for one in chained.chained_optimizers]
    return [scaler for scaler in scalers if scaler]


def restore_loss_scales(scales: Sequence[LossScale], chained: Any) -> None:
    for scaler, state in zip(_scalers(chained), scales, strict=True):
        scale = torch.tensor([float.fromhex(state.scale)], dtype=torch.float32)
        trackers = {"growth_tracker": state.growth_tracker, "hysteresis_tracker": state.hysteresis_tracker}
        scaler.load_state_dict({"scale": scale, **trackers})


def enrolled_buffers(model: torch.nn.Module, patterns: Sequence[str]) -> dict[str, torch.Tensor]:
    """The model's buffers that compute changes, by name. Raises ConfigError for a pattern that names none."""
    buffers = dict(model.named_buffers())
    for pattern in patterns:
        if not fnmatch.filter(buffers, pattern):
            raise ConfigError(f"mutable: the model has no buffer {pattern!r}; it has {', '.join(sorted(buffers)) or 'none'}")
    return {name: buffers[name] for name in buffers if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def capture_mutable(buffers: Mapping[str, torch.Tensor]) -> dict[str, TensorImage]:
    """State that the compute phase changes outside gradients: the enrolled buffers and the MoE aux-loss tracker."""
    images = {_BUFFER + name: _image(buffer) for name, buffer in buffers.items()}
    for name, entry in get_moe_layer_wise_logging_tracker().items():
        images[_AUX_LOSS + name] = _image(entry["values"])
    return images


def restore_mutable(images: Mapping[str, TensorImage], buffers: Mapping[str, torch.Tensor]) -> None:
    """Buffers take new storage of the recorded dtype: the router's bias is bf16 when built and fp32 after a forward."""
    recorded = {name.removeprefix(_BUFFER): image for name, image in images.items() if name.startswith(_BUFFER)}
    if recorded.keys() != buffers.keys():
        raise ProtocolViolation(f"buffers recorded and built differ: {sorted(recorded.keys() ^ buffers.keys())}")
    for name, image in recorded.items():
        buffers[name].data = _tensor(image)
    tracker: dict[str, dict[str, Any]] = get_moe_layer_wise_logging_tracker()
    tracker.clear()
    for name, image in images.items():
        if name.startswith(_AUX_LOSS):
            # Megatron sets the groups of an entry whenever it adds a loss to it.
            tracker[name.removeprefix(_AUX_LOSS)] = {"values": _tensor(image)}


def _image(tensor: torch.Tensor) -> TensorImage:
    data = bytes_to_text(byte_view(tensor.contiguous()).tobytes())
    return TensorImage(dtype=dtype_name(tensor), shape=tuple(tensor.shape), data=data)


def _tensor(image: TensorImage) -> torch.Tensor:
    flat = _uint8_tensor(image.data).view(getattr(torch, image.dtype))
    return flat.view(image.shape)


def _uint8_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text_to_bytes(text)), dtype=torch.uint8)


def _array_to_json(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is not part of a generator's state")
    return {"array": bytes_to_text(value.tobytes()), "dtype": value.dtype.str}


def _array_from_json(value: dict[str, Any]) -> Any:
    return np.frombuffer(text_to_bytes(value["array"]), dtype=value["dtype"]) if "array" in value else value
