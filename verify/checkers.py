"""One invariant each, judged on recorded history; never on live state.

A checker answers true, false, or unknown when the history does not reach far enough to tell. The reason is for people.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from verify.compare import Comparison
from verify.history import Entry
from verify.ledger import Ledger, LedgerError

COMPLETED = "completed"
REFUSED = "refused"  # the system stopped by its own decision (U54)
MISSED = "missed"  # the bench stopped the run, because a fault did not fire
NEVER_STARTED = "not-started"  # the target left nothing behind that could be looked for
ENDINGS = ("killed", "released")  # what the bench does last of a fault: a kill, or a rank let go over lost pages
_SIGBUS = "was killed by SIGBUS"


class Judgement(Enum):
    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    name: str
    judgement: Judgement
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One recovery as witnessed: every entry from the first failure to the end of it."""

    epoch: int
    action: str
    seconds: float
    entries: tuple[Entry, ...]

    def first(self, name: str) -> Entry | None:
        return next((e for e in self.entries if e.name == name), None)

    def all(self, name: str) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.name == name)


def recoveries_in(history: Sequence[Entry]) -> tuple[Recovery, ...]:
    """Finished recoveries in order. What lies before the first failure or between two recoveries belongs to none."""
    found: list[Recovery] = []
    open_entries: list[Entry] | None = None
    for entry in history:
        if entry.name in ("failure", *ENDINGS) and open_entries is None:
            open_entries = []
        if open_entries is not None:
            open_entries.append(entry)
        if entry.name == "recovered":
            f = entry.fields
            whole = tuple(open_entries or (entry,))
            found.append(Recovery(epoch=f["epoch"], action=f["action"], seconds=f["seconds"], entries=whole))
            open_entries = None
    return tuple(found)


def outcome_in(history: Sequence[Entry]) -> tuple[str, str]:
    """(status, reason) of a job; ("absent", ...) when it was never started."""
    entry = next((e for e in history if e.name == "outcome"), None)
    return (entry.fields["status"], entry.fields["reason"]) if entry else ("absent", "it was not started")


def reference_equals_itself(
    first: Sequence[Entry], again: Sequence[Entry], comparison: Comparison | LedgerError
) -> CheckResult:
    """A/A: without it no difference means anything. False and unknown both end in "unknown"."""
    name = "reference-equal"
    for label, history in (("reference", first), ("second reference", again)):
        status, reason = outcome_in(history)
        if status != COMPLETED:
            return _unknown(name, f"the {label} did not complete: {status}: {reason}")
    if isinstance(comparison, LedgerError):
        return _unknown(name, f"the references left no ledgers that can be compared: {comparison}")
    if comparison.first is not None:
        return _false(name, f"the reference does not equal itself: {comparison.first.describe()}")
    return _true(name, f"two references are equal: {comparison.describe()}")


def faults_fired(history: Sequence[Entry]) -> CheckResult:
    """Every planned injection was seen parked, recorded and killed exactly once, in this order.

    Parked means every place of it: the fault's own and those that it holds. A free-running kill parks nowhere, but its rank was
    seen to have reached the planned logical time. One that waits for shadows passed its gate before, one that loses pages lost
    some of every class, and one that kills nobody was let go, and its rank died of SIGBUS.
    """
    name = "faults-fired"
    planned = {e.fields["token"]: e.fields for e in history if e.name == "planned"}
    silent = [token for token, fault in planned.items() if not _fired_properly(history, token, fault)]
    details = {"planned": len(planned), "fired": len(planned) - len(silent)}
    if not silent:
        return _true(name, f"{len(planned)} of {len(planned)} faults fired where they were aimed", details)
    fault = planned[silent[0]]
    label = f"{fault['fault_id']} #{fault['occurrence']} (iteration {fault['iteration']} rank {fault['rank']})"
    missed = next((e.fields["reason"] for e in history if e.name == "missed" and e.fields["token"] == silent[0]), "")
    reason = f"{len(silent)} of {len(planned)} faults did not fire, first {label}{': ' + missed if missed else ''}"
    return _false(name, reason, details)


def _fired_properly(history: Sequence[Entry], token: int, planned: Mapping[str, Any]) -> bool:
    steps = _steps_of(history, token)
    natural = planned["action"] == "natural"
    if "moment" in planned:
        fired = next((e.fields for e in history if e.name == "fired" and e.fields["token"] == token), None)
        return steps == ["fired", "killed"] and fired is not None and fired["seen"] >= planned["moment"]
    gate = ["gate-opened"] if "gate" in planned else []
    if steps != [*gate, "parked", "fired", "released" if natural else "killed"]:
        return False
    if natural and not _died_of_sigbus(history, token, planned["rank"]):
        return False
    if _lost_classes(history, token) != [loss["page_class"] for loss in planned.get("losses", ())]:
        return False
    parked = next(e.fields for e in history if e.name == "parked" and e.fields["token"] == token)
    wanted = sorted([token, *(hold["token"] for hold in planned.get("holds", ()))])
    return sorted(place["token"] for place in parked["places"]) == wanted


