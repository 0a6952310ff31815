"""The ledger: what every iteration computed, as digests, one file a rank.

    {"schema": 2, "rank": 0, "world_size": 2, "slot_bytes": 8192, "names": [...]}\n     header, one JSON line
    {"iteration": 1, "result": {...}, "digests": [...], "live": {...}}       ...\n     slot 1, padded with spaces
    {"iteration": 2, ...                                                     ...\n     slot 2

Slots are positional, so a record is written by one pwrite and writing iteration t again (which every recovery does, U28)
replaces it. A recovery records the same t with the same bytes; where it does not, the record that it replaces is kept first,
one JSON line each in ``rank0.replaced`` beside the ledger, so that a wrong recording cannot be made good unseen. The header
appears together with the first record, by rename: it is whole or absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from leto.core.records import IterationResult, LiveState

SCHEMA = 2
_SLOT_QUANTUM_BYTES = 1024
_SLOT_MARGIN_BYTES = 1024
_MAX_HEADER_BYTES = 16 << 20


class LedgerError(Exception):
    """A ledger file is absent, torn or contradicts itself; the message names file and iteration."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Iteration t on one rank. ``state`` and ``live`` map names to digests.

    ``replaced`` holds what was recorded of t before and differed; in a sound run there is nothing.
    """

    result: IterationResult
    state: Mapping[str, str]
    live: Mapping[str, str]
    replaced: tuple[Record, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All records of one rank, by iteration."""

    rank: int
    world_size: int
    names: tuple[str, ...]
    records: Mapping[int, Record]


@dataclass(frozen=True, kw_only=True)
class _Header:
    schema: int
    rank: int
    world_size: int
    slot_bytes: int
    names: tuple[str, ...]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


def ledger_path(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.ledger"


def replaced_path(path: Path) -> Path:
    """Where the records that a ledger's later ones replaced are kept."""
    return path.with_suffix(".replaced")


def digest(data: npt.NDArray[np.uint8]) -> str:
    """xxh3-128 of a contiguous flat uint8 view, in hex."""
    return xxhash.xxh3_128_hexdigest(data.data)


def live_digests(live: LiveState) -> dict[str, str]:
    """One digest per part of the live state; generators and mutable tensors one each."""
    digests: dict[str, str] = {}
    for field in fields(live):
        value = getattr(live, field.name)
        if field.name in ("generators", "mutable"):
            digests.update({f"{field.name}/{name}": _digest_json(part) for name, part in value.items()})
        else:
            digests[field.name] = _digest_json(value)
    return digests


def _digest_json(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=asdict).encode())


class LedgerWriter:
    """The one writer of a rank's ledger. Opening it again in a later epoch goes on with the same file.

    What is written survives the death of the process (it is in the page cache), not that of the machine.
    """

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        """Raises LedgerError when the file exists and belongs to another rank or world."""
        self._path, self._rank, self._world_size = path, rank, world_size
        self._header: _Header | None = None
        self._first_slot = 0
        self._file = -1
        if path.exists():
            self._attach(_read_header(path))

    def write(self, result: IterationResult, state: Mapping[str, str], live: Mapping[str, str]) -> None:
        """Record ``result.iteration``. Names and their order are those of the first record.

        A whole record of the same iteration that differs is kept beside the ledger before it is replaced.

        Raises LedgerError when the names differ from the header's or the record outgrew its slot.
        """
        names = tuple(state)
        line = _record_line(result, state, live)
        if self._header is None:
            self._attach(self._create(names, len(line)))
        header = self._header
        assert header is not None
        if names != header.names:
            raise LedgerError(f"{self._path}: iteration {result.iteration} has other tensor names than the header")
        if len(line) + 1 > header.slot_bytes:
            raise LedgerError(
                f"{self._path}: iteration {result.iteration} needs {len(line) + 1} bytes, a slot has {header.slot_bytes}"
            )
        offset = self._first_slot + (result.iteration - 1) * header.slot_bytes
        slot = line.ljust(header.slot_bytes - 1) + b"\n"
        before = os.pread(self._file, header.slot_bytes, offset)
        if before != slot and _says_otherwise(before, slot):
            self._keep(before)
        os.pwrite(self._file, slot, offset)

    def _keep(self, slot: bytes) -> None:
        with replaced_path(self._path).open("ab") as file:
            file.write(slot.rstrip() + b"\n")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _create(self, names: tuple[str, ...], line_bytes: int) -> _Header:
        slot = -(-(line_bytes + _SLOT_MARGIN_BYTES) // _SLOT_QUANTUM_BYTES) * _SLOT_QUANTUM_BYTES
        header = _Header(schema=SCHEMA, rank=self._rank, world_size=self._world_size, slot_bytes=slot, names=names)
        whole = self._path.with_suffix(".new")
        whole.write_bytes(header.to_line())
        whole.replace(self._path)
        return header

    def _attach(self, header: _Header) -> None:
        if (header.rank, header.world_size) != (self._rank, self._world_size):
            raise LedgerError(f"{self._path}: belongs to rank {header.rank} of {header.world_size}")
        self._header, self._first_slot = header, len(header.to_line())
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)


