"""Planted comparator bugs: each must be caught by at least one probe, or the comparison proves nothing.

A probe is a pair of runs that differ in exactly one way; a sound comparator calls every probe unequal. Each planted bug makes
the comparator blind to one class, and the probes must notice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import pytest

from leto.core.records import IterationResult
from verify import compare
from verify.compare import Divergence, Kind, compare_runs
from verify.ledger import Ledger, Record

Run = dict[int, Ledger]
ITERATIONS = 3
NAMES = ("master/w", "exp_avg/w", "exp_avg_sq/w", "param/w")


def record(t: int) -> Record:
    result = IterationResult(iteration=t, loss=(1.0 / t).hex(), grad_norm=(2.0).hex(), skipped=False, samples=(t,))
    return Record(result=result, state={name: f"{name}@{t}" for name in NAMES}, live={"generators/torch": f"g{t}"})


def run() -> Run:
    return {
        rank: Ledger(
            rank=rank,
            world_size=2,
            names=NAMES,
            records={t: record(t) for t in range(1, ITERATIONS + 1)},
        )
        for rank in range(2)
    }


def changed(rank: int, iteration: int, change: Callable[[Record], Record]) -> Run:
    altered = run()
    records = dict(altered[rank].records)
    records[iteration] = change(records[iteration])
    altered[rank] = dataclasses.replace(altered[rank], records=records)
    return altered


def without(rank: int, iteration: int) -> Run:
    altered = run()
    records = {t: r for t, r in altered[rank].records.items() if t != iteration}
    altered[rank] = dataclasses.replace(altered[rank], records=records)
    return altered


def with_loss(rank: int, iteration: int, loss: float) -> Run:
    return changed(rank, iteration, lambda r: dataclasses.replace(r, result=dataclasses.replace(r.result, loss=loss.hex())))


def with_state(rank: int, iteration: int, name: str) -> Run:
    return changed(rank, iteration, lambda r: dataclasses.replace(r, state={**r.state, name: "other"}))


def with_samples(rank: int, iteration: int, *samples: int) -> Run:
    return changed(rank, iteration, lambda r: dataclasses.replace(r, result=dataclasses.replace(r.result, samples=samples)))


PROBES: dict[str, tuple[Run, Run]] = {
    "one ULP of a loss": (run(), with_loss(0, 2, math.nextafter(0.5, 1.0))),
    "the sign of zero": (with_loss(1, 1, 0.0), with_loss(1, 1, -0.0)),
    "a NaN where a number was": (run(), with_loss(0, 1, math.nan)),
    "a number where a NaN was": (with_loss(0, 1, math.nan), run()),
    "a missing iteration": (run(), without(0, 2)),
    "a missing last iteration": (run(), without(1, ITERATIONS)),
    "an iteration missing in both": (without(0, 2), without(0, 2)),
    "the state of the last iteration": (run(), with_state(1, ITERATIONS, "master/w")),
    "derived parameters only": (run(), with_state(0, 2, "param/w")),
    "the second rank only": (run(), with_state(1, 2, "master/w")),
    "data one batch off": (run(), with_samples(1, 2, 3)),
    "a generator": (run(), changed(0, 2, lambda r: dataclasses.replace(r, live={"generators/torch": "other"}))),
    "a wrong record that a right one replaced": (run(), changed(0, 2, lambda r: dataclasses.replace(r, replaced=(record(3),)))),
    "a record replaced in the reference": (changed(1, 3, lambda r: dataclasses.replace(r, replaced=(record(2),))), run()),
    "a tensor that is absent": (run(), changed(0, 2, lambda r: dataclasses.replace(r, state={"master/w": "master/w@2"}))),
}


def blind_spots() -> list[str]:
    return [name for name, (expected, actual) in PROBES.items() if compare_runs(expected, actual, ITERATIONS).equal]


def test_the_comparator_sees_every_probe() -> None:
    assert blind_spots() == []
    assert compare_runs(run(), run(), ITERATIONS).equal


Original = Callable[[Record | None, Record | None, int, int], Iterator[Divergence]]
SOUND: Original = compare.compare_records


def dropping(unwanted: Callable[[Divergence], bool]) -> Original:
    def planted(expected: Record | None, actual: Record | None, iteration: int, rank: int) -> Iterator[Divergence]:
        return (d for d in SOUND(expected, actual, iteration, rank) if not unwanted(d))

    return planted


def _close(d: Divergence) -> bool:
    return d.kind is Kind.LOSS and math.isclose(float.fromhex(d.expected), float.fromhex(d.actual), rel_tol=1e-12)


def _numerically_equal(d: Divergence) -> bool:
    return d.kind is Kind.LOSS and float.fromhex(d.expected) == float.fromhex(d.actual)


def _any_nan(d: Divergence) -> bool:
    return d.kind is Kind.LOSS and (math.isnan(float.fromhex(d.expected)) or math.isnan(float.fromhex(d.actual)))


PLANTED: dict[str, Original] = {
    "forgives one ULP": dropping(_close),
    "compares zeros as numbers": dropping(_numerically_equal),
    "treats NaN as equal to anything": dropping(_any_nan),
    "skips a missing record": dropping(lambda d: d.kind is Kind.MISSING),
    "compares the loss only": dropping(lambda d: d.kind not in (Kind.LOSS, Kind.MISSING)),
    "ignores derived parameters": dropping(lambda d: d.kind is Kind.DERIVED),
    "ignores samples": dropping(lambda d: d.kind is Kind.SAMPLES),
    "looks at the last recording only": dropping(lambda d: d.kind is Kind.REPLACED),
    "ignores live state": dropping(lambda d: d.kind is Kind.LIVE),
    "compares common names only": dropping(lambda d: d.kind is Kind.NAMES),
    "looks at rank 0 only": dropping(lambda d: d.rank != 0),
    "stops before the last iteration": dropping(lambda d: d.iteration == ITERATIONS),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "compare_records", PLANTED[bug])
    assert blind_spots() != []
