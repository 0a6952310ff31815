"""What lives in a rank's control arena, and how it is read and written (leto.core.layout draws its offsets).

    page 0     park word, heartbeat
    page 1, 2  decision record, two slots
    page 4..   marker pages, three mirrors an epoch

Words are naturally aligned and 64 bits wide, so one store writes them whole. A trainer publishes its markers through
``Kernels.publish``, whose stores are ordered; what this module writes is written while nobody else writes or waits for it.
"""

from __future__ import annotations

import ctypes
import json
import struct
import zlib
from collections.abc import Container, Sequence
from typing import Any

from leto.core.errors import FencedError, ProtocolViolation, Unrecoverable
from leto.core.geometry import OS_PAGE_BYTES
from leto.core.layout import (
    CONTROL_BYTES,
    DECISION_OFFSET,
    DECISION_SLOT_BYTES,
    HEARTBEAT_OFFSET,
    MAX_EPOCHS,
    PARK_WORD_OFFSET,
    marker_page_offset,
)
from leto.core.markers import MIRRORS, WORDS, Phase, Progress, Word, read_mirrors
from leto.core.recovery import Action, Decision
from leto.device.base import Mapping

WORD_BYTES = 8
DECISION_SLOTS = 2
_PREFIX = struct.Struct("<4sIII")  # magic, epoch, payload length, crc32 of epoch and payload
_MAGIC = b"LDEC"
_FIXED_PAGES = {
    PARK_WORD_OFFSET // OS_PAGE_BYTES: "the park word",
    DECISION_OFFSET // OS_PAGE_BYTES: "a slot of the decision record",
    DECISION_OFFSET // OS_PAGE_BYTES + 1: "a slot of the decision record",
}


