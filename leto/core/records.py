"""HEADER and POST: the state of an iteration that lives outside coded memory (U23, U27 to U29).

HEADER(t), durable before compute(t), is what RESTART reloads. POST(t), durable before GRADS_PROTECTED(t), is what t+1 starts
from, with the values of the update and the results of the iteration: FINISH goes on from it, because after FINISH there
is no compute(t) to redo.

Each kind has two slots in retained host memory; record t goes to slot t mod 2, so the previous one stays whole while it is
written, and the phase word is bumped only afterwards:

    offset   0        4         8         12       16       20
             magic    version   length    t        crc32    payload (UTF-8 JSON, sorted keys)
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from leto.core.errors import ProtocolViolation

RECORD_SLOTS = 2
_PREFIX = struct.Struct("<4sIIII")
_MAGIC = b"LETO"
_VERSION = 3


def bytes_to_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def text_to_bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


@dataclass(frozen=True, kw_only=True)
class TensorImage:
    """A small tensor by value. Restored by replacing the storage with the recorded dtype, never by copying into it (U30)."""

    dtype: str  # torch's name without the prefix, "bfloat16"
    shape: tuple[int, ...]
    data: str  # base64 of the little-endian bytes


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """Megatron's dynamic loss scaler of one optimizer (U25, U28). It moves with every step, a skipped one too."""

    scale: str  # float.hex
    growth_tracker: int  # steps since the scale moved or a gradient overflowed
    hysteresis_tracker: int  # overflows left before the scale goes down


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """Everything the next iteration depends on that is not coded memory (U27, U28, U30)."""

    generators: Mapping[str, str]  # name -> opaque text: python, numpy, torch, tracker/<name>
    data_cursor: int  # samples this rank has consumed
    consumed_samples: int  # samples the job has consumed
    scheduler_steps: int
    applied_steps: int  # updates applied; a skipped step does not count (U29)
    learning_rates: tuple[tuple[tuple[float, float], ...], ...]  # [optimizer][param_group] -> (lr, weight_decay)
    loss_scales: tuple[LossScale, ...] = ()  # by optimizer, empty without a scaler
    mutable: Mapping[str, TensorImage] = field(default_factory=dict)  # enrolled compute-mutable state, by name


@dataclass(frozen=True, kw_only=True)
class UpdateValues:
    """The values of update t, equal on all ranks and fixed before the barrier (U23)."""

    iteration: int
    skipped: bool
    applied_step: int  # Adam's step count of this update
    clip: str  # float.hex of the factor, "" when nothing is clipped
    learning_rates: tuple[tuple[tuple[float, float], ...], ...]  # [optimizer][param_group] -> (lr, weight_decay)


@dataclass(frozen=True, kw_only=True)
class IterationResult:
    """What iteration t computed, and from what. Floats as float.hex, so that text keeps every bit.

    Equal on all ranks but for ``samples``, which are this rank's.
    """

    iteration: int
    loss: str
    grad_norm: str  # "" for a skipped step
    skipped: bool
    samples: tuple[int, ...]  # indices into the data set, in the order in which they were read

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> IterationResult:
        """From what ``asdict`` and JSON made of it. Raises TypeError or KeyError when a field is missing or unknown."""
        return IterationResult(**{**raw, "samples": tuple(raw["samples"])})


@dataclass(frozen=True, kw_only=True)
class Header:
    """State before compute(iteration). ``previous`` is the result of iteration - 1, None before the first.

    ``layout_hash`` says under which geometry the retained bytes mean something (U41).
    """

    iteration: int
    layout_hash: str
    live: LiveState
    previous: IterationResult | None


@dataclass(frozen=True, kw_only=True)
class Post:
    """State after the backward pass of ``iteration`` and everything its update needs."""

    iteration: int
    layout_hash: str
    next_live: LiveState
    values: UpdateValues
    result: IterationResult

    def next_header(self) -> Header:
        """HEADER(t+1), which FINISH and a lost HEADER build from POST(t) (U22)."""
        return Header(iteration=self.iteration + 1, layout_hash=self.layout_hash, live=self.next_live, previous=self.result)


def encode_record(record: Header | Post, slot_bytes: int) -> bytes:
    """The slot image: prefix and payload. Raises ProtocolViolation when it does not fit the slot."""
    payload = json.dumps(asdict(record), sort_keys=True, separators=(",", ":")).encode()
    image = _PREFIX.pack(_MAGIC, _VERSION, len(payload), record.iteration, zlib.crc32(payload)) + payload
    if len(image) > slot_bytes:
        raise ProtocolViolation(f"record of {len(image)} bytes does not fit a slot of {slot_bytes}")
    return image


def _payload(image: bytes, iteration: int, kind: str) -> dict[str, Any]:
    magic, version, length, t, crc = _PREFIX.unpack_from(image)
    if magic != _MAGIC or version != _VERSION:
        raise ProtocolViolation(f"{kind}({iteration}): the slot holds no record")
    payload = image[_PREFIX.size : _PREFIX.size + length]
    if t != iteration or zlib.crc32(payload) != crc:
        raise ProtocolViolation(f"{kind}({iteration}): the slot holds a torn record or one of iteration {t}")
    decoded: dict[str, Any] = json.loads(payload)
    return decoded


def decode_header(image: bytes, iteration: int) -> Header:
    """HEADER(iteration) from its slot. Raises ProtocolViolation when torn or of another iteration."""
    raw = _payload(image, iteration, "HEADER")
    previous = raw["previous"]
    return Header(
        iteration=raw["iteration"],
        layout_hash=raw["layout_hash"],
        live=_live(raw["live"]),
        previous=None if previous is None else IterationResult.from_json(previous),
    )


def decode_post(image: bytes, iteration: int) -> Post:
    """POST(iteration) from its slot. Raises ProtocolViolation when torn or of another iteration."""
    raw = _payload(image, iteration, "POST")
    values = dict(raw["values"], learning_rates=_rates(raw["values"]["learning_rates"]))
    return Post(
        iteration=raw["iteration"],
        layout_hash=raw["layout_hash"],
        next_live=_live(raw["next_live"]),
        values=UpdateValues(**values),
        result=IterationResult.from_json(raw["result"]),
    )


def _rates(raw: Any) -> tuple[tuple[tuple[float, float], ...], ...]:
    return tuple(tuple((float(lr), float(wd)) for lr, wd in optimizer) for optimizer in raw)


def _live(raw: dict[str, Any]) -> LiveState:
    mutable = {k: TensorImage(dtype=v["dtype"], shape=tuple(v["shape"]), data=v["data"]) for k, v in raw["mutable"].items()}
    fields = dict(
        raw,
        mutable=mutable,
        learning_rates=_rates(raw["learning_rates"]),
        loss_scales=tuple(LossScale(**scale) for scale in raw["loss_scales"]),
    )
    return LiveState(**fields)
