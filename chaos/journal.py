"""The journal of a run: append-only, numbered, one order for what the bench did and what the system reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verify.history import Entry

Listener = Callable[[Entry], None]


class Journal:
    """The one writer of a journal file. ``listener`` sees every entry after it is written."""

    def __init__(
        self,
        path: Path,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._listener, self._clock, self._now = listener, clock, now
        self._opened_s = clock()
        self._entries: list[Entry] = []

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    def of_job(self, job: str) -> tuple[Entry, ...]:
        return tuple(e for e in self._entries if e.job == job)

    def append(self, job: str, source: str, name: str, **fields: Any) -> Entry:
        """Write one entry; it survives the death of this process. Fields are JSON values."""
        entry = Entry(
            number=len(self._entries) + 1,
            utc=self._now().isoformat(timespec="milliseconds"),
            elapsed_s=round(self._clock() - self._opened_s, 6),
            job=job,
            source=source,
            name=name,
            fields=fields,
        )
        line = entry.to_line()
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"journal entry {entry.number}: {written} of {len(line)} bytes written")
        self._entries.append(entry)
        if self._listener is not None:
            self._listener(entry)
        return entry

    def durable(self, job: str, source: str, name: str, **fields: Any) -> Entry:
        """Like ``append``, and on disk before it returns: FIRED must not be forgotten once the kill has happened (U50)."""
        entry = self.append(job, source, name, **fields)
        os.fsync(self._file)
        return entry

    def close(self) -> None:
        os.close(self._file)