class LedgerReader:
    """Reads single records, also while the job still writes."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerError when there is no whole header."""
        self.path = path
        self.header = _read_header(path)
        self._first_slot = len(self.header.to_line())

    @property
    def slot_count(self) -> int:
        """Slots the file has room for; the last may be torn."""
        return -(-(self.path.stat().st_size - self._first_slot) // self.header.slot_bytes)

    def record(self, iteration: int) -> Record | None:
        """The record, None when it was never written. Raises LedgerError when it is torn."""
        with self.path.open("rb") as file:
            file.seek(self._first_slot + (iteration - 1) * self.header.slot_bytes)
            slot = file.read(self.header.slot_bytes)
        if not slot.strip(b"\0"):
            return None
        if not _is_whole(slot, self.header.slot_bytes):
            raise LedgerError(f"{self.path}: the slot of iteration {iteration} is torn")
        return self._parse(slot, iteration, self._replaced(iteration))

    def _replaced(self, iteration: int) -> tuple[Record, ...]:
        """What is kept of replaced records of the iteration, in order. Raises LedgerError when it cannot be read."""
        path = replaced_path(self.path)
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        try:
            own = [line for line in lines if json.loads(line)["iteration"] == iteration]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{path}: a record was replaced by another one, and what is kept of it is torn: {error}"
            ) from None
        return tuple(self._parse(line, iteration, ()) for line in own)

    def _parse(self, slot: bytes, iteration: int, replaced: tuple[Record, ...]) -> Record:
        try:
            raw = json.loads(slot)
            record = Record(
                result=IterationResult.from_json(raw["result"]),
                state=dict(zip(self.header.names, raw["digests"], strict=True)),
                live=raw["live"],
                replaced=replaced,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{self.path}: the slot of iteration {iteration} is torn: {error}") from None
        if record.result.iteration != iteration:
            raise LedgerError(f"{self.path}: the slot of iteration {iteration} holds iteration {record.result.iteration}")
        return record


def read_ledger(path: Path, *, cut_short: bool = False) -> Ledger:
    """The ledger of one rank. Raises LedgerError for a torn slot and for a hole among written ones.

    The writer of a job that was ``cut_short`` may have died anywhere: its ledger ends before the first such slot.
    """
    reader = LedgerReader(path)
    records: dict[int, Record] = {}
    for iteration in range(1, reader.slot_count + 1):
        try:
            record = reader.record(iteration)
            if record is None:
                raise LedgerError(f"{path}: the slot of iteration {iteration} was never written, later ones were")
        except LedgerError:
            if cut_short:
                break
            raise
        records[iteration] = record
    h = reader.header
    return Ledger(rank=h.rank, world_size=h.world_size, names=h.names, records=records)


def read_ledgers(directory: Path, *, cut_short: bool = False) -> dict[int, Ledger]:
    """All ranks of one job, by rank. Raises LedgerError when a file is not whole.

    Which ranks and iterations ought to be there is the comparison's question.
    """
    paths = sorted(directory.glob("rank*.ledger"))
    return {ledger.rank: ledger for ledger in (read_ledger(path, cut_short=cut_short) for path in paths)}


def _is_whole(slot: bytes, slot_bytes: int) -> bool:
    """The newline that ends a slot is written last; a torn one has zeros, or nothing, in its place."""
    return len(slot) == slot_bytes and slot[-1:] == b"\n"


def _says_otherwise(before: bytes, slot: bytes) -> bool:
    """``before`` is a whole record with other contents; one that is torn or absent says nothing."""
    if not _is_whole(before, len(slot)):
        return False
    try:
        return bool(json.loads(before) != json.loads(slot))
    except ValueError:
        return False


def _record_line(result: IterationResult, state: Mapping[str, str], live: Mapping[str, str]) -> bytes:
    record = {"iteration": result.iteration, "result": asdict(result), "digests": list(state.values()), "live": dict(live)}
    return json.dumps(record, separators=(",", ":")).encode()


def _read_header(path: Path) -> _Header:
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_HEADER_BYTES)
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}") from None
    try:
        raw = json.loads(line)
        header = _Header(**{**raw, "names": tuple(raw["names"])})
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{path}: no whole header") from None
    if header.schema != SCHEMA:
        raise LedgerError(f"{path}: schema {header.schema}, this version reads {SCHEMA}")
    return header