def _steps_of(history: Sequence[Entry], token: int) -> list[str]:
    steps = ("gate-opened", "parked", "fired", *ENDINGS)
    return [e.name for e in history if e.name in steps and e.fields["token"] == token]


def _lost_classes(history: Sequence[Entry], token: int) -> list[str]:
    return [e.fields["page_class"] for e in history if e.name == "lose" and e.fields["token"] == token and e.fields["pages"]]


def _died_of_sigbus(history: Sequence[Entry], token: int, rank: int) -> bool:
    """The first failure after the rank was let go is its own."""
    released = next(e.number for e in history if e.name == "released" and e.fields["token"] == token)
    failure = next((e.fields for e in history if e.name == "failure" and e.number > released), None)
    return failure is not None and (failure["rank"], failure["cause"]) == (rank, _SIGBUS)


def recovered_by_shadows(history: Sequence[Entry]) -> CheckResult:
    """Every fault that waited for shadows was recovered from by shadows of the level it waited for."""
    name = "shadows"
    planned = {e.fields["token"]: e.fields for e in history if e.name == "planned"}
    waited = {token for token, fault in planned.items() if "gate" in fault}
    level = {e.fields["token"]: e.fields["level"] for e in history if e.name == "gate-opened"}
    taken = 0
    for recovery in recoveries_in(history):
        fired = [e.fields["token"] for e in recovery.entries if e.name in ENDINGS and e.fields["token"] in waited]
        came = recovery.all("recovered")[-1].fields["level"]
        for token in fired:
            if came != level.get(token):
                what = f"{planned[token]['fault_id']} #{planned[token]['occurrence']}"
                return _false(name, f"the recovery from {what} went by {came}, shadows of {level.get(token)} stood by")
        taken += len(fired)
    if taken < len(waited):
        return _unknown(name, f"{taken} of {len(waited)} faults that waited for shadows had a recovery")
    return _true(name, f"shadows took over in {taken} of {taken} recoveries that waited for them", {"taken": taken})


def recoveries_witnessed(history: Sequence[Entry], expected: int, rules: Mapping[str, int] | None) -> CheckResult:
    """As many recoveries as expected, by the expected rules, each with its failure, fence and decision.

    ``rules`` says how many go by which rule, None that any will do.

    A failure that no fault preceded is the system's own, even where a recovery under way absorbs it.
    """
    name = "recoveries"
    stray = _unprovoked_failure(history)
    if stray is not None:
        return _false(name, f"rank {stray.fields['rank']} failed by itself, no fault had fired: {stray.fields['cause']}")
    found = recoveries_in(history)
    for number, recovery in enumerate(found, start=1):
        absent = [n for n in ("failure", "fenced", "decided") if recovery.first(n) is None]
        if absent:
            return _false(name, f"recovery {number} ended without a '{absent[0]}' event")
        decided = recovery.all("decided")[-1].fields
        if decided["action"] != recovery.action or decided["epoch"] != recovery.epoch:
            return _false(name, f"recovery {number} did not do what was decided: {decided['action']} {decided['iteration']}")
        if rules is not None and recovery.action not in rules:
            wanted = " or ".join(rules)
            return _false(name, f"recovery {number} went by {recovery.action}, expected {wanted}: {decided['reason']}")
    by = Counter(recovery.action for recovery in found)
    if len(found) == expected:
        if rules is not None and by != Counter(rules):
            return _false(name, f"recoveries went by {_counted(by)}, expected {_counted(rules)}")
        went = f" by {_counted(by)}" if found else ""
        return _true(name, f"{expected} of {expected} recoveries{went}", {"recoveries": expected, "rules": dict(by)})
    reason = f"{len(found)} of {expected} recoveries; a recovery that is hit by another fault counts once"
    status, why = outcome_in(history)
    if len(found) < expected and status != COMPLETED:
        return _unknown(name, f"{reason}; the run ended early: {why}")
    if len(found) < expected and any(e.name == "missed" for e in history):
        return _unknown(name, f"{reason}; not every fault fired")
    return _false(name, reason)


def _counted(rules: Mapping[str, int]) -> str:
    """``restart (2), finish (1)``"""
    return ", ".join(f"{rule} ({n})" for rule, n in rules.items())


def _unprovoked_failure(history: Sequence[Entry]) -> Entry | None:
    """The first failure without a fault between it and the failure before it."""
    provoked = False
    for entry in history:
        if entry.name in ("fired", "killed"):
            provoked = True
        elif entry.name == "failure":
            if not provoked:
                return entry
            provoked = False
    return None


