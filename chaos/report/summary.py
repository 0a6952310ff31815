"""What both reports say about a run, drawn from its journal: fault occurrences and recoveries as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.schedule import Injection
from verify.checkers import ENDINGS, recoveries_in
from verify.history import Entry


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """One planned injection and what came of it. ``fired_s`` is None when it did not fire."""

    label: str
    aimed_at: str
    found_at: tuple[str, ...]  # where the ranks stood parked, or where a free-running one was seen
    damage: str
    fired_s: float | None
    missed: str  # why it did not fire, "" when unknown


@dataclass(frozen=True, kw_only=True)
class RecoveryRow:
    """One recovery. ``total_s`` is from the kill to the end of it, as the bench saw it; the others are the system's."""

    number: int
    epoch: int
    decided: str
    reason: str
    cause: str
    resumed: tuple[str, ...]
    fence_s: float | None
    system_s: float
    total_s: float | None


def fault_rows(planned: Sequence[Injection], history: Sequence[Entry]) -> list[FaultRow]:
    """``history`` is the journal of one job; a job that never started fired nothing."""
    return [_fault_row(injection, history) for injection in planned]


def _fault_row(injection: Injection, history: Sequence[Entry]) -> FaultRow:
    own = {e.name: e for e in history if e.fields.get("token") == injection.token}
    return FaultRow(
        label=injection.label,
        aimed_at=injection.describe(),
        found_at=_found_at(own["fired"]) if "fired" in own else (),
        damage=own["damaged"].fields["what"] if "damaged" in own else "",
        fired_s=own["fired"].elapsed_s if "fired" in own and not own.keys().isdisjoint(ENDINGS) else None,
        missed=own["missed"].fields["reason"] if "missed" in own else "",
    )


def _found_at(fired: Entry) -> tuple[str, ...]:
    if "places" not in fired.fields:
        return (fired.fields["where"],)
    return tuple(f"rank {place['rank']}: {place['where']}" for place in fired.fields["places"])


def recovery_rows(history: Sequence[Entry]) -> list[RecoveryRow]:
    rows = []
    for number, recovery in enumerate(recoveries_in(history), start=1):
        decided, failure = recovery.all("decided"), recovery.first("failure")
        killed = next((e for e in recovery.entries if e.name in ENDINGS), None)
        fences = [float(e.fields["seconds"]) for e in recovery.all("fenced")]
        rows.append(
            RecoveryRow(
                number=number,
                epoch=recovery.epoch,
                decided=f"{decided[-1].fields['action']} {decided[-1].fields['iteration']}" if decided else recovery.action,
                reason=decided[-1].fields["reason"] if decided else "",
                cause=f"rank {failure.fields['rank']}: {failure.fields['cause']}" if failure else "",
                resumed=tuple(f"rank {e.fields['rank']}: {e.fields['row']}" for e in recovery.all("resumed")),
                fence_s=sum(fences) if fences else None,
                system_s=recovery.seconds,
                total_s=recovery.entries[-1].elapsed_s - killed.elapsed_s if killed else None,
            )
        )
    return rows
