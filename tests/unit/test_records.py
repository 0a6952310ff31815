"""HEADER and POST: every bit comes back, and a torn or stale slot is refused (U27)."""

import pytest

from leto.core.errors import ProtocolViolation
from leto.core.records import (
    Header,
    IterationResult,
    LiveState,
    LossScale,
    Post,
    TensorImage,
    UpdateValues,
    bytes_to_text,
    decode_header,
    decode_post,
    encode_record,
    text_to_bytes,
)

RATES = (((1e-3, 0.1), (3.3e-4, 0.0)), ((0.1 + 0.2, 5e-324),))
LIVE = LiveState(
    generators={"torch": bytes_to_text(bytes(range(256))), "python": "x"},
    data_cursor=12,
    consumed_samples=24,
    scheduler_steps=16,
    applied_steps=3,
    learning_rates=RATES,
    loss_scales=(LossScale(scale=(2.0**17).hex(), growth_tracker=3, hysteresis_tracker=1),),
    mutable={"bias": TensorImage(dtype="bfloat16", shape=(2, 1), data=bytes_to_text(b"\x01\x02\x03\x04"))},
)
RESULT = IterationResult(iteration=4, loss=(0.1).hex(), grad_norm="nan", skipped=False, samples=(24, 25, 28, 29))
POST = Post(
    iteration=4,
    layout_hash="ab",
    next_live=LIVE,
    values=UpdateValues(iteration=4, skipped=False, applied_step=4, clip="", learning_rates=RATES),
    result=RESULT,
)
HEADER = Header(iteration=5, layout_hash="ab", live=LIVE, previous=RESULT)


def test_records_round_trip() -> None:
    assert decode_post(encode_record(POST, 1 << 16), 4) == POST
    assert decode_header(encode_record(HEADER, 1 << 16), 5) == HEADER
    first = Header(iteration=1, layout_hash="ab", live=LIVE, previous=None)
    assert decode_header(encode_record(first, 1 << 16), 1) == first
    assert text_to_bytes(LIVE.generators["torch"]) == bytes(range(256))


def test_the_next_header_comes_from_post() -> None:
    assert POST.next_header() == HEADER


def test_a_record_of_another_iteration_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="one of iteration 4"):
        decode_post(encode_record(POST, 1 << 16), 6)


def test_every_flipped_byte_is_refused() -> None:
    image = encode_record(POST, 1 << 16)
    for position in range(0, len(image), 7):
        torn = bytearray(image)
        torn[position] ^= 1
        with pytest.raises(ProtocolViolation):
            decode_post(bytes(torn), 4)


def test_an_empty_slot_holds_no_record() -> None:
    with pytest.raises(ProtocolViolation, match="holds no record"):
        decode_header(bytes(4096), 1)


def test_a_record_that_does_not_fit_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="does not fit a slot of 64"):
        encode_record(POST, 64)