def exact(comparison: Comparison | LedgerError, history: Sequence[Entry], *, refusal: bool = False) -> CheckResult:
    """Loss and state of every rank at every iteration equal the reference. A run cut short is judged as far as it came, which
    is enough where it was expected to refuse.

    A torn or missing record of a completed run, which cannot be compared, is as bad as a wrong one.
    """
    name = "exact"
    if isinstance(comparison, LedgerError):
        return _false(name, str(comparison))
    details = {"loss_exact": comparison.loss_exact, "state_exact": comparison.state_exact}
    if comparison.first is None:
        return _true(name, comparison.describe(), details)
    status, why = outcome_in(history)
    first = comparison.first if status == COMPLETED else comparison.first_recorded
    whole_until_then = comparison.first.iteration == comparison.state_exact + 1 > 1
    if first is None and refusal and status == REFUSED and whole_until_then:
        return _true(name, f"{comparison.describe()}, as far as it came", details)
    if first is None:
        return _unknown(name, f"{comparison.describe()}; the run ended early: {why}", details)
    before = _fault_before(history, first.iteration)
    return _false(name, f"first divergence: {first.describe()}; {before}{comparison.describe()}", details)


def _fault_before(history: Sequence[Entry], iteration: int) -> str:
    """The last fault that fired up to the iteration: the first suspect."""
    planned = {e.fields["token"]: e.fields for e in history if e.name == "planned"}
    fired = [planned[e.fields["token"]] for e in history if e.name == "fired"]
    before = [f for f in fired if f["iteration"] <= iteration]
    return f"the fault before it is {before[-1]['fault_id']} #{before[-1]['occurrence']}; " if before else ""


def steps_skipped(reference: Mapping[int, Ledger], history: Sequence[Entry], expected: int) -> CheckResult:
    """As many steps as expected were skipped, on all ranks alike, and a fault fired in one of them (U25).

    Judged on the reference: what the run skipped is part of every comparison with it.
    """
    name = "skipped"
    by_rank = [{t for t, record in ledger.records.items() if record.result.skipped} for ledger in reference.values()]
    skipped = set.union(*by_rank)
    if any(of_rank != skipped for of_rank in by_rank):
        return _false(name, "a step was skipped on one rank and not on another")
    if len(skipped) != expected:
        which = f", those of iterations {', '.join(map(str, sorted(skipped)))}" if skipped else ""
        return _false(name, f"{len(skipped)} steps were skipped{which}; expected {expected}")
    planned = {e.fields["token"]: e.fields["iteration"] for e in history if e.name == "planned"}
    fired = [planned[e.fields["token"]] for e in history if e.name == "fired"]
    hit = sum(iteration in skipped for iteration in fired)
    if planned and not hit:
        return _false(name, f"{expected} steps were skipped, and no fault fired in one of them")
    return _true(name, f"{expected} steps skipped, {hit} of {len(fired)} faults fired in one of them", {"skipped": expected})


def control_diverged(history: Sequence[Entry]) -> CheckResult:
    """The same faults without the resumable updater must be seen to do harm, or the scenario shows nothing.

    A control that diverges before the first fault is broken by itself and shows nothing either. A fault in t may already show
    in t - 1, which the recovery records again.
    """
    name = "control"
    diverged = next((e for e in history if e.name == "diverged"), None)
    if diverged is not None:
        before = [e for e in history if e.number < diverged.number]
        if not _fault_before(before, diverged.fields["iteration"] + 1):
            return _false(name, f"the control diverged before any fault fired: {diverged.fields['what']}")
        return _true(name, f"without the updater it diverges: {diverged.fields['what']}")
    status, reason = outcome_in(history)
    if status == COMPLETED:
        return _false(name, "the control equals the reference: these faults harm nothing, so passing shows nothing")
    return _unknown(name, f"the control neither diverged nor completed: {reason}")


