"""What happened, as recorded: faults and system events in one order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BENCH = "bench"
SYSTEM = "system"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a journal.

    ``job`` is the run it belongs to (reference, reference-again, control, run; "" for the bench itself), ``source`` who said
    it.

    Names the bench uses: planned, gate-opened, parked, damaged, lose (pages), resources, fired, killed or released, missed (all
    with ``token``), outcome (status, reason), residue (leaks), diverged (the control's first divergence).
    """

    number: int  # from 1, without holes
    utc: str
    elapsed_s: float  # since the journal was opened, monotonic
    job: str
    source: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


def read_journal(path: Path) -> tuple[Entry, ...]:
    """Every entry, in order. Raises ValueError that names the line when it is torn or numbers have a hole."""
    entries: list[Entry] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):
            raise ValueError(f"line {number} is torn") from None
        if entry.number != number:
            raise ValueError(f"line {number} is entry {entry.number}")
        entries.append(entry)
    return tuple(entries)
