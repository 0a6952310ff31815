"""HEADER and POST in their two slots of retained memory (U1, U27)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from leto.core.layout import HEADER_RECORDS, POST_RECORDS
from leto.core.records import RECORD_SLOTS, Header, Post, decode_header, decode_post, encode_record

RECORD_SLOT_BYTES = 1 << 18
"""Room for one record. Generators take about 25 KB of it; the rest is for compute-mutable state."""


class RetainedBytes(Protocol):
    def bytes(self, name: str) -> npt.NDArray[np.uint8]: ...


class RecordSlots:
    """Record t goes to slot t mod 2, so that the record before it stays whole while it is written."""

    def __init__(self, retained: RetainedBytes) -> None:
        self._headers = retained.bytes(HEADER_RECORDS)
        self._posts = retained.bytes(POST_RECORDS)

    def write_header(self, header: Header) -> None:
        _write(self._headers, header)

    def write_post(self, post: Post) -> None:
        _write(self._posts, post)

    def read_header(self, iteration: int) -> Header:
        """Raises ProtocolViolation when the slot holds another iteration's record or a torn one."""
        return decode_header(_slot(self._headers, iteration).tobytes(), iteration)

    def read_post(self, iteration: int) -> Post:
        """Raises ProtocolViolation when the slot holds another iteration's record or a torn one."""
        return decode_post(_slot(self._posts, iteration).tobytes(), iteration)


def _slot(area: npt.NDArray[np.uint8], iteration: int) -> npt.NDArray[np.uint8]:
    first = (iteration % RECORD_SLOTS) * RECORD_SLOT_BYTES
    return area[first : first + RECORD_SLOT_BYTES]


def _write(area: npt.NDArray[np.uint8], record: Header | Post) -> None:
    image = encode_record(record, RECORD_SLOT_BYTES)
    _slot(area, record.iteration)[: len(image)] = np.frombuffer(image, np.uint8)