def parity_equal(history: Sequence[Entry], world_size: int, iterations: int, *, refusal: bool = False) -> CheckResult:
    """U55: after every recovery and at the end, on every rank, both tiers equal a re-encoding of their data.

    A run that was expected to refuse has no end to audit.
    """
    name = "parity"
    audits = [e.fields for e in history if e.name == "audit"]
    for a in audits:
        if a["tier1_wrong"] or a["tier2_wrong"]:
            wrong = f"tier 1 of groups {a['tier1_wrong']}, tier 2 of groups {a['tier2_wrong']}"
            return _false(name, f"stale parity on rank {a['rank']} after iteration {a['iteration']}: {wrong}")
        if not a["groups"]:
            return _unknown(name, f"rank {a['rank']} audited no group after iteration {a['iteration']}")
    seen = {(a["rank"], a["epoch"]) for a in audits}
    for recovery in recoveries_in(history):
        for rank in range(world_size):
            if (rank, recovery.epoch) not in seen:
                return _unknown(name, f"rank {rank} did not audit its parity after the recovery of epoch {recovery.epoch}")
    at_end = {a["rank"] for a in audits if a["iteration"] >= iterations}
    absent = sorted(set(range(world_size)) - at_end)
    if absent and not (refusal and outcome_in(history)[0] == REFUSED):
        return _unknown(name, f"rank {absent[0]} did not audit its parity at the end")
    return _true(name, f"both tiers equal a re-encoding in {len(audits)} of {len(audits)} audits", {"audits": len(audits)})


def refused(history: Sequence[Entry], pattern: str) -> CheckResult:
    """The run ended by the system's own decision, for a reason in which ``pattern`` is found (U54)."""
    name = "refused"
    status, reason = outcome_in(history)
    if status == REFUSED and re.search(pattern, reason):
        return _true(name, f"refused as expected: {reason}")
    if status in (MISSED, "absent"):
        return _unknown(name, f"the run was stopped: {reason}")
    if status == REFUSED:
        return _false(name, f"refused for another reason than {pattern!r}: {reason}")
    return _false(name, f"expected was a refusal with {pattern!r}; the run {status}{': ' + reason if reason else ''}")


def completed(history: Sequence[Entry]) -> CheckResult:
    """The run came to its last iteration with all of its services.

    A run that the bench stopped for a fault that did not fire is not judged.
    """
    name = "completed"
    ended = next((e.fields for e in history if e.name == "service-ended"), None)
    if ended is not None:
        return _false(name, f"{ended['service']} {ended['cause']}")
    status, reason = outcome_in(history)
    if status == COMPLETED:
        return _true(name, "the run completed")
    if status in (MISSED, "absent"):
        return _unknown(name, f"the run was stopped: {reason}")
    return _false(name, f"{status}: {reason}")


def in_time(history: Sequence[Entry], deadline_s: float) -> CheckResult:
    """Each recovery, or the refusal of it, came within ``deadline_s`` of the last kill before it."""
    name = "deadline"
    killed: Entry | None = None
    slowest, what = 0.0, "no fault had to be recovered from"
    for entry in history:
        if entry.name in ENDINGS:
            killed = entry
        done = entry.name == "recovered" or (entry.name == "outcome" and entry.fields["status"] == REFUSED)
        if done and killed is not None and entry.elapsed_s - killed.elapsed_s >= slowest:
            slowest = entry.elapsed_s - killed.elapsed_s
            subject = "the slowest recovery" if entry.name == "recovered" else "the refusal"
            what = f"{subject} took {slowest:.2f} s of {deadline_s:g} s"
        if done:
            killed = None
    if slowest > deadline_s:
        return _false(name, f"{what} that are allowed")
    status, reason = outcome_in(history)
    if killed is not None and status == MISSED:
        return _unknown(name, f"the run was stopped before it recovered from {killed.fields['label']}: {reason}")
    if killed is not None and status != COMPLETED:
        return _false(name, f"no recovery followed {killed.fields['label']} within {deadline_s:g} s")
    return _true(name, what, {"slowest_s": slowest})


def no_residue(history: Sequence[Entry]) -> CheckResult:
    """No job left a process, socket, memory file or descriptor. Judges the journal of all jobs together."""
    name = "residue"
    leaks = [f"{e.job}: {leak}" for e in history if e.name == "residue" for leak in e.fields["leaks"]]
    if leaks:
        return _false(name, f"{len(leaks)} left behind, first {leaks[0]}", {"leaks": leaks})
    never_up = {e.job for e in history if e.name == "outcome" and e.fields["status"] == NEVER_STARTED}
    searched = {e.job for e in history if e.name == "residue"}
    for job in dict.fromkeys(e.job for e in history if e.name == "started"):
        if job not in searched | never_up:
            return _unknown(name, f"{job} was started, and nobody looked for what it left")
    return _true(name, f"{len(searched)} jobs left nothing behind")


def _true(name: str, reason: str, details: Mapping[str, Any] | None = None) -> CheckResult:
    return CheckResult(name=name, judgement=Judgement.TRUE, reason=reason, details=details or {})


def _false(name: str, reason: str, details: Mapping[str, Any] | None = None) -> CheckResult:
    return CheckResult(name=name, judgement=Judgement.FALSE, reason=reason, details=details or {})


def _unknown(name: str, reason: str, details: Mapping[str, Any] | None = None) -> CheckResult:
    return CheckResult(name=name, judgement=Judgement.UNKNOWN, reason=reason, details=details or {})