class ControlPage:
    """A view of a mapped control arena. Owns nothing; dead once the mapping is closed."""

    def __init__(self, mapping: Mapping) -> None:
        assert mapping.byte_count >= CONTROL_BYTES, "not a control arena"
        self._mapping = mapping

    @property
    def address(self) -> int:
        return self._mapping.address

    # Park word and heartbeat.

    @property
    def park_word_address(self) -> int:
        return self._mapping.address + PARK_WORD_OFFSET

    @property
    def park_token(self) -> int:
        """Token of the armed point that is parked now, 0 when none is."""
        return self._load(PARK_WORD_OFFSET)

    def clear_park(self) -> None:
        """Lets a parked thread go on."""
        self._store(PARK_WORD_OFFSET, 0)

    @property
    def heartbeat_address(self) -> int:
        return self._mapping.address + HEARTBEAT_OFFSET

    @property
    def heartbeat(self) -> int:
        """What the trainer last said of how far it is; the trainer is its one writer."""
        return self._load(HEARTBEAT_OFFSET)

    # Markers (U1, U5).

    def word_addresses(self, epoch: int, word: Word) -> tuple[int, int, int]:
        """The word in its three mirrors, in the order in which they are published."""
        offsets = _word_offsets(epoch, word)
        return (self._mapping.address + offsets[0], self._mapping.address + offsets[1], self._mapping.address + offsets[2])

    def mirror_words(self, epoch: int, lost: Container[int] = ()) -> tuple[tuple[int, ...] | None, ...]:
        """[mirror][word] of the epoch's marker pages; None for a mirror that is lost, from which nothing is loaded."""
        mirrors = range(MIRRORS)
        return tuple(None if _mirror_page(epoch, m) in lost else self._mirror_words(epoch, m) for m in mirrors)

    def _mirror_words(self, epoch: int, mirror: int) -> tuple[int, ...]:
        return tuple(self._load(_word_offsets(epoch, Word(w))[mirror]) for w in range(WORDS))

    def read_progress(self, epoch: int, lost: Container[int] = ()) -> Progress:
        """How far the rank came in ``epoch``; read it after its trainer is fenced.

        ``lost`` are pages of this arena, as localised: touching one could end this process. Raises Unrecoverable (U4).
        """
        for page, what in _FIXED_PAGES.items():
            if page in lost:
                raise Unrecoverable(f"page {page} of the control arena, {what}, is lost: it has no mirror")
        return read_mirrors(epoch, self.mirror_words(epoch, lost))

    def write_words(self, epoch: int, words: Sequence[int]) -> None:
        """Carry-over into fresh marker pages, by the agent, before any trainer of ``epoch`` starts (U5)."""
        assert len(words) == WORDS, f"{len(words)} words are no marker"
        for word, value in enumerate(words):
            for offset in _word_offsets(epoch, Word(word)):
                self._store(offset, value)

    # Decision record (U21).

    def read_decision(self) -> tuple[int, Decision] | None:
        """The last durable decision with its epoch, None before the first. A torn slot is as good as not written."""
        records = [record for slot in range(DECISION_SLOTS) if (record := self._read_slot(slot)) is not None]
        if not records:
            return None
        epoch, payload, _ = max(records)
        return epoch, _decode_decision(payload)

    def write_decision(self, epoch: int, decision: Decision) -> None:
        """Make the decision that begins ``epoch`` durable. The slot of the decision before it stays whole meanwhile.

        Writing the same decision again changes nothing. Raises FencedError for an epoch older than the last decision's,
        ProtocolViolation for a second, different decision of the same epoch.
        """
        payload = _encode_decision(decision)
        records = [record for slot in range(DECISION_SLOTS) if (record := self._read_slot(slot)) is not None]
        last_epoch, last_payload, last_slot = max(records, default=(-1, b"", -1))
        if epoch < last_epoch:
            raise FencedError(f"a decision of epoch {epoch} comes after one of epoch {last_epoch}")
        if epoch == last_epoch:
            if payload != last_payload:
                raise ProtocolViolation(f"epoch {epoch} was decided twice: {last_payload!r}, then {payload!r}")
            return
        self._write_slot(1 if last_slot == 0 else 0, epoch, payload)

    def _read_slot(self, slot: int) -> tuple[int, bytes, int] | None:
        image = ctypes.string_at(self._mapping.address + DECISION_OFFSET + slot * DECISION_SLOT_BYTES, DECISION_SLOT_BYTES)
        magic, epoch, length, crc = _PREFIX.unpack_from(image)
        payload = image[_PREFIX.size : _PREFIX.size + length]
        if magic != _MAGIC or crc != _decision_crc(epoch, payload):
            return None
        return epoch, payload, slot

    def _write_slot(self, slot: int, epoch: int, payload: bytes) -> None:
        image = _PREFIX.pack(_MAGIC, epoch, len(payload), _decision_crc(epoch, payload)) + payload
        if len(image) > DECISION_SLOT_BYTES:
            raise ProtocolViolation(f"decision of {len(image)} bytes does not fit its slot of {DECISION_SLOT_BYTES}")
        ctypes.memmove(self._mapping.address + DECISION_OFFSET + slot * DECISION_SLOT_BYTES, image, len(image))

    def _load(self, offset: int) -> int:
        return ctypes.c_uint64.from_address(self._mapping.address + offset).value

    def _store(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self._mapping.address + offset).value = value


def _mirror_page(epoch: int, mirror: int) -> int:
    return marker_page_offset(epoch, mirror) // OS_PAGE_BYTES


def _word_offsets(epoch: int, word: Word) -> list[int]:
    assert 0 <= epoch < MAX_EPOCHS, f"epoch {epoch} has no marker pages"
    return [marker_page_offset(epoch, mirror) + WORD_BYTES * word for mirror in range(MIRRORS)]


def _decision_crc(epoch: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(epoch.to_bytes(4, "little")))


def _encode_decision(decision: Decision) -> bytes:
    """Progress as bare numbers: the record of many ranks must fit one page."""
    carried = [[int(p.phase), p.iteration, p.step, p.fetched, p.written_back] for p in decision.carried]
    raw = {"action": decision.action.value, "iteration": decision.iteration, "reason": decision.reason, "carried": carried}
    return json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()


def _decode_decision(payload: bytes) -> Decision:
    raw: dict[str, Any] = json.loads(payload)
    carried = tuple(
        Progress(phase=Phase(phase), iteration=iteration, step=step, fetched=fetched, written_back=written_back)
        for phase, iteration, step, fetched, written_back in raw["carried"]
    )
    return Decision(action=Action(raw["action"]), iteration=raw["iteration"], reason=raw["reason"], carried=carried)
