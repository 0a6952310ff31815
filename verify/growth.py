"""What a job holds must not grow with the number of its recoveries."""

from __future__ import annotations

from collections.abc import Sequence

from verify.checkers import CheckResult, Judgement
from verify.history import Entry

_NAME = "growth"
_COUNTS = ("processes", "descriptors")
_MOST_PRIVATE = 1.25  # of the first sample: allocators keep more or less of what they freed, a leak adds up


def nothing_grows(history: Sequence[Entry]) -> CheckResult:
    """Before every fault that waited for shadows the same processes stand still, so that they hold the same.

    No more processes and descriptors than before the first of these faults, and not much more private memory.
    """
    waited = {e.fields["token"] for e in history if e.name == "gate-opened"}
    samples = [e.fields for e in history if e.name == "resources" and e.fields["token"] in waited]
    if not samples:
        return CheckResult(name=_NAME, judgement=Judgement.UNKNOWN, reason="no fault that waited for shadows was sampled")
    first, *later = samples
    limits = {**{key: first[key] for key in _COUNTS}, "private_bytes": int(_MOST_PRIVATE * first["private_bytes"])}
    for sample in later:
        for key, most in limits.items():
            if sample[key] > most:
                reason = f"{sample[key]} {key} before {sample['label']}, {first[key]} before {first['label']}"
                return CheckResult(name=_NAME, judgement=Judgement.FALSE, reason=reason)
    most_private = max(sample["private_bytes"] for sample in samples) >> 20
    held = f"{first['processes']} processes, {first['descriptors']} descriptors, at most {most_private} MiB of private memory"
    return CheckResult(name=_NAME, judgement=Judgement.TRUE, reason=f"before each of {len(samples)} faults: {held}")
