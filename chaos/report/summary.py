"""What both reports say about a run, drawn from its journal: faults, recoveries, losses, shadows and resources as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from chaos.loss import LossClass
from chaos.schedule import Injection
from verify.checkers import ENDINGS, Recovery, recoveries_in
from verify.history import Entry

PHASES = ("detect", "fence", "localise", "decide", "promote", "attach", "reconstruct", "finish", "other")
"""Of a recovery, in their order. Detect and decide are seen in the journal, the others are the system's own.

What is left between the end of the rank and that of the recovery is other: telling, forking, waiting for each other.
"""


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
    """One recovery. ``total_s`` is from the kill to the end of it, as the bench saw it; the phases lie within."""

    number: int
    epoch: int
    level: str
    decided: str
    reason: str
    cause: str
    resumed: tuple[str, ...]
    phases_s: Mapping[str, float]  # by the names of PHASES
    system_s: float
    total_s: float | None


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """What one loss came to, and what the repair of its rank took of the parity."""

    label: str
    rank: int
    page_class: str
    pages: tuple[str, ...]
    rebuilt: str  # "25 rebuilt, 8 not needed", all classes of the rank but mirrors together; "" when nothing was repaired
    budgets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShadowRow:
    """One generation of shadows that came to stand by."""

    epoch: int
    level: str
    made_in_s: float
    ready_s: float  # since the run began


@dataclass(frozen=True, kw_only=True)
class ResourceRow:
    """What the job held before a fault fired."""

    label: str
    processes: int
    descriptors: int
    private_mib: float
    proportional_mib: float
    shm_files: int
    shm_mib: float


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
    return [_recovery_row(number, recovery) for number, recovery in enumerate(recoveries_in(history), start=1)]


def _recovery_row(number: int, recovery: Recovery) -> RecoveryRow:
    decided, failure = recovery.all("decided"), recovery.first("failure")
    total_s = _seconds_since(recovery.entries[-1], _last(recovery, *ENDINGS))
    return RecoveryRow(
        number=number,
        epoch=recovery.epoch,
        level=recovery.entries[-1].fields["level"],
        decided=f"{decided[-1].fields['action']} {decided[-1].fields['iteration']}" if decided else recovery.action,
        reason=decided[-1].fields["reason"] if decided else "",
        cause=f"rank {failure.fields['rank']}: {failure.fields['cause']}" if failure else "",
        resumed=tuple(f"rank {e.fields['rank']}: {e.fields['row']}" for e in recovery.all("resumed")),
        phases_s=_phases(recovery, total_s),
        system_s=recovery.seconds,
        total_s=total_s,
    )


def _phases(recovery: Recovery, total_s: float | None) -> dict[str, float]:
    """Of the last hit of the recovery: a phase that was cut short by another hit is not told."""
    told = recovery.entries[-1].fields["phases"]
    phases = {name: float(told.get(f"{name}_s", 0.0)) for name in PHASES}
    failure, fenced, decided = (_last(recovery, name) for name in ("failure", "fenced", "decided"))
    phases["detect"] = _seconds_since(failure, _last(recovery, *ENDINGS)) or 0.0
    phases["decide"] = max((_seconds_since(decided, fenced) or 0.0) - phases["localise"], 0.0)
    phases["other"] = max((total_s or 0.0) - sum(phases.values()), 0.0)
    return phases


def _last(recovery: Recovery, *names: str) -> Entry | None:
    return next((e for e in reversed(recovery.entries) if e.name in names), None)


def _seconds_since(later: Entry | None, earlier: Entry | None) -> float | None:
    return later.elapsed_s - earlier.elapsed_s if later is not None and earlier is not None else None


def fact_words(
    began: Entry, history: Sequence[Entry], recoveries: Sequence[RecoveryRow], fingerprint: Mapping[str, Any]
) -> list[str]:
    """What heads a report: when it ran, of which code, how long recoveries took."""
    facts = [f"{began.utc[:16].replace('T', ' ')} UTC", f"code {str(fingerprint.get('git_revision') or 'unknown')[:12]}"]
    if "kernel_row" in fingerprint:  # older records do not say
        facts.append(f"{fingerprint['kernel_row']} kernels")
    if history:
        facts.append(f"done after {history[-1].elapsed_s - began.elapsed_s:.0f} s")
    times = [r.total_s for r in recoveries if r.total_s is not None]
    if times:
        middle, most = 1000 * median(times), 1000 * max(times)
        facts.append(f"{len(times)} recoveries, kill to training again: median {middle:.0f} ms, slowest {most:.0f} ms")
    return facts


def loss_rows(history: Sequence[Entry]) -> list[LossRow]:
    return [_loss_row(entry, history) for entry in history if entry.name == "lose"]


def _loss_row(lose: Entry, history: Sequence[Entry]) -> LossRow:
    f = lose.fields
    row = LossRow(label=f["label"], rank=f["rank"], page_class=f["page_class"], pages=tuple(f["pages"]), rebuilt="", budgets=())
    if LossClass(row.page_class) is LossClass.MARKERS:
        carried = _next_of_rank("carried", lose, history)
        return replace(row, rebuilt="carried over from the others") if carried else row
    repaired = _next_of_rank("repaired", lose, history)
    if repaired is None:
        return row
    budgets = tuple(_budget(b) for b in repaired["budgets"])
    return replace(row, rebuilt=_rebuilt(repaired["rebuilt"], repaired["pages"]), budgets=budgets)


def _next_of_rank(name: str, lose: Entry, history: Sequence[Entry]) -> Mapping[str, Any] | None:
    """Fields of the first such event after a loss that speaks of its rank."""
    later = (e.fields for e in history if e.name == name and e.number > lose.number)
    return next((fields for fields in later if fields["rank"] == lose.fields["rank"]), None)


def _rebuilt(rebuilt: int, lost: int) -> str:
    return f"{rebuilt} rebuilt" + (f", {lost - rebuilt} not needed" if lost > rebuilt else "")


def _budget(budget: Mapping[str, int | str]) -> str:
    """``group 0: 14 pages and 1 rows of 16 used, checked by 1 spare rows``"""
    spare = budget["spare_rows"]
    checked = f"checked by {spare} spare rows" if spare else "no check possible"
    return f"{budget['code_word']}: {budget['lost_pages']} pages and {budget['lost_rows']} rows of {budget['rows']}, {checked}"


def shadow_rows(history: Sequence[Entry]) -> list[ShadowRow]:
    begin_s = history[0].elapsed_s if history else 0.0
    return [
        ShadowRow(
            epoch=e.fields["epoch"],
            level=e.fields["level"],
            made_in_s=e.fields["seconds"],
            ready_s=e.elapsed_s - begin_s,
        )
        for e in history
        if e.name == "shadows-ready"
    ]


def resource_rows(history: Sequence[Entry]) -> list[ResourceRow]:
    return [_resource_row(e.fields) for e in history if e.name == "resources"]


def _resource_row(f: Mapping[str, int | str]) -> ResourceRow:
    mib = {key: int(f[f"{key}_bytes"]) / (1 << 20) for key in ("private", "proportional", "shm")}
    return ResourceRow(
        label=str(f["label"]),
        processes=int(f["processes"]),
        descriptors=int(f["descriptors"]),
        private_mib=mib["private"],
        proportional_mib=mib["proportional"],
        shm_files=int(f["shm_files"]),
        shm_mib=mib["shm"],
    )
