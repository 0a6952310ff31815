"""The judge's check: recorded runs that differ from a right one in a single thing, which nobody may overlook."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chaos import verdict
from chaos.verdict import Verdict
from leto.core.records import IterationResult
from verify import checkers, compare, losses
from verify.checkers import CheckResult, Judgement
from verify.history import SYSTEM, Entry
from verify.ledger import Ledger, Record

Run = Mapping[int, Ledger]
ITERATIONS = 3
WORLD_SIZE = 2
NAMES = ("master/w", "exp_avg/w", "exp_avg_sq/w", "param/w")


def overlooked() -> str | None:
    """The first difference that is not seen, None when all are, and a right run is called one."""
    right = _run()
    if not compare.compare_runs(right, _run(), ITERATIONS).equal:
        return "equal runs"
    for name, (expected, actual) in _pairs(right).items():
        if compare.compare_runs(expected, actual, ITERATIONS).equal:
            return name
    return next((name for name, passes in _HISTORIES.items() if passes()), None)


def _record(t: int) -> Record:
    result = IterationResult(iteration=t, loss=(1.0 / t).hex(), grad_norm=(2.0).hex(), skipped=False, samples=(t,))
    return Record(result=result, state={name: f"{name}@{t}" for name in NAMES}, live={"generators/torch": f"g{t}"})


def _run() -> dict[int, Ledger]:
    records = {t: _record(t) for t in range(1, ITERATIONS + 1)}
    return {rank: Ledger(rank=rank, world_size=WORLD_SIZE, names=NAMES, records=records) for rank in range(WORLD_SIZE)}


def _changed(rank: int, iteration: int, change: Callable[[Record], Record | None]) -> Run:
    run = _run()
    records = {**run[rank].records, iteration: change(run[rank].records[iteration])}
    run[rank] = replace(run[rank], records={t: record for t, record in records.items() if record is not None})
    return run


def _without(rank: int, iteration: int) -> Run:
    return _changed(rank, iteration, lambda record: None)


def _with_result(rank: int, iteration: int, **fields: Any) -> Run:
    return _changed(rank, iteration, lambda record: replace(record, result=replace(record.result, **fields)))


def _with_loss(iteration: int, loss: float) -> Run:
    return _with_result(0, iteration, loss=loss.hex())


def _with_state(rank: int, iteration: int, name: str) -> Run:
    return _changed(rank, iteration, lambda record: replace(record, state={**record.state, name: "other"}))


def _pairs(right: Run) -> dict[str, tuple[Run, Run]]:
    """What is expected and what is recorded."""
    return {
        "one ULP of a loss": (right, _with_loss(2, math.nextafter(0.5, 1.0))),
        "the sign of zero": (_with_loss(1, 0.0), _with_loss(1, -0.0)),
        "a NaN where a number was": (right, _with_loss(1, math.nan)),
        "a number where a NaN was": (_with_loss(1, math.nan), right),
        "a missing iteration": (right, _without(0, 2)),
        "an iteration missing in both": (_without(0, 2), _without(0, 2)),
        "a missing last iteration": (right, _without(0, ITERATIONS)),
        "the state alone": (right, _with_state(0, 1, "master/w")),
        "the state of the last iteration": (right, _with_state(0, ITERATIONS, "master/w")),
        "derived parameters only": (right, _with_state(0, 2, "param/w")),
        "the second rank only": (right, _with_state(1, 2, "master/w")),
        "data one batch off": (right, _with_result(0, 2, samples=(3,))),
        "a generator": (right, _changed(0, 2, lambda r: replace(r, live={"generators/torch": "other"}))),
        "a wrong record that a right one replaced": (right, _changed(0, 2, lambda r: replace(r, replaced=(_record(3),)))),
        "a record replaced in the reference": (_changed(0, 1, lambda r: replace(r, replaced=(_record(2),))), right),
        "a tensor that is absent": (right, _changed(0, 2, lambda r: replace(r, state={"master/w": "master/w@2"}))),
    }


def _history(*entries: tuple[str, dict[str, Any]]) -> list[Entry]:
    return [
        Entry(number=n, utc="", elapsed_s=float(n), job="run", source=SYSTEM, name=name, fields=fields)
        for n, (name, fields) in enumerate(entries, start=1)
    ]


_PLANNED = ("planned", {"token": 1, "fault_id": "kill", "occurrence": 1, "action": "kill", "iteration": 2, "rank": 0})


def _unparked_fault_passes() -> bool:
    history = _history(_PLANNED, ("fired", {"token": 1}), ("killed", {"token": 1, "label": "kill #1"}))
    return checkers.faults_fired(history).judgement is Judgement.TRUE


def _page_nobody_found_passes() -> bool:
    lost = {"token": 1, "rank": 0, "page_class": "coded", "pages": ["master:1", "master:2"]}
    found = ("localised", {"rank": 0, "pages": ["master:1"]})
    return losses.losses_repaired(_history(("lose", lost), ("failure", {"rank": 0}), found)).judgement is not Judgement.FALSE


def _missing_audit_passes() -> bool:
    """Rank 1 said nothing at the end."""
    audit = {"rank": 0, "epoch": 1, "iteration": ITERATIONS, "groups": 2, "tier1_wrong": [], "tier2_wrong": []}
    return checkers.parity_equal(_history(("audit", audit)), WORLD_SIZE, ITERATIONS).judgement is Judgement.TRUE


def _unknown_check_passes() -> bool:
    results = [
        CheckResult(name="reference-equal", judgement=Judgement.TRUE, reason="two references are equal"),
        CheckResult(name="parity", judgement=Judgement.UNKNOWN, reason="rank 1 did not audit its parity"),
    ]
    return verdict.conclude(results).verdict is Verdict.PASS


_HISTORIES = {
    "a fault that nobody saw parked": _unparked_fault_passes,
    "a lost page that was not found": _page_nobody_found_passes,
    "an audit that is missing": _missing_audit_passes,
    "a verdict on what is unknown": _unknown_check_passes,
}
