import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.journal import Journal
from verify.history import BENCH, SYSTEM, Entry, read_journal


@pytest.fixture
def seconds() -> Iterator[float]:
    return iter(range(100))  # type: ignore[return-value]


def test_one_order_for_both_sources(tmp_path: Path, seconds: Iterator[float]) -> None:
    heard: list[Entry] = []
    journal = Journal(tmp_path / "journal.jsonl", heard.append, clock=lambda: next(seconds))
    journal.append("run", SYSTEM, "ready", rank=0)
    journal.durable("run", BENCH, "fired", token=3)
    journal.append("", BENCH, "verdict", verdict="pass")
    journal.close()
    read = read_journal(tmp_path / "journal.jsonl")
    assert read == journal.entries == tuple(heard)
    assert [(e.number, e.elapsed_s, e.source, e.name) for e in read] == [
        (1, 1.0, SYSTEM, "ready"),
        (2, 2.0, BENCH, "fired"),
        (3, 3.0, BENCH, "verdict"),
    ]
    assert [e.name for e in journal.of_job("run")] == ["ready", "fired"]


def test_durable_is_on_disk_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    path = tmp_path / "journal.jsonl"
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
    journal = Journal(path)
    journal.append("run", SYSTEM, "ready")
    assert synced == []
    journal.durable("run", BENCH, "fired", token=1)
    journal.close()
    assert len(synced) == 1
    assert b'"fired"' in synced[0]


def test_a_journal_is_never_written_over(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl").close()
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "journal.jsonl")


def test_a_hole_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for name in ("a", "b", "c"):
        journal.append("run", SYSTEM, name)
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(ValueError, match="line 2 is entry 3"):
        read_journal(path)
    path.write_bytes(lines[0] + lines[1][:20])
    with pytest.raises(ValueError, match="line 2 is torn"):
        read_journal(path)
